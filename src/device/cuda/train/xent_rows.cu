/* xent_rows.cu - what the cross-entropy of xent_exp.h needs beside its GEMM: rows.
 *
 * Before the GEMM the label's logit, a dot product in float32, which the others are counted
 * from. After it the sums of the tiles become the row's sum, that its loss, its factor and the
 * label's entry of e; and x times the factor is made, with which dw is one GEMM. dx is
 * multiplied by the factor at the end, from float32 sums, and so rounded once. */
#include "device/cuda/train/xent_rows.cuh"

#define FITS 5e21f /* e^50: factors of larger sums would leave the numbers of bf16 */

struct row_args {
    mx_xent_exp s;
    mx_xent_exp_args a;
};

__device__ __forceinline__ bool does_count(const row_args &p, int label)
{
    return label >= 0 && label < p.s.vocab;
}

/* The label's logit, which the row's others are counted from. */
__global__ __launch_bounds__(OWN_THREADS) void own_kernel(row_args p)
{
    int64_t row = (int64_t)blockIdx.x * (OWN_THREADS / 32) + threadIdx.x / 32;
    int64_t bands = (p.s.rows + BAND - 1) / BAND + 1;
    if (blockIdx.x < bands && threadIdx.x == 0)
        p.a.bands[blockIdx.x] = 0;
    if (gridDim.x < bands && blockIdx.x == 0 && threadIdx.x == 0)
        p.a.bands[gridDim.x] = 0;
    if (row >= p.s.rows)
        return;
    int label = p.a.labels[row];
    float l = FAR_AWAY, z = FAR_AWAY;
    if (does_count(p, label)) {
        l = p.s.scale * warp_dot(p.a.x + row * p.s.d, p.a.w + label * p.s.d, p.s.d);
        z = through_cap(l, p.s.softcap);
    }
    if (threadIdx.x % 32 == 0) {
        ((float2 *)p.a.about)[row] = make_float2(l, z);
        p.a.own[row] = z;
    }
}

struct row_end {
    float loss, lse, factor, own; /* own: the label's entry of e */
    bool marked;
};
/* z: the label's logit; sum: of e^(z_j - about) over the others. */
__device__ row_end end_row(const row_args &p, float z, float about, float sum, float weight)
{
    row_end r = {};
    bool same = z == about;
    float own = same ? 1.f : expf(z - about), all = own + sum;
    r.loss = same ? log1pf(sum) : about + logf(all) - z;
    r.lse = z + r.loss;
    float twice = 2.f * p.s.z_loss * r.lse, g = 1.f + twice;
    r.loss += p.s.z_loss * r.lse * r.lse;
    g = fabsf(g) < 1e-6f ? 1e-6f : g; /* the label's entry is divided by it */
    float derivative = p.s.softcap > 0 ? (1.f - z / p.s.softcap) * (1.f + z / p.s.softcap) : 1.f;
    float entry = (twice * own - sum) / g * derivative;
    r.own = bf16_to_f32(f32_to_bf16(entry));
    /* What rounding did to the label's entry, mostly the largest, goes to the others: the factor
     * makes up for it. */
    r.factor = weight * g / all * (r.own != 0 ? entry / r.own : 1.f);
    r.marked = same && !(sum < FITS);
    if (!(fabsf(z) < FAR_AWAY))
        r = {NAN, NAN, NAN, 0.f, false};
    return r;
}

template <mx_xent_pass PASS>
__global__ __launch_bounds__(ROW_BLOCK *SLICES) void rows_kernel(row_args p)
{
    __shared__ float factor[ROW_BLOCK];
    int lane = threadIdx.x % ROW_BLOCK, slice = threadIdx.x / ROW_BLOCK;
    int64_t first = (int64_t)blockIdx.x * ROW_BLOCK, row = first + lane;
    bool mine = row < p.s.rows && (PASS == MX_XENT_FIRST || p.a.marked[row]);
    if (PASS != MX_XENT_FIRST && !__syncthreads_or(mine))
        return;
    float sum = over_tiles(p, row, PASS == MX_XENT_MOST, slice, lane);
    if (slice == 0 && mine && PASS == MX_XENT_MOST) {
        float l = sum / LOG2E;
        ((float2 *)p.a.about)[row] = make_float2(l, through_cap(l, p.s.softcap));
    }
    if (PASS == MX_XENT_MOST)
        return;
    if (slice == 0 && mine) {
        int label = p.a.labels[row];
        row_end r = {};
        if (does_count(p, label)) {
            r = end_row(p, p.a.own[row], p.a.about[2 * row + 1], sum, p.a.weight[row]);
            p.a.e[row * p.s.ld + label] = f32_to_bf16(r.own);
        }
        p.a.loss[row] = r.loss, p.a.lse[row] = r.lse;
        p.a.factor[row] = r.factor;
        if (PASS == MX_XENT_FIRST)
            p.a.marked[row] = r.marked;
        if (r.marked)
            p.a.bands[row / BAND] = p.a.bands[(p.s.rows + BAND - 1) / BAND] = 1;
        factor[lane] = r.factor;
    } else if (slice == 0 && row < p.s.rows)
        factor[lane] = p.a.factor[row];
    __syncthreads();
    int wide = (int)(p.s.d / 8);
    for (int i = slice; i < ROW_BLOCK && first + i < p.s.rows; i += SLICES) {
        const uint16_t *x = p.a.x + (first + i) * p.s.d;
        uint16_t *y = p.a.scaled + (first + i) * p.s.d;
#pragma unroll 4
        for (int c = lane; c < wide; c += ROW_BLOCK) {
            float f[8];
            unpack8(f, load8(x + 8 * c));
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] *= factor[i];
            store8(y + 8 * c, pack8(f));
        }
    }
}

__global__ void scale_kernel(uint16_t *dx, const float *sums, const float *factor, int64_t n, int d)
{
    int64_t i = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    float f[8], s = factor[i / d];
    load4(f, sums + i);
    load4(f + 4, sums + i + 4);
#pragma unroll
    for (int j = 0; j < 8; j++)
        f[j] *= s;
    store8(dx + i, pack8(f));
}

static cudaError_t end_rows(const row_args &p, mx_xent_pass pass, cudaStream_t stream)
{
    auto *k = pass == MX_XENT_FIRST  ? rows_kernel<MX_XENT_FIRST>
              : pass == MX_XENT_MOST ? rows_kernel<MX_XENT_MOST>
                                     : rows_kernel<MX_XENT_AGAIN>;
    k<<<(unsigned)((p.s.rows + ROW_BLOCK - 1) / ROW_BLOCK), ROW_BLOCK * SLICES, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t mx_cuda_xent_exp(const mx_xent_exp *s, const mx_xent_exp_args *a, cudaStream_t stream)
{
    static const mx_xent_pass passes[] = {MX_XENT_FIRST, MX_XENT_MOST, MX_XENT_AGAIN};
    row_args p = {*s, *a};
    int64_t per = OWN_THREADS / 32;
    own_kernel<<<(unsigned)((s->rows + per - 1) / per), OWN_THREADS, 0, stream>>>(p);
    cudaError_t e = cudaGetLastError();
    for (mx_xent_pass pass : passes) {
        if (e == cudaSuccess)
            e = mx_cuda_xent_gemm(s, a, pass, stream);
        if (e == cudaSuccess)
            e = end_rows(p, pass, stream);
    }
    return e;
}
cudaError_t mx_cuda_xent_scale(mx_bf16 *dx, const float *sums, const float *factor, int64_t rows,
                               int64_t d, cudaStream_t stream)
{
    int64_t n = rows * d;
    scale_kernel<<<(unsigned)((n / 8 + 255) / 256), 256, 0, stream>>>(dx, sums, factor, n, (int)d);
    return cudaGetLastError();
}
