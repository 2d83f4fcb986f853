/* inspect_run.c - a run folder in a few lines: how it was started, how far it is, what it has
 * saved.
 *
 *     RUN/command.txt      the command
 *     RUN/metrics.jsonl    one object per step; the last whole line is where the run is
 *     RUN/checkpoints/N/   checkpoints, by rising step
 *     RUN/goodput.json     where the time went, over all restarts
 * The run may be going on meanwhile: a last line without its end is left out, nothing is locked.
 */
#include "cmd/inspect_run.h"

#include "base/json_doc.h"
#include "store/checkpoint_read.h"
#include "train/curve.h"
#include "train/goodput.h"
#include "train/metrics.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAIL_BYTES = 1 << 16 };

static bool has(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, R_OK) == 0;
}

bool mx_is_run_folder(const char *path)
{
    return has(path, "config.yml") && (has(path, "checkpoints") || has(path, "metrics.jsonl"));
}

/* The last whole line of a file, in `buf`; NULL when there is none. */
static char *last_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    long at = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    at = at > (long)cap - 1 ? at - (long)cap + 1 : 0;
    size_t n = fseek(f, at, SEEK_SET) == 0 ? fread(buf, 1, cap - 1, f) : 0;
    fclose(f);
    while (n && buf[n - 1] != '\n')
        n--;
    if (!n)
        return NULL;
    buf[n - 1] = 0;
    char *before = strrchr(buf, '\n');
    return before ? before + 1 : buf;
}

static void add_number(mx_str *out, const json_t *o, const char *key, const char *format)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_number(v))
        mx_str_addf(out, format, json_number_value(v));
}

static void add_progress(const char *path, mx_str *out)
{
    char name[4096], buf[TAIL_BYTES], when[64] = "";
    snprintf(name, sizeof name, "%s/metrics.jsonl", path);
    char *line = last_line(name, buf, sizeof buf);
    json_t *o = NULL;
    mx_status st = line ? mx_json_parse(line, strlen(line), name, NULL, &o) : MX_OK;
    if (st || !o) {
        mx_str_add(out, "steps: none is recorded\n");
        mx_status_free(st);
        return;
    }
    time_t t = (time_t)json_number_value(json_object_get(o, "time"));
    struct tm tm;
    if (t > 0 && localtime_r(&t, &tm))
        strftime(when, sizeof when, " at %Y-%m-%d %H:%M:%S", &tm);
    add_number(out, o, "step", "last step: %.0f");
    mx_str_addf(out, "%s\n", when);
    add_number(out, o, "loss", "loss: %.4f\n");
    add_number(out, o, "learning_rate", "learning rate: %.3g\n");
    add_number(out, o, "tokens", "tokens: %.0f\n");
    add_number(out, o, "tokens_per_second", "tokens per second: %.0f\n");
    add_number(out, o, "skipped_steps", "skipped steps: %.0f\n");
    add_number(out, o, "rollbacks", "rollbacks: %.0f\n");
    json_decref(o);
}

static void add_command(const char *path, mx_str *out)
{
    char name[4096], buf[TAIL_BYTES];
    snprintf(name, sizeof name, "%s/command.txt", path);
    char *line = last_line(name, buf, sizeof buf);
    if (line)
        mx_str_addf(out, "command: %s\n", line);
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

mx_status mx_inspect_curve(const char *path, const char *svg, const char *png, mx_str *out)
{
    mx_arena arena = {0};
    mx_series loss = {0}, eval = {0};
    const char *file = mx_arena_printf(&arena, "%s/metrics.jsonl", path);
    mx_status st =
        has(path, "metrics.jsonl") ? mx_metrics_read(file, "loss", &arena, &loss) : MX_OK;
    if (!st && loss.n)
        st = mx_metrics_read(file, "eval/loss", &arena, &eval);
    mx_curve_series series[2] = {{"loss", loss.x, loss.y, loss.n},
                                 {"eval", eval.x, eval.y, eval.n}};
    const char *lang = getenv("LC_ALL") ? getenv("LC_ALL") : getenv("LANG");
    bool utf8 = lang && (strcasestr(lang, "utf-8") || strcasestr(lang, "utf8"));
    mx_curve c = {.title = "loss",
                  .x_label = "step",
                  .series = series,
                  .smooth = 0.9,
                  .n_series = eval.n ? 2 : 1,
                  .ascii = !utf8};
    if (!st && loss.n > 1)
        mx_curve_text(&c, 78, 14, out);
    const struct {
        const char *file;
        void (*draw)(const mx_curve *c, int width, int height, mx_str *out);
    } pictures[] = {{svg, mx_curve_svg}, {png, mx_curve_png}};
    for (int i = 0; i < 2; i++) {
        mx_str picture = {0};
        if (st || !*pictures[i].file)
            continue;
        pictures[i].draw(&c, 960, 480, &picture);
        st = mx_io_write_file(NULL, pictures[i].file, picture.text, picture.len);
        mx_str_fini(&picture);
    }
    mx_arena_fini(&arena);
    return st;
}

mx_status mx_inspect_run(const char *path, mx_str *out)
{
    mx_arena arena = {0};
    mx_ckpt_entry *e = NULL;
    int n = 0;
    mx_str_addf(out, "run: %s\n", path);
    add_command(path, out);
    add_progress(path, out);
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
