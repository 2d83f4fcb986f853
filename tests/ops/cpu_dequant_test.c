/* cpu_dequant_test.c - y = x w^T with quantized weights: a row's bits do not depend on how many
 * rows are multiplied at once. */
#include "base/fp8.h"
#include "base/vmath.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <string.h>

enum { M = 37, N = 75, K = 384 };

typedef struct {
    const char *name;
    mx_dtype dtype;
    int64_t group;
} kind;

/* Groups that the kernels of bytes take, and some that they do not. */
static const kind kinds[] = {{"int8", MX_I8, K},        {"int8 by 128", MX_I8, 128},
                             {"int8 by 96", MX_I8, 96}, {"int4 by 128", MX_U8, 128},
                             {"int4 by 64", MX_U8, 64}, {"int4 by 32", MX_U8, 32},
                             {"int4 by 24", MX_U8, 24}, {"fp8", MX_F8_E4M3, K},
                             {"fp8 by 128", MX_F8_E4M3, 128}};

typedef struct {
    uint8_t *codes;
    float *scale, *x;
    uint16_t *half;
    void *work;
} operands;

static void fill(operands *p)
{
    for (int64_t i = 0; i < N * K; i++)
        p->codes[i] = (uint8_t)(i * 2654435761u >> 13) & 0x7b; /* never E4M3's NaN */
    for (int64_t i = 0; i < N * K; i++)
        p->scale[i] = 0.001f + 0.0001f * (float)(i * 7 % 31);
    for (int64_t i = 0; i < M * K; i++) {
        p->x[i] = sinf((float)i) * ldexpf(1, (int)(i / K % 9) - 4);
        p->half[i] = mx_bf16_of_float(p->x[i]);
    }
}

/* Rows [from, from + m) of x alone. */
static void multiply(const operands *p, const kind *k, bool bf16, int64_t from, int64_t m, float *y)
{
    mx_dtype real = bf16 ? MX_BF16 : MX_F32;
    const bool wide = true;
    void *x = bf16 ? (void *)(p->half + from * K) : (void *)(p->x + from * K);
    mx_tensor in[] = {
        {.data = x, .type = mx_type_of(real, MX_SHAPE(m, K))},
        {.data = p->codes,
         .type = mx_type_of(k->dtype, MX_SHAPE(N, k->dtype == MX_U8 ? K / 2 : K))},
        {.data = p->scale, .type = mx_type_of(MX_F32, MX_SHAPE(N, K / k->group))}};
    mx_tensor out = {.data = y, .type = mx_type_of(MX_F32, MX_SHAPE(m, N))};
    mx_op_dequant_matmul.cpu(&(mx_call){.n_in = 3, .n_out = 1, .in = in, .out = &out, .attr = &wide,
                                        .work = p->work});
}

static void check(const operands *p, const kind *k, bool bf16)
{
    static float all[M * N], some[M * N];
    multiply(p, k, bf16, 0, M, all);
    for (int64_t m = 1; m <= 17; m += m < 4 ? 1 : 4)
        for (int64_t from = 0; from + m <= M; from += m) {
            multiply(p, k, bf16, from, m, some);
            MX_CHECK(memcmp(some, all + from * N, sizeof *some * (size_t)(m * N)) == 0,
                     "%s, %s: rows %d to %d alone and among %d have other bits", k->name,
                     bf16 ? "bfloat16" : "float32", (int)from, (int)(from + m), M);
        }
}

MX_TEST(dequant_rows_do_not_depend_on_others)
{
    operands p = {.codes = mx_realloc(NULL, N * K),
                  .scale = mx_realloc(NULL, sizeof(float) * N * K),
                  .x = mx_realloc(NULL, sizeof(float) * M * K),
                  .half = mx_realloc(NULL, sizeof(uint16_t) * M * K)};
    mx_status st = mx_alloc(&p.work, 16 << 20, "the test's workspace");
    MX_CHECK(!st, "no memory");
    fill(&p);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check(&p, &kinds[i], false);
        check(&p, &kinds[i], true);
    }
    mx_free(p.codes);
    mx_free(p.scale);
    mx_free(p.x);
    mx_free(p.half);
    mx_free(p.work);
}
