/* linear_xent.c - the vocabulary projection and the cross-entropy of its logits, as one op.
 *
 *     x (n, d)   w (v, d)   labels (n) int32, below 0: not counted   ->   loss (n), lse (n)
 *     z = cap tanh(scale x w^T / cap);  lse = log sum e^z;  loss = lse - z[label] + z_loss lse^2
 *
 * The logits of the whole batch are never stored: a chunk of rows at a time is projected, reduced and
 * forgotten. When the gradient that arrives is known before the loss is (a mean over tokens: it depends on
 * the labels alone), forward and backward are one op, linear_xent_train, which turns each chunk's logits
 * into their gradient on the spot: no projection is computed twice. Otherwise linear_xent_grad
 * projects again.
 */
#include "ops.h"
#include "ops/load.h"

#include <math.h>
#include <string.h>

typedef struct {
    double scale, softcap, z_loss;
} xent_attr;

enum { X, W, LABELS, DLOSS };

static void rows(const mx_call *c, const mx_tensor *loss, const mx_tensor *lse, const mx_tensor *dx,
                 const mx_tensor *dw)
{
    const xent_attr *a = c->attr;
    int64_t n = c->in[X].type.dim[0], d = c->in[X].type.dim[1], v = c->in[W].type.dim[0];
    double *z = c->work;
    if (dw)
        memset(dw->data, 0, mx_type_bytes(&dw->type));
    for (int64_t i = 0; i < n; i++) {
        int64_t label = ((const int32_t *)c->in[LABELS].data)[i];
        double top = -INFINITY, sum = 0, out = 0;
        for (int64_t j = 0; j < v; j++) {
            double s = 0;
            for (int64_t k = 0; k < d; k++)
                s += mx_load_f64(&c->in[X], i * d + k) * mx_load_f64(&c->in[W], j * d + k);
            s *= a->scale;
            z[j] = a->softcap > 0 ? a->softcap * tanh(s / a->softcap) : s;
            top = z[j] > top ? z[j] : top;
        }
        for (int64_t j = 0; j < v; j++)
            sum += exp(z[j] - top);
        double l = top + log(sum);
        bool counts = label >= 0 && label < v;
        if (counts)
            out = l - z[label] + a->z_loss * l * l;
        if (loss)
            mx_store_f64(loss, i, out);
        if (lse)
            mx_store_f64(lse, i, l);
        if (!dx)
            continue;
        double g = counts ? mx_load_f64(&c->in[DLOSS], i) : 0;
        for (int64_t j = 0; j < v; j++) {
            double p = exp(z[j] - l), t = z[j] / a->softcap;
            double dz = g * (p * (1 + 2 * a->z_loss * l) - (j == label));
            z[j] = dz * a->scale * (a->softcap > 0 ? 1 - t * t : 1);
        }
        for (int64_t k = 0; k < d; k++) {
            double s = 0;
            for (int64_t j = 0; j < v; j++) {
                s += z[j] * mx_load_f64(&c->in[W], j * d + k);
                mx_store_f64(dw, j * d + k, mx_load_f64(dw, j * d + k) +
                                                z[j] * mx_load_f64(&c->in[X], i * d + k));
            }
            mx_store_f64(dx, i * d + k, s);
        }
    }
}

static void forward(const mx_call *c)
{
    rows(c, &c->out[0], &c->out[1], NULL, NULL);
}

static void backward(const mx_call *c)
{
    rows(c, NULL, NULL, &c->out[0], &c->out[1]);
}

static void train(const mx_call *c)
{
    rows(c, &c->out[0], &c->out[1], &c->out[2], &c->out[3]);
}

static size_t work(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(double) * (size_t)n->in[W]->type.dim[0];
}

/* --- the graph's side --- */

static mx_dtype loss_dtype(const mx_node *n)
{
    return n->in[X]->type.dtype == MX_F64 ? MX_F64 : MX_F32;
}

static mx_dtype weight_grad_dtype(const mx_node *w)
{
    if (w->op == &mx_op_cast && w->in[0]->op == &mx_op_variable)
        return w->in[0]->type.dtype;
    return w->type.dtype;
}

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dtype = n->more[0].dtype = loss_dtype(n);
}

static void infer_grad(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[X]->type;
    n->more[0] = n->in[W]->type;
    n->more[0].dtype = weight_grad_dtype(n->in[W]);
}

static void infer_train(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->more[0] = mx_type_of(loss_dtype(n), MX_SHAPE(n->in[X]->type.dim[0]));
    n->more[1] = n->in[X]->type;
    n->more[2] = n->in[W]->type;
    n->more[2].dtype = weight_grad_dtype(n->in[W]);
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
    return (mx_cost){.flops = 3 * projection(n)};
}

/* Loss of each row; read lse with mx_output(g, n, 1). */
mx_node *mx_linear_xent(mx_graph *g, mx_node *x, mx_node *w, mx_node *labels, double scale,
                        double softcap, double z_loss)
{
    xent_attr a = {scale != 0 ? scale : 1, softcap, z_loss};
    return MX_APPLY(g, &mx_op_linear_xent, &a, x, w, labels);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0])
        return;
    mx_node *in[4] = {n->in[X], n->in[W], n->in[LABELS], dout[0]};
    if (mx_node_depends(g, dout[0], n)) {
        mx_node *d = mx_apply(g, &mx_op_linear_xent_grad, n->attr, 4, in);
        din[X] = d;
        din[W] = mx_output(g, d, 1);
        return;
    }
    mx_node *t = mx_apply(g, &mx_op_linear_xent_train, n->attr, 4, in);
    din[X] = mx_output(g, t, 2);
    din[W] = mx_output(g, t, 3);
    mx_node_forward(n, t);
}

static const mx_attr_field fields[] = {
    MX_FIELD(xent_attr, MX_ATTR_F64, scale),
    MX_FIELD(xent_attr, MX_ATTR_F64, softcap),
    MX_FIELD(xent_attr, MX_ATTR_F64, z_loss),
    {0},
};

#define SIZES {2, {6, 4}}, {2, {10, 4}}, {1, {6}, MX_I32, -1, 10}
const mx_op mx_op_linear_xent = {
    .name = "linear_xent",
    .doc = "cross-entropy of x w^T",
    .dims = "n!d,!v!d,n->n,n",
    .attr_size = sizeof(xent_attr),
    .fields = fields,
    .n_out = 2,
    .saved = 1 << 1,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work,
    .cases = (const mx_case[]){{3, {SIZES}, &(xent_attr){1, 0, 0}},
                               {3, {SIZES}, &(xent_attr){0.5, 2, 0.01}}, {0}},
};

const mx_op mx_op_linear_xent_grad = {
    .name = "linear_xent_grad",
    .doc = "dx and dw of linear_xent, projecting again",
    .attr_size = sizeof(xent_attr),
    .fields = fields,
    .n_out = 2,
    .infer = infer_grad,
    .cost = cost_3,
    .cpu = backward,
    .work_bytes = work,
};

const mx_op mx_op_linear_xent_train = {
    .name = "linear_xent_train",
    .doc = "loss, lse, dx and dw of linear_xent in one pass",
    .attr_size = sizeof(xent_attr),
    .fields = fields,
    .n_out = 4,
    .infer = infer_train,
    .cost = cost_3,
    .cpu = train,
    .work_bytes = work,
};
