/* gemm_amx.c - the packed GEMM of gemm_kernel.inc for bf16 with AMX, where a thread sets the shape
 * of its tiles first. */
#include "base/simd.h"
#include "base/vmath.h"
#include "ops/cpu/gemm_prefetch.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/gemm_transpose.h"
#include <string.h>

/* Elements l, l + 1, ... of two vectors of 32, in turn. */
#define PAIR4(l) l, (l) + 32, (l) + 1, (l) + 33, (l) + 2, (l) + 34, (l) + 3, (l) + 35
#define PAIRS(l) PAIR4(l), PAIR4((l) + 4), PAIR4((l) + 8), PAIR4((l) + 12)
#define NAME(x) x##_amx
#define TARGET MX_TARGET_BF16
#define T float
#define WORD uint32_t
#define PAIR 2
#define VL 16
#define MR 32
#define KC 1024
#define NC 768
#define TRANSPOSE transpose16
#define HALVES BF16_HALVES
#define MICRO "ops/cpu/gemm_amx.inc"
#define STEP 16
#include "ops/cpu/gemm_kernel.inc"

static void tile_of_tiles(const mx_gemm_tile *t)
{
    mx_tile_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = 16;
    }
    MX_TILES_OPEN(shape);
    tile_amx(t);
    MX_TILES_CLOSE();
}

const mx_gemm_level mx_gemm_amx = {tile_of_tiles, pack_amx, 32, 32, 768, 1024, 2};
