/* bench_calibrate.c - maxc bench calibrate: what this machine's kernels reach, as a chip for maxc
 * plan.
 *
 *     maxc bench calibrate output=mine.yml dtype=bfloat16
 *     maxc plan model_name=gpt2-124m compile_topology=minex1 chip_file=mine.yml
 *
 * Where `name` is a chip of configs/chips.yml its peaks and links stay, and the file has what was
 * measured.
 */
#include "cmd/bench.h"

#include "base/io.h"
#include "cmd/calibrate.h"
#include "device/chips.h"
#include <stdio.h>

/* Peaks of a chip that no table has: what was measured. */
static void unknown_chip(const mx_calibration *m, double best, mx_str *out)
{
    int units = mx_session_traits(m->session)->chip.units;
    mx_str_addf(out, "  tflops: {bfloat16: %.6g, float32: %.6g}\n  units: %d\n", best / 1e12,
                best / 1e12, units ? units : 1);
}

static mx_status write_chip(const mx_invocation *inv, const mx_calibration *m, mx_str *out)
{
    const char *name = mx_config_text(inv->config, "name");
    double best = 0, stream = 0, room = (double)mx_session_memory_available(m->session).bytes;
    bool known = mx_chip_find(name) != NULL;
    mx_str points = {0}, narrow = {0};
    mx_status st;
    MX_TRY_OUT(st, mx_calibrate_gemms(m, &points, &best));
    MX_TRY_OUT(st, mx_calibrate_stream(m, &stream));
    MX_TRY_OUT(st, mx_calibrate_narrow(m, stream, &narrow));
    MX_TRY_OUT(st, mx_calibrate_grouped(m, &points));
    mx_str_addf(out, "# Measured by maxc bench calibrate, in %s.\n%s:\n",
                mx_config_text(inv->config, "dtype"), name);
    if (!known) {
        mx_str_addf(out, "  memory_gib: %.4g\n", room / 0x1p30);
        unknown_chip(m, best, out);
    }
    mx_str_addf(out, "  memory_gbs: %.5g\n  memory_share: 1\n  k_half: %d\n", stream / 1e9,
                m->accelerator ? 64 : 0);
    mx_str_addf(out, "  sustained: {bfloat16: %.6g", best / 1e12);
    if (!known)
        mx_str_addf(out, ", float32: %.6g", best / 1e12);
    mx_str_addf(out, "%s}\n%s", mx_str_text(&narrow), mx_str_text(&points));
    MX_TRY_OUT(st, mx_calibrate_attention(m, out));
    MX_TRY_OUT(st, mx_calibrate_recurrence(m, out));
out:
    mx_str_fini(&points);
    mx_str_fini(&narrow);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *path = mx_config_text(c, "output");
    mx_calibration m = {0};
    mx_str out = {0};
    mx_status st;
    if (!*path)
        return mx_fail(MX_USAGE,
                       "give output=FILE, the chip that maxc plan then takes as chip_file=FILE");
    if (!mx_dtype_parse(mx_config_text(c, "dtype"), &m.dtype))
        return mx_fail(MX_USAGE, "dtype `%s` cannot be measured; use float32 or bfloat16",
                       mx_config_text(c, "dtype"));
    MX_TRY_OUT(st, mx_session_open(&m.session, mx_config_text(c, "device"),
                                   (int)mx_config_int(c, "num_threads")));
    m.accelerator = !mx_session_traits(m.session)->host_memory;
    m.enough = mx_config_float(c, "seconds");
    MX_TRY_OUT(st, write_chip(inv, &m, &out));
    MX_TRY_OUT(st, mx_io_write_output(path, out.text, out.len));
    printf("%s%s: use it with maxc plan compile_topology=%sx1 chip_file=%s\n", out.text, path,
           mx_config_text(c, "name"), path);
out:
    mx_session_close(m.session);
    mx_str_fini(&out);
    return st;
}

const mx_bench mx_bench_calibrate = {"calibrate", "this machine's kernels, as a chip for maxc plan",
                                     run};
