/* op_paged.c - paged_attention on the kernels of paged.h. */
#include "device/cuda/core/context.h"
#include "ops/inputs.h"
#include "device/cuda/attention/paged.h"
#include "ops/gpu_work.h"
#include "ops/paged_split.h"

enum { MX_INPUTS_PAGED_ATTENTION };

static mx_cuda_paged paged_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in, *v = in[V].data ? &in[V] : &in[K];
    const mx_type *q = &in[Q].type, *k = &in[K].type;
    return (mx_cuda_paged){.queries = (int)q->dim[0],
                           .q_heads = (int)q->dim[2],
                           .k_heads = (int)k->dim[2],
                           .qk_dim = (int)q->dim[3],
                           .v_dim = (int)s->call.out[0].type.dim[3],
                           .slots = k->dim[1],
                           .k_row = k->dim[2] * k->dim[3],
                           .v_row = k->dim[2] * v->type.dim[3],
                           .page = (int)mx_attr_int(s, "page"),
                           .rows = (int)in[TABLE].type.dim[0],
                           .columns = (int)in[TABLE].type.dim[1],
                           .window = mx_attr_int(s, "window"),
                           .chunk = mx_attr_int(s, "chunk"),
                           .scale = (float)mx_attr_f64(s, "scale"),
                           .softcap = (float)mx_attr_f64(s, "softcap"),
                           .bf16 = q->dtype == MX_BF16,
                           .q = in[Q].data,
                           .k = in[K].data,
                           .v = v->data,
                           .positions = in[POSITIONS].data,
                           .row = in[ROW].data,
                           .table = in[TABLE].data,
                           .sinks = in[SINKS].data,
                           .selected = in[SELECTED].data,
                           .n_selected = in[SELECTED].data ? (int)in[SELECTED].type.dim[2] : 0,
                           .until = in[UNTIL].data,
                           .out = s->call.out[0].data};
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    const mx_type *q = &s->call.in[Q].type;
    mx_cuda_paged p = paged_of(s);
    (void)c, (void)state;
    MX_CUDA_NEEDS(q->dtype == MX_F32 || q->dtype == MX_BF16, "attention of this dtype");
    MX_CUDA_NEEDS(!s->call.in[K_SCALE].data, "keys and values of 8 bits");
    MX_CUDA_NEEDS(q->dim[3] <= MX_CUDA_PAGED_DIM, "heads of more than 1,024 elements");
    MX_CUDA_NEEDS(q->dim[2] <= 65535, "so many heads");
    if (mx_cuda_paged_mma_is_possible(&p))
        *work = mx_gpu_paged_bytes(&(mx_gpu_paged){.queries = p.queries, .rows = p.rows,
                                                   .heads = p.q_heads * mx_paged_split(p.rows),
                                                   .dim = p.v_dim,
                                                   .span = (int64_t)p.page * p.columns});
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    mx_cuda_paged p = paged_of(s);
    (void)state;
    cudaError_t e = mx_cuda_paged_mma_is_possible(&p)
                        ? mx_cuda_paged_mma(&p, s->call.work, c->stream)
                        : mx_cuda_paged_attention(&p, c->stream);
    return mx_cuda_check(e, "paged_attention");
}

const mx_cuda_op mx_cuda_op_paged_attention = {"paged_attention", prepare, launch, NULL};
