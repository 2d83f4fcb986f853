/* cpu_dequant_test.c - y = x w^T with quantized weights, in rows and in panels: a row's bits do not
 * depend on how many rows are multiplied at once. */
#include "base/fp8.h"
#include "base/vmath.h"
#include "ops.h"
#include "ops/cpu/dequant.h"
#include "ops/dequant_matmul.h"
#include "ops/panels.h"
#include "../test.h"
#include <math.h>
#include <string.h>

enum { M = 37, N = 75, K = 384, PANEL_N = 64 };

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
    int64_t n;
    bool panels;
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
    const mx_dequant_attr attr = {.wide = true, .panels = p->panels};
    void *x = bf16 ? (void *)(p->half + from * K) : (void *)(p->x + from * K);
    mx_tensor in[] = {
        {.data = x, .type = mx_type_of(real, MX_SHAPE(m, K))},
        {.data = p->codes,
         .type = mx_type_of(k->dtype, MX_SHAPE(p->n, k->dtype == MX_U8 ? K / 2 : K))},
        {.data = p->scale, .type = mx_type_of(MX_F32, MX_SHAPE(p->n, K / k->group))}};
    mx_tensor out = {.data = y, .type = mx_type_of(MX_F32, MX_SHAPE(m, p->n))};
    mx_op_dequant_matmul.cpu(&(mx_call){.n_in = 3, .n_out = 1, .in = in, .out = &out, .attr = &attr,
                                        .work = p->work});
}

static void check(const operands *p, const kind *k, bool bf16)
{
    static float all[M * N], some[M * N];
    multiply(p, k, bf16, 0, M, all);
    for (int64_t m = 1; m <= 17; m += m < 4 ? 1 : 4)
        for (int64_t from = 0; from + m <= M; from += m) {
            multiply(p, k, bf16, from, m, some);
            MX_CHECK(memcmp(some, all + from * p->n, sizeof *some * (size_t)(m * p->n)) == 0,
                     "%s, %s: rows %d to %d alone and among %d have other bits", k->name,
                     bf16 ? "bfloat16" : "float32", (int)from, (int)(from + m), M);
        }
}

static void open_operands(operands *p, int64_t n)
{
    *p = (operands){.codes = mx_realloc(NULL, N * K),
                    .scale = mx_realloc(NULL, sizeof(float) * N * K),
                    .x = mx_realloc(NULL, sizeof(float) * M * K),
                    .half = mx_realloc(NULL, sizeof(uint16_t) * M * K),
                    .n = n};
    mx_status st = mx_alloc(&p->work, 16 << 20, "the test's workspace");
    MX_CHECK(!st, "no memory");
    fill(p);
}

static void close_operands(operands *p)
{
    mx_free(p->codes);
    mx_free(p->scale);
    mx_free(p->x);
    mx_free(p->half);
    mx_free(p->work);
}

MX_TEST(dequant_rows_do_not_depend_on_others)
{
    operands p;
    open_operands(&p, N);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check(&p, &kinds[i], false);
        check(&p, &kinds[i], true);
    }
    close_operands(&p);
}

/* Row i of x times row r of w in double, and the sum of the products' sizes. */
static double exact(const mx_codes *w, const float *x, int64_t r, double *size)
{
    float row[K];
    double sum = 0;
    *size = 0;
    mx_dequant_row(w, r, true, row);
    for (int64_t c = 0; c < K; c++) {
        sum += (double)x[c] * row[c];
        *size += fabs((double)x[c] * row[c]);
    }
    return sum;
}

/* The weight is laid in panels; what it gives is compared with its rows. */
static void check_panels(operands *p, const kind *k)
{
    static float y[M * PANEL_N];
    static double want[M * PANEL_N], size[M * PANEL_N];
    bool int4 = k->dtype == MX_U8;
    mx_type codes = mx_type_of(k->dtype, MX_SHAPE(p->n, int4 ? K / 2 : K));
    mx_type scale = mx_type_of(MX_F32, MX_SHAPE(p->n, K / k->group));
    mx_codes w = {.kind = int4 ? MX_CODES_INT4 : MX_CODES_INT8, .codes = p->codes,
                  .scale = p->scale, .n = p->n, .k = K, .group = k->group};
    mx_panels lies = mx_code_panels_of(&codes, &scale);
    if (!mx_dequant_can_prepare(&w) && !lies.cols) /* not on this CPU */
        return;
    MX_CHECK(lies.cols == 32 && lies.pair == 4, "%s: panels of %d", k->name, lies.cols);
    for (int64_t i = 0; i < M * p->n; i++)
        want[i] = exact(&w, p->x + i / p->n * K, i % p->n, &size[i]);
    MX_CHECK_OK(mx_code_panels_lay(p->codes, &codes));
    MX_CHECK_OK(mx_code_panels_lay(p->scale, &scale));
    multiply(p, k, false, 0, M, y);
    for (int64_t i = 0; i < M * p->n; i++)
        MX_CHECK(fabs(y[i] - want[i]) <= 4e-5 * size[i], "%s: row %d, column %d: %g, not %g",
                 k->name, (int)(i / p->n), (int)(i % p->n), (double)y[i], want[i]);
    check(p, k, false);
    check(p, k, true);
}

MX_TEST(dequant_panels_give_what_rows_give)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        operands p;
        open_operands(&p, PANEL_N);
        p.panels = true;
        if (kinds[i].dtype != MX_F8_E4M3)
            check_panels(&p, &kinds[i]);
        close_operands(&p);
    }
}

/* A row with infinity, NaN or nothing but zeros changes no other. */
MX_TEST(dequant_panels_of_rows_that_are_no_numbers)
{
    static float y[M * PANEL_N];
    const kind *k = &kinds[4];
    operands p;
    open_operands(&p, PANEL_N);
    mx_type codes = mx_type_of(k->dtype, MX_SHAPE(p.n, K / 2));
    mx_type scale = mx_type_of(MX_F32, MX_SHAPE(p.n, K / k->group));
    p.panels = mx_code_panels_of(&codes, &scale).cols > 0;
    if (p.panels)
        MX_CHECK_OK(mx_code_panels_lay(p.codes, &codes));
    if (p.panels)
        MX_CHECK_OK(mx_code_panels_lay(p.scale, &scale));
    p.x[3] = INFINITY;
    p.x[K + 9] = NAN;
    memset(p.x + 2 * K, 0, sizeof(float) * K);
    multiply(&p, k, false, 0, 5, y);
    for (int64_t i = 0; i < p.n && p.panels; i++)
        MX_CHECK(isnan(y[i]) && isnan(y[p.n + i]) && y[2 * p.n + i] == 0 &&
                     isfinite(y[3 * p.n + i]) && y[4 * p.n + i] != 0,
                 "column %d: %g %g %g %g %g", (int)i, (double)y[i], (double)y[p.n + i],
                 (double)y[2 * p.n + i], (double)y[3 * p.n + i], (double)y[4 * p.n + i]);
    close_operands(&p);
}
