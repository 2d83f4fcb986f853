/* verify.c - maxc verify MODEL: does this model compute what it should? */
#include "cmd/verb.h"
#include "exec/step_config.h"
#include "train/check/verify.h"

#include <stdio.h>
#include <string.h>

static void print_text(const mx_verify_report *r)
{
    printf("%-16s %12s %12s %10s\n", "quantity", "error", "magnitude", "ratio");
    for (int i = 0; i < r->n; i++) {
        const mx_verify_row *q = &r->row[i];
        double ratio = q->magnitude > 0 ? q->error / q->magnitude : q->error;
        printf("%-16s %12.4g %12.4g %10.2e  %s%s%s\n", q->name, q->error, q->magnitude, ratio,
               q->ok ? "ok" : "FAIL", q->worst[0] ? "  " : "", q->worst);
    }
}

static void print_json(const mx_verify_report *r)
{
    printf("[");
    for (int i = 0; i < r->n; i++) {
        const mx_verify_row *q = &r->row[i];
        printf("%s{\"quantity\": \"%s\", \"error\": %.9g, \"magnitude\": %.9g, \"worst\": \"%s\", "
               "\"ok\": %s}", i ? ",\n " : "", q->name, q->error, q->magnitude, q->worst,
               q->ok ? "true" : "false");
    }
    printf("]\n");
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_verify_options o = {.golden = mx_config_text(c, "golden"),
                           .tolerance = mx_config_float(c, "tolerance"),
                           .device = mx_config_text(c, "device")};
    if (strcmp(o.device, "auto") == 0)
        o.device = "cpu"; /* the specification, unless asked otherwise */
    mx_verify_report report;
    MX_TRY(mx_compute_dtype(c, "float32", &o.compile.compute));
    o.compile.remat.policy =
        mx_config_is_set(c, "remat_policy") ? mx_config_text(c, "remat_policy") : "none";
    const mx_device_kind *kind = mx_device_kind_find(o.device);
    if (mx_config_bool(c, "exact") && !(kind && kind->traits->host_memory))
        return mx_fail(MX_USAGE, "exact=true computes in float64 on the CPU; leave out device=%s",
                       o.device);
    if (mx_config_bool(c, "exact"))
        o.compile.compute = MX_F64;
    o.compile.no_fuse = mx_config_bool(c, "no_fuse");
    o.compile.dump_ir = mx_config_text(c, "dump_ir");
    mx_mesh_plan mesh = {0};
    mx_status st = mx_mesh_configure(&mesh, c, 1);
    if (!mx_config_is_users(c, "sharding_tolerance"))
        mesh.how.sharding_tolerance = 1; /* models to be verified are often small */
    o.mesh = &mesh;
    o.keys = c;
    if (!st)
        st = mx_verify(inv->args[0], &o, &report);
    mx_mesh_plan_fini(&mesh);
    MX_TRY(st);
    strcmp(mx_config_text(c, "format"), "json") == 0 ? print_json(&report) : print_text(&report);
    bool rounds = o.compile.compute == MX_F32 && mx_device_kind_find(o.device)->traits->host_memory;
    for (int i = 0; i < report.n; i++)
        if (!report.row[i].ok)
            return mx_fail(MX_CHECK_FAILED, "%s: %s is out of tolerance%s", inv->args[0],
                           report.row[i].name,
                           rounds ? "; exact=true says whether float32's rounding is the cause"
                                  : "");
    return MX_OK;
}

static const mx_key keys[] = {
    MX_KEY_FORMAT,
    {"golden", MX_KEY_STRING, 0, "", 0,
     "file with the recorded numbers; empty: MODEL/golden.safetensors", 0, MX_KEY_PATH,
     .example = "golden=other.safetensors"},
    {"tolerance", MX_KEY_FLOAT, 0, "2e-4", "0..", "largest error over largest magnitude",
     .example = "tolerance=1e-12"},
    {"no_fuse", MX_KEY_BOOL, 0, "false", 0, "run every elementwise op alone",
     .example = "no_fuse=true dump_ir=fuse"},
    {"exact", MX_KEY_BOOL, 0, "false", 0,
     "float64, so that only the recorded numbers are rounded; logits, loss and gradients",
     .example = "exact=true"},
    {0},
};

const mx_verb mx_verb_verify = {
    .name = "verify",
    .doc = "compare a model with recorded numbers",
    .usage = "MODEL [golden=FILE] [tolerance=2e-4] [exact=true] [dtype=...] [device=cpu|cuda] "
             "[mesh=fsdp=2,tensor=2]",
    .help = "Reads input_ids, labels, logits, loss, adamw_losses, adamw_grad_norms and generated\n"
            "from the golden file as far as present, and gradients from grad.safetensors beside\n"
            "it. mesh= runs it on as many virtual ranks. Exit status 0 only when everything\n"
            "present was checked and is within tolerance.",
    .min_args = 1,
    .max_args = 1,
    .keys = keys,
    .run = run,
};
