/* grouped_matmul.c - one GEMM per expert over rows sorted by expert.
 *
 *     x (n, d)   w (e, f, d)   start (e + 1) int32  ->  y (n, f):   y_i = w_e x_i
 * for the rows start[e] <= i < start[e + 1]; with in_out the weights are stored (e, d, f). Rows
 * that belong to no expert (before start[0], beyond start[e]: dropped tokens) give zeros. Starts
 * that fall or leave the rows are taken as far as they make sense: an expert never reaches back
 * into its predecessor's rows, so no input can make a kernel read outside its tensors.
 *
 * Backward: dx is the same op with the other layout, dw is grouped_outer.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/cpu/grouped_kernel.h"
#include "ops/grouped.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_GROUPED };

typedef struct {
    bool in_out;  /* w is (e, d, f) */
    mx_dtype out; /* of the result, where has_out says so; otherwise x's */
    bool has_out;
    bool one_path; /* as in ops/matmul.h */
} grouped_attr;

static const char *notation(const mx_node *n)
{
    return ((const grouped_attr *)n->attr)->in_out ? "!nd,!edf,!s->!nf" : "!nd,!efd,!s->!nf";
}

static void infer(mx_graph *g, mx_node *n)
{
    const grouped_attr *at = n->attr;
    mx_grouped_check(g, n, n->in[GROUPED_B]->type.dim[0], n->in[GROUPED_START]);
    if (at->has_out)
        n->type.dtype = at->out;
    if (g->one_path)
        ((grouped_attr *)mx_attr_edit(n))->one_path = true;
}

/* Rows that no expert has. */
static void clear(const mx_tensor *y, int64_t from, int64_t to)
{
    size_t row = (size_t)y->type.dim[1] * mx_dtype_bytes(y->type.dtype);
    memset((char *)y->data + (size_t)from * row, 0, (size_t)(to - from) * row);
}

static void grouped_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[GROUPED_A], *w = &c->in[GROUPED_B], *y = &c->out[0];
    int64_t rows = x->type.dim[0], E = w->type.dim[0];
    int32_t *start = c->work;
    MX_ASSERT(x->type.dtype == w->type.dtype, "x is %s, w %s", mx_dtype_name(x->type.dtype),
              mx_dtype_name(w->type.dtype));
    mx_grouped_starts(c->in[GROUPED_START].data, E, rows, start);
    mx_grouped g = {.groups = E, .d_in = x->type.dim[1], .d_out = y->type.dim[1], .offsets = start,
                    .w_in_out = ((const grouped_attr *)c->attr)->in_out,
                    .one_path = ((const grouped_attr *)c->attr)->one_path,
                    .type = mx_num_of(x->type.dtype),
                    .out_type = mx_num_of(y->type.dtype)};
    clear(y, 0, start[0]);
    mx_grouped_forward(&g, x->data, w->data, y->data);
    clear(y, start[E], rows);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(int32_t) * (size_t)(n->in[GROUPED_B]->type.dim[0] + 1);
}

static mx_cost cost(const mx_node *n)
{
    const mx_type *x = &n->in[GROUPED_A]->type;
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(x) * (double)n->type.dim[1]};
}

static mx_node *apply(mx_graph *g, mx_node *x, mx_node *w, mx_node *start, grouped_attr at)
{
    return MX_APPLY(g, &mx_op_grouped_matmul, &at, x, w, start);
}

/* in_out: the weights are stored (e, in, out) instead of (e, out, in). */
mx_node *mx_grouped_matmul(mx_graph *g, mx_node *x, mx_node *w, mx_node *start, bool in_out)
{
    return apply(g, x, w, start, (grouped_attr){.in_out = in_out});
}

static void grouped_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *x = n->in[GROUPED_A], *w = n->in[GROUPED_B], *start = n->in[GROUPED_START];
    bool in_out = ((const grouped_attr *)n->attr)->in_out;
    mx_node *dy = mx_cast(g, dout[0], x->type.dtype);
    mx_dtype dtype = mx_node_grad_dtype(w);
    din[GROUPED_A] = apply(g, dy, w, start, (grouped_attr){!in_out, x->type.dtype, true});
    din[GROUPED_B] = in_out ? mx_grouped_outer(g, dy, x, start, dtype)
                    : mx_grouped_outer(g, x, dy, start, dtype);
}

/* --- on a mesh --- */

mx_cut mx_grouped_rows(const mx_partition_call *p, const mx_cut *rows, mx_cut *experts)
{
    mx_cut out = *rows;
    /* The tokens must be cut by what cuts the experts; otherwise every rank has all experts. */
    if (!rows->sorted_by || (mx_cut_axes(experts) & ~mx_cut_axes(rows)))
        *experts = (mx_cut){0};
    if (!experts->n || out.exchanged)
        return out;
    int64_t mine = out.size[0] / mx_mesh_size(p->mesh, out.axes[0]);
    for (int f = 1; f < out.n; f++)
        mine *= out.size[f] / mx_mesh_size(p->mesh, out.axes[f]);
    int64_t most = mine * mx_mesh_size(p->mesh, mx_cut_axes(experts));
    double some = p->exchange_factor * (double)mine;
    out.exchanged = mx_cut_axes(experts);
    out.rows = p->exchange_factor > 0 && some < (double)most ? (int64_t)some : most;
    return out;
}

static void place(const mx_node *n, mx_partition_call *p)
{
    bool in_out = ((const grouped_attr *)n->attr)->in_out;
    int of_in = in_out ? 1 : 2, of_out = in_out ? 2 : 1;
    mx_cut experts = p->have[1].dim[0];
    mx_cut rows = mx_grouped_rows(p, &p->have[0].dim[0], &experts);
    mx_axis_set used = mx_cut_axes(&rows);
    mx_cut out = mx_cut_without(&p->have[1].dim[of_out], used);
    mx_cut in = mx_cut_without(&p->have[1].dim[of_in], used | mx_cut_axes(&out));
    if (!mx_cut_equal(&in, &p->have[0].dim[1])) /* summed: both alike, or both whole */
        in = (mx_cut){0};
    p->in[0] = (mx_placement){{rows, in}};
    p->in[1].dim[0] = experts;
    p->in[1].dim[of_in] = in;
    p->in[1].dim[of_out] = out;
    p->in[2] = p->have[2]; /* this rank's own starts, whatever they are a sum of */
    if (rows.exchanged)
        p->in[2] = (mx_placement){{{.sorted_by = rows.sorted_by, .exchanged = rows.exchanged,
                                    .rows = n->in[GROUPED_B]->type.dim[0] /
                                                mx_mesh_size(p->mesh, rows.exchanged) + 1}}};
    p->out[0] = (mx_placement){{rows, out}, .partial = mx_cut_axes(&in)};
}

#define START(n) {1, {n}, MX_I32, 0, 8}
#define ROWS(n, rows) {1, {n}, MX_I32, -rows / 8, rows + 9}
#define LARGE(n, ...) {n, {__VA_ARGS__}, .no_grad = true}
const mx_op mx_op_grouped_matmul = {
    .name = "grouped_matmul",
    .doc = "one GEMM per expert over rows sorted by expert",
    .dtypes = MX_REALS,
    .gives = MX_REALS,
    .dtypes_at = {[GROUPED_START] = MX_INDICES},
    .attr_size = sizeof(grouped_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(grouped_attr, MX_ATTR_BOOL, in_out),
                                      MX_QUIET_FIELD(grouped_attr, MX_ATTR_DTYPE, out),
                                      MX_QUIET_FIELD(grouped_attr, MX_ATTR_BOOL, has_out),
                                      MX_QUIET_FIELD(grouped_attr, MX_ATTR_BOOL, one_path), {0}},
    .notation = notation,
    .place = place,
    .infer = infer,
    .grad = grouped_vjp,
    .cost = cost,
    .cpu = grouped_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{3, {{2, {7, 4}}, {3, {3, 6, 4}}, START(4)}, &(grouped_attr){0}},
                               {3, {{2, {7, 4}}, {3, {3, 4, 6}}, START(4)},
                                &(grouped_attr){.in_out = true}},
                               {3, {{2, {5, 2}}, {3, {1, 2, 2}}, START(2)}, &(grouped_attr){0}},
                               {3, {LARGE(2, 300, 88), LARGE(3, 5, 40, 88), ROWS(6, 300)},
                                &(grouped_attr){0}},
                               {3, {LARGE(2, 300, 88), LARGE(3, 5, 88, 40), ROWS(6, 300)},
                                &(grouped_attr){.in_out = true}},
                               {3, {LARGE(2, 70, 21), LARGE(3, 40, 13, 21), ROWS(41, 70)},
                                &(grouped_attr){0}}, {0}},
};
