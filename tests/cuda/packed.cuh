/* packed.cuh - rows of packed documents for the tests and the timings of attention. */
#ifndef MX_BENCH_PACKED_CUH
#define MX_BENCH_PACKED_CUH

#include "device/cuda/attention/flash.h"
#include "device/cuda/attention/flash_hopper_backward.h"
#include "gpu.cuh"

static inline mx_flash_stride flash_stride(int s, int h, int d)
{
    return {(int64_t)s * h * d, (int64_t)h * d, d};
}

static inline void run_hopper_backward(const mx_flash_shape &s, const mx_flash_args &a)
{
    size_t bytes = mx_flash_hopper_backward_bytes(&s);
    char *scratch = device_alloc<char>((int64_t)bytes);
    CU(cudaMemset(scratch, 0xff, bytes));
    CU(mx_flash_hopper_backward(&s, &a, scratch, 0));
    CU(cudaDeviceSynchronize());
    cudaFree(scratch);
}

enum packing { PACK_MIXED, PACK_ONE, PACK_TINY, PACK_SCATTERED };
static const char *const packing_name[] = {"mixed", "one document", "tiny", "scattered ids"};

/* Ids of b rows of s tokens. Mixed: lengths from 1 to 900, and padding (0) at the end; scattered:
 * ids come again further on. */
static inline std::vector<int32_t> document_ids(int b, int s, packing how, uint64_t seed)
{
    std::vector<int32_t> ids;
    uint64_t x = seed * 2654435761u + 12345;
    auto next = [&](int n) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        return (int)((x >> 33) % (uint64_t)n);
    };
    for (int row = 0; row < b; row++) {
        int pad = how == PACK_MIXED ? next(s / 8 + 1) : 0, at = 0;
        for (int id = 1; at < s - pad; id++) {
            int n = how == PACK_ONE    ? s
                    : how == PACK_TINY ? 1 + next(20)
                                       : 1 + next(next(3) ? 200 : 900);
            int own = how == PACK_SCATTERED ? next(4) : id;
            for (int i = 0; i < n && at < s - pad; i++, at++)
                ids.push_back(own);
        }
        ids.insert(ids.end(), s - at, 0);
    }
    return ids;
}

struct packed_case {
    int b, s, hq, hk, d, dv;
    packing how;
    int window;
    float cap;
    bool full; /* not causal */
};

/* q, k and v and their gradients as columns of one tensor, as a merged projection has them. */
struct packed_data {
    mx_flash_shape s = {};
    mx_flash_args a = {};
    int64_t width, all, no, nl;
    mx_bf16 *x, *y, *o, *dout;
    float *lse, *dot;
    int32_t *ids;
    char *tables;
    std::vector<int32_t> host_ids;

    packed_data(const packed_case &c, uint64_t seed)
    {
        width = (int64_t)(c.hq + c.hk) * c.d + (int64_t)c.hk * c.dv;
        all = (int64_t)c.b * c.s * width, no = (int64_t)c.b * c.s * c.hq * c.dv;
        nl = (int64_t)c.b * c.hq * c.s;
        s.batch = c.b, s.seq_q = s.seq_kv = c.s, s.heads_q = c.hq, s.heads_kv = c.hk;
        s.dim_qk = c.d, s.dim_v = c.dv, s.causal = !c.full, s.window = c.window;
        s.scale = 1 / sqrtf((float)c.d), s.softcap = c.cap;
        s.q = s.k = s.dq = s.dk = {c.s * width, width, c.d};
        s.v = s.dv = {c.s * width, width, c.dv};
        s.o = s.dout = flash_stride(c.s, c.hq, c.dv);
        x = device_random<mx_bf16>(all, seed, 2), y = device_alloc<mx_bf16>(all);
        o = device_alloc<mx_bf16>(no), dout = device_random<mx_bf16>(no, seed + 1, 1);
        lse = device_alloc<float>(nl), dot = device_alloc<float>(nl);
        host_ids = document_ids(c.b, c.s, c.how, seed);
        ids = device_copy(host_ids);
        tables = device_alloc<char>((int64_t)mx_flash_segments_bytes(&s));
        a.q = x, a.k = x + c.hq * c.d, a.v = x + (c.hq + c.hk) * c.d, a.o = o, a.stats = lse;
        a.dq = y, a.dk = y + c.hq * c.d, a.dv = y + (c.hq + c.hk) * c.d, a.dout = dout;
        a.q_seg = a.k_seg = ids, a.row_dot = dot;
    }
    ~packed_data()
    {
        for (void *p : {(void *)x, (void *)y, (void *)o, (void *)dout, (void *)lse, (void *)dot,
                        (void *)ids, (void *)tables})
            cudaFree(p);
    }
    void find_tables()
    {
        CU(cudaMemset(tables, 0xff, mx_flash_segments_bytes(&s)));
        CU(mx_flash_segments_find(&s, &a, 0, tables, 0));
    }
    void forward(bool mma)
    {
        CU(cudaMemset(o, 0xff, no * 2));
        CU(cudaMemset(lse, 0xff, nl * 4));
        CU(mma ? mx_flash_mma_forward(&s, &a, 0) : mx_flash_forward(&s, &a, 0));
        CU(cudaDeviceSynchronize());
    }
    void backward(bool mma)
    {
        CU(cudaMemset(y, 0xff, all * 2));
        if (mma)
            CU(mx_flash_backward(&s, &a, 0));
        else
            run_hopper_backward(s, a);
        CU(cudaDeviceSynchronize());
    }
    /* Columns [from, from + n) of a tensor of rows as wide as the projection. */
    std::vector<double> columns(const mx_bf16 *p, int64_t from, int64_t n) const
    {
        std::vector<double> whole = host(p, all), part;
        for (int64_t r = 0; r < all / width; r++)
            part.insert(part.end(), whole.begin() + r * width + from,
                        whole.begin() + r * width + from + n);
        return part;
    }
};

#endif
