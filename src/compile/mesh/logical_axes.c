/* logical_axes.c - the placement that the names of a tensor's dims ask for. See axis_rules.h. */
#include "compile/mesh/axis_rules.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    size_t n;
    int n_blocks; /* at least 1 */
    int64_t block[MX_MAX_BLOCKS], unit[MX_MAX_BLOCKS];
    bool uneven; /* pieces may be rounded up */
} dim_name;

static bool named(const dim_name *d, const char *name)
{
    return strlen(name) == d->n && memcmp(d->name, name, d->n) == 0;
}

/* "128*64+64": blocks and their units; false when that is not what stands there. */
static bool read_blocks(const char *p, size_t n, dim_name *out)
{
    const char *end = p + n;
    for (out->n_blocks = 0; p < end && out->n_blocks < MX_MAX_BLOCKS; out->n_blocks++) {
        char *rest;
        int64_t *unit = &out->unit[out->n_blocks];
        *unit = 1;
        out->block[out->n_blocks] = strtoll(p, &rest, 10);
        if (*rest == '*')
            *unit = strtoll(rest + 1, &rest, 10);
        if (*unit < 1 || out->block[out->n_blocks] % *unit)
            return false;
        p = rest + (*rest == '+');
    }
    return p == end;
}

static bool read_name(const char *p, size_t n, int64_t size, dim_name *out)
{
    const char *star = memchr(p, '*', n), *open = memchr(p, '(', n);
    *out = (dim_name){.name = p, .n = n, .n_blocks = 1, .block = {size}, .unit = {1}};
    out->n = open ? (size_t)(open - p) : star ? (size_t)(star - p) : n;
    out->uneven = named(out, "vocab") || named(out, "activation_vocab");
    if (open) {
        int64_t sum = 0;
        if (p[n - 1] != ')' || !read_blocks(open + 1, (size_t)(p + n - 1 - open - 1), out))
            return false;
        for (int b = 0; b < out->n_blocks; b++)
            sum += out->block[b];
        return sum == size;
    }
    if (star)
        out->unit[0] = strtoll(star + 1, NULL, 10);
    return out->unit[0] >= 1 && size % out->unit[0] == 0;
}

/* False when there are not as many names as dims, or a name occurs twice. */
static bool read_names(const char *axes, const mx_type *t, dim_name *out)
{
    const char *p = axes;
    for (int d = 0; d < t->ndim; d++) {
        size_t n = strcspn(p, ",");
        if (!read_name(p, n, t->dim[d], &out[d]))
            return false;
        for (int e = 0; e < d; e++)
            if (out[d].n && out[e].n == out[d].n && memcmp(out[e].name, out[d].name, out[d].n) == 0)
                return false;
        if (!p[n] && d + 1 < t->ndim)
            return false;
        p += n + (p[n] != 0);
    }
    return !*p;
}

/* --- what a rule cannot give --- */

static void lose(mx_axis_report *r, mx_axis_loss loss)
{
    if (r && r->n < MX_MAX_LOSSES)
        r->loss[r->n++] = loss;
}

/* Does every block divide into this many pieces? If not, `count` says what does not. */
static bool divides(const dim_name *d, int64_t pieces, int64_t *count)
{
    for (int b = 0; b < d->n_blocks; b++) {
        *count = d->block[b] / d->unit[b];
        if (d->uneven ? *count < pieces : *count % pieces != 0)
            return false;
    }
    return true;
}

/* The axes of a rule that divide the dim, outermost first. */
static mx_axis_set dividing(const mx_mesh *m, mx_axis_set axes, int dim, const dim_name *name,
                            mx_axis_report *report)
{
    mx_axis_set kept = 0;
    int64_t pieces = 1, count = 0;
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        int degree = mx_mesh_degree(m, (mx_axis)a);
        if (!(axes >> a & 1) || degree == 1)
            continue;
        if (divides(name, pieces * degree, &count)) {
            kept |= 1u << a;
            pieces *= degree;
        } else {
            lose(report, (mx_axis_loss){.dim = dim, .axis = (mx_axis)a, .size = count,
                                        .pieces = pieces * degree});
        }
    }
    return kept;
}

static mx_axis lowest(mx_axis_set s)
{
    return (mx_axis)__builtin_ctz(s);
}

/* Axes that no dim has because the rule that gives them was passed over. */
static void report_passed_over(const mx_axis_rules *r, const mx_mesh *m, const mx_type *t,
                               const dim_name *name, const mx_axis_set *of, mx_axis_report *report)
{
    mx_axis_set used = 0, more = mx_mesh_axes(m);
    for (int d = 0; d < t->ndim; d++)
        used |= of[d];
    for (int i = 0; i < r->n; i++)
        for (int d = 0; d < t->ndim; d++) {
            mx_axis_set axes = r->rule[i].axes, lost = axes & more & ~used;
            if (!lost || !named(&name[d], r->rule[i].name) || !(axes & used & ~of[d]))
                continue;
            mx_axis taken = lowest(axes & used & ~of[d]);
            int by = 0;
            while (!(of[by] >> taken & 1))
                by++;
            lose(report, (mx_axis_loss){.dim = d, .axis = lowest(lost), .used = taken, .by = by});
            more &= ~lost; /* said once */
        }
}

bool mx_axis_rules_place(const mx_axis_rules *r, const mx_mesh *m, const char *axes,
                         const mx_type *t, mx_placement *out, mx_axis_report *report)
{
    dim_name name[MX_MAX_DIMS];
    mx_axis_set used = 0, of[MX_MAX_DIMS] = {0};
    bool done[MX_MAX_DIMS] = {0};
    *out = (mx_placement){0};
    if (!read_names(axes, t, name))
        return false;
    for (int i = 0; i < r->n; i++)
        for (int d = 0; d < t->ndim; d++)
            if (!done[d] && named(&name[d], r->rule[i].name) && !(used & r->rule[i].axes)) {
                done[d] = true;
                of[d] = r->rule[i].axes;
                used |= of[d];
            }
    if (report)
        report_passed_over(r, m, t, name, of, report);
    for (int d = 0; d < t->ndim; d++)
        out->dim[d] = mx_cut_of_blocks(name[d].n_blocks, name[d].block,
                                       dividing(m, of[d], d, &name[d], report));
    return true;
}

void mx_axis_rules_zigzag(const char *axes, const mx_mesh *m, const mx_type *t, mx_placement *p)
{
    static const char length[] = "length";
    dim_name name[MX_MAX_DIMS];
    if (!read_names(axes, t, name))
        return;
    for (int d = 0; d < t->ndim; d++) {
        mx_cut *c = &p->dim[d];
        bool sequence = memmem(name[d].name, name[d].n, length, sizeof length - 1) != NULL;
        int64_t pieces = mx_mesh_size(m, mx_cut_axes(c));
        bool outermost = c->n == 1 && lowest(c->axes[0]) == MX_AXIS_CONTEXT;
        if (sequence && outermost && t->dim[d] % (2 * pieces) == 0)
            c->zigzag[0] = true;
    }
}

void mx_axis_loss_print(mx_str *s, const char *tensor, const char *axes, const mx_mesh *m,
                        const mx_axis_loss *loss)
{
    const char *p = axes;
    for (int d = 0; d < loss->dim; d++)
        p += strcspn(p, ",") + 1;
    mx_str_addf(s, "%s: dim %d (%.*s) is not cut by %s=%d: ", tensor, loss->dim,
                (int)strcspn(p, ",*("), p, mx_axis_name(loss->axis),
                mx_mesh_degree(m, loss->axis));
    if (loss->size)
        mx_str_addf(s, "%lld does not divide by %lld", (long long)loss->size,
                    (long long)loss->pieces);
    else
        mx_str_addf(s, "its rule wants %s as well, which dim %d has", mx_axis_name(loss->used),
                    loss->by);
}
