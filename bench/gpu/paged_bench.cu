/* paged_bench.cu - attention over pages of tokens that stand alone, as in decoding, in several
 * arrangements of the same kernel: warps of a block, stages of a warp, blocks.
 *     paged_bench
 * Llama-3.1-8B's heads (32 over 8 of 128), pages of 16 tokens in random order, 8 pools in turn, so
 * that nothing is found in the L2 cache. The floor is keys and values over 4.3 TB/s.
 */
#include "gpu.cuh"

#include "device/cuda/attention/paged_single.cuh"
#include "ops/paged_split.h"

enum { Q_HEADS = 32, K_HEADS = 8, DIM = 128, POOLS = 8, PAGE = 16 };

/* SplitMix64 of a number. */
static unsigned pick(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (unsigned)(x >> 33);
}

struct setup {
    mx_cuda_paged p;
    uint16_t *k[POOLS], *v[POOLS];
    double bytes;
};

/* `n` answers at `context` tokens each, more or less a quarter. */
static setup make(int n, int context, int most)
{
    setup s = {};
    mx_cuda_paged &p = s.p;
    int columns = (most + PAGE - 1) / PAGE, used = 0;
    std::vector<int32_t> positions, row, table((size_t)n * columns), order;
    for (int i = 0; i < n; i++) {
        int at = context * 3 / 4 + (int)(pick(i) % (unsigned)(context / 2 + 1)) - 1;
        positions.push_back(at);
        row.push_back(i);
        used += at / PAGE + 1;
        s.bytes += 4.0 * (at + 1) * K_HEADS * DIM;
    }
    for (int i = 0; i < used; i++)
        order.push_back(i);
    for (int i = used - 1; i > 0; i--)
        std::swap(order[i], order[pick(1000000 + (uint64_t)i) % (unsigned)(i + 1)]);
    for (int i = 0, at = 0; i < n; i++)
        for (int c = 0; c <= positions[i] / PAGE; c++)
            table[(size_t)i * columns + c] = order[at++];
    p.queries = p.rows = n;
    p.q_heads = Q_HEADS, p.k_heads = K_HEADS, p.qk_dim = p.v_dim = DIM, p.page = PAGE;
    p.slots = (int64_t)used * PAGE, p.k_row = p.v_row = K_HEADS * DIM, p.columns = columns;
    p.scale = 0.088f, p.bf16 = true;
    p.q = device_random<mx_bf16>((int64_t)n * Q_HEADS * DIM, 1, 1);
    p.out = device_alloc<mx_bf16>((int64_t)n * Q_HEADS * DIM);
    int32_t *ints = device_alloc<int32_t>(2 * n + (int64_t)table.size());
    CU(cudaMemcpy(ints, positions.data(), 4 * (size_t)n, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(ints + n, row.data(), 4 * (size_t)n, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(ints + 2 * n, table.data(), 4 * table.size(), cudaMemcpyHostToDevice));
    p.positions = ints, p.row = ints + n, p.table = ints + 2 * n;
    for (int i = 0; i < POOLS; i++) {
        s.k[i] = (uint16_t *)device_random<mx_bf16>(p.slots * p.k_row, 2, 1);
        s.v[i] = (uint16_t *)device_random<mx_bf16>(p.slots * p.k_row, 3, 1);
    }
    const int64_t span = (int64_t)PAGE * columns;
    p.parts = 1, p.group = Q_HEADS / K_HEADS, p.tile = PAGED_TILE_WARPS * (ROWS / p.group);
    p.leaf = (int)mx_gpu_paged_leaf(span) / mx_paged_split(n);
    p.leaves = (int)mx_gpu_parts(span, p.leaf) + 1;
    p.places = n;
    mx_gpu_paged size = {n, n, Q_HEADS, span, DIM};
    char *work = device_alloc<char>((int64_t)mx_gpu_paged_bytes(&size) * 8);
    p.alone = (int32_t *)work;
    p.parts_at = (float *)(work + mx_gpu_aligned_bytes(n + 1, sizeof(int32_t)));
    return s;
}

static void drop(setup &s)
{
    for (int i = 0; i < POOLS; i++)
        cudaFree(s.k[i]), cudaFree(s.v[i]);
    cudaFree((void *)s.p.q), cudaFree(s.p.out), cudaFree((void *)s.p.positions);
    cudaFree(s.p.alone);
}

template <class F> static void line(const char *name, setup &s, F launch)
{
    double ms = time_ms(
                    [&] {
                        for (int i = 0; i < POOLS; i++) {
                            mx_cuda_paged p = s.p;
                            p.k = s.k[i], p.v = s.v[i];
                            CU(launch(p));
                        }
                    },
                    5) /
                POOLS;
    printf("  %-40s %8.1f us %6.2f TB/s\n", name, ms * 1e3, s.bytes / ms / 1e9);
    fflush(stdout);
}

template <int WARPS, int STAGES> static void arrangement(setup &s, int blocks)
{
    char name[64];
    snprintf(name, sizeof name, "%d warps, %d stages, %d blocks an SM", WARPS, STAGES, blocks);
    line(name, s, [&](const mx_cuda_paged &p) {
        cudaError_t e = launch_single<DIM, WARPS, STAGES>(p, blocks * 132, 0);
        return e == cudaSuccess ? launch_merge<DIM>(p, 0) : e;
    });
}

int main(void)
{
    if (!device_present())
        return 0;
    const int cases[][3] = {{1, 200, 256},     {1, 200, 32768},   {1, 2000, 4096},
                            {1, 20000, 32768}, {4, 1000, 2048},   {8, 1000, 2048},
                            {32, 1100, 1200},  {256, 1000, 2000}, {384, 1500, 2000},
                            {384, 1500, 32768}};
    for (auto &c : cases) {
        printf("%d answers at %d tokens, at most %d\n", c[0], c[1], c[2]);
        setup s = make(c[0], c[1], c[2]);
        line("by a list", s, [&](const mx_cuda_paged &p) { return mx_cuda_paged_singles(&p, 0); });
        if (mx_cuda_paged_cluster_is_possible(&s.p))
            line("in clusters", s,
                 [&](const mx_cuda_paged &p) { return mx_cuda_paged_cluster(&p, 0); });
        line("without the merge", s,
             [&](const mx_cuda_paged &p) { return launch_single<DIM, 4, 3>(p, 264, 0); });
        arrangement<1, 6>(s, 4);
        arrangement<1, 4>(s, 6);
        arrangement<2, 3>(s, 4);
        arrangement<2, 4>(s, 3);
        arrangement<4, 2>(s, 3);
        arrangement<4, 3>(s, 2);
        arrangement<4, 6>(s, 1);
        arrangement<8, 2>(s, 1);
        arrangement<8, 3>(s, 1);
        arrangement<1, 3>(s, 8);
        for (int leaf : {64, 128, 512, 1024}) {
            if (leaf * 127 < c[2] || leaf > 4 * c[2])
                continue;
            setup t = s;
            char name[64];
            snprintf(name, sizeof name, "by a list, leaves of %d", leaf);
            t.p.leaf = leaf, t.p.leaves = (int)mx_gpu_parts((int64_t)PAGE * s.p.columns, leaf) + 1;
            if (leaf < s.p.leaf && s.p.leaf / leaf > 4)
                continue;
            line(name, t, [&](const mx_cuda_paged &p) { return mx_cuda_paged_singles(&p, 0); });
        }
        drop(s);
    }
    return 0;
}
