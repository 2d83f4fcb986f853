/* chips.c - see chips.h. */
#include "plan/chips.h"

#include "base/key.h"
#include "device/chips.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- figures of a row ---- */

typedef struct {
    const char *name;
    size_t offset;
    double scale, min, max; /* of the figure as it is written */
} field;

#define FIGURE(T, name, member, scale, min, max)                                                   \
    {                                                                                              \
        name, offsetof(T, member), scale, min, max                                                 \
    }

static const field chip_fields[] = {
    FIGURE(mx_plan_chip, "memory_gib", memory_bytes, 0x1p30, 0.01, 1e5),
    FIGURE(mx_plan_chip, "memory_gbs", bytes_per_second, 1e9, 0.1, 1e6),
    FIGURE(mx_plan_chip, "watts", watts, 1, 1, 1e5),
    FIGURE(mx_plan_chip, "units", units, 1, 1, 1e5),
    FIGURE(mx_plan_chip, "memory_share", memory_share, 1, 0.01, 1),
    FIGURE(mx_plan_chip, "k_half", k_half, 1, 0, 1e5),
    FIGURE(mx_plan_chip, "grouped_k_half", grouped_k_half, 1, 0, 1e5),
    FIGURE(mx_plan_chip, "launch_us", launch_seconds, 1e-6, 0, 1e4),
    FIGURE(mx_plan_chip, "comm_units", comm_units, 1, 0, 1e5),
    {0},
};

static const field link_fields[] = {
    FIGURE(mx_level, "gbs", bytes_per_second, 1e9, 1e-3, 1e6),
    FIGURE(mx_level, "latency_us", latency, 1e-6, 0, 1e6),
    {0},
};

static const char *const rate_names[MX_RATES] = {[MX_RATE_F32] = "float32",
                                                 [MX_RATE_BF16] = "bfloat16",
                                                 [MX_RATE_FP8] = "float8",
                                                 [MX_RATE_FP8_ROWS] = "float8_rows",
                                                 [MX_RATE_FP8_BLOCKS] = "float8_blocks",
                                                 [MX_RATE_INT8] = "int8",
                                                 [MX_RATE_FP4] = "float4"};

const char *mx_rate_name(mx_rate r)
{
    return rate_names[r];
}

static mx_status number(const char *file, const mx_yaml_node *v, double min, double max,
                        double *out)
{
    if (v->kind != MX_YAML_SCALAR || !mx_parse_f64(v->text, out) || !(*out >= min && *out <= max))
        return mx_fail(MX_USAGE, "%s:%d: %s: expected a number from %g to %g, found %s", file,
                       v->line, v->key ? v->key : "an item", min, max,
                       v->kind == MX_YAML_SCALAR ? v->text : mx_yaml_kind_name(v->kind));
    return MX_OK;
}

static const mx_yaml_node *child(const mx_yaml_node *map, const char *key)
{
    for (const mx_yaml_node *n = map->first; n; n = n->next)
        if (n->key && strcmp(n->key, key) == 0)
            return n;
    return NULL;
}

/* Numbers of a list; gives how many. */
static mx_status numbers(const char *file, const mx_yaml_node *list, double min, double max,
                         double *out, int cap, int *n)
{
    *n = 0;
    if (list->kind != MX_YAML_LIST || list->n < 1 || list->n > cap)
        return mx_fail(MX_USAGE, "%s:%d: expected a list of 1 to %d numbers, found %s of %d", file,
                       list->line, cap, mx_yaml_kind_name(list->kind), list->n);
    for (const mx_yaml_node *v = list->first; v; v = v->next)
        MX_TRY(number(file, v, min, max, &out[(*n)++]));
    return MX_OK;
}

static mx_status read_rates(const char *file, const mx_yaml_node *map, double out[MX_RATES])
{
    if (map->kind != MX_YAML_MAP)
        return mx_fail(MX_USAGE, "%s:%d: %s: expected rates by dtype, {bfloat16: 989.4}", file,
                       map->line, map->key);
    for (const mx_yaml_node *v = map->first; v; v = v->next) {
        int r = 0;
        while (r < MX_RATES && strcmp(rate_names[r], v->key) != 0)
            r++;
        if (r == MX_RATES)
            return mx_fail(MX_USAGE,
                           "%s:%d: no rate for `%s`; there are float32, bfloat16, "
                           "float8, float8_rows, float8_blocks, int8 and float4",
                           file, v->line, v->key);
        MX_TRY(number(file, v, 1e-3, 1e6, &out[r]));
        out[r] *= 1e12;
    }
    return MX_OK;
}

static mx_status read_attention(const char *file, const mx_yaml_node *map, mx_rate_curve curves[2])
{
    static const char *const names[2] = {"forward", "backward"};
    const mx_yaml_node *at = map->kind == MX_YAML_MAP ? child(map, "length") : NULL;
    for (int k = 0; k < 2; k++) {
        const mx_yaml_node *rate = at ? child(map, names[k]) : NULL;
        mx_rate_curve *curve = &curves[k];
        int n = 0;
        if (!rate || rate->n != at->n)
            return mx_fail(MX_USAGE,
                           "%s:%d: %s: expected lists length, forward and "
                           "backward of one size",
                           file, map->line, map->key);
        MX_TRY(numbers(file, at, 1, 1e9, curve->at, MX_CURVE_POINTS, &curve->n));
        MX_TRY(numbers(file, rate, 1e-6, 1e6, curve->rate, MX_CURVE_POINTS, &n));
        for (int i = 0; i < n; i++) {
            curve->rate[i] *= 1e12;
            if (i && curve->at[i] <= curve->at[i - 1])
                return mx_fail(MX_USAGE, "%s:%d: %s: lengths must grow", file, at->line, map->key);
        }
    }
    return MX_OK;
}

/* Items of four figures, or with `groups` of five. */
static mx_status read_points(const char *file, const mx_yaml_node *list, bool groups,
                             mx_gemm_points *out)
{
    const char *item = groups ? "[experts, m, n, k, TFLOP/s]" : "[m, n, k, TFLOP/s]";
    out->n = 0;
    if (list->kind != MX_YAML_LIST || list->n > MX_GEMM_POINTS)
        return mx_fail(MX_USAGE, "%s:%d: %s: expected at most %d items %s", file, list->line,
                       list->key, MX_GEMM_POINTS, item);
    for (const mx_yaml_node *v = list->first; v; v = v->next) {
        double f[5] = {1};
        int n = 0;
        MX_TRY(numbers(file, v, 1e-6, 1e9, f + !groups, 4 + groups, &n));
        if (n != 4 + groups)
            return mx_fail(MX_USAGE, "%s:%d: %s: expected %s", file, v->line, list->key, item);
        out->at[out->n++] = (mx_gemm_point){f[0], f[1], f[2], f[3], f[4] * 1e12};
    }
    return MX_OK;
}

static mx_status read_recurrence(const char *file, const mx_yaml_node *map, double out[2])
{
    static const char *const names[2] = {"forward", "backward"};
    for (int k = 0; k < 2; k++) {
        const mx_yaml_node *v = map->kind == MX_YAML_MAP ? child(map, names[k]) : NULL;
        if (!v || map->n != 2)
            return mx_fail(MX_USAGE,
                           "%s:%d: recurrence: expected {forward: TFLOP/s, backward: TFLOP/s}",
                           file, map->line);
        MX_TRY(number(file, v, 1e-6, 1e6, &out[k]));
        out[k] *= 1e12;
    }
    return MX_OK;
}

static mx_status read_figure(const char *file, const mx_yaml_node *v, const field *fields,
                             void *row, bool *known)
{
    for (const field *f = fields; f->name; f++)
        if (strcmp(f->name, v->key) == 0) {
            double *at = (double *)((char *)row + f->offset);
            *known = true;
            MX_TRY(number(file, v, f->min, f->max, at));
            *at *= f->scale;
        }
    return MX_OK;
}

static const char *const attention_names[MX_HEAD_SIZES] = {"attention_64", "attention",
                                                           "attention_256"};

static mx_status chip_entry(const char *file, const mx_yaml_node *v, mx_plan_chip *c)
{
    bool known = false;
    MX_TRY(read_figure(file, v, chip_fields, c, &known));
    if (strcmp(v->key, "tflops") == 0)
        return read_rates(file, v, c->peak);
    if (strcmp(v->key, "sustained") == 0)
        return read_rates(file, v, c->sustained);
    for (int i = 0; i < MX_HEAD_SIZES; i++)
        if (strcmp(v->key, attention_names[i]) == 0)
            return read_attention(file, v, c->attention[i]);
    if (strcmp(v->key, "gemm") == 0)
        return read_points(file, v, false, &c->gemm);
    if (strcmp(v->key, "grouped") == 0)
        return read_points(file, v, true, &c->grouped);
    if (strcmp(v->key, "recurrence") == 0)
        return read_recurrence(file, v, c->recurrence);
    if (strcmp(v->key, "network") == 0) {
        if (v->kind != MX_YAML_SCALAR || strlen(v->text) >= sizeof c->network)
            return mx_fail(MX_USAGE, "%s:%d: network: expected LINK x CHIPS, LINK in one value",
                           file, v->line);
        snprintf(c->network, sizeof c->network, "%s", v->text);
        snprintf(c->network_at, sizeof c->network_at, "%.240s:%d", file, v->line);
        return MX_OK;
    }
    return known ? MX_OK
                 : mx_fail(MX_USAGE,
                           "%s:%d: a chip has no `%s`; configs/chips.yml says what "
                           "there is",
                           file, v->line, v->key);
}

/* ---- rows of a table ---- */

enum { NEAREST = 3 };

mx_status mx_nearest_names(const char *what, const char *name, const char *const *names, int n)
{
    const char *best[NEAREST] = {0};
    int far[NEAREST] = {INT_MAX, INT_MAX, INT_MAX};
    for (int j = 0; j < n; j++) {
        int d = mx_edit_distance(name, names[j]), k = NEAREST;
        while (k > 0 && d < far[k - 1])
            k--;
        for (int i = NEAREST - 1; i > k; i--) {
            far[i] = far[i - 1];
            best[i] = best[i - 1];
        }
        if (k < NEAREST) {
            far[k] = d;
            best[k] = names[j];
        }
    }
    mx_str near = {0};
    for (int i = 0; i < NEAREST && best[i]; i++)
        mx_str_addf(&near, "%s%s", i ? ", " : "", best[i]);
    mx_status st =
        mx_fail(MX_USAGE, "no %s `%s`; the nearest are %s", what, name, mx_str_text(&near));
    mx_str_fini(&near);
    return st;
}

/* The table of the program and, before it, the user's. */
typedef struct {
    mx_arena arena;
    const mx_yaml_node *root[2];
    const char *file[2];
    int n;
} tables;

static mx_status open_tables(tables *t, const char *home, const char *name, const char *file)
{
    char path[4200];
    mx_yaml_node *root;
    *t = (tables){0};
    snprintf(path, sizeof path, "%.4000s/%s", home ? home : "configs", name);
    MX_TRY(mx_yaml_read(&t->arena, path, &root));
    t->root[t->n] = root;
    t->file[t->n++] = mx_arena_strdup(&t->arena, path);
    if (!*file)
        return MX_OK;
    MX_TRY(mx_yaml_read(&t->arena, file, &root));
    t->root[t->n] = root;
    t->file[t->n++] = mx_arena_strdup(&t->arena, file);
    return MX_OK;
}

static mx_status unknown(const char *what, const char *name, tables *t)
{
    int cap = 0, n = 0;
    for (int i = 0; i < t->n; i++)
        cap += t->root[i]->n;
    const char **names = MX_NEW_N(&t->arena, const char *, cap + 1);
    for (int i = 0; i < t->n; i++)
        for (const mx_yaml_node *row = t->root[i]->first; row && n < cap; row = row->next)
            names[n++] = row->key;
    return mx_nearest_names(what, name, names, n);
}

/* A row that measures itself has its best GEMM for a peak, which other kernels can pass a little;
 * beyond this a figure is no rate of the chip. */
static const double ABOVE_PEAK = 1.5;

/* The figures of a list against the peak. */
static mx_status check_rates(const char *file, const mx_yaml_node *list, const mx_plan_chip *c,
                             const double *rate, int n)
{
    for (int i = 0; i < n; i++)
        if (rate[i] > ABOVE_PEAK * c->peak[MX_RATE_BF16])
            return mx_fail(MX_USAGE,
                           "%s:%d: %s: %g TFLOP/s is more than the chip can do; its peak is %g "
                           "(tflops)",
                           file, list->line, list->key, rate[i] / 1e12,
                           c->peak[MX_RATE_BF16] / 1e12);
    return MX_OK;
}

static mx_status check_points(const char *file, const mx_yaml_node *list, const mx_plan_chip *c,
                              const mx_gemm_points *points)
{
    for (int i = 0; i < points->n; i++)
        MX_TRY(check_rates(file, list, c, &points->at[i].flops, 1));
    return MX_OK;
}

/* What figures must be beside others of the row. */
static mx_status check_entry(const char *file, const mx_yaml_node *v, const mx_plan_chip *c)
{
    for (int i = 0; i < MX_HEAD_SIZES; i++)
        for (int k = 0; k < 2 && strcmp(v->key, attention_names[i]) == 0; k++)
            MX_TRY(check_rates(file, v, c, c->attention[i][k].rate, c->attention[i][k].n));
    if (strcmp(v->key, "gemm") == 0)
        return check_points(file, v, c, &c->gemm);
    if (strcmp(v->key, "grouped") == 0)
        return check_points(file, v, c, &c->grouped);
    if (strcmp(v->key, "recurrence") == 0)
        return check_rates(file, v, c, c->recurrence, 2);
    if (strcmp(v->key, "comm_units") == 0 && c->comm_units >= c->units)
        return mx_fail(MX_USAGE, "%s:%d: comm_units: expected fewer than the chip's units, %g; "
                       "found %g", file, v->line, c->units, c->comm_units);
    return MX_OK;
}

static mx_status lay_entries(mx_plan_chip *c, const char *file, const mx_yaml_node *row)
{
    if (row->kind != MX_YAML_MAP)
        return mx_fail(MX_USAGE, "%s:%d: %s: expected the figures of a chip", file, row->line,
                       row->key);
    for (const mx_yaml_node *v = row->first; v; v = v->next)
        if (strcmp(v->key, "like") != 0)
            MX_TRY(chip_entry(file, v, c));
    return MX_OK;
}

/* First the row that it is like, which is like no other. */
static mx_status lay_like(mx_plan_chip *c, const char *file, const mx_yaml_node *table,
                          const mx_yaml_node *row)
{
    const mx_yaml_node *like = row->kind == MX_YAML_MAP ? child(row, "like") : NULL;
    if (!like)
        return MX_OK;
    const mx_yaml_node *other = like->kind == MX_YAML_SCALAR ? child(table, like->text) : NULL;
    if (!other || other == row || (other->kind == MX_YAML_MAP && child(other, "like")))
        return mx_fail(MX_USAGE,
                       "%s:%d: like: expected the name of another row of this file, itself like "
                       "none; found %s",
                       file, like->line,
                       like->kind == MX_YAML_SCALAR ? like->text : mx_yaml_kind_name(like->kind));
    return lay_entries(c, file, other);
}

static mx_status lay_chip(mx_plan_chip *c, const char *file, const mx_yaml_node *table,
                          const mx_yaml_node *row)
{
    MX_TRY(lay_like(c, file, table, row));
    MX_TRY(lay_entries(c, file, row));
    for (const mx_yaml_node *v = row->first; v; v = v->next)
        MX_TRY(check_entry(file, v, c));
    if (c->memory_bytes <= 0 || c->bytes_per_second <= 0 || c->peak[MX_RATE_BF16] <= 0)
        return mx_fail(MX_USAGE,
                       "%s:%d: %s: a chip needs memory_gib, memory_gbs and tflops with "
                       "bfloat16",
                       file, row->line, row->key);
    c->peak[MX_RATE_FP8_ROWS] = c->peak[MX_RATE_FP8_BLOCKS] = c->peak[MX_RATE_FP8];
    for (int r = 0; r < MX_RATES; r++)
        if (c->sustained[r] > c->peak[r])
            return mx_fail(MX_USAGE,
                           "%s:%d: %s: sustained %s is %g TFLOP/s, more than the peak, "
                           "%g",
                           file, row->line, row->key, rate_names[r], c->sustained[r] / 1e12,
                           c->peak[r] / 1e12);
    return MX_OK;
}

static void fill_in(mx_plan_chip *c)
{
    static const double share = 0.75; /* of the peak, where nothing is known of GEMMs */
    double known =
        c->sustained[MX_RATE_BF16] > 0 ? c->sustained[MX_RATE_BF16] / c->peak[MX_RATE_BF16] : share;
    double narrow = c->sustained[MX_RATE_FP8] > 0 && c->peak[MX_RATE_FP8] > 0
                        ? c->sustained[MX_RATE_FP8] / c->peak[MX_RATE_FP8]
                        : known; /* of the integer units, which draw as much power */
    for (int r = 0; r < MX_RATES; r++) {
        bool scaled = r == MX_RATE_FP8_ROWS || r == MX_RATE_FP8_BLOCKS;
        if (c->sustained[r] <= 0)
            c->sustained[r] = scaled ? c->sustained[MX_RATE_FP8]
                                     : c->peak[r] * (r == MX_RATE_INT8 ? narrow : known);
    }
}

/* What the data sheet says, where the program has it. */
static bool take_known(mx_plan_chip *c, const char *name)
{
    const mx_chip *known = mx_chip_find(name);
    if (!known)
        return false;
    c->memory_bytes = known->memory_bytes;
    c->bytes_per_second = known->bytes_per_second;
    c->peak[MX_RATE_F32] = known->flops_per_second[MX_F32];
    c->peak[MX_RATE_BF16] = known->flops_per_second[MX_BF16];
    c->peak[MX_RATE_INT8] = known->flops_per_second[MX_I8];
    c->peak[MX_RATE_FP8] = known->flops_per_second[MX_F8_E4M3];
    c->peak[MX_RATE_FP8_ROWS] = c->peak[MX_RATE_FP8_BLOCKS] = c->peak[MX_RATE_FP8];
    return true;
}

mx_status mx_plan_chip_read(mx_plan_chip *out, const char *home, const char *file, const char *name)
{
    tables t;
    mx_status st = open_tables(&t, home, "chips.yml", file);
    *out = (mx_plan_chip){.memory_share = 0.85,
                          .k_half = 100,
                          .launch_seconds = 1.5e-6,
                          .units = 1,
                          .network = "pcie4 x 8, ethernet-100"};
    snprintf(out->name, sizeof out->name, "%s", name);
    bool found = take_known(out, name);
    for (int i = 0; i < t.n && !st; i++) {
        const mx_yaml_node *row = child(t.root[i], name);
        if (row)
            st = lay_chip(out, t.file[i], t.root[i], row);
        found |= row != NULL;
    }
    if (!st && !found)
        st = unknown("chip", name, &t);
    mx_arena_fini(&t.arena);
    fill_in(out);
    return st;
}

static void scale_rates(double *rate, int n, double by)
{
    for (int i = 0; i < n; i++)
        rate[i] *= by;
}

void mx_plan_chip_set(mx_plan_chip *c, const mx_chip_figures *f)
{
    double by = f->peak > 0 && c->peak[f->rate] > 0 ? f->peak / c->peak[f->rate] : 1;
    mx_gemm_points *points[] = {&c->gemm, &c->grouped};
    c->memory_bytes = f->memory_bytes > 0 ? f->memory_bytes : c->memory_bytes;
    c->bytes_per_second = f->bytes_per_second > 0 ? f->bytes_per_second : c->bytes_per_second;
    scale_rates(c->peak, MX_RATES, by);
    scale_rates(c->sustained, MX_RATES, by);
    scale_rates(c->recurrence, 2, by);
    for (int i = 0; i < 2 * MX_HEAD_SIZES; i++)
        scale_rates(c->attention[i / 2][i % 2].rate, MX_CURVE_POINTS, by);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < points[i]->n; k++)
            points[i]->at[k].flops *= by;
}

mx_status mx_plan_chip_computes(const mx_plan_chip *c, mx_rate r)
{
    return c->sustained[r] > 0
               ? MX_OK
               : mx_fail(MX_USAGE,
                         "no rate of %s is known of a %s; take another dtype, or give one in "
                         "chip_file (%s: {tflops: {%s: 80}})",
                         mx_rate_name(r), c->name, c->name, mx_rate_name(r));
}

/* ---- networks ---- */

static mx_status lay_link(mx_level *l, const char *file, const mx_yaml_node *row)
{
    double share = 1;
    if (row->kind != MX_YAML_MAP)
        return mx_fail(MX_USAGE, "%s:%d: %s: expected the figures of a link", file, row->line,
                       row->key);
    for (const mx_yaml_node *v = row->first; v; v = v->next) {
        bool known = strcmp(v->key, "share") == 0;
        if (known)
            MX_TRY(number(file, v, 0.01, 1, &share));
        MX_TRY(read_figure(file, v, link_fields, l, &known));
        if (!known)
            return mx_fail(MX_USAGE, "%s:%d: a link has gbs, share and latency_us, not `%s`", file,
                           v->line, v->key);
    }
    if (l->bytes_per_second <= 0)
        return mx_fail(MX_USAGE, "%s:%d: %s: a link needs gbs, above 0", file, row->line, row->key);
    l->bytes_per_second *= share;
    return MX_OK;
}

static mx_status read_link(mx_level *l, tables *t)
{
    const mx_yaml_node *row = NULL;
    for (int i = t->n - 1; i >= 0 && !row; i--) {
        row = child(t->root[i], l->name);
        if (row)
            MX_TRY(lay_link(l, t->file[i], row));
    }
    return row ? MX_OK : unknown("link", l->name, t);
}

static mx_status parse_levels(mx_network *w, const char *text)
{
    for (const char *s = text; *s;) {
        mx_level *l = &w->level[w->n];
        long long chips = 0;
        int used = 0;
        if (w->n == MX_LEVELS)
            return mx_fail(MX_USAGE, "network=%s: at most %d levels", text, MX_LEVELS);
        if (sscanf(s, " %31[^ ,x] x %lld%n", l->name, &chips, &used) < 2 || !used) {
            chips = 0;
            if (sscanf(s, " %31[^ ,]%n", l->name, &used) < 1)
                return mx_fail(MX_USAGE, "network=%s: expected LINK x CHIPS, LINK", text);
        }
        s += used;
        s += strspn(s, " ");
        if ((*s && *s != ',') || (chips == 0 && *s) || chips < 0)
            return mx_fail(MX_USAGE,
                           "network=%s: expected LINK x CHIPS, LINK: every level but "
                           "the last says how many chips it joins",
                           text);
        s += *s == ',';
        l->chips = chips;
        if (w->n && chips && chips <= w->level[w->n - 1].chips)
            return mx_fail(MX_USAGE,
                           "network=%s: each level must join more chips than the one "
                           "inside it",
                           text);
        w->n++;
    }
    return w->n ? MX_OK : mx_fail(MX_USAGE, "network: expected LINK x CHIPS, LINK");
}

mx_status mx_network_read(mx_network *out, const char *home, const char *file, const char *text)
{
    tables t;
    *out = (mx_network){0};
    MX_TRY(parse_levels(out, text));
    mx_status st = open_tables(&t, home, "networks.yml", file);
    for (int i = 0; i < out->n && !st; i++)
        st = read_link(&out->level[i], &t);
    mx_arena_fini(&t.arena);
    return st;
}

double mx_rate_curve_at(const mx_rate_curve *c, double at)
{
    if (at <= c->at[0])
        return c->rate[0];
    for (int i = 1; i < c->n; i++)
        if (at <= c->at[i]) {
            double w = log(at / c->at[i - 1]) / log(c->at[i] / c->at[i - 1]);
            return c->rate[i - 1] + w * (c->rate[i] - c->rate[i - 1]);
        }
    return c->rate[c->n - 1];
}
