/* picture.c - a plan as SVG: see trace_file.h.
 *
 * Above, the memory of one rank: what it holds between steps, and on top what is alive. A compiled
 * program knows that node by node; of the fullest stage of a pipeline it follows from the
 * microbatches in flight. Below, a row per stage with its actions, or per stream where there are no
 * stages. It has a background of its own, so that it is legible wherever it is shown.
 */
#include "base/io.h"
#include "plan/trace_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 960, LEFT = 70, PLOT = WIDTH - LEFT - 20, TOP = 40, MEMORY = 220, ROW = 22 };

static void text(mx_str *out, double x, double y, const char *anchor, const char *s)
{
    mx_str_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            mx_str_add(out, *s == '<' ? "&lt;" : "&amp;");
        else
            mx_str_add_n(out, s, 1);
    mx_str_add(out, "</text>\n");
}

static double held(const mx_rank_memory *m)
{
    return m->weights + m->copies + m->gradients + m->optimizer;
}

/* ---- memory ---- */

/* Alive bytes of a pipeline's fullest stage over time: forward passes keep, backward passes free.
 * At the most they are what was planned beside what is held. */
static void stage_memory(const mx_forecast *f, const mx_trace *t, double *out, int n)
{
    double end = f->time.seconds, saved = 0, most = 0;
    for (int k = 0; k < f->profile.n_kinds; k++)
        saved += f->profile.kind[k].layers / (double)(f->layout.stage * f->layout.chunks) *
                 f->costs.kind[k].saved_bytes;
    for (int i = 0; i < t->n; i++) {
        const mx_event *e = &t->event[i];
        if (e->stage != f->worst_stage || e->stream != MX_STREAM_COMPUTE ||
            (*e->name != 'F' && *e->name != 'B'))
            continue;
        bool forward = *e->name == 'F';
        int from = (int)((forward ? e->start : e->end) / end * n);
        for (int k = from; k < n; k++)
            out[k] += forward ? saved : -saved;
    }
    for (int k = 0; k < n; k++)
        most = fmax(most, out[k]);
    for (int k = 0; k < n && most > 0; k++)
        out[k] *= (f->memory.total - held(&f->memory)) / most;
}

static void draw_memory(const mx_forecast *f, const mx_trace *t, mx_str *out)
{
    double curve[PLOT] = {0}, most = f->machine.chip.memory_bytes;
    int n = PLOT;
    char a[32];
    bool piped = f->layout.stage > 1;
    if (!piped && f->n_curve > 0) {
        for (int i = 0; i < n; i++)
            curve[i] = f->curve[(int64_t)i * f->n_curve / n];
    } else {
        stage_memory(f, t, curve, n);
    }
    most = fmax(most, f->memory.total);
    double base = held(&f->memory), y0 = TOP + MEMORY;
    mx_str_addf(out, "<rect class=\"h\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>\n", LEFT,
                y0 - base / most * MEMORY, PLOT, base / most * MEMORY);
    mx_str_addf(out, "<path class=\"m\" d=\"M%d %.1f", LEFT, y0 - base / most * MEMORY);
    for (int i = 0; i < n; i++)
        mx_str_addf(out, "L%d %.1f", LEFT + i, y0 - (base + curve[i]) / most * MEMORY);
    mx_str_addf(out, "V%.1fz\"/>\n", y0 - base / most * MEMORY);
    double chip = y0 - f->machine.chip.memory_bytes / most * MEMORY;
    mx_str_addf(out, "<path class=\"c\" d=\"M%d %.1fh%d\"/>\n", LEFT, chip, PLOT);
    text(out, LEFT - 6, chip + 4, "end",
         mx_format_bytes(a, sizeof a, f->machine.chip.memory_bytes));
    text(out, LEFT - 6, y0 - base / most * MEMORY + 4, "end", mx_format_bytes(a, sizeof a, base));
    text(out, LEFT - 6, y0 + 4, "end", "0");
    text(out, LEFT + 6, y0 - 6, "start", "weights, gradients, optimizer");
    text(out, LEFT, y0 + 18, "start",
         piped ? "memory of a rank of the fullest stage, over the step"
               : "memory of a rank, node by node of one microbatch");
    mx_str_addf(out, "<path class=\"p\" d=\"M%d %.1fh%d\"/>\n", LEFT,
                y0 - f->memory.total / most * MEMORY, PLOT);
    text(out, LEFT + 6, y0 - f->memory.total / most * MEMORY - 4, "start",
         mx_format_bytes(a, sizeof a, f->memory.total));
}

/* Over what is drawn, on a ground of their own. */
static void name_largest(const mx_forecast *f, mx_str *out)
{
    enum { NAMED = 8, LINE = 15, GLYPH = 7 };
    char a[32];
    for (int i = 0; i < f->plan.n_largest && i < NAMED; i++) {
        const mx_plan_item *it = &f->plan.largest[i];
        mx_str line = {0};
        if (it->bytes < 0.001 * f->memory.total)
            break;
        mx_str_addf(&line, "%s  %s", mx_format_bytes(a, sizeof a, it->bytes), it->name);
        if (it->n > 1)
            mx_str_addf(&line, " x %d", it->n);
        int y = TOP + 18 + LINE * i, wide = GLYPH * (int)line.len;
        mx_str_addf(out,
                    "<rect class=\"g\" opacity=\"0.8\" x=\"%d\" y=\"%d\" width=\"%d\" "
                    "height=\"%d\"/>\n",
                    LEFT + PLOT - 8 - wide, y - 12, wide + 8, LINE);
        text(out, LEFT + PLOT - 8, y, "end", mx_str_text(&line));
        mx_str_fini(&line);
    }
}

/* ---- the timeline ---- */

static int rows_of(const mx_trace *t, bool piped)
{
    int rows = MX_STREAMS;
    for (int i = 0; i < t->n && piped; i++)
        rows = t->event[i].stage + 1 > rows ? t->event[i].stage + 1 : rows;
    return rows;
}

/* What the colours mean, and where the step begins and ends. */
static void draw_legend(double seconds, double y, mx_str *out)
{
    static const struct {
        const char *kind, *name;
    } all[] = {{"f", "forward"}, {"b", "backward"}, {"n", "network"}, {"u", "update"}};
    char a[32];
    snprintf(a, sizeof a, "%.4g s", seconds);
    text(out, LEFT, y, "start", "0");
    text(out, LEFT + PLOT, y, "end", a);
    for (int i = 0; i < 4; i++) {
        double x = LEFT + 250 + 100 * i;
        mx_str_addf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\"/>\n",
                    all[i].kind, x, y - 9);
        text(out, x + 15, y, "start", all[i].name);
    }
}

static void draw_timeline(const mx_forecast *f, const mx_trace *t, double top, mx_str *out)
{
    bool piped = f->layout.stage > 1;
    double end = 0;
    for (int i = 0; i < t->n; i++)
        end = fmax(end, t->event[i].end);
    for (int i = 0; i < t->n; i++) {
        const mx_event *e = &t->event[i];
        double w = (e->end - e->start) / end * PLOT, x = LEFT + e->start / end * PLOT;
        int row = piped ? e->stage : (int)e->stream;
        const char *kind = *e->name == 'F' || *e->name == 'f'   ? "f"
                           : *e->name == 'B' || *e->name == 'b' ? "b"
                           : *e->name == 'u'                    ? "u"
                                                                : "n";
        if (w >= 0.05)
            mx_str_addf(out,
                        "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\">"
                        "<title>%s, %.3g ms</title></rect>\n",
                        kind, x, top + row * ROW, w, ROW - 4, e->name, 1e3 * (e->end - e->start));
    }
    for (int r = 0; r < rows_of(t, piped); r++) {
        mx_str name = {0};
        mx_str_addf(&name, piped ? "stage %d" : r ? "network" : "kernels", r);
        text(out, LEFT - 6, top + r * ROW + 13, "end", mx_str_text(&name));
        mx_str_fini(&name);
    }
}

mx_status mx_picture_write(const mx_forecast *f, const mx_trace *t, const char *path)
{
    static const char style[] =
        "<style>text{font:12px sans-serif;fill:#444}rect.g{fill:#fff}rect.h{fill:#c9d4e3}"
        "path.m{fill:#6b93c4}path.c{stroke:#b33;stroke-dasharray:6 4;fill:none}"
        "path.p{stroke:#888;stroke-dasharray:2 3;fill:none}rect.f{fill:#5b8fd0}rect.b{fill:#7cb26a}"
        "rect.u{fill:#999}rect.n{fill:#d9a441}@media(prefers-color-scheme:dark){text{fill:#ccc}"
        "rect.g{fill:#1b2027}rect.h{fill:#3a4656}path.c{stroke:#e06c6c}}</style>\n"
        "<rect class=\"g\" width=\"100%\" height=\"100%\"/>\n";
    mx_str out = {0}, mesh = {0}, title = {0};
    double top = TOP + MEMORY + 40, rows = rows_of(t, f->layout.stage > 1);
    mx_mesh_print(&mesh, &f->mesh);
    mx_str_addf(&title, "%lld x %s, %s: memory of a rank and the step of %.4g s",
                (long long)f->machine.chips, f->machine.chip.name, mx_str_text(&mesh),
                f->time.seconds);
    mx_str_addf(&out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
                "viewBox=\"0 0 %d %.0f\">\n%s",
                WIDTH, top + rows * ROW + 40, WIDTH, top + rows * ROW + 40, style);
    text(&out, LEFT, 22, "start", mx_str_text(&title));
    draw_memory(f, t, &out);
    name_largest(f, &out);
    draw_timeline(f, t, top, &out);
    draw_legend(f->time.seconds, top + rows * ROW + 20, &out);
    mx_str_add(&out, "</svg>\n");
    mx_status st = mx_io_write_output(path, out.text, out.len);
    mx_str_fini(&out);
    mx_str_fini(&mesh);
    mx_str_fini(&title);
    return st;
}
