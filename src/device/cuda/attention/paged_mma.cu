/* paged_mma.cu - the host side of paged attention on the tensor cores (see paged_mma.cuh). */
#include "device/cuda/attention/paged_mma.cuh"
#include "ops/gpu_work.h"
#include "ops/paged_split.h"

extern "C" bool mx_cuda_paged_mma_is_possible(const mx_cuda_paged *p)
{
    return p->bf16 && p->qk_dim == p->v_dim && (p->qk_dim == 64 || p->qk_dim == 128) &&
           p->page % KEYS == 0 && !p->selected && !p->until && p->k_row % 8 == 0 &&
           p->v_row % 8 == 0 &&
           p->queries <= MX_CUDA_PAGED_QUERIES;
}

extern "C" cudaError_t mx_cuda_paged_mma(const mx_cuda_paged *shape, void *work,
                                         cudaStream_t stream)
{
    mx_cuda_paged p = *shape;
    const int64_t span = (int64_t)p.page * p.columns;
    const int group = p.q_heads / p.k_heads;
    p.parts = (group + ROWS - 1) / ROWS;
    p.group = (group + p.parts - 1) / p.parts;
    p.tile = PAGED_TILE_WARPS * (ROWS / p.group);
    p.leaf = (int)mx_gpu_paged_leaf(span) / mx_paged_split(p.rows);
    p.leaves = (int)mx_gpu_parts(span, p.leaf) + 1;
    p.places = p.queries < p.rows ? p.queries : p.rows;
    p.alone = (int32_t *)work;
    p.parts_at = (float *)((char *)work + mx_gpu_aligned_bytes(p.places + 1, sizeof(int32_t)));
    cudaError_t e = mx_cuda_paged_cluster_is_possible(&p) ? mx_cuda_paged_cluster(&p, stream)
                                                          : mx_cuda_paged_singles(&p, stream);
    return e == cudaSuccess && p.queries > 1 ? mx_cuda_paged_tiles(&p, stream) : e;
}
