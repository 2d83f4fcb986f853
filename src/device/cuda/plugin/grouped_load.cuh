/* grouped_load.cuh - the factors of a grouped product on their way to shared memory.
 *
 * A tile is 128 x 256, 64 of k at a time. Pieces of 16 bytes come with cp.async, which fills what
 * lies outside (an expert's last rows, the end of a width) with zeros, so the arithmetic knows no
 * borders. A factor lies in shared memory in slabs of 128-byte rows whose 16-byte pieces are
 * exchanged by row (piece ^ row % 8): what ldmatrix reads without bank conflicts and also what
 * Hopper's matrix unit calls its 128-byte swizzle, so one loader serves both:
 *     k inside  (x; w of NT)         one slab, a row for each of the 128 or 256 rows, 64 of k
 *     k outside (w of NN; all of TN) a slab for each 64 columns, a row for each of the 64 k
 */
#ifndef MX_DEVICE_CUDA_GROUPED_LOAD_CUH
#define MX_DEVICE_CUDA_GROUPED_LOAD_CUH

#include "device/cuda/plugin/grouped.cuh"

enum { BM = 128, BN = 256, BK = 64, SLAB = BK * 128 };
enum { A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE = A_BYTES + B_BYTES };

struct tiled_call {
    grouped_shape s;
    const uint16_t *a, *b;
    void *y;
    bool out_f32;
};

/* What a tile reads and writes. */
struct tile_task {
    const uint16_t *a, *b;
    int64_t lda, ldb, y; /* y: where the tile begins in the result */
    int k, rows, cols;   /* rows and cols: from the tile's corner to the end */

    __device__ __forceinline__ tile_task(const tiled_call &p, const grouped_tile &g,
                                         mx_grouped_kind kind)
    {
        int64_t from = g.from, w = g.expert < 0 ? 0 : (int64_t)g.expert * p.s.n * p.s.k;
        bool tn = kind == MX_GROUPED_TN;
        cols = p.s.n - g.n0;
        rows = tn ? p.s.m - g.m0 : g.to - g.from - g.m0;
        k = tn ? g.to - g.from : g.expert < 0 ? 0 : p.s.k;
        y = ((tn ? (int64_t)g.expert * p.s.m : from) + g.m0) * p.s.n + g.n0;
        lda = tn ? p.s.m : p.s.k;
        ldb = kind == MX_GROUPED_NT ? p.s.k : p.s.n;
        a = p.a + (tn ? from * lda + g.m0 : (from + g.m0) * lda);
        b = p.b + (tn                      ? from * ldb + g.n0
                   : kind == MX_GROUPED_NT ? w + g.n0 * ldb
                                           : w + g.n0);
    }
};

/* What one of THREADS threads loads of a factor of R rows or columns, step by step. */
template <int R, bool K_OUTSIDE, int THREADS> struct loader {
    enum { PASS = THREADS / 8, PIECES = R / PASS, DEEP = BK / PASS };
    const uint16_t *base, *at;
    int64_t ld;
    int row, piece;
    uint32_t in; /* bit j: piece j lies inside the width or the rows */

    __device__ loader(const uint16_t *p, int64_t ld_, int limit, int thread)
        : base(p), ld(ld_), row(thread / 8), piece(thread % 8), in(0)
    {
        at = p + row * ld + piece * 8;
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            in |= (uint32_t)((K_OUTSIDE ? j / DEEP * 64 + piece * 8 : row + PASS * j) < limit) << j;
    }
    /* The next 64 of k, of which k_left are there, to shared address `to`. */
    __device__ __forceinline__ void next(uint32_t to, int k_left)
    {
        to += row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            int k = K_OUTSIDE ? row + j % DEEP * PASS : piece * 8;
            int64_t on = K_OUTSIDE ? j % DEEP * PASS * ld + j / DEEP * 64 : PASS * j * ld;
            bool ok = in >> j & 1 && k < k_left;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + j * PASS * 128),
                         "l"(ok ? at + on : base), "r"(ok ? 16 : 0));
        }
        at += K_OUTSIDE ? BK * ld : BK;
    }
};

#endif
