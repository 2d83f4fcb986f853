/* copy.c - moving runs of bytes between tensors; see copy.h. */
#include "ops/copy.h"

#include <string.h>

/* PIECE: a share of a run that one thread takes; WORTH: fewer bytes are left to one thread. */
enum { PIECE = 1 << 16, WORTH = 1 << 18 };

void mx_copy_runs(void *dst, size_t dst_stride, const void *src, size_t src_stride,
                  size_t run_bytes, int64_t rows)
{
    int64_t pieces = (int64_t)((run_bytes + PIECE - 1) / PIECE);
#pragma omp parallel for collapse(2) schedule(static) if (run_bytes * (size_t)rows > WORTH)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = 0; p < pieces; p++) {
            size_t from = (size_t)p * PIECE;
            size_t n = run_bytes - from < PIECE ? run_bytes - from : PIECE;
            memcpy((char *)dst + (size_t)r * dst_stride + from,
                   (const char *)src + (size_t)r * src_stride + from, n);
        }
}

void mx_zero_runs(void *dst, size_t dst_stride, size_t run_bytes, int64_t rows)
{
    int64_t pieces = (int64_t)((run_bytes + PIECE - 1) / PIECE);
#pragma omp parallel for collapse(2) schedule(static) if (run_bytes * (size_t)rows > WORTH)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = 0; p < pieces; p++) {
            size_t from = (size_t)p * PIECE;
            size_t n = run_bytes - from < PIECE ? run_bytes - from : PIECE;
            memset((char *)dst + (size_t)r * dst_stride + from, 0, n);
        }
}

void mx_copy_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[0];
    size_t item = mx_dtype_bytes(x->type.dtype), bytes = mx_type_bytes(&x->type);
    size_t run = x->pitch ? (size_t)x->run * item : bytes;
    mx_copy_runs(c->out[0].data, run, x->data, (size_t)x->pitch * item, run,
                 run ? (int64_t)(bytes / run) : 0);
}

int64_t mx_dims_before(const mx_type *t, int dim)
{
    int64_t n = 1;
    for (int i = 0; i < dim; i++)
        n *= t->dim[i];
    return n;
}

size_t mx_dims_after_bytes(const mx_type *t, int dim)
{
    size_t n = mx_dtype_bytes(t->dtype);
    for (int i = dim + 1; i < t->ndim; i++)
        n *= (size_t)t->dim[i];
    return n;
}

int64_t mx_dim_index(mx_graph *g, const char *op, const mx_node *x, int64_t dim)
{
    int64_t d = dim < 0 ? dim + x->type.ndim : dim;
    if (d >= 0 && d < x->type.ndim)
        return d;
    mx_graph_fail(g, "%s: dim %lld of a tensor with %d dims", op, (long long)dim, x->type.ndim);
    return 0;
}

const char *mx_dims_resized(int ndim, int64_t dim)
{
    static const char *const text[MX_MAX_DIMS][MX_MAX_DIMS] = {
        {"!x->!y"},
        {"!xb->!yb", "a!x->a!y"},
        {"!xbc->!ybc", "a!xc->a!yc", "ab!x->ab!y"},
        {"!xbcd->!ybcd", "a!xcd->a!ycd", "ab!xd->ab!yd", "abc!x->abc!y"},
        {"!xbcde->!ybcde", "a!xcde->a!ycde", "ab!xde->ab!yde", "abc!xe->abc!ye",
         "abcd!x->abcd!y"},
        {"!xbcdef->!ybcdef", "a!xcdef->a!ycdef", "ab!xdef->ab!ydef", "abc!xef->abc!yef",
         "abcd!xf->abcd!yf", "abcde!x->abcde!y"},
    };
    bool known = ndim > 0 && ndim <= MX_MAX_DIMS && dim >= 0 && dim < ndim;
    return known ? text[ndim - 1][dim] : "-->-";
}

mx_cost mx_cost_move(const mx_node *n)
{
    mx_cost c = {0};
    for (int k = 0; k < n->n_out; k++)
        c.bytes += 2 * (double)mx_type_bytes(mx_node_type(n, k));
    return c;
}
