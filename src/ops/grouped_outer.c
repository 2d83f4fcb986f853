/* grouped_outer.c - the weight gradient of grouped_matmul: a sum of outer products per expert.
 *
 *     a (n, d)   b (n, f)   start (e + 1) int32  ->  (e, f, d):   y_e = sum of b_i a_i^T
 * over the rows start[e] <= i < start[e + 1]. An expert without rows gets zeros. The other layout
 * (e, d, f) is the same op with a and b exchanged.
 *
 * With `parts` there are starts of that many parts of every expert: each part is summed separately,
 * and then the parts, in order. So an expert whose rows come from several ranks has the bits of one
 * that saw them as microbatches. Made by compile/mesh/expert_sums.c, for devices that list its
 * rule.
 */
#include "ops.h"
#include "ops/load.h"
#include "ops/cpu/grouped_kernel.h"
#include "ops/grouped.h"
#include "ops/inputs.h"

enum { MX_INPUTS_GROUPED };

typedef struct {
    mx_dtype out;
    bool has_out;  /* the result's dtype is `out`, not a's */
    int64_t parts; /* 0: one */
} outer_attr;

static int64_t parts_of(const outer_attr *at)
{
    return at->parts > 1 ? at->parts : 1;
}

static void infer(mx_graph *g, mx_node *n)
{
    const outer_attr *at = n->attr;
    int64_t all = n->in[GROUPED_START]->type.dim[0] - 1;
    n->type.dim[0] = all / parts_of(at);
    mx_grouped_check(g, n, n->type.dim[0] * parts_of(at), n->in[GROUPED_START]);
    if (at->has_out)
        n->type.dtype = at->out;
}

static void add_to(const mx_tensor *y, int64_t at, int64_t n, void *part)
{
    enum { RUN = 512 };
    mx_tensor more = {.data = part, .type = y->type};
    float sum[RUN], term[RUN];
    if (y->type.dtype == MX_F64) {
        for (int64_t i = 0; i < n; i++)
            ((double *)y->data)[at + i] += ((const double *)part)[i];
        return;
    }
    for (int64_t k = 0; k < n; k += RUN) {
        int64_t m = n - k < RUN ? n - k : RUN;
        mx_load_run_f32(y, at + k, m, sum);
        mx_load_run_f32(&more, k, m, term);
        for (int64_t i = 0; i < m; i++)
            sum[i] += term[i];
        mx_store_run_f32(y, at + k, m, sum);
    }
}

/* One expert after the other, and of each one part after the other. */
static void sum_parts(const mx_call *c, mx_grouped g, int64_t parts, void *part)
{
    const mx_tensor *y = &c->out[0];
    int64_t experts = g.groups / parts, size = g.d_in * g.d_out;
    const int32_t *all = g.offsets;
    g.groups = 1;
    for (int64_t i = 0; i < experts * parts; i++) {
        char *to = (char *)y->data + (size_t)(i / parts * size) * mx_dtype_bytes(y->type.dtype);
        g.offsets = all + i;
        mx_grouped_dw(&g, c->in[GROUPED_B].data, c->in[GROUPED_A].data, i % parts ? part : to,
                      false);
        if (i % parts)
            add_to(y, i / parts * size, size, part);
    }
}

static size_t starts_bytes(int64_t groups)
{
    return (sizeof(int32_t) * (size_t)(groups + 1) + 63) / 64 * 64;
}

static void outer_cpu(const mx_call *c)
{
    const mx_tensor *a = &c->in[GROUPED_A], *b = &c->in[GROUPED_B], *y = &c->out[0];
    int64_t parts = parts_of(c->attr), groups = y->type.dim[0] * parts;
    int32_t *start = c->work;
    MX_ASSERT(a->type.dtype == b->type.dtype, "a is %s, b %s", mx_dtype_name(a->type.dtype),
              mx_dtype_name(b->type.dtype));
    mx_grouped_starts(c->in[GROUPED_START].data, groups, a->type.dim[0], start);
    mx_grouped g = {.groups = groups, .d_in = a->type.dim[1], .d_out = b->type.dim[1],
                    .offsets = start, .type = mx_num_of(a->type.dtype),
                    .out_type = mx_num_of(y->type.dtype)};
    if (parts > 1)
        sum_parts(c, g, parts, (char *)c->work + starts_bytes(groups));
    else
        mx_grouped_dw(&g, b->data, a->data, y->data, false);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    int64_t parts = parts_of(n->attr);
    (void)n_threads;
    size_t part = parts > 1 ? mx_type_bytes(&n->type) / (size_t)n->type.dim[0] : 0;
    return starts_bytes(n->type.dim[0] * parts) + part;
}

static mx_cost cost(const mx_node *n)
{
    const mx_type *a = &n->in[GROUPED_A]->type, *b = &n->in[GROUPED_B]->type;
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(a) * (double)b->dim[1]};
}

mx_node *mx_grouped_outer(mx_graph *g, mx_node *a, mx_node *b, mx_node *start, mx_dtype out)
{
    outer_attr at = {out, true};
    return MX_APPLY(g, &mx_op_grouped_outer, &at, a, b, start);
}

mx_node *mx_grouped_outer_parts(mx_graph *g, const mx_node *n, mx_node *start, int64_t parts)
{
    outer_attr at = *(const outer_attr *)n->attr;
    at.parts = parts;
    return MX_APPLY(g, &mx_op_grouped_outer, &at, n->in[GROUPED_A], n->in[GROUPED_B], start);
}

static void outer_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *dy = mx_cast(g, dout[0], n->in[GROUPED_A]->type.dtype);
    din[GROUPED_A] = mx_grouped_matmul(g, n->in[GROUPED_B], dy, n->in[GROUPED_START], true);
    din[GROUPED_B] = mx_grouped_matmul(g, n->in[GROUPED_A], dy, n->in[GROUPED_START], false);
}

#define LARGE(...) {2, {__VA_ARGS__}, .no_grad = true}
const mx_op mx_op_grouped_outer = {
    .name = "grouped_outer",
    .doc = "sum of outer products per expert",
    .dtypes = MX_REALS,
    .gives = MX_REALS,
    .dtypes_at = {[GROUPED_START] = MX_INDICES},
    .dims = "!nd,!nf,!s->!efd",
    .attr_size = sizeof(outer_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(outer_attr, MX_ATTR_DTYPE, out),
                                          MX_QUIET_FIELD(outer_attr, MX_ATTR_BOOL, has_out),
                                          MX_FIELD(outer_attr, MX_ATTR_INT, parts), {0}},
    .infer = infer,
    .grad = outer_vjp,
    .cost = cost,
    .cpu = outer_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{3, {{2, {7, 4}}, {2, {7, 6}}, {1, {4}, MX_I32, 0, 8}},
                                &(outer_attr){0}},
                               {3, {{2, {5, 2}}, {2, {5, 2}}, {1, {2}, MX_I32, 0, 6}},
                                &(outer_attr){0}},
                               {3, {LARGE(300, 88), LARGE(300, 40), {1, {6}, MX_I32, -40, 310}},
                                &(outer_attr){0}},
                               {3, {LARGE(70, 21), LARGE(70, 13), {1, {41}, MX_I32, -9, 79}},
                                &(outer_attr){0}}, {0}},
};
