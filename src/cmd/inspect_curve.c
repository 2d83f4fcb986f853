/* inspect_curve.c - a metric of runs as curves: of training with its mean, of evaluation as it is.
 * It is the loss, or, where answers are rewarded, the reward; then the length of answers is a
 * second curve in the terminal. */
#include "cmd/inspect_run.h"

#include "base/io.h"
#include "cmd/run_summary.h"
#include "train/report/curve.h"
#include "train/report/metrics.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PER_RUN = 2, MEANS = 60, FEW = 200 }; /* a mean is of a 60th of the curve to either side */
static const struct {
    int w, h;
} svg_size = {960, 480}, png_size = {1200, 600};

typedef struct {
    mx_arena arena;
    const char *metric;
    mx_curve_series series[MX_CURVE_RUNS * PER_RUN];
    int n;
} curves;

static mx_status add_series(curves *c, const char *file, const char *metric, const char *name)
{
    mx_series s = {0};
    bool trained = strcmp(metric, c->metric) == 0;
    MX_TRY(mx_metrics_read(file, metric, &c->arena, &s));
    if (s.n)
        c->series[c->n++] = (mx_curve_series){.name = name, .x = s.x, .y = s.y, .n = s.n,
                                              .window = trained ? s.n / MEANS : 0,
                                              .dots = !trained && s.n <= FEW};
    return MX_OK;
}

static const char *metrics_of(curves *c, const mx_run_summary *g)
{
    return mx_arena_printf(&c->arena, "%s/metrics.jsonl", g->path);
}

/* "training", "evaluation"; of several runs with the run's name. */
static mx_status add_run(curves *c, const mx_run_summary *g, bool alone)
{
    const char *file = metrics_of(c, g);
    if (access(file, R_OK) != 0)
        return MX_OK;
    MX_TRY(add_series(c, file, c->metric, alone ? "training" : g->name));
    return add_series(c, file, mx_arena_printf(&c->arena, "eval/%s", c->metric),
                      alone ? "evaluation"
                            : mx_arena_printf(&c->arena, "%s, evaluation", g->name));
}

/* What is drawn by default: the metric that a run maximizes, or minimizes. */
static mx_status choose_metric(curves *c, const mx_run_summary *g, const char *asked)
{
    const char *file = metrics_of(c, g);
    mx_series s = {0};
    c->metric = *asked ? asked : "loss";
    if (*asked || access(file, R_OK) != 0)
        return MX_OK;
    MX_TRY(mx_metrics_read(file, "reward", &c->arena, &s));
    c->metric = s.n ? "reward" : "loss";
    return MX_OK;
}

static const char *title_of(curves *c, const mx_run_summary *g, int n)
{
    const char *text = mx_arena_printf(&c->arena, "%s", g->name);
    bool loss = strcmp(c->metric, "loss") == 0, known = c->n && c->series[0].n;
    if (n == 1 && !loss && known)
        text = mx_arena_printf(&c->arena, "%s: %s %.4g at step %.0f", text, c->metric,
                               c->series[0].y[c->series[0].n - 1],
                               c->series[0].x[c->series[0].n - 1]);
    if (n == 1 && loss && g->loss == g->loss)
        text = mx_arena_printf(&c->arena, "%s: loss %.4f at step %.0f", text, g->loss, g->step);
    if (n == 1 && loss && g->eval_loss == g->eval_loss)
        text = mx_arena_printf(&c->arena, "%s, evaluation %.4f", text, g->eval_loss);
    for (int i = 1; i < n; i++)
        text = mx_arena_printf(&c->arena, "%s, %s", text, g[i].name);
    return n == 1 ? text : mx_arena_printf(&c->arena, "%s of %s", c->metric, text);
}

static mx_status write_picture(const mx_curve *c, const char *file, bool png)
{
    mx_str picture = {0};
    if (!*file)
        return MX_OK;
    if (png)
        mx_curve_png(c, png_size.w, png_size.h, &picture);
    else
        mx_curve_svg(c, svg_size.w, svg_size.h, &picture);
    mx_status st = mx_io_write_output(file, picture.text, picture.len);
    mx_str_fini(&picture);
    return st;
}

static mx_status draw(curves *k, const mx_run_summary *g, int n, const mx_inspect_pictures *p,
                      mx_str *out)
{
    const char *lang = getenv("LC_ALL") ? getenv("LC_ALL") : getenv("LANG");
    bool utf8 = lang && (strcasestr(lang, "utf-8") || strcasestr(lang, "utf8"));
    mx_curve c = {.title = title_of(k, g, n), .x_label = "step", .series = k->series,
                  .n_series = k->n, .ascii = !utf8, .dark = p->dark};
    if (n == 1 && k->n && k->series[0].n > 1) /* curves of several cannot be told apart there */
        mx_curve_text(&c, 78, 14, out);
    MX_TRY(write_picture(&c, p->svg, false));
    return write_picture(&c, p->png, true);
}

/* In the terminal, below the first curve. */
static mx_status add_lengths(curves *k, const mx_run_summary *g, mx_str *out)
{
    if (strcmp(k->metric, "reward") != 0)
        return MX_OK;
    k->metric = "completions/mean_length";
    k->n = 0;
    MX_TRY(add_run(k, g, true));
    return draw(k, g, 1, &(mx_inspect_pictures){.svg = "", .png = ""}, out);
}

mx_status mx_inspect_curve(const char *const *paths, int n, const mx_inspect_pictures *p,
                           mx_str *out)
{
    curves k = {0};
    mx_run_summary g[MX_CURVE_RUNS];
    mx_status st = MX_OK;
    if (n > MX_CURVE_RUNS && (*p->svg || *p->png))
        return mx_fail(MX_USAGE, "%d runs are too many for one picture; name up to %d", n,
                       MX_CURVE_RUNS);
    n = n > MX_CURVE_RUNS ? MX_CURVE_RUNS : n;
    mx_run_summaries_at(g, paths, n, &k.arena);
    if (n)
        st = choose_metric(&k, &g[0], p->metric);
    for (int i = 0; i < n && !st; i++)
        st = add_run(&k, &g[i], n == 1);
    if (!st && *p->metric && !k.n)
        st = mx_fail(MX_INPUT, "metrics.jsonl has no %s; its lines name what there is", p->metric);
    if (!st)
        st = draw(&k, g, n, p, out);
    if (!st && n == 1 && !*p->metric)
        st = add_lengths(&k, g, out);
    mx_arena_fini(&k.arena);
    return st;
}
