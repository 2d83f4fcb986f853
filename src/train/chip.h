/* chip.h - accelerators as their makers' data sheets describe them, for maxc plan.
 *
 * Rates are dense (without sparsity), of bf16 products that are summed in float32; GeForce cards
 * have half of what they do with float16 sums. T4 and V100 have no bf16: theirs is float16's.
 */
#ifndef MX_TRAIN_CHIP_H
#define MX_TRAIN_CHIP_H

typedef struct {
    const char *name;
    double gib, tflops, gbs; /* memory, 10^12 FLOP/s, 10^9 bytes/s */
} mx_chip;

/*     name               GiB  TFLOP/s   GB/s */
#define MX_CHIPS(X)                                                                                \
    X("a10",               24,     125,   600)                                                     \
    X("a10g",              24,      70,   600)                                                     \
    X("a30",               24,     165,   933)                                                     \
    X("a40",               48,   149.7,   696)                                                     \
    X("a100",              80,     312,  2039)                                                     \
    X("a100-40gb",         40,     312,  1555)                                                     \
    X("a5000",             24,   111.1,   768)                                                     \
    X("a6000",             48,   154.8,   768)                                                     \
    X("b200",             180,    2250,  8000)                                                     \
    X("gh200",             96,     990,  4000)                                                     \
    X("h20",               96,     148,  4000)                                                     \
    X("h100",              80,     989,  3350)                                                     \
    X("h100-pcie",         80,     756,  2039)                                                     \
    X("h200",             141,     989,  4800)                                                     \
    X("l4",                24,     121,   300)                                                     \
    X("l40",               48,     181,   864)                                                     \
    X("l40s",              48,     362,   864)                                                     \
    X("rtx3060",           12,    25.5,   360)                                                     \
    X("rtx3070",            8,    40.6,   448)                                                     \
    X("rtx3080",           10,    59.5,   760)                                                     \
    X("rtx3090",           24,      71,   936)                                                     \
    X("rtx3090-ti",        24,      80,  1008)                                                     \
    X("rtx4060-ti-16gb",   16,    44.1,   288)                                                     \
    X("rtx4070",           12,    58.3,   504)                                                     \
    X("rtx4070-ti",        12,    80.2,   504)                                                     \
    X("rtx4070-ti-super",  16,    88.2,   672)                                                     \
    X("rtx4080",           16,    97.5,   717)                                                     \
    X("rtx4080-super",     16,   104.4,   736)                                                     \
    X("rtx4090",           24,   165.2,  1008)                                                     \
    X("rtx5070",           12,    61.7,   672)                                                     \
    X("rtx5070-ti",        16,    87.9,   896)                                                     \
    X("rtx5080",           16,   112.6,   960)                                                     \
    X("rtx5090",           32,   209.5,  1792)                                                     \
    X("rtx6000-ada",       48,   364.2,   960)                                                     \
    X("t4",                16,      65,   320)                                                     \
    X("v100",              32,     125,   900)

/* "|a10|a10g|...": what a key accepts. */
#define MX_CHIP_CHOICE(name, gib, tflops, gbs) "|" name
#define MX_CHIP_CHOICES MX_CHIPS(MX_CHIP_CHOICE)

const mx_chip *mx_chip_find(const char *name); /* NULL: unknown */

#endif
