/* progress_line.c - the text of the live line and of the plain one. */
#include "base/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- small formats --- */
const char *mx_format_duration(char *buf, size_t cap, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e10) {
        snprintf(buf, cap, "?");
        return buf;
    }
    long long s = (long long)(seconds + 0.5);
    if (s < 60)
        snprintf(buf, cap, "%llds", s);
    else if (s < 3600)
        snprintf(buf, cap, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, cap, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else
        snprintf(buf, cap, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    return buf;
}

int mx_text_columns(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void add_grouped(mx_str *s, int64_t v)
{
    char buf[32];
    int n = snprintf(buf, sizeof buf, "%lld", (long long)v);
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && buf[i - 1] != '-')
            mx_str_add(s, ",");
        mx_str_add_n(s, &buf[i], 1);
    }
}

static void add_rate(mx_str *s, double tokens_per_s)
{
    char buf[32];
    mx_format_count(buf, sizeof buf, tokens_per_s);
    for (char *space = strchr(buf, ' '); space; space = strchr(space, ' '))
        memmove(space, space + 1, strlen(space));
    mx_str_addf(s, "%s tok/s", buf);
}

static void add_loss(mx_str *out, const mx_progress_state *s)
{
    double size = fabs(s->loss);
    mx_str_addf(out, "%s ", s->loss_name ? s->loss_name : "loss");
    mx_str_addf(out, size != 0 && (size < 1e-3 || size >= 1e5) ? "%.3e" : "%.4f", s->loss);
}

/* --- trend --- */
static int history(const mx_progress *p)
{
    return p->n_loss < MX_PROGRESS_HISTORY ? (int)p->n_loss : MX_PROGRESS_HISTORY;
}

/* The k-th of the kept losses, oldest first. */
static double past_loss(const mx_progress *p, int k)
{
    int64_t first = p->n_loss - history(p);
    return p->loss[(first + k) % MX_PROGRESS_HISTORY];
}

static double mean_loss(const mx_progress *p, int from, int to)
{
    double sum = 0;
    int n = 0;
    for (int k = from; k < to; k++)
        if (isfinite(past_loss(p, k))) {
            sum += past_loss(p, k);
            n++;
        }
    return n ? sum / n : NAN;
}

/* Newer half against older half: falling, flat (within 0.5 %) or rising. */
static const char *arrow(const mx_progress *p)
{
    int n = history(p);
    double older = mean_loss(p, 0, n / 2), newer = mean_loss(p, n / 2, n);
    if (n < 4 || !isfinite(older) || !isfinite(newer))
        return "";
    double change = (newer - older) / (fabs(older) > 1e-12 ? fabs(older) : 1e-12);
    int way = change < -0.005 ? 0 : change > 0.005 ? 2 : 1;
    static const char *const sign[2][3] = {{"v", "-", "^"}, {"↘", "→", "↗"}};
    return sign[p->utf8][way];
}

static void add_sparkline(const mx_progress *p, int cells, mx_str *s)
{
    static const char *const bar[2][8] = {{"_", ".", ",", "-", "~", "=", "*", "#"},
                                          {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}};
    int n = history(p), used = n < cells ? n : cells;
    double low = INFINITY, high = -INFINITY, v[MX_PROGRESS_HISTORY];
    for (int k = 0; k < used; k++) {
        v[k] = mean_loss(p, k * n / used, (k + 1) * n / used);
        low = isfinite(v[k]) && v[k] < low ? v[k] : low;
        high = isfinite(v[k]) && v[k] > high ? v[k] : high;
    }
    for (int k = 0; k < used; k++) {
        double level = high > low ? (v[k] - low) / (high - low) : 0;
        mx_str_add(s, isfinite(v[k]) ? bar[p->utf8][(int)(level * 7.999)] : "!");
    }
}

/* --- the live line --- */
static void add_bar(const mx_progress *p, const mx_progress_state *s, int cells, mx_str *out)
{
    double done = s->steps > 0 ? (double)s->step / (double)s->steps : 0;
    done = done < 0 ? 0 : done > 1 ? 1 : done;
    int full = (int)(done * cells);
    mx_str_add(out, p->utf8 ? "" : "[");
    for (int i = 0; i < cells; i++)
        mx_str_add(out, i < full    ? (p->utf8 ? "━" : "=")
                        : i == full ? (p->utf8 ? "╺" : ">")
                        : p->utf8   ? "─"
                                    : " ");
    mx_str_add(out, p->utf8 ? "" : "]");
}

enum { STEP, BAR, LOSS, SPARK, RATE, MFU, ETA, CHECKPOINT, N_FIELDS };
enum { BAR_CELLS = 16, LEAST_CELLS = 6 };

/* What is shown, and how long the bar is. */
typedef struct {
    unsigned fields;
    int cells;
} layout;

static void add_field(const mx_progress *p, const mx_progress_state *s, int field, int cells,
                      mx_str *out)
{
    char buf[32];
    switch (field) {
    case STEP:
        add_grouped(out, s->step);
        if (s->steps > 0) {
            mx_str_add(out, "/");
            add_grouped(out, s->steps);
            mx_str_addf(out, " %d%%", (int)(100 * s->step / s->steps));
        }
        break;
    case BAR:
        if (s->steps > 0)
            add_bar(p, s, cells, out);
        break;
    case LOSS:
        if (p->n_loss) {
            add_loss(out, s);
            mx_str_addf(out, "%s%s", *arrow(p) ? " " : "", arrow(p));
        }
        break;
    case SPARK:
        if (p->n_loss >= 4)
            add_sparkline(p, 12, out);
        break;
    case RATE:
        if (isfinite(s->tokens_per_s))
            add_rate(out, s->tokens_per_s);
        break;
    case MFU:
        if (isfinite(s->mfu))
            mx_str_addf(out, "MFU %.1f%%", 100 * s->mfu);
        break;
    case ETA:
        if (isfinite(s->eta_s))
            mx_str_addf(out, "eta %s", mx_format_duration(buf, sizeof buf, s->eta_s));
        break;
    case CHECKPOINT:
        mx_str_add(out, s->checkpoint ? s->checkpoint : "");
        break;
    default:
        break;
    }
}

void mx_progress_cut(mx_str *s, size_t from, int width)
{
    int n = 0;
    for (size_t i = from; i < s->len; i++) {
        n += ((unsigned char)s->text[i] & 0xC0) != 0x80;
        if (n > width) {
            s->text[i] = 0;
            s->len = i;
            return;
        }
    }
}

/* Gives the columns by which fields are shorter than they usually are: whether a line fits must not
 * change from step to step with the digits of a number. */
static int join_fields(const mx_progress *p, const mx_progress_state *s, layout l, mx_str *out)
{
    static const int usual[N_FIELDS] = {[LOSS] = 14, [RATE] = 11, [MFU] = 9, [ETA] = 10};
    bool first = true;
    int spare = 0;
    for (int f = 0; f < N_FIELDS; f++) {
        if (!(l.fields >> f & 1))
            continue;
        size_t before = out->len;
        if (!first)
            mx_str_add(out, f == BAR || f == SPARK ? " " : p->utf8 ? " │ " : " | ");
        size_t start = out->len;
        add_field(p, s, f, l.cells, out);
        if (out->len == start) { /* unknown: no separator either */
            out->len = before;
            if (out->text)
                out->text[before] = 0;
        } else {
            int n = mx_text_columns(out->text + start);
            spare += n < usual[f] ? usual[f] - n : 0;
            first = false;
        }
    }
    return spare;
}

void mx_progress_line(const mx_progress *p, const mx_progress_state *s, int width, mx_str *out)
{
    static const int drop[] = {SPARK, MFU, BAR, CHECKPOINT, RATE, ETA, LOSS};
    layout l = {.fields = (1u << N_FIELDS) - 1, .cells = BAR_CELLS};
    size_t from = out->len;
    for (int k = 0;;) {
        out->len = from;
        int spare = join_fields(p, s, l, out);
        int over = mx_text_columns(mx_str_text(out) + from) + spare - width;
        if (over <= 0 || k == (int)(sizeof drop / sizeof *drop))
            break;
        if (l.fields >> BAR & 1 && l.cells - over >= LEAST_CELLS) {
            l.cells -= over;
        } else {
            l.fields &= ~(1u << drop[k++]);
            l.cells = BAR_CELLS;
        }
    }
    mx_progress_cut(out, from, width);
}

void mx_progress_plain(const mx_progress_state *s, mx_str *out)
{
    char buf[32];
    mx_str_addf(out, "step %lld", (long long)s->step);
    if (s->steps > 0)
        mx_str_addf(out, "/%lld", (long long)s->steps);
    mx_str_add(out, "  ");
    add_loss(out, s);
    if (isfinite(s->tokens_per_s)) {
        mx_str_add(out, "  ");
        add_rate(out, s->tokens_per_s);
    }
    if (isfinite(s->mfu))
        mx_str_addf(out, "  MFU %.1f%%", 100 * s->mfu);
    if (isfinite(s->eta_s))
        mx_str_addf(out, "  eta %s", mx_format_duration(buf, sizeof buf, s->eta_s));
    if (s->checkpoint && *s->checkpoint)
        mx_str_addf(out, "  %s", s->checkpoint);
    mx_str_add(out, "\n");
}
