/* hopper_stream.cuh - an Epilogue of hopper_gemm.cuh that reads tensors as large as the result and
 * writes as many: both by TMA, through shared memory.
 *
 * Each group of warps has a ring of slots, each of a box of 64 rows x 32 columns for each of its
 * STREAMS. The group reads boxes where they lie, in the layout that its sums have (ldmatrix), and
 * writes over them. A helper warp for each group loads and stores them by TMA, and may read what
 * lies in a slot before it is stored. So the group, whose time is critical, deals with neither
 * addresses nor edges. Loads by the group's own lanes are
 * slower (docs/log/gpu-kernels.md).
 *
 * Eighth C of any tile is in slot C % SLOTS, and the ring goes round an even number of times for
 * each tile: slots and parities are known to the compiler. The eighths that a group works on in
 * its first tile are of none; the helper warp lets it have slots with nothing in them.
 */
#ifndef MX_DEVICE_CUDA_HOPPER_STREAM_CUH
#define MX_DEVICE_CUDA_HOPPER_STREAM_CUH

#include "device/cuda/gemm/hopper_gemm.cuh"
#include "device/cuda/core/vec.cuh"

enum { BOX_ROWS = 64, BOX_WIDE = 32, BOX_PITCH = 2 * BOX_WIDE, BOX = BOX_ROWS * BOX_PITCH };
enum { EIGHT_ROWS = 8 * BOX_PITCH };

/* The tile that a box is of; m < 0: of none. */
struct stream_tile {
    int m, n;
};
template <int STREAMS> struct stream_maps {
    CUtensorMap in[STREAMS], out[STREAMS];
};

/* What an Epilogue has beside: args, ready<C> (which begins with arrived<C>), part_of<C> (which
 * ends with done<C>), look(p, slot, tile, c), and a `help` that calls serve<Epilogue>. */
template <int STREAMS, int SLOTS> struct stream_epilogue : gemm_epilogue {
    typedef stream_maps<STREAMS> maps;
    enum { SLOT = STREAMS * BOX, SMEM_BYTES = GROUPS * SLOTS * (SLOT + 16), HELPERS = GROUPS };
    static_assert(EIGHTHS % (2 * SLOTS) == 0, "parities are the same for each tile");

    /* A slot is full when what is read is there, and done when what is written is. */
    struct ring_of {
        uint32_t slots, full, done;
        __device__ ring_of(const gemm_smem &r, int group)
        {
            slots = r.spare + group * SLOTS * SLOT;
            full = r.spare + GROUPS * SLOTS * SLOT + group * SLOTS * 16;
            done = full + 8 * SLOTS;
        }
    };

    uint32_t v[64]; /* word 8 c + 4 h + i: columns 32 c + 8 i + 2 q and the next (xent_exp.cu) */
    ring_of ring;
    uint32_t mine; /* where the row begins that this lane has to name of four pieces of 8 x 8 */

    static __device__ __forceinline__ void prepare(const gemm_smem &r)
    {
        for (int g = 0; g < GROUPS; g++) {
            ring_of ring(r, g);
            for (int i = 0; i < SLOTS; i++) {
                bar_init(ring.full + 8 * i, 1);
                bar_init(ring.done + 8 * i, 4);
            }
        }
    }
    __device__ stream_epilogue(const gemm_smem &r, int g) : ring(r, g)
    {
        int lane = threadIdx.x & 31;
        mine = ring.slots + threadIdx.x / 32 % 4 * 2 * EIGHT_ROWS + lane % 8 * BOX_PITCH +
               ((lane / 8) ^ (lane % 8 / 2)) * 16;
    }
    template <class Args>
    static __device__ __forceinline__ bool wanted(const Args &, int)
    {
        return true;
    }
    template <class Args> __device__ __forceinline__ void begin(const Args &, int, int) {}
    template <class Args> __device__ __forceinline__ void place(const Args &, int, int) {}
    template <class Args>
    __device__ __forceinline__ void take(int half, const float d[64], const Args &)
    {
        put_aside(v, half, d);
    }

    template <int C> __device__ __forceinline__ void arrived()
    {
        bar_wait(ring.full + 8 * (C % SLOTS), C / SLOTS & 1);
    }
    /* Of stream k: the words of eight of this warp's rows, the first or the others (h). */
    template <int C> __device__ __forceinline__ void load(uint32_t x[4], int k, int h)
    {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(mine + C % SLOTS * SLOT + k * BOX + h * EIGHT_ROWS)
                     : "memory");
    }
    template <int C> __device__ __forceinline__ void store(const uint32_t x[4], int k, int h)
    {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         mine + C % SLOTS * SLOT + k * BOX + h * EIGHT_ROWS),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    }
    template <int C> __device__ __forceinline__ void done()
    {
        tma_written();
        __syncwarp();
        if ((threadIdx.x & 31) == 0)
            bar_arrive(ring.done + 8 * (C % SLOTS));
    }

    /* --- the helper --- */

    static __device__ __forceinline__ void bring(const maps &of, const ring_of &ring,
                                                 stream_tile t, int c)
    {
        uint32_t full = ring.full + 8 * (c % SLOTS), to = ring.slots + c % SLOTS * SLOT;
        if (t.m < 0) {
            bar_arrive(full);
            return;
        }
        bar_expect(full, SLOT);
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            tma_load(to + k * BOX, &of.in[k], t.n + BOX_WIDE * c, t.m, 0, 0, full);
    }
    template <class Epilogue>
    static __device__ __forceinline__ void
    take_away(const typename Epilogue::args &p, const maps &of, uint32_t from, stream_tile t, int c)
    {
        bool first = (threadIdx.x & 31) == 0;
        if (first)
#pragma unroll
            for (int k = 0; k < STREAMS; k++)
                tma_store(&of.out[k], t.n + BOX_WIDE * c, t.m, from + k * BOX);
        Epilogue::look(p, from, t, c);
        if (first)
            tma_read();
        __syncwarp();
    }
    /* In step with the group, which works on a tile's eighths while the next is multiplied. */
    template <class Epilogue>
    static __device__ __forceinline__ void serve(const gemm_shape &s,
                                                 const typename Epilogue::args &p, const maps &of,
                                                 const gemm_smem &r, int group)
    {
        ring_of ring(r, group);
        bool first = (threadIdx.x & 31) == 0, more = true;
        stream_tile now, before = {-1, 0};
        if (first)
            for (int c = 0; c < SLOTS; c++)
                bring(of, ring, before, c);
        for (int t = r.first; more; t += r.clusters, before = now) {
            more = t < r.tiles;
            tile_at tile = find_tile(s, t, r.mt, r.nt);
            now = {(tile.m * PAIR + r.rank) * TILE_M + group * BOX_ROWS, tile.n * TILE_N};
            for (int c = 0; c < EIGHTHS; c++) {
                bar_wait(ring.done + 8 * (c % SLOTS), c / SLOTS & 1);
                if (before.m >= 0)
                    take_away<Epilogue>(p, of, ring.slots + c % SLOTS * SLOT, before, c);
                bool same = c + SLOTS < EIGHTHS;
                if (first && (same || more))
                    bring(of, ring, same ? before : now, (c + SLOTS) % EIGHTHS);
            }
        }
        if (first)
            tma_stored();
    }
};

/* Boxes of a dense bf16 matrix. */
static inline cudaError_t stream_map(CUtensorMap *map, const void *at, int64_t m, int64_t n)
{
    return tma_map(map, {at, {n, m, 1, 1}, {n, m * n, m * n}}, BOX_ROWS, BOX_WIDE);
}
template <int STREAMS>
static cudaError_t stream_maps_of(stream_maps<STREAMS> *of, const void *const in[STREAMS],
                                  void *const out[STREAMS], int64_t m, int64_t n)
{
    cudaError_t e = cudaSuccess;
    for (int k = 0; k < STREAMS && e == cudaSuccess; k++) {
        e = stream_map(&of->in[k], in[k], m, n);
        if (e == cudaSuccess)
            e = stream_map(&of->out[k], out[k], m, n);
    }
    return e;
}

#endif
