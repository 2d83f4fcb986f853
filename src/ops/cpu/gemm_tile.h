/* gemm_tile.h - between gemm.c, which cuts C into tiles, and gemm_levels.c, which computes one.
 *
 * A tile function computes rows m0..m1 and columns n0..n1 of one GEMM in the calling thread; c
 * points at element (0, 0) of C. There is one per number kind and CPU level.
 */
#ifndef MX_OPS_CPU_GEMM_TILE_H
#define MX_OPS_CPU_GEMM_TILE_H

#include "base/simd.h"
#include "ops/cpu/gemm.h"

typedef struct {
    const mx_gemm_args *g;
    const void *a, *b;
    void *c;
    int64_t m0, m1, n0, n1;
} mx_gemm_tile;

/* Words from the end of a packed row of A to the next: keeps rows out of each other's cache
 * sets. */
#define MX_GEMM_ROW_PAD 16

typedef void mx_gemm_tile_fn(const mx_gemm_tile *t);
typedef void mx_gemm_pack_fn(const mx_gemm_args *g, void *packed);

typedef struct {
    mx_gemm_tile_fn *run;
    mx_gemm_pack_fn *pack;
    int mr, nr, nc, kc; /* register tile; most columns of one tile, most words of k of a block */
    int pair;           /* elements of k in a word */
} mx_gemm_level;

extern const mx_gemm_level mx_gemm_amx; /* bf16 with AMX: gemm_amx.c */

/* The code for operands of these types on a CPU of this level. */
const mx_gemm_level *mx_gemm_level_at(mx_num a, mx_num b, mx_simd level);

/* y (m, n) = alpha x W^T [+ y] over columns n0..n1 for m <= MX_GEMV_MAX_M; f32 and bf16, see
 * gemv.c. */
bool mx_gemv_can(const mx_gemm_args *g);
void mx_gemv_run(const mx_gemm_tile *t);

#endif
