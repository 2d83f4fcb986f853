/* run_profile.c - where the time of a step goes, node by node.
 *
 * profile_steps=a:b (or profiler=trace, with skip_first_n_steps_for_profiler and profiler_steps)
 * makes the device note when each node began and ended, and writes after the last of these steps
 *
 *     RUN/profile/trace.json   for Perfetto or chrome://tracing: one bar per node, with its FLOP/s
 *                              and bytes/s
 *     RUN/profile/nodes.txt    nodes by time, the same node of all layers added up
 *
 * FLOPs and bytes are those of mx_node_cost: what the node must compute and move, whatever its
 * kernel does. Of a pipeline the trace has the actions of all stages instead of nodes
 * (run_profile_stages.c). Other steps are not measured and cost nothing. On a GPU a measured step
 * is launched node by node, so it is slower than one that is replayed as a graph.
 */
#include "train/run/run_profile.h"

#include "data/formats/json_scan.h"
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 15 };

typedef mx_profile_total total;

/* "3:5"; a single number is one step. */
static mx_status parse_range(const mx_config *c, const char *text, int64_t *first, int64_t *last)
{
    char a[32];
    size_t k = strcspn(text, ":");
    snprintf(a, sizeof a, "%.*s", k < sizeof a ? (int)k : 0, text);
    bool ok = mx_parse_i64(a, first) && mx_parse_i64(text[k] ? text + k + 1 : a, last);
    if (!ok || *first < 1 || *last < *first)
        return mx_fail(MX_USAGE, "%s: profile_steps is a:b with 1 <= a <= b, for example 5:7",
                       mx_config_where(c, "profile_steps"));
    return MX_OK;
}

mx_status mx_run_profile_open(mx_run *r)
{
    const char *steps = mx_config_text(r->c, "profile_steps");
    bool trace = strcmp(mx_config_text(r->c, "profiler"), "trace") == 0;
    if ((!*steps && !trace) || !(r->ranks.leads || r->programs.pipelined))
        return MX_OK;
    mx_run_profile *p = MX_NEW(&r->arena, mx_run_profile);
    p->first = r->at.step + 1 + mx_config_int(r->c, "skip_first_n_steps_for_profiler");
    p->last = p->first + mx_config_int(r->c, "profiler_steps") - 1;
    if (*steps)
        MX_TRY(parse_range(r->c, steps, &p->first, &p->last));
    r->report.profile = p;
    return MX_OK;
}

static void measure(mx_run *r, mx_exec *e, bool on)
{
    if (e && on && !e->took)
        e->took = MX_NEW_N(&r->arena, double, 2 * e->n_steps);
    if (e && !on)
        e->took = NULL;
}

void mx_run_profile_begin(mx_run *r)
{
    mx_run_profile *p = r->report.profile;
    int64_t step = r->at.step + 1;
    if (!p || step < p->first || step > p->last)
        return;
    if (r->programs.pipelined) {
        mx_run_profile_stages_begin(r);
        return;
    }
    measure(r, r->batch.now, true);
    measure(r, r->programs.accumulates ? r->programs.apply.exec : NULL, true);
}

static total *find_total(mx_run *r, const char *label)
{
    mx_run_profile *p = r->report.profile;
    char name[256];
    mx_scope_of_all(label, name, sizeof name);
    for (int i = 0; i < p->n_totals; i++)
        if (strcmp(p->total[i].name, name) == 0)
            return &p->total[i];
    MX_GROW(p->total, p->n_totals, p->cap_totals);
    p->total[p->n_totals] = (total){.name = mx_arena_strdup(&r->arena, name)};
    return &p->total[p->n_totals++];
}

void mx_run_profile_add(mx_run *r, const mx_profile_event *e)
{
    mx_run_profile *p = r->report.profile;
    double seconds = e->ended - e->began, per = seconds > 0 ? 1e-9 / seconds : 0;
    mx_str_add(&p->trace, p->trace.len ? ",\n" : "{\"traceEvents\": [\n");
    mx_str_add(&p->trace, "{\"name\": ");
    mx_json_write_string(&p->trace, e->label, strlen(e->label));
    mx_str_addf(&p->trace,
                ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
                "\"dur\": %.3f, \"args\": {\"step\": %lld, \"GFLOP/s\": %.3f, \"GB/s\": %.3f}}",
                e->kind, e->process, e->thread, 1e6 * (e->began - p->began), 1e6 * seconds,
                (long long)r->at.step + 1, e->cost.flops * per, e->cost.bytes * per);
    total *t = find_total(r, e->total);
    t->seconds += seconds;
    t->flops += e->cost.flops;
    t->bytes += e->cost.bytes;
    t->n++;
    p->sum += seconds;
}

void mx_run_profile_take(mx_run *r, const mx_exec *e)
{
    mx_run_profile *p = r->report.profile;
    if (!p || !e->took)
        return;
    if (!p->trace.len)
        p->began = e->took[0];
    for (int i = 0; i < e->n_steps; i++) {
        const mx_exec_step *s = &e->step[i];
        mx_run_profile_add(
            r, &(mx_profile_event){s->label, s->op->name, s->label, 1, s->beside ? 2 : 1,
                                   e->took[2 * i], e->took[2 * i + 1], s->cost});
    }
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const total *)a)->seconds, y = ((const total *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void table(const mx_run_profile *p, int n, mx_str *out)
{
    mx_str_addf(out, "%9s %6s %8s %10s %10s  %s\n", "ms", "share", "times", "GFLOP/s", "GB/s",
                "node");
    for (int i = 0; i < n && i < p->n_totals; i++) {
        const total *t = &p->total[i];
        double per = t->seconds > 0 ? 1e-9 / t->seconds : 0;
        mx_str_addf(out, "%9.3f %5.1f%% %8lld %10.1f %10.1f  %s\n", 1e3 * t->seconds,
                    100 * t->seconds / (p->sum > 0 ? p->sum : 1), (long long)t->n, t->flops * per,
                    t->bytes * per, t->name);
    }
}

static mx_status write_all(mx_run *r)
{
    mx_run_profile *p = r->report.profile;
    mx_str text = {0};
    const char *dir = mx_arena_printf(&r->arena, "%s/profile", r->folder);
    mx_status st = mx_io_make_dir(NULL, dir);
    mx_str_add(&p->trace, "\n]}\n");
    if (!st)
        st = mx_io_write_file(NULL, mx_arena_printf(&r->arena, "%s/trace.json", dir), p->trace.text,
                              p->trace.len);
    table(p, p->n_totals, &text);
    if (!st)
        st = mx_io_write_file(NULL, mx_arena_printf(&r->arena, "%s/nodes.txt", dir), text.text,
                              text.len);
    mx_str_clear(&text);
    table(p, SHOWN, &text);
    mx_progress_say(&r->report.progress,
                    "steps %lld to %lld, nodes by time (all: %s/nodes.txt):", (long long)p->first,
                    (long long)p->last, dir);
    for (const char *line = mx_str_text(&text); *line;) { /* one at a time: a message is short */
        size_t n = strcspn(line, "\n");
        mx_progress_say(&r->report.progress, "%.*s", (int)n, line);
        line += n + 1;
    }
    mx_str_fini(&text);
    return st;
}

void mx_run_profile_end(mx_run *r, bool run_is_over)
{
    mx_run_profile *p = r->report.profile;
    if (!p || (!run_is_over && r->at.step < p->last))
        return;
    measure(r, r->batch.now, false);
    measure(r, r->programs.accumulates ? r->programs.apply.exec : NULL, false);
    if (r->programs.pipelined)
        mx_run_profile_stages_end(r);
    if (p->n_totals) {
        qsort(p->total, (size_t)p->n_totals, sizeof *p->total, by_seconds);
        mx_status st = write_all(r);
        if (st)
            mx_progress_say(&r->report.progress, "note: the profile was not written: %s",
                            mx_status_text(st));
        mx_status_free(st);
    }
    mx_str_fini(&p->trace);
    mx_free(p->total);
    r->report.profile = NULL;
}
