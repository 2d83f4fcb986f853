/* goodput.c - the account of a run's time.
 *
 * Lost work: at every durable checkpoint the total of step time so far is marked. A process that
 * starts from step R looks up what the total was when R was marked; the step time accounted since
 * then by the attempt before was for work that has to be done again, and moves from "step" to
 * "lost".
 */
#include "train/report/goodput.h"

#include "base/arena.h"
#include "base/progress.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *const mx_goodput_name[MX_GOODPUT_N] = {
    "step", "compile", "load", "data wait", "checkpoint", "eval", "restart", "lost", "other"};

static bool read_seconds(const json_t *j, double *out)
{
    *out = json_is_number(j) ? json_number_value(j) : 0;
    return isfinite(*out) && *out >= 0;
}

static bool from_json(mx_goodput *g, const json_t *j)
{
    const json_t *seconds = json_object_get(j, "seconds"), *marks = json_object_get(j, "marks"), *m;
    size_t k;
    bool ok = json_is_object(seconds) && json_integer_value(json_object_get(j, "format")) == 1;
    for (int i = 0; i < MX_GOODPUT_N; i++)
        ok = read_seconds(json_object_get(seconds, mx_goodput_name[i]), &g->seconds[i]) && ok;
    ok = read_seconds(json_object_get(j, "first_start"), &g->first_start) && ok;
    ok = read_seconds(json_object_get(j, "last_seen"), &g->last_seen) && ok;
    g->attempts = json_integer_value(json_object_get(j, "attempts"));
    g->steps_lost = json_integer_value(json_object_get(j, "steps_lost"));
    g->last_step = json_integer_value(json_object_get(j, "last_step"));
    json_array_foreach((json_t *)marks, k, m)
    {
        if (g->n_marks == MX_GOODPUT_MARKS)
            break;
        g->mark[g->n_marks].step = json_integer_value(json_array_get(m, 0));
        ok = read_seconds(json_array_get(m, 1), &g->mark[g->n_marks++].step_seconds) && ok;
    }
    return ok;
}

static mx_status load(mx_goodput *g, bool *found, bool *damaged)
{
    struct stat about;
    char *text;
    size_t n;
    *damaged = false;
    *found = stat(g->path, &about) == 0;
    if (!*found)
        return MX_OK;
    MX_TRY(mx_io_read_file(g->io, g->path, 1 << 20, &text, &n));
    json_t *j = json_loadb(text, n, 0, NULL);
    *damaged = !j || !from_json(g, j);
    json_decref(j);
    mx_free(text);
    return MX_OK;
}

static void mark(mx_goodput *g, int64_t step)
{
    if (g->n_marks == MX_GOODPUT_MARKS)
        memmove(g->mark, g->mark + 1, sizeof g->mark[0] * (size_t)--g->n_marks);
    g->mark[g->n_marks].step = step;
    g->mark[g->n_marks++].step_seconds = g->seconds[MX_GOODPUT_STEP];
}

/* This process starts from `step`: what was done after that is lost. */
static void take_back(mx_goodput *g, int64_t step)
{
    double kept = 0; /* from the beginning, when no mark is left that old */
    int keep = 0;
    for (int i = 0; i < g->n_marks && g->mark[i].step <= step; i++) {
        kept = g->mark[i].step_seconds;
        keep = i + 1;
    }
    if (step > 0 && keep == 0 && g->n_marks) /* older than any mark: the oldest is the best guess */
        kept = g->mark[0].step_seconds;
    g->n_marks = keep;
    if (g->last_step > step)
        g->steps_lost += g->last_step - step;
    if (g->last_step > step && g->seconds[MX_GOODPUT_STEP] > kept) {
        g->seconds[MX_GOODPUT_LOST] += g->seconds[MX_GOODPUT_STEP] - kept;
        g->seconds[MX_GOODPUT_STEP] = kept;
    }
    g->last_step = step;
}

mx_status mx_goodput_open(mx_goodput *g, const char *run_dir, double now, int64_t first_step,
                          const mx_io *io)
{
    bool found, damaged;
    *g = (mx_goodput){.io = io};
    int n = snprintf(g->path, sizeof g->path, "%s/goodput.json", run_dir);
    if (n < 0 || (size_t)n >= sizeof g->path)
        return mx_fail(MX_USAGE, "the path of the run folder is longer than %zu bytes",
                       sizeof g->path);
    MX_TRY(load(g, &found, &damaged));
    if (damaged) { /* an account is worth less than the run: set it aside and go on */
        mx_goodput fresh = {.io = io, .was_damaged = true};
        mx_str bad = {0};
        mx_str_addf(&bad, "%s.bad", g->path);
        const mx_io *sys = io ? io : &mx_io_system;
        (void)sys->rename(sys->ctx, g->path, bad.text);
        mx_str_fini(&bad);
        memcpy(fresh.path, g->path, sizeof fresh.path);
        *g = fresh;
    }
    if (found && !damaged) {
        if (now > g->last_seen) /* a clock set back must not make time negative */
            g->seconds[MX_GOODPUT_RESTART] += now - g->last_seen;
        take_back(g, first_step);
    } else {
        g->first_start = now;
        g->last_step = first_step;
    }
    g->attempts++;
    g->now_in = MX_GOODPUT_OTHER;
    g->since = g->last_seen = now;
    if (!g->n_marks || g->mark[g->n_marks - 1].step != first_step)
        mark(g, first_step);
    return MX_OK;
}

static void account(mx_goodput *g, double now)
{
    if (now > g->since)
        g->seconds[g->now_in] += now - g->since;
    g->since = now;
    g->last_seen = now;
}

void mx_goodput_enter(mx_goodput *g, mx_goodput_kind kind, double now)
{
    account(g, now);
    g->now_in = kind;
}

void mx_goodput_step_done(mx_goodput *g, int64_t step)
{
    g->last_step = step + 1;
}

void mx_goodput_commit(mx_goodput *g, int64_t step, double now)
{
    account(g, now);
    mark(g, step);
}

mx_status mx_goodput_save(mx_goodput *g, double now)
{
    mx_str s = {0};
    account(g, now);
    mx_str_addf(&s,
                "{\"format\": 1, \"attempts\": %lld, \"steps_lost\": %lld, \"last_step\": %lld,\n",
                (long long)g->attempts, (long long)g->steps_lost, (long long)g->last_step);
    mx_str_addf(&s, " \"first_start\": %.3f, \"last_seen\": %.3f,\n \"seconds\": {", g->first_start,
                g->last_seen);
    for (int i = 0; i < MX_GOODPUT_N; i++)
        mx_str_addf(&s, "%s\"%s\": %.3f", i ? ", " : "", mx_goodput_name[i], g->seconds[i]);
    mx_str_add(&s, "},\n \"marks\": [");
    for (int i = 0; i < g->n_marks; i++)
        mx_str_addf(&s, "%s[%lld, %.3f]", i ? ", " : "", (long long)g->mark[i].step,
                    g->mark[i].step_seconds);
    mx_str_add(&s, "]}\n");
    mx_status st = mx_io_write_file(g->io, g->path, s.text, s.len);
    mx_str_fini(&s);
    return st;
}

double mx_goodput_total(const mx_goodput *g)
{
    double total = 0;
    for (int i = 0; i < MX_GOODPUT_N; i++)
        total += g->seconds[i];
    return total;
}

double mx_goodput_fraction(const mx_goodput *g)
{
    double total = mx_goodput_total(g);
    return total > 0 ? g->seconds[MX_GOODPUT_STEP] / total : 0;
}

void mx_goodput_report(const mx_goodput *g, mx_str *out)
{
    char buf[32];
    double total = mx_goodput_total(g);
    mx_str_addf(out, "goodput %.1f%% of %s", 100 * mx_goodput_fraction(g),
                mx_format_duration(buf, sizeof buf, total));
    mx_str_addf(out, ", %lld attempt%s", (long long)g->attempts, g->attempts == 1 ? "" : "s");
    if (g->steps_lost)
        mx_str_addf(out, ", %lld steps lost", (long long)g->steps_lost);
    mx_str_add(out, "\n");
    for (int i = 0; i < MX_GOODPUT_N; i++) {
        if (g->seconds[i] <= 0)
            continue;
        mx_str_addf(out, "  %-11s %9s  %5.1f%%", mx_goodput_name[i],
                    mx_format_duration(buf, sizeof buf, g->seconds[i]),
                    100 * g->seconds[i] / (total > 0 ? total : 1));
        if (i == MX_GOODPUT_LOAD && g->read_seconds > 0)
            mx_str_addf(out, "  weights: %.3g GB in %.3g s, %.3g GB/s", g->read_bytes / 1e9,
                        g->read_seconds, g->read_bytes / 1e9 / g->read_seconds);
        mx_str_add(out, "\n");
    }
}

mx_status mx_goodput_read(mx_goodput *g, const char *run_dir)
{
    bool found, damaged;
    *g = (mx_goodput){0};
    snprintf(g->path, sizeof g->path, "%.4000s/goodput.json", run_dir);
    MX_TRY(load(g, &found, &damaged));
    if (!found || damaged)
        return mx_fail(MX_INPUT, "%s %s", g->path, found ? "is damaged" : "does not exist");
    return MX_OK;
}
