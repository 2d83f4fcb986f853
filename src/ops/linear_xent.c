/* linear_xent.c - the vocabulary projection and the cross-entropy of its logits, as one op.
 *
 *     x (n, d)   w (v, d)   labels (n) int32, below 0: not counted   ->   loss (n), lse (n)
 *     z = cap tanh(scale x w^T / cap);  lse = log sum e^z;  loss = lse - z[label] + z_loss lse^2
 *     0 and 0 where the label is not counted
 *
 * The logits of the whole batch are never stored: a chunk of rows at a time is projected, reduced
 * and forgotten. When the gradient that arrives is known before the loss is (a mean over tokens: it
 * depends on the labels alone), forward and backward are one op, linear_xent_train, which turns
 * each chunk's logits into their gradient on the spot: no projection is computed twice. Otherwise
 * linear_xent_grad projects again.
 */
#include "ir/partition.h"
#include "ir/source.h"
#include "ops.h"
#include "ops/inputs.h"
#include "ops/cpu/xent_kernel.h"
#include "ops/gpu_work.h"
#include "ops/linear_xent.h"
#include "ops/num.h"

enum { MX_INPUTS_LINEAR_XENT };

static mx_xent describe(const mx_xent_attr *a, const mx_type *x, const mx_type *w)
{
    return (mx_xent){.n = x->dim[0], .dim = x->dim[1], .vocab = w->dim[0],
                     .type = mx_num_of(x->dtype), .scale = (float)a->scale,
                     .softcap = (float)a->softcap, .z_loss = (float)a->z_loss};
}

static mx_xent bound(const mx_call *c)
{
    MX_ASSERT(c->in[X].type.dtype == c->in[W].type.dtype, "x is %s, w %s",
              mx_dtype_name(c->in[X].type.dtype), mx_dtype_name(c->in[W].type.dtype));
    mx_xent d = describe(c->attr, &c->in[X].type, &c->in[W].type);
    d.x = c->in[X].data;
    d.w = c->in[W].data;
    d.labels = c->in[LABELS].data;
    return d;
}

static void forward(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_forward(&d, c->out[0].data, c->out[1].data, c->work);
}

static void *dw_of(const mx_call *c, int out)
{
    return ((const mx_xent_attr *)c->attr)->w_fixed ? NULL : c->out[out].data;
}

static void backward(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_backward(&d, &(mx_xent_grads){.dloss = c->in[DLOSS].data, .dx = c->out[0].data,
                                          .dw = dw_of(c, 1)}, c->work);
}

static void train(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_backward(&d, &(mx_xent_grads){.dloss = c->in[DLOSS].data, .loss = c->out[0].data,
                                          .lse = c->out[1].data, .dx = c->out[2].data,
                                          .dw = dw_of(c, 3)}, c->work);
}

/* linear_xent_grad or linear_xent_train, which read the gradient of the loss. */
static bool is_grad(const mx_node *n)
{
    return n->n_in > DLOSS;
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    mx_xent d = describe(n->attr, &n->in[X]->type, &n->in[W]->type);
    (void)n_threads;
    return mx_xent_work_bytes(&d, is_grad(n));
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    const mx_type *x = &n->in[X]->type, *w = &n->in[W]->type;
    mx_gpu_xent s = {.rows = x->dim[0], .d = x->dim[1], .vocab = w->dim[0],
                     .f32 = x->dtype != MX_BF16, .grad = is_grad(n)};
    return mx_gpu_xent_bytes(&s, mx_gpu_xent_chunk(&s, most));
}

/* --- the graph's side --- */

static mx_dtype loss_dtype(const mx_node *n)
{
    return n->in[X]->type.dtype == MX_F64 ? MX_F64 : MX_F32;
}

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dtype = n->more[0].dtype = loss_dtype(n);
}

/* Sums over tokens, kept wide. */
static mx_type dw_type(const mx_node *n)
{
    mx_type t = n->in[W]->type;
    t.dtype = loss_dtype(n);
    return ((const mx_xent_attr *)n->attr)->w_fixed ? mx_type_of(t.dtype, MX_SHAPE(1)) : t;
}

static void infer_grad(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[X]->type;
    n->more[0] = dw_type(n);
}

static void infer_train(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->more[0] = mx_type_of(loss_dtype(n), MX_SHAPE(n->in[X]->type.dim[0]));
    n->more[1] = n->in[X]->type;
    n->more[2] = dw_type(n);
}

static double projection(const mx_node *n)
{
    return 2.0 * (double)mx_type_count(&n->in[X]->type) * (double)n->in[W]->type.dim[0];
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = projection(n)};
}

static mx_cost cost_3(const mx_node *n)
{
    return (mx_cost){.flops = (((const mx_xent_attr *)n->attr)->w_fixed ? 2 : 3) * projection(n)};
}

/* Loss of each row; read lse with mx_output(g, n, 1). */
mx_node *mx_linear_xent(mx_graph *g, mx_node *x, mx_node *w, mx_node *labels, double scale,
                        double softcap, double z_loss)
{
    mx_xent_attr a = {scale != 0 ? scale : 1, softcap, z_loss, false};
    return MX_APPLY(g, &mx_op_linear_xent, &a, x, w, labels);
}

/* A weight that nothing trains. */
static bool is_fixed(const mx_node *w)
{
    while (w->op == &mx_op_cast)
        w = w->in[0];
    return w->op == &mx_op_variable && ((const mx_var_attr *)w->attr)->frozen;
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0])
        return;
    mx_node *in[4] = {n->in[X], n->in[W], n->in[LABELS], dout[0]};
    mx_xent_attr a = *(const mx_xent_attr *)n->attr;
    a.w_fixed = is_fixed(n->in[W]);
    if (mx_node_depends(g, dout[0], n)) {
        mx_node *d = mx_apply(g, &mx_op_linear_xent_grad, &a, 4, in);
        din[X] = d;
        din[W] = a.w_fixed ? NULL : mx_output(g, d, 1);
        return;
    }
    mx_node *t = mx_apply(g, &mx_op_linear_xent_train, &a, 4, in);
    din[X] = mx_output(g, t, 2);
    din[W] = a.w_fixed ? NULL : mx_output(g, t, 3);
    mx_node_forward(n, t);
}

/* --- on a mesh: rows cut as they are, the vocabulary as the weight is --- */

static void place(const mx_node *n, mx_partition_call *p)
{
    (void)n;
    mx_cut tokens = p->have[X].dim[0];
    mx_cut vocab = mx_cut_without(&p->have[W].dim[0], mx_cut_axes(&tokens));
    p->in[X] = p->in[LABELS] = (mx_placement){{tokens}};
    p->in[W] = (mx_placement){{vocab}};
    p->out[0] = p->out[1] = (mx_placement){{tokens}};
}

/* 1 where a label counts. */
static mx_node *counted(mx_graph *g, mx_node *labels, mx_dtype dtype)
{
    return mx_greater(g, mx_cast(g, labels, dtype), mx_constant(g, MX_SCALAR, dtype, -0.5));
}

/* Each rank's lse and label's logit, put together over the ranks that share the vocabulary. */
static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    const mx_xent_attr *a = n->attr;
    mx_axis_set axes = mx_cut_axes(&p->in[W].dim[0]);
    if (!axes)
        return mx_apply(g, n->op, a, 3, in);
    int64_t vocab = n->in[W]->type.dim[0];
    int64_t first = mx_cut_from(p->mesh, p->rank, &p->in[W].dim[0], vocab);
    bool keep = mx_mesh_degree(p->mesh, MX_AXIS_STAGE) == 1;
    mx_node *lse = mx_linear_xent_slice(g, in[X], in[W], in[LABELS],
                                        (mx_xent_slice){a->scale, a->softcap, first, vocab, keep});
    mx_collective_attr c = {.axes = axes, .size = mx_mesh_size(p->mesh, axes),
                            .index = mx_mesh_index(p->mesh, p->rank, axes)};
    mx_node *picked = mx_all_reduce(g, mx_output(g, lse, 1), c);
    c.to = MX_REDUCE_MAX;
    mx_node *top = mx_all_reduce(g, mx_detach(g, lse), c);
    c.to = MX_REDUCE_SUM;
    mx_node *sum = mx_all_reduce(g, mx_exp(g, mx_sub(g, lse, top)), c);
    mx_node *counts = counted(g, in[LABELS], lse->type.dtype);
    mx_node *all = mx_mul(g, mx_add(g, top, mx_log(g, sum)), counts);
    mx_node *loss = mx_mul(g, mx_sub(g, all, picked), counts);
    if (a->z_loss != 0)
        loss = mx_add(g, loss, mx_affine(g, mx_mul(g, all, all), a->z_loss, 0));
    p->made[1] = all;
    return loss;
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_xent_attr, MX_ATTR_F64, scale),
    MX_FIELD(mx_xent_attr, MX_ATTR_F64, softcap),
    MX_FIELD(mx_xent_attr, MX_ATTR_F64, z_loss),
    MX_FIELD(mx_xent_attr, MX_ATTR_BOOL, w_fixed),
    {0},
};

#define SIZES {2, {6, 4}}, {2, {10, 4}}, {1, {6}, MX_I32, -1, 10}
const mx_op mx_op_linear_xent = {
    .name = "linear_xent",
    .doc = "cross-entropy of x w^T",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .dims = "n!d,!v!d,n->n,n",
    .attr_size = sizeof(mx_xent_attr),
    .fields = fields,
    .n_out = 2,
    .saved = 1 << 1,
    .place = place,
    .local = local,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{3, {SIZES}, &(mx_xent_attr){1, 0, 0}},
                               {3, {SIZES}, &(mx_xent_attr){0.5, 2, 0.01}},
                               {0}},
};

const mx_op mx_op_linear_xent_grad = {
    .name = "linear_xent_grad",
    .doc = "dx and dw of linear_xent, projecting again",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .attr_size = sizeof(mx_xent_attr),
    .fields = fields,
    .n_out = 2,
    .infer = infer_grad,
    .cost = cost_3,
    .cpu = backward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
};

const mx_op mx_op_linear_xent_train = {
    .name = "linear_xent_train",
    .doc = "loss, lse, dx and dw of linear_xent in one pass",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .attr_size = sizeof(mx_xent_attr),
    .fields = fields,
    .n_out = 4,
    .infer = infer_train,
    .cost = cost_3,
    .cpu = train,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
};
