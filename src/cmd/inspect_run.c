/* inspect_run.c - a run folder in a few lines: how it was started, how far it is, what it has
 * saved.
 *
 *     RUN/command.txt      the command
 *     RUN/metrics.jsonl    where it is (run_summary.h)
 *     RUN/checkpoints/N/   checkpoints, by rising step
 *     RUN/goodput.json     where the time went, over all restarts
 */
#include "cmd/inspect_run.h"

#include "base/io.h"
#include "cmd/run_summary.h"
#include "store/checkpoint_read.h"
#include "train/report/goodput.h"
#include <math.h>
#include <string.h>

static void add_number(mx_str *out, const char *format, double v)
{
    if (!isnan(v))
        mx_str_addf(out, format, v);
}

static void add_progress(const char *path, mx_arena *a, mx_str *out)
{
    mx_run_summary g;
    char when[64];
    mx_run_summary_at(&g, path, a);
    mx_str_addf(out, "state: %s\n", g.state);
    if (isnan(g.step)) {
        mx_str_add(out, "steps: none is recorded\n");
        return;
    }
    mx_str_addf(out, "last step: %.0f at %s\n", g.step, mx_format_time(when, sizeof when, g.time));
    add_number(out, "steps: %.0f\n", g.steps);
    add_number(out, "loss: %.4f\n", g.loss);
    add_number(out, "evaluation loss: %.4f\n", g.eval_loss);
    add_number(out, "learning rate: %.3g\n", g.learning_rate);
    add_number(out, "tokens: %.0f\n", g.tokens);
    add_number(out, "tokens per second: %.0f\n", g.tokens_per_second);
    add_number(out, "skipped steps: %.0f\n", g.skipped);
    add_number(out, "rollbacks: %.0f\n", g.rollbacks);
}

static void add_command(const char *path, mx_arena *a, mx_str *out)
{
    char *text = NULL;
    size_t n = 0;
    mx_status_free(
        mx_io_read_file(NULL, mx_arena_printf(a, "%s/command.txt", path), 1 << 20, &text, &n));
    if (n)
        mx_str_addf(out, "command: %.*s\n", (int)strcspn(text, "\n"), text);
    mx_free(text);
}

static void add_goodput(const char *path, mx_str *out)
{
    mx_goodput g;
    mx_status st = mx_goodput_read(&g, path);
    if (!st) {
        mx_str_addf(out, "attempts: %lld\nsteps lost: %lld\ngoodput: %.4f\n", (long long)g.attempts,
                    (long long)g.steps_lost, mx_goodput_fraction(&g));
        for (int i = 0; i < MX_GOODPUT_N; i++)
            if (g.seconds[i] > 0)
                mx_str_addf(out, "seconds of %s: %.3f\n", mx_goodput_name[i], g.seconds[i]);
    }
    mx_status_free(st); /* a run without an account has a story all the same */
}

mx_status mx_inspect_run(const char *path, mx_str *out)
{
    mx_arena arena = {0};
    mx_ckpt_entry *e = NULL;
    int n = 0;
    mx_str_addf(out, "run: %s\n", path);
    add_command(path, &arena, out);
    add_progress(path, &arena, out);
    add_goodput(path, out);
    mx_status st = mx_ckpt_list(mx_arena_printf(&arena, "%s/checkpoints", path), &arena, &e, &n);
    if (!st && n == 0)
        mx_str_add(out, "checkpoints: none\n");
    for (int i = 0; !st && i < n; i++) {
        mx_status damage = mx_ckpt_verify(e[i].path, MX_CHECK_SIZES, 1);
        mx_str_addf(out, "checkpoint: %s%s%s\n", e[i].path, damage ? ": " : "",
                    damage ? mx_status_text(damage) : "");
        mx_status_free(damage);
    }
    mx_arena_fini(&arena);
    return st;
}
