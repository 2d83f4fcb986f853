/* product_slope.cu - a product that ends in GELU's slope, on hopper_product.cuh.
 *
 * The u that a tile needs is brought, and the du that it makes taken away, by the copy engine,
 * through a ring of places of 64 rows x 32 columns for each group of warps. The group reads u where
 * it lies, in the layout that its sums have (ldmatrix), and writes du over it. A warp of the
 * loader's group, the group's aide, asks for these copies and sums up the columns of what lies in a
 * place, so that the group, whose time counts, has to do with neither addresses nor edges nor sums.
 * (With u loaded by the group's own lanes, an eighth ahead, all took 0.85 - 0.90 ms where this
 * takes 0.59 and the product alone 0.46: 65,536 x 3,072 x 768.)
 *
 * Eighth C of any tile is in place C % PLACES, and the ring goes round an even number of times for
 * each tile: places and parities are known to the compiler. The eighths that a group works on in
 * its first tile are of none; the aide lets it have places with nothing in them.
 */
#include "device/cuda/plugin/hopper_product.cuh"
#include "device/cuda/plugin/product_slope.h"
#include "device/cuda/plugin/vec.cuh"

enum { PLACES = 4, ROWS = 64, WIDE = 32, ROW_BYTES = 2 * WIDE, PLACE = ROWS * ROW_BYTES };
enum { EIGHT_ROWS = 8 * ROW_BYTES };
static_assert(EIGHTHS % (2 * PLACES) == 0, "parities are the same for each tile");

struct slope_args {
    float *parts;
    int m, n;
};
struct slope_maps {
    CUtensorMap u, du;
};

/* gelu_tanh'(x) = s + s (1 - s) x (A + 3 A B x^2), s a sigmoid of A (x + B x^3). */
__device__ __forceinline__ float slope_of(float x)
{
    const float A = 1.5957691216057308f, B = 0.044715f, LOG2 = 1.4426950408889634f;
    float t = x * x, z = x * fmaf(t, -A * B * LOG2, -A * LOG2), e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.f + e));
    float r = x * fmaf(t, 3 * A * B, A);
    return fmaf(s, fmaf(-s, r, r), s);
}

/* Eight rows of a place: four pieces of 8 x 8, which are four words of a lane (columns 8 i + 2 q
 * and the next of row l / 4). This is where the row begins that lane l has to name. */
__device__ __forceinline__ uint32_t piece_of_lane()
{
    int lane = threadIdx.x & 31;
    return lane % 8 * ROW_BYTES + ((lane / 8) ^ (lane % 8 / 2)) * 16;
}
__device__ __forceinline__ void load_pieces(uint32_t x[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void store_pieces(const uint32_t x[4], uint32_t to)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* A place is full when u is there, and done when du is. */
struct slope_ring {
    uint32_t places, full, done;
    __device__ slope_ring(const product_room &r, int group)
    {
        places = r.spare + group * PLACES * PLACE;
        full = r.spare + GROUPS * PLACES * PLACE + group * PLACES * 16, done = full + 8 * PLACES;
    }
};

struct slope_end : product_end {
    typedef slope_args args;
    typedef slope_maps maps;
    enum { ROOM = GROUPS * PLACES * (PLACE + 16), AIDES = GROUPS };
    enum { LOADER_REGISTERS = 56, GROUP_REGISTERS = 224 };
    uint32_t v[64]; /* word 8 c + 4 h + i: columns 32 c + 8 i + 2 q and the next (xent_exp.cu) */
    uint32_t w[8];  /* of the eighth under way: u, then du */
    slope_ring ring;
    uint32_t mine; /* this lane's address of four matrices of 8 x 8 in a place */

    static __device__ __forceinline__ bool asked(const args &, int)
    {
        return true;
    }
    static __device__ __forceinline__ void prepare(const product_room &r)
    {
        for (int g = 0; g < GROUPS; g++) {
            slope_ring ring(r, g);
            for (int i = 0; i < PLACES; i++) {
                bar_init(ring.full + 8 * i, 1);
                bar_init(ring.done + 8 * i, 4);
            }
        }
    }
    __device__ slope_end(const product_room &r, int g) : ring(r, g)
    {
        mine = ring.places + threadIdx.x / 32 % 4 * 2 * EIGHT_ROWS + piece_of_lane();
    }
    __device__ __forceinline__ void begin(const args &, int, int) {}
    __device__ __forceinline__ void place(const args &, int, int) {}
    __device__ __forceinline__ void take(int half, const float d[64], const args &)
    {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                v[32 * half + j / 4 * 8 + 4 * h + j % 4] =
                    pack2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
    template <int C> __device__ __forceinline__ void ready(const args &)
    {
        const uint32_t at = C % PLACES;
        bar_wait(ring.full + 8 * at, C / PLACES & 1);
        load_pieces(w, mine + at * PLACE);
        load_pieces(w + 4, mine + at * PLACE + EIGHT_ROWS);
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &)
    {
        const uint32_t at = C % PLACES, x = v[8 * C + k];
        w[k] = pack2(low_of(x) * slope_of(low_of(w[k])), high_of(x) * slope_of(high_of(w[k])));
        if (k == 3)
            store_pieces(w, mine + at * PLACE);
        if (k == 7) {
            store_pieces(w + 4, mine + at * PLACE + EIGHT_ROWS);
            tma_written();
            __syncwarp();
            if ((threadIdx.x & 31) == 0)
                bar_arrive(ring.done + 8 * at);
        }
    }

    /* --- the aide --- */

    struct corner {
        int m, n; /* m < 0: of no tile */
    };
    static __device__ __forceinline__ void bring(const maps &of, const slope_ring &ring, corner t,
                                                 int c)
    {
        uint32_t full = ring.full + 8 * (c % PLACES);
        if (t.m < 0) {
            bar_arrive(full);
            return;
        }
        bar_expect(full, PLACE);
        tma_load(ring.places + c % PLACES * PLACE, &of.u, t.n + WIDE * c, t.m, 0, 0, full);
    }
    /* The sum of a place's column 2 (lane % 16) + lane / 16. Many words are asked for before the
     * first is used: one after the other took longer than the group needs for an eighth. */
    static __device__ __forceinline__ float sum_of(uint32_t from)
    {
        enum { AT_ONCE = 16 };
        int lane = threadIdx.x & 31, upper = lane / 16;
        float low = 0, high = 0;
        from += upper * ROW_BYTES + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < ROWS / 2; i += AT_ONCE) { /* rows 2 i + upper and on */
            uint32_t x[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                asm volatile("ld.shared.b32 %0, [%1];"
                             : "=r"(x[j])
                             : "r"(from + 2 * (i + j) * ROW_BYTES + ((lane / 4 % 4) ^ j % 4) * 16));
            __syncwarp(); /* the assembler would put each load where it is used */
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                low += low_of(x[j]), high += high_of(x[j]);
        }
        float got = __shfl_xor_sync(~0u, upper ? low : high, 16);
        return (upper ? high : low) + got;
    }
    static __device__ __forceinline__ void take_away(const args &p, const maps &of,
                                                     const slope_ring &ring, corner t, int c)
    {
        uint32_t from = ring.places + c % PLACES * PLACE;
        int lane = threadIdx.x & 31, col = t.n + WIDE * c + 2 * (lane & 15) + (lane >> 4);
        if (lane == 0)
            tma_store(&of.du, t.n + WIDE * c, t.m, from);
        float sum = sum_of(from);
        if (t.m < p.m && col < p.n)
            p.parts[(int64_t)(t.m / ROWS) * p.n + col] = sum;
        if (lane == 0)
            tma_read();
        __syncwarp();
    }
    /* In step with the group, which works on a tile's eighths while the next is multiplied. */
    static __device__ __forceinline__ void aid(const product_shape &s, const args &p,
                                               const maps &of, const product_room &r, int group)
    {
        slope_ring ring(r, group);
        bool first = (threadIdx.x & 31) == 0, more = true;
        corner now, before = {-1, 0};
        if (first)
            for (int c = 0; c < PLACES; c++)
                bring(of, ring, before, c);
        for (int t = r.first; more; t += r.clusters, before = now) {
            more = t < r.mt * r.nt;
            tile_at tile = find_tile(s, t, r.mt, r.nt);
            now = {(tile.m * PAIR + r.rank) * TILE_M + group * ROWS, tile.n * TILE_N};
            for (int c = 0; c < EIGHTHS; c++) {
                bar_wait(ring.done + 8 * (c % PLACES), c / PLACES & 1);
                if (before.m >= 0)
                    take_away(p, of, ring, before, c);
                bool same = c + PLACES < EIGHTHS;
                if (first && (same || more))
                    bring(of, ring, same ? before : now, (c + PLACES) % EIGHTHS);
            }
        }
        if (first)
            tma_stored();
    }
};

/* --- host --- */

bool mx_product_slope_is_possible(const mx_product_slope *s)
{
    const int64_t most = 1 << 30, enough = 4;
    int room = s->b_outside ? product_room_for<slope_end, true>()
                            : product_room_for<slope_end, false>();
    int64_t tiles = (s->m + BAND_M - 1) / BAND_M * ((s->n + TILE_N - 1) / TILE_N);
    return room && s->n % 8 == 0 && s->k % 8 == 0 && s->k > 64 && s->m < most && s->n < most &&
           s->k < most && tiles >= enough * room;
}

int64_t mx_product_slope_rows(int64_t m)
{
    return (m + ROWS - 1) / ROWS;
}

cudaError_t mx_product_slope_launch(const mx_product_slope *s, const mx_product_slope_args *a,
                                    cudaStream_t stream)
{
    int64_t m = s->m, n = s->n;
    slope_args p = {a->parts, (int)m, (int)n};
    slope_maps of;
    tensor_place u = {a->u, {n, m, 1, 1}, {n, m * n, m * n}}, du = u;
    du.at = a->du;
    cudaError_t e = tma_map(&of.u, u, ROWS, WIDE);
    if (e == cudaSuccess)
        e = tma_map(&of.du, du, ROWS, WIDE);
    if (e != cudaSuccess)
        return e;
    return s->b_outside ? product_launch<slope_end, true>(m, n, s->k, a->a, a->b, p, stream, of)
                        : product_launch<slope_end, false>(m, n, s->k, a->a, a->b, p, stream, of);
}
