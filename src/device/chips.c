/* chips.c - dense matmul rates by the dtype of the operands, without sparsity; float32 on its own
 * units, not TF32, which is what GEMMs of float32 run on. A rate that is not stated is not known.
 */
#include "device/chips.h"

#include <string.h>

#define TFLOPS 1e12
#define GBS 1e9

/* A name that contains another comes before it. */
const mx_chip_entry mx_chip_table[] = {
    {"a100", "A100", {"A100 80GB", 80 * 0x1p30, 2039 * GBS,
                      {[MX_F32] = 19.5 * TFLOPS, [MX_BF16] = 312 * TFLOPS, [MX_F16] = 312 * TFLOPS,
                       [MX_I8] = 624 * TFLOPS}}},
    {NULL, "H100 PCIe", {"H100 PCIe", 80 * 0x1p30, 2000 * GBS,
                                {[MX_F32] = 51 * TFLOPS, [MX_BF16] = 756 * TFLOPS,
                                 [MX_F16] = 756 * TFLOPS, [MX_I8] = 1513 * TFLOPS,
                                 [MX_F8_E4M3] = 1513 * TFLOPS, [MX_F8_E5M2] = 1513 * TFLOPS}}},
    {"h100", "H100", {"H100 SXM", 80 * 0x1p30, 3350 * GBS,
                      {[MX_F32] = 67 * TFLOPS, [MX_BF16] = 989 * TFLOPS, [MX_F16] = 989 * TFLOPS,
                       [MX_I8] = 1979 * TFLOPS, [MX_F8_E4M3] = 1979 * TFLOPS,
                       [MX_F8_E5M2] = 1979 * TFLOPS}}},
    {NULL, "GH200", {"GH200", 96 * 0x1p30, 4000 * GBS,
                     {[MX_F32] = 67 * TFLOPS, [MX_BF16] = 989 * TFLOPS, [MX_F16] = 989 * TFLOPS,
                      [MX_I8] = 1979 * TFLOPS, [MX_F8_E4M3] = 1979 * TFLOPS,
                      [MX_F8_E5M2] = 1979 * TFLOPS}}},
    {"h200", "H200", {"H200 SXM", 141 * 0x1p30, 4800 * GBS,
                      {[MX_F32] = 67 * TFLOPS, [MX_BF16] = 989 * TFLOPS, [MX_F16] = 989 * TFLOPS,
                       [MX_I8] = 1979 * TFLOPS, [MX_F8_E4M3] = 1979 * TFLOPS,
                       [MX_F8_E5M2] = 1979 * TFLOPS}}},
    {NULL, "GB200", {"GB200", 186 * 0x1p30, 8000 * GBS,
                     {[MX_BF16] = 2500 * TFLOPS, [MX_F16] = 2500 * TFLOPS, [MX_I8] = 5000 * TFLOPS,
                      [MX_F8_E4M3] = 5000 * TFLOPS, [MX_F8_E5M2] = 5000 * TFLOPS}}},
    {"b200", "B200", {"B200", 180 * 0x1p30, 8000 * GBS,
                      {[MX_BF16] = 2250 * TFLOPS, [MX_F16] = 2250 * TFLOPS, [MX_I8] = 4500 * TFLOPS,
                       [MX_F8_E4M3] = 4500 * TFLOPS, [MX_F8_E5M2] = 4500 * TFLOPS}}},
    {0},
};

const mx_chip *mx_chip_find(const char *key)
{
    for (const mx_chip_entry *e = mx_chip_table; e->model; e++)
        if (e->key && strcmp(e->key, key) == 0)
            return &e->chip;
    return NULL;
}

const mx_chip *mx_chip_of_model(const char *name)
{
    for (const mx_chip_entry *e = mx_chip_table; e->model; e++)
        if (strstr(name, e->model))
            return &e->chip;
    return NULL;
}
