/* paged_bench.cu - attention of single tokens over pages: warps a block and stages, in one run; bits
 * of all forms must be equal. */
#include "device/cuda/attention/paged_single.cu"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#define CU(expr)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (expr);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%d: %s: %s\n", __LINE__, #expr, cudaGetErrorString(e_));                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static cudaStream_t stream;

__global__ void fill(uint16_t *p, size_t n, uint64_t seed, float scale)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = f32_to_bf16((int32_t)random_bits64(seed, i) * (1.f / 2147483648.f) * scale);
}
template <class T> static T *take(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T)));
    CU(cudaMemset(p, 0xff, n * sizeof(T)));
    return (T *)p;
}
template <class T> static T *upload(const std::vector<T> &v)
{
    T *p = take<T>(v.size());
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static double time_graph(std::function<void()> f, int reps = 9)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaEvent_t a, b;
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    f();
    CU(cudaStreamEndCapture(stream, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    std::vector<float> t;
    for (int i = 0; i < reps + 2; i++) {
        CU(cudaEventRecord(a, stream));
        CU(cudaGraphLaunch(e, stream));
        CU(cudaEventRecord(b, stream));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2)
            t.push_back(ms);
    }
    CU(cudaGraphExecDestroy(e));
    CU(cudaGraphDestroy(g));
    std::sort(t.begin(), t.end());
    return 1e3 * t[t.size() / 2];
}

struct form {
    const char *name;
    cudaError_t (*run)(const mx_cuda_paged &, int, cudaStream_t);
    int blocks;
};
template <int D> static const std::vector<form> &forms()
{
    static const std::vector<form> f = {
        {"1 warp, 4 stages, 792 (today)", launch_single<D, 1, 4>, 792},
        {"1 warp, 3 stages, 1056", launch_single<D, 1, 3>, 1056},
        {"1 warp, 2 stages, 1584", launch_single<D, 1, 2>, 1584},
        {"1 warp, 6 stages, 528", launch_single<D, 1, 6>, 528},
        {"2 warps, 3 stages, 528", launch_single<D, 2, 3>, 528},
        {"4 warps, 3 stages, 264", launch_single<D, 4, 3>, 264},
        {"4 warps, 2 stages, 396", launch_single<D, 4, 2>, 396},
        {"4 warps, 6 stages, 132", launch_single<D, 4, 6>, 132},
        {"8 warps, 3 stages, 132", launch_single<D, 8, 3>, 132},
        {"8 warps, 2 stages, 132", launch_single<D, 8, 2>, 132},
    };
    return f;
}

template <int D> static void bench(int q_heads, int k_heads, int queries, int length, bool shuffled)
{
    enum { PAGE = 16 };
    const int columns = (length + PAGE) / PAGE, rows = queries;
    const size_t token_bytes = 4ull * k_heads * D, one = (size_t)queries * length * token_bytes;
    const int sets = (int)std::min<size_t>(32, std::max<size_t>(2, (300u << 20) / one));
    const int64_t pages = (int64_t)sets * rows * columns, slots = pages * PAGE;
    uint16_t *k = take<uint16_t>(slots * k_heads * D), *v = take<uint16_t>(slots * k_heads * D);
    fill<<<(unsigned)((slots * k_heads * D + 255) / 256), 256>>>(k, slots * k_heads * D, 1, 1);
    fill<<<(unsigned)((slots * k_heads * D + 255) / 256), 256>>>(v, slots * k_heads * D, 2, 1);
    uint16_t *q = take<uint16_t>((size_t)queries * q_heads * D);
    uint16_t *out = take<uint16_t>((size_t)queries * q_heads * D);
    fill<<<(unsigned)(((size_t)queries * q_heads * D + 255) / 256), 256>>>(
        q, (size_t)queries * q_heads * D, 3, 1);
    std::vector<int32_t> all(pages), pos(queries), row(queries);
    for (int64_t i = 0; i < pages; i++)
        all[i] = (int32_t)i;
    std::mt19937 r(7);
    if (shuffled)
        std::shuffle(all.begin(), all.end(), r);
    for (int i = 0; i < queries; i++)
        pos[i] = length - 1 - (int)(r() % (length / 16)), row[i] = i;
    int32_t *table = upload(all), *dpos = upload(pos), *drow = upload(row);
    double bytes = 0;
    for (int p : pos)
        bytes += (p + 1.0) * token_bytes;
    mx_cuda_paged p = {};
    p.queries = queries, p.q_heads = q_heads, p.k_heads = k_heads, p.qk_dim = p.v_dim = D;
    p.slots = slots, p.k_row = p.v_row = k_heads * D, p.page = PAGE, p.rows = rows;
    p.columns = columns, p.scale = 0.1f, p.bf16 = true, p.q = q, p.k = k, p.v = v;
    p.positions = dpos, p.row = drow, p.table = table, p.out = out;
    const int64_t span = (int64_t)PAGE * columns;
    mx_gpu_paged g = {queries, rows, q_heads, span, D};
    char *work = take<char>(mx_gpu_paged_bytes(&g));
    p.parts = 1, p.group = q_heads / k_heads, p.tile = 4 * (ROWS / p.group);
    p.leaf = (int)mx_gpu_paged_leaf(span), p.leaves = (int)mx_gpu_paged_leaves(span);
    p.places = queries, p.alone = (int32_t *)work;
    p.parts_at = (float *)(work + mx_gpu_aligned_bytes(p.places + 1, sizeof(int32_t)));
    auto at = [&](int i) {
        mx_cuda_paged c = p;
        c.table = table + (int64_t)i * rows * columns;
        return c;
    };
    std::vector<uint16_t> want, got((size_t)queries * q_heads * D);
    printf("\n%d tokens, %d positions, h%d/%d d%d, pages %s: %.1f MB, %.1f us at 4.27 TB/s\n", queries,
           length, q_heads, k_heads, D, shuffled ? "anywhere" : "in order", bytes / 1e6,
           bytes / 4.27e6);
    for (const form &f : forms<D>()) {
        CU(cudaMemset(out, 0xff, got.size() * 2));
        CU(cudaMemset(work, 0xff, mx_gpu_paged_bytes(&g)));
        CU(f.run(at(1), f.blocks, stream));
        CU(launch_merge<D>(at(1), stream));
        CU(cudaStreamSynchronize(stream));
        CU(cudaMemcpy(got.data(), out, got.size() * 2, cudaMemcpyDeviceToHost));
        if (want.empty())
            want = got;
        double t = time_graph([&] {
            for (int i = 0; i < sets; i++)
                CU(f.run(at(i), f.blocks, stream));
        }) / sets;
        double both = time_graph([&] {
            for (int i = 0; i < sets; i++) {
                CU(f.run(at(i), f.blocks, stream));
                CU(launch_merge<D>(at(i), stream));
            }
        }) / sets;
        double rest = time_graph([&] {
            for (int i = 0; i < sets; i++) {
                CU(f.run(at(i), f.blocks, stream));
                CU(launch_merge<D>(at(i), stream));
                if (queries > 1)
                    CU(mx_cuda_paged_tiles(&p, stream));
            }
        }) / sets;
        printf("  %-32s %8.2f us %5.2f TB/s, with merge %8.2f, with tiles %8.2f%s\n", f.name, t,
               bytes / t / 1e6, both, rest, got == want ? "" : "  DIFFERENT BITS");
    }
    fflush(stdout);
    for (void *x : {(void *)k, (void *)v, (void *)q, (void *)out, (void *)table, (void *)dpos,
                    (void *)drow, (void *)work})
        cudaFree(x);
}

int main()
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no CUDA device\n");
        return 0;
    }
    CU(cudaStreamCreate(&stream));
    for (int queries : {1, 8, 32, 256})
        bench<128>(32, 8, queries, 1024, true);
    bench<128>(32, 8, 256, 1024, false);
    bench<128>(32, 8, 1, 16384, true);
    bench<128>(32, 8, 512, 256, true);
    bench<64>(32, 8, 256, 1024, true);
    return 0;
}
