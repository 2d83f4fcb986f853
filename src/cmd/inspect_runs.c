/* inspect_runs.c - several runs beside each other: a table, and of two where they differ. */
#include "cmd/inspect_run.h"

#include "base/json_doc.h"
#include "cmd/run_summary.h"
#include "train/report/metrics.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps that two runs are compared at; columns of a name, and of one over a column of numbers. */
enum { ROWS = 10, NAME = 40, SHORT = 16 };

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int mx_inspect_find_runs(const char *folder, mx_arena *a, const char ***paths)
{
    const char **list = NULL;
    int n = 0, cap = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *path = mx_arena_printf(a, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || !mx_is_run_folder(path))
            continue;
        MX_GROW(list, n, cap);
        list[n++] = path;
    }
    if (d)
        closedir(d);
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_text);
    *paths = mx_arena_copy(a, list, sizeof *list * (size_t)n);
    mx_free(list);
    return n;
}

/* --- the table --- */

/* A number in its column; "-" where it is not known. */
static void cell(mx_str *out, int width, const char *format, double v)
{
    char buf[32] = "-";
    if (!isnan(v))
        snprintf(buf, sizeof buf, format, v);
    mx_str_addf(out, "  %*s", width, buf);
}

static void count_cell(mx_str *out, int width, double v)
{
    char buf[32] = "-";
    if (!isnan(v))
        mx_format_count(buf, sizeof buf, v);
    for (size_t n = strlen(buf); n && buf[n - 1] == ' ';)
        buf[--n] = 0;
    mx_str_addf(out, "  %*s", width, buf);
}

static int name_width(const mx_run_summary *g, int n)
{
    int w = 4;
    for (int i = 0; i < n; i++)
        w = (int)strlen(g[i].name) > w ? (int)strlen(g[i].name) : w;
    return w < NAME ? w : NAME;
}

static void print_table(const mx_run_summary *g, int n, mx_str *out)
{
    int w = name_width(g, n);
    mx_str_addf(out, "%-*s  %9s  %9s  %9s  %10s  %8s  %8s  %-8s  %s\n", w, "run", "step", "steps",
                "loss", "evaluation", "tokens", "tokens/s", "state", "last step at");
    for (int i = 0; i < n; i++) {
        char when[64];
        mx_str_addf(out, "%-*.*s", w, NAME, g[i].name);
        cell(out, 9, "%.0f", g[i].step);
        cell(out, 9, "%.0f", g[i].steps);
        cell(out, 9, "%.4f", g[i].loss);
        cell(out, 10, "%.4f", g[i].eval_loss);
        count_cell(out, 8, g[i].tokens);
        count_cell(out, 8, g[i].tokens_per_second);
        mx_str_addf(out, "  %-8s  %s\n", g[i].state, mx_format_time(when, sizeof when, g[i].time));
    }
}

static void add_json(json_t *o, const char *name, double v)
{
    json_object_set_new(o, name, isfinite(v) ? json_real(v) : json_null());
}

static void print_json(const mx_run_summary *g, int n, mx_str *out)
{
    json_t *all = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_pack("{s:s, s:s}", "run", g[i].path, "state", g[i].state);
        add_json(o, "step", g[i].step);
        add_json(o, "steps", g[i].steps);
        add_json(o, "loss", g[i].loss);
        add_json(o, "evaluation loss", g[i].eval_loss);
        add_json(o, "tokens", g[i].tokens);
        add_json(o, "tokens per second", g[i].tokens_per_second);
        add_json(o, "time", g[i].time);
        json_array_append_new(all, o);
    }
    char *text = mx_json_text(all, 1);
    mx_str_addf(out, "%s\n", text);
    mx_free(text);
    json_decref(all);
}

/* --- two of them --- */

static void print_differences(const mx_run_summary *g, mx_str *out)
{
    static const char *const own[] = {"run_name", "base_output_directory", "base_config", NULL};
    mx_config *a = mx_run_summary_config(g[0].path), *b = mx_run_summary_config(g[1].path);
    mx_str lines = {0};
    if (a && b)
        mx_config_diff(a, b, own, &lines, NULL);
    if (!a || !b)
        mx_str_add(out, "\nthe configuration of one of them cannot be read by this version\n");
    else
        mx_str_addf(out, "\n%s\n%s", lines.len ? "keys that differ:" : "all keys are the same",
                    mx_str_text(&lines));
    mx_str_fini(&lines);
    mx_config_free(a);
    mx_config_free(b);
}

/* The mean loss of the steps in (from, to]; NAN: there are none. */
static double mean_of(const mx_series *s, double from, double to)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->x[i] > from && s->x[i] <= to && isfinite(s->y[i])) {
            sum += s->y[i];
            n++;
        }
    return n ? sum / (double)n : NAN;
}

/* Long names differ at their ends. */
static const char *end_of(const char *name)
{
    size_t n = strlen(name);
    return n > SHORT ? name + n - SHORT : name;
}

static mx_status print_losses(const mx_run_summary *g, mx_arena *a, mx_str *out)
{
    mx_series s[2] = {{0}};
    double common = INFINITY;
    for (int i = 0; i < 2; i++) {
        MX_TRY(mx_metrics_read(mx_arena_printf(a, "%s/metrics.jsonl", g[i].path), "loss", a,
                               &s[i]));
        common = fmin(common, s[i].n ? s[i].x[s[i].n - 1] : 0);
    }
    int rows = common < ROWS ? (int)common : ROWS;
    if (rows)
        mx_str_addf(out, "\nmean loss up to step  %*s  %*s  %10s\n", SHORT, end_of(g[0].name),
                    SHORT, end_of(g[1].name), "difference");
    for (int k = 1; k <= rows; k++) {
        double from = floor(common * (k - 1) / rows), to = floor(common * k / rows);
        double x = mean_of(&s[0], from, to), y = mean_of(&s[1], from, to);
        mx_str_addf(out, "%20.0f", to);
        cell(out, SHORT, "%.4f", x);
        cell(out, SHORT, "%.4f", y);
        cell(out, 10, "%+.4f", y - x);
        mx_str_add(out, "\n");
    }
    return MX_OK;
}

mx_status mx_inspect_runs(const char *const *paths, int n, bool json, mx_str *out)
{
    mx_arena a = {0};
    mx_status st = MX_OK;
    mx_run_summary *g = MX_NEW_N(&a, mx_run_summary, n);
    mx_run_summaries_at(g, paths, n, &a);
    if (json)
        print_json(g, n, out);
    else
        print_table(g, n, out);
    if (n == 2 && !json) {
        print_differences(g, out);
        st = print_losses(g, &a, out);
    }
    mx_arena_fini(&a);
    return st;
}
