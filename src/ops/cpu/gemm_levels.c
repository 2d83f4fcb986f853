/* gemm_levels.c - the packed GEMM of gemm_kernel.inc, once per number kind and CPU level.
 *
 *     level      f32 tile   f64 tile   bf16 tile
 *     baseline   4 x 8      4 x 4      as f32, converted while packing
 *     AVX2       6 x 16     6 x 8      as f32
 *     AVX-512    14 x 32    14 x 16    as f32
 *     ... BF16                         14 x 32, two k per step (VDPBF16PS)
 *     AMX                              32 x 32, 32 k per step (TDPBF16PS): gemm_amx.c
 * 14 x 2 accumulators, two vectors of B and one broadcast fill the 32 registers of AVX-512. Blocks
 * of k are as long as the stack allows: at 1,024 words B takes 3 MB. In bf16 those are 2,048
 * elements; where k is not more, as in many models, results are rounded in registers.
 */
#include "ops/cpu/gemm_tile.h"

#include "base/vmath.h"
#include "ops/cpu/gemm_prefetch.h"
#include "ops/cpu/gemm_transpose.h"
#include <string.h>

#define PLAIN_MAC(acc, a, b) ((acc) += (a) * (b))
#define NO_TRANSPOSE(d, ldd, s, lds) ((void)(d), (void)(s), (void)(lds), false)
#define NO_HALVES(d, v, w) ((void)(d))

#define NAME(x) x##_f32_base
#define TARGET
#define T float
#define WORD float
#define PAIR 1
#define VL 4
#define MR 4
#define KC 256
#define NC 256
#define MAC PLAIN_MAC
#define TRANSPOSE NO_TRANSPOSE
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define NAME(x) x##_f32_v3
#define TARGET MX_TARGET_V3
#define T float
#define WORD float
#define PAIR 1
#define VL 8
#define MR 6
#define KC 384
#define NC 384
#define MAC PLAIN_MAC
#define TRANSPOSE NO_TRANSPOSE
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define NAME(x) x##_f32_v4
#define TARGET MX_TARGET_V4
#define T float
#define WORD float
#define PAIR 1
#define VL 16
#define MR 14
#define KC 1024
#define NC 768
#define MAC PLAIN_MAC
#define TRANSPOSE transpose16
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define BF16_MAC(acc, a, b) ((acc) = MX_BF16_DOT(acc, (v16u){0} + (a), b))
#define NAME(x) x##_bf16
#define TARGET MX_TARGET_BF16
#define T float
#define WORD uint32_t
#define PAIR 2
#define VL 16
#define MR 14
#define KC 1024
#define NC 768
#define MAC BF16_MAC
#define TRANSPOSE transpose16
#define HALVES BF16_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define NAME(x) x##_f64_base
#define TARGET
#define T double
#define WORD double
#define PAIR 1
#define VL 2
#define MR 4
#define KC 256
#define NC 128
#define MAC PLAIN_MAC
#define TRANSPOSE NO_TRANSPOSE
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define NAME(x) x##_f64_v3
#define TARGET MX_TARGET_V3
#define T double
#define WORD double
#define PAIR 1
#define VL 4
#define MR 6
#define KC 256
#define NC 256
#define MAC PLAIN_MAC
#define TRANSPOSE NO_TRANSPOSE
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define NAME(x) x##_f64_v4
#define TARGET MX_TARGET_V4
#define T double
#define WORD double
#define PAIR 1
#define VL 8
#define MR 14
#define KC 256
#define NC 192
#define MAC PLAIN_MAC
#define TRANSPOSE NO_TRANSPOSE
#define HALVES NO_HALVES
#define MICRO "ops/cpu/gemm_micro.inc"
#define STEP 1
#include "ops/cpu/gemm_kernel.inc"

#define LEVEL(kind, mr, nr, nc, kc, pair)                                                          \
    {                                                                                              \
        tile_##kind, pack_##kind, mr, nr, nc, kc, pair                                             \
    }
static const mx_gemm_level f32_levels[] = {LEVEL(f32_base, 4, 8, 256, 256, 1),
                                           LEVEL(f32_v3, 6, 16, 384, 384, 1),
                                           LEVEL(f32_v4, 14, 32, 768, 1024, 1)};
static const mx_gemm_level f64_levels[] = {LEVEL(f64_base, 4, 4, 128, 256, 1),
                                           LEVEL(f64_v3, 6, 8, 256, 256, 1),
                                           LEVEL(f64_v4, 14, 16, 192, 256, 1)};
static const mx_gemm_level bf16_level = LEVEL(bf16, 14, 32, 768, 1024, 2);

const mx_gemm_level *mx_gemm_level_at(mx_num a, mx_num b, mx_simd level)
{
    if (a == MX_NUM_BF16 && b == MX_NUM_BF16 && level >= MX_SIMD_BF16)
        return level >= MX_SIMD_AMX ? &mx_gemm_amx : &bf16_level;
    int i = level >= MX_SIMD_V4 ? 2 : level >= MX_SIMD_V3 ? 1 : 0;
    return a == MX_NUM_F64 ? &f64_levels[i] : &f32_levels[i];
}
