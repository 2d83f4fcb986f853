/* chips.h - accelerators by name, as their makers' data sheets describe them: for `maxc plan`, and
 * for the MFU of a run on one.
 *
 * Rates are those of dense matmuls (without sparsity) by the dtype of the operands, in TFLOP/s,
 * with sums in float32, of which GeForce cards do half as much as with sums in float16. float32 is
 * that of its own units, not TF32: GEMMs of float32 run on those. T4 and V100 have no bf16; theirs
 * is float16's. A rate of 0 is not known, or there is none.
 */
#ifndef MX_DEVICE_CHIPS_H
#define MX_DEVICE_CHIPS_H

#include "compile/device_traits.h"

/* key: chip=KEY of `maxc plan`; model: part of what the driver calls it, the longest that fits
 *   key                model                 GiB  GB/s    f32   bf16  int8   fp8 */
#define MX_CHIPS(X)                                                                                \
    X("a10",             "A10",                24,  600,  31.2,   125,    0,    0)                 \
    X("a10g",            "A10G",               24,  600,    35,    70,    0,    0)                 \
    X("a30",             "A30",                24,  933,  10.3,   165,    0,    0)                 \
    X("a40",             "A40",                48,  696,  37.4, 149.7,    0,    0)                 \
    X("a100",            "A100",               80, 2039,  19.5,   312,  624,    0)                 \
    X("a100-40gb",       "A100-SXM4-40GB",     40, 1555,  19.5,   312,  624,    0)                 \
    X("a5000",           "RTX A5000",          24,  768,  27.8, 111.1,    0,    0)                 \
    X("a6000",           "RTX A6000",          48,  768,  38.7, 154.8,    0,    0)                 \
    X("b200",            "B200",              180, 8000,    75,  2250, 4500, 4500)                 \
    X("gb200",           "GB200",             186, 8000,    80,  2500, 5000, 5000)                 \
    X("gh200",           "GH200",              96, 4000,    67,   990, 1979, 1979)                 \
    X("h20",             "H20",                96, 4000,    44,   148,  296,  296)                 \
    X("h100",            "H100",               80, 3350,    67,   989, 1979, 1979)                 \
    X("h100-pcie",       "H100 PCIe",          80, 2039,    51,   756, 1513, 1513)                 \
    X("h200",            "H200",              141, 4800,    67,   989, 1979, 1979)                 \
    X("l4",              "L4",                 24,  300,  30.3,   121,    0,    0)                 \
    X("l40",             "L40",                48,  864,  90.5,   181,    0,    0)                 \
    X("l40s",            "L40S",               48,  864,  91.6,   362,    0,    0)                 \
    X("rtx3060",         "RTX 3060",           12,  360,  12.7,  25.5,    0,    0)                 \
    X("rtx3070",         "RTX 3070",            8,  448,  20.3,  40.6,    0,    0)                 \
    X("rtx3080",         "RTX 3080",           10,  760,  29.8,  59.5,    0,    0)                 \
    X("rtx3090",         "RTX 3090",           24,  936,  35.6,    71,    0,    0)                 \
    X("rtx3090-ti",      "RTX 3090 Ti",        24, 1008,    40,    80,    0,    0)                 \
    X("rtx4060-ti-16gb", "RTX 4060 Ti",        16,  288,  22.1,  44.1,    0,    0)                 \
    X("rtx4070",         "RTX 4070",           12,  504,  29.1,  58.3,    0,    0)                 \
    X("rtx4070-ti",      "RTX 4070 Ti",        12,  504,  40.1,  80.2,    0,    0)                 \
    X("rtx4070-ti-super","RTX 4070 Ti SUPER",  16,  672,  44.1,  88.2,    0,    0)                 \
    X("rtx4080",         "RTX 4080",           16,  717,  48.7,  97.5,    0,    0)                 \
    X("rtx4080-super",   "RTX 4080 SUPER",     16,  736,  52.2, 104.4,    0,    0)                 \
    X("rtx4090",         "RTX 4090",           24, 1008,  82.6, 165.2,    0,    0)                 \
    X("rtx5070",         "RTX 5070",           12,  672,  30.9,  61.7,    0,    0)                 \
    X("rtx5070-ti",      "RTX 5070 Ti",        16,  896,  43.9,  87.9,    0,    0)                 \
    X("rtx5080",         "RTX 5080",           16,  960,  56.3, 112.6,    0,    0)                 \
    X("rtx5090",         "RTX 5090",           32, 1792, 104.8, 209.5,    0,    0)                 \
    X("rtx6000-ada",     "RTX 6000 Ada",       48,  960,  91.1, 364.2,    0,    0)                 \
    X("t4",              "Tesla T4",           16,  320,   8.1,    65,    0,    0)                 \
    X("v100",            "V100",               32,  900,  15.7,   125,    0,    0)

const mx_chip *mx_chip_find(const char *key); /* NULL: not known */
/* The chip that a driver calls so ("NVIDIA H100 PCIe"); NULL: not known. */
const mx_chip *mx_chip_of_model(const char *name);

#endif
