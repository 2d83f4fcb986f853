/* linear_xent_slice.c - what a slice of the vocabulary contributes to the cross-entropy of a head
 * whose vocabulary is split over ranks.
 *
 *     x (n, d)   w (v, d): tokens first, first + 1, ...   labels (n) int32, of all ranks
 *         ->  lse (n): log of the sum of e^z over the tokens here,   z[label] (n), 0 if not here
 * Logits of a chunk of rows at a time are projected, reduced and forgotten. With `keep` training
 * has linear_xent_slice_keep instead, which leaves them for the gradient (mx_xent_kept); without,
 * as in a pipeline, where every microbatch in flight would keep its own, the gradient projects
 * again. Rows of w beyond the vocabulary's last word count for nothing and get no gradient. Rows
 * whose label is below 0 give 0 and 0.
 */
#include "ops/linear_xent.h"

#include "ops.h"
#include "ops/cpu/xent_kernel.h"
#include "ops/gpu_work.h"
#include "ops/num.h"
#include <string.h>

enum { X = MX_SLICE_X, W, LABELS, LSE, DLSE, DPICKED, PICKED, ABOUT, KEPT };

int64_t mx_xent_vocab_here(const mx_xent_slice *a, int64_t rows)
{
    int64_t left = a->vocab - a->first;
    return left < 0 ? 0 : left < rows ? left : rows;
}

static mx_xent describe(const mx_xent_slice *a, const mx_type *x, const mx_type *w)
{
    return (mx_xent){.n = x->dim[0], .dim = x->dim[1], .vocab = mx_xent_vocab_here(a, w->dim[0]),
                     .type = mx_num_of(x->dtype), .scale = (float)a->scale,
                     .softcap = (float)a->softcap, .slice = true, .first = a->first};
}

static mx_xent bound(const mx_call *c)
{
    mx_xent d = describe(c->attr, &c->in[X].type, &c->in[W].type);
    d.x = c->in[X].data;
    d.w = c->in[W].data;
    d.labels = c->in[LABELS].data;
    return d;
}

static void forward(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_forward(&d, c->out[1].data, c->out[0].data, c->work);
}

/* dw of rows that are no words. */
static void clear_padding(const mx_call *c, const mx_xent *d)
{
    size_t row = (size_t)d->dim * mx_dtype_bytes(c->out[1].type.dtype);
    memset((char *)c->out[1].data + (size_t)d->vocab * row, 0,
           (size_t)(c->out[1].type.dim[0] - d->vocab) * row);
}

static void backward(const mx_call *c)
{
    mx_xent d = bound(c);
    clear_padding(c, &d);
    mx_xent_backward(&d, &(mx_xent_grads){.lse_in = c->in[LSE].data, .dlse = c->in[DLSE].data,
                                          .dloss = c->in[DPICKED].data, .dx = c->out[0].data,
                                          .dw = c->out[1].data}, c->work);
}

static mx_xent_kept kept_in(const mx_tensor *lse, const mx_tensor *picked, const mx_tensor *about,
                            const mx_tensor *kept)
{
    return (mx_xent_kept){lse->data, picked->data, about->data, kept->data, kept->type.dim[1]};
}

static void keep(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_kept k = kept_in(&c->out[0], &c->out[1], &c->out[2], &c->out[3]);
    mx_xent_keep(&d, &k, c->work);
}

static void back(const mx_call *c)
{
    mx_xent d = bound(c);
    mx_xent_kept k = kept_in(&c->in[LSE], &c->in[PICKED], &c->in[ABOUT], &c->out[2]);
    clear_padding(c, &d);
    mx_xent_back(&d, &k, &(mx_xent_grads){.dlse = c->in[DLSE].data, .dloss = c->in[DPICKED].data,
                                          .dx = c->out[0].data, .dw = c->out[1].data});
}

/* linear_xent_slice_grad, which reads lse. */
static bool is_grad(const mx_node *n)
{
    return n->n_in > LSE;
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    const mx_type *x = &n->in[X]->type, *w = &n->in[W]->type;
    mx_gpu_xent s = mx_gpu_slice_of(x->dim[0], x->dim[1],
                                    mx_xent_vocab_here(n->attr, w->dim[0]));
    s.f32 = x->dtype != MX_BF16;
    s.grad = is_grad(n);
    return mx_gpu_xent_bytes(&s, mx_gpu_xent_chunk(&s, most));
}

static size_t keep_gpu_work(const mx_node *n, size_t most)
{
    const mx_type *x = &n->in[X]->type;
    int64_t words = mx_xent_vocab_here(n->attr, n->in[W]->type.dim[0]);
    mx_gpu_xent s = mx_gpu_slice_of(x->dim[0], x->dim[1], words);
    s.f32 = x->dtype != MX_BF16;
    size_t plain = mx_gpu_xent_bytes(&s, mx_gpu_xent_chunk(&s, most));
    size_t kept = mx_gpu_keep_bytes(x->dim[0], words);
    return s.f32 || plain > kept ? plain : kept;
}

static size_t back_gpu_work(const mx_node *n, size_t most)
{
    const mx_type *x = &n->in[X]->type;
    return mx_gpu_back_bytes(x->dim[0], x->dim[1], mx_gpu_back_chunk(x->dim[0], x->dim[1], most));
}

static size_t keep_work(const mx_node *n, int n_threads)
{
    mx_xent d = describe(n->attr, &n->in[X]->type, &n->in[W]->type);
    (void)n_threads;
    return mx_xent_work_bytes(&d, true);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    mx_xent d = describe(n->attr, &n->in[X]->type, &n->in[W]->type);
    (void)n_threads;
    return mx_xent_work_bytes(&d, is_grad(n));
}

static mx_dtype sum_dtype(const mx_node *n)
{
    return n->in[X]->type.dtype == MX_F64 ? MX_F64 : MX_F32;
}

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dtype = n->more[0].dtype = sum_dtype(n);
}

static void infer_grad(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[X]->type;
    n->more[0] = n->in[W]->type;
    n->more[0].dtype = sum_dtype(n);
}

static void infer_keep(mx_graph *g, mx_node *n)
{
    const mx_type *x = &n->in[X]->type;
    int64_t words = n->in[W]->type.dim[0], wide = (words + 7) / 8 * 8; /* for GPUs */
    (void)g;
    n->type = mx_type_of(sum_dtype(n), MX_SHAPE(x->dim[0]));
    n->more[0] = n->more[1] = n->type;
    n->more[2] = mx_type_of(x->dtype, MX_SHAPE(x->dim[0], wide));
}

static void infer_back(mx_graph *g, mx_node *n)
{
    infer_grad(g, n);
    n->more[1] = n->in[KEPT]->type;
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(&n->in[X]->type) *
                              (double)n->in[W]->type.dim[0]};
}

static mx_cost grad_cost(const mx_node *n)
{
    return (mx_cost){.flops = 2 * cost(n).flops};
}

mx_node *mx_linear_xent_slice(mx_graph *g, mx_node *x, mx_node *w, mx_node *labels, mx_xent_slice a)
{
    a.scale = a.scale != 0 ? a.scale : 1;
    return MX_APPLY(g, &mx_op_linear_xent_slice, &a, x, w, labels);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *none = mx_constant(g, mx_shape_of(&n->type), n->type.dtype, 0);
    mx_node *in[MX_SLICE_N_IN] = {n->in[X], n->in[W], n->in[LABELS], n, dout[0] ? dout[0] : none,
                                  dout[1] ? dout[1] : none};
    mx_node *d;
    if (((const mx_xent_slice *)n->attr)->keep) {
        mx_node *t = mx_apply(g, &mx_op_linear_xent_slice_keep, n->attr, LSE, n->in);
        mx_node_forward(n, t);
        in[LSE] = t;
        for (int k = 1; k < 4; k++)
            in[PICKED + k - 1] = mx_output(g, t, k);
        d = mx_apply(g, &mx_op_linear_xent_slice_back, n->attr, MX_SLICE_N_IN, in);
    } else {
        d = mx_apply(g, &mx_op_linear_xent_slice_grad, n->attr, DPICKED + 1, in);
    }
    din[X] = d;
    din[W] = mx_output(g, d, 1);
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_xent_slice, MX_ATTR_F64, scale),
    MX_FIELD(mx_xent_slice, MX_ATTR_F64, softcap),
    MX_FIELD(mx_xent_slice, MX_ATTR_INT, first),
    MX_FIELD(mx_xent_slice, MX_ATTR_INT, vocab),
    MX_FIELD(mx_xent_slice, MX_ATTR_BOOL, keep),
    {0},
};

#define SIZES {2, {6, 4}}, {2, {10, 4}}, {1, {6}, MX_I32, -1, 30}
const mx_op mx_op_linear_xent_slice = {
    .name = "linear_xent_slice",
    .doc = "lse and label's logit of a slice of the vocabulary",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .dims = "n!d,!v!d,n->n,n",
    .attr_size = sizeof(mx_xent_slice),
    .fields = fields,
    .n_out = 2,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{3, {SIZES}, &(mx_xent_slice){1, 0, 10, 30}},
                               {3, {SIZES}, &(mx_xent_slice){0.5, 2, 20, 27}},
                               {3, {SIZES}, &(mx_xent_slice){1, 0, 0, 30}},
                               {3, {SIZES}, &(mx_xent_slice){1, 0, 10, 30, true}},
                               {3, {SIZES}, &(mx_xent_slice){0.5, 2, 20, 27, true}}, {0}},
};

const mx_op mx_op_linear_xent_slice_keep = {
    .name = "linear_xent_slice_keep",
    .doc = "linear_xent_slice, and its logits for the gradient",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .attr_size = sizeof(mx_xent_slice),
    .fields = fields,
    .n_out = 4,
    .infer = infer_keep,
    .cost = cost,
    .cpu = keep,
    .work_bytes = keep_work,
    .gpu_work_bytes = keep_gpu_work,
};

const mx_op mx_op_linear_xent_slice_back = {
    .name = "linear_xent_slice_back",
    .doc = "dx and dw of linear_xent_slice_keep",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .attr_size = sizeof(mx_xent_slice),
    .fields = fields,
    .n_out = 3,
    .alias = {0, 0, KEPT + 1},
    .infer = infer_back,
    .cost = grad_cost,
    .cpu = back,
    .gpu_work_bytes = back_gpu_work,
};

const mx_op mx_op_linear_xent_slice_grad = {
    .name = "linear_xent_slice_grad",
    .doc = "dx and dw of linear_xent_slice, projecting again",
    .dtypes = MX_REALS,
    .dtypes_at = {[LABELS] = MX_INDICES},
    .attr_size = sizeof(mx_xent_slice),
    .fields = fields,
    .n_out = 2,
    .infer = infer_grad,
    .cost = grad_cost,
    .cpu = backward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
};
