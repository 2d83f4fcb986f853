/* op_sparse.c - select_keys on the kernels of select.h. */
#include "device/cuda/core/context.h"
#include "ops/inputs.h"
#include "device/cuda/attention/select.h"

enum { MX_INPUTS_SELECT_KEYS };

static mx_cuda_select select_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    const mx_type *q = &in[Q].type, *table = &in[TABLE].type;
    const int page = (int)mx_attr_int(s, "page"), columns = page ? (int)table->dim[1] : 0;
    return (mx_cuda_select){.page = page, .columns = columns, .row = in[ROW].data,
                            .rows = page ? (int)table->dim[0] : 0, .table = in[TABLE].data,
                            .slots = in[K].type.dim[1], .batch = (int)q->dim[0],
                            .queries = (int)q->dim[1], .heads = (int)q->dim[2],
                            .keys = page ? page * columns : (int)in[K].type.dim[1],
                            .dim = (int)q->dim[3], .n = (int)mx_attr_int(s, "n"),
                            .scale = (float)mx_attr_f64(s, "scale"),
                            .q_f32 = q->dtype == MX_F32, .w_f32 = in[W].type.dtype == MX_F32,
                            .k_f32 = in[K].type.dtype == MX_F32, .q = in[Q].data,
                            .w = in[W].data, .k = in[K].data, .q_pos = in[Q_POS].data,
                            .k_pos = in[K_POS].data, .q_seg = in[Q_SEG].data,
                            .k_seg = in[K_SEG].data};
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[Q]) && mx_is_float(&in[W]) && mx_is_float(&in[K]),
                  "a selection of these dtypes");
    MX_CUDA_NEEDS(in[Q].type.dim[3] <= MX_CUDA_SELECT_DIM, "keys of more than 128 elements");
    mx_cuda_select k = select_of(s);
    *work = mx_cuda_select_bytes(&k);
    return MX_OK;
}

static mx_status select_keys(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_select k = select_of(s);
    return mx_cuda_check(mx_cuda_select_keys(&k, s->call.out[0].data, s->call.work, c->stream),
                         "select_keys");
}

const mx_cuda_op mx_cuda_op_select_keys = {"select_keys", prepare, select_keys, NULL};
