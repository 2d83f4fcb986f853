/* op_layout.c - transpose and sum_to on the kernels of layout.h. */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/layout.h"
#include "device/cuda/plugin/train_kernels.h"

#include <string.h>

_Static_assert((int)MX_MAX_DIMS <= (int)MX_CUDA_LAYOUT_DIMS, "a layout holds every dim");

static const char *text_of(const mx_exec_step *s, const char *name)
{
    for (const mx_attr_field *f = s->node->op->fields; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return (const char *)s->node->attr + f->offset;
    MX_ASSERT(false, "%s has no attribute %s", s->node->op->name, name);
}

/* Elements between neighbours along each dim of a packed tensor. */
static void steps_of(const mx_type *t, int64_t step[MX_MAX_DIMS])
{
    int64_t n = 1;
    for (int d = t->ndim - 1; d >= 0; n *= t->dim[d--])
        step[d] = n;
}

static mx_status prepare_transpose(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    size_t item = mx_dtype_bytes(s->call.in[0].type.dtype);
    MX_CUDA_NEEDS(item == 2 || item == 4, "a transpose of this dtype");
    return MX_OK;
}

/* "bshd->bhsd": dim i of the output is the input's dim of the same letter. */
static mx_status transpose(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const char *dims = text_of(s, "dims");
    const mx_type *x = &s->call.in[0].type;
    int64_t step[MX_MAX_DIMS];
    mx_cuda_layout l = {.n = x->ndim};
    steps_of(x, step);
    for (int i = 0; i < x->ndim; i++) {
        const char *at = memchr(dims, dims[x->ndim + 2 + i], (size_t)x->ndim);
        l.size[i] = x->dim[at - dims];
        l.step[i] = step[at - dims];
    }
    return mx_cuda_check(mx_cuda_transpose(s->call.out[0].data, s->call.in[0].data, &l,
                                           (int)mx_dtype_bytes(x->dtype), c->stream),
                         "transpose");
}

/* (rows, d) -> (d): the target, leading ones aside, is the end of the input's shape. */
static bool sums_rows(const mx_type *x, const mx_type *o)
{
    int skip = 0;
    while (skip < o->ndim && o->dim[skip] == 1)
        skip++;
    for (int i = skip; i < o->ndim; i++)
        if (o->dim[i] != x->dim[x->ndim - o->ndim + i])
            return false;
    return true;
}

static mx_status prepare_sum_to(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    const mx_type *x = &s->call.in[0].type, *o = &s->call.out[0].type;
    MX_CUDA_NEEDS((x->dtype == MX_F32 || x->dtype == MX_BF16) && o->dtype == MX_F32,
                  "a sum of this dtype");
    int64_t d = mx_type_count(o);
    if (sums_rows(x, o) && d)
        *work = mx_cuda_sum_rows_bytes(mx_type_count(x) / d, d);
    return MX_OK;
}

static mx_status sum_to(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[0], *out = &s->call.out[0];
    bool wide = x->type.dtype == MX_F32;
    int64_t d = mx_type_count(&out->type), step[MX_MAX_DIMS];
    if (!d)
        return MX_OK;
    if (sums_rows(&x->type, &out->type))
        return mx_cuda_check(mx_cuda_sum_rows(out->data, x->data, wide,
                                              mx_type_count(&x->type) / d, d, c->work, c->stream),
                             "sum_to");
    mx_cuda_layout kept = {0}, summed = {0};
    steps_of(&x->type, step);
    for (int i = 0; i < x->type.ndim; i++) {
        int at = i - (x->type.ndim - out->type.ndim);
        mx_cuda_layout *to = at >= 0 && out->type.dim[at] == x->type.dim[i] ? &kept : &summed;
        to->size[to->n] = x->type.dim[i];
        to->step[to->n++] = step[i];
    }
    return mx_cuda_check(mx_cuda_sum_over(out->data, x->data, wide, &kept, &summed, c->stream),
                         "sum_to");
}

const mx_cuda_op mx_cuda_op_transpose = {"transpose", prepare_transpose, transpose, NULL};
const mx_cuda_op mx_cuda_op_sum_to = {"sum_to", prepare_sum_to, sum_to, NULL};
