/* cpu_grouped_test.c - the grouped GEMM against plain loops. */
#include "../test.h"

#include "base/arena.h"
#include "base/vmath.h"
#include "ops/cpu/grouped_kernel.h"
#include <math.h>
#include <string.h>

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}
static float uniform(uint32_t *s)
{
    return (float)next(s) * 0x1p-23f - 1.0f;
}

static void *random_array(mx_arena *a, int64_t n, mx_num t, uint32_t *s)
{
    void *p = mx_arena_alloc(a, (size_t)(n * MX_NUM_BYTES(t)) + 1);
    for (int64_t i = 0; i < n; i++)
        if (t == MX_NUM_BF16)
            ((uint16_t *)p)[i] = mx_bf16_of_float(uniform(s));
        else if (t == MX_NUM_F32)
            ((float *)p)[i] = uniform(s);
        else
            ((double *)p)[i] = (double)uniform(s);
    return p;
}
static double get(const void *p, int64_t i, mx_num t)
{
    return t == MX_NUM_F64   ? ((const double *)p)[i]
           : t == MX_NUM_F32 ? ((const float *)p)[i]
                             : mx_float_of_bf16(((const uint16_t *)p)[i]);
}

static void compare(const char *what, const void *got, mx_num t, const double *want, int64_t n)
{
    double tol = t == MX_NUM_F64 ? 1e-13 : 2e-5, worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(get(got, i, t) - want[i]));
    MX_CHECK(worst <= tol * 10, "%s: largest error %g", what, worst);
}

static void grouped_case(mx_arena *a, mx_num t, bool in_out, const int32_t *offsets,
                         int64_t e_count, uint32_t *s)
{
    /* wide enough for two pieces, whether there are few experts or many */
    int64_t least = e_count > 5 ? 770 : 1;
    int64_t n = offsets[e_count], di = 1 + next(s) % 40, no = least + next(s) % 450;
    mx_num ot = t == MX_NUM_F64 ? t : MX_NUM_F32;
    mx_grouped g = {.groups = e_count, .d_in = di, .d_out = no, .offsets = offsets,
                    .w_in_out = in_out, .type = t, .out_type = ot, .threads = (int)(next(s) % 3)};
    void *x = random_array(a, n * di, t, s), *dy = random_array(a, n * no, t, s);
    void *w = random_array(a, e_count * di * no, t, s);
    void *y = random_array(a, n * no, ot, s), *dx = random_array(a, n * di, ot, s);
    void *dw = random_array(a, e_count * di * no, ot, s);
    double *ry = MX_NEW_N(a, double, n *no + 1), *rdx = MX_NEW_N(a, double, n *di + 1);
    double *rdw = MX_NEW_N(a, double, e_count *di *no);
    for (int64_t e = 0; e < e_count; e++)
        for (int64_t r = offsets[e]; r < offsets[e + 1]; r++)
            for (int64_t o = 0; o < no; o++)
                for (int64_t i = 0; i < di; i++) {
                    int64_t iw = e * di * no + (in_out ? i * no + o : o * di + i);
                    ry[r * no + o] += get(x, r * di + i, t) * get(w, iw, t);
                    rdx[r * di + i] += get(dy, r * no + o, t) * get(w, iw, t);
                    rdw[iw] += get(dy, r * no + o, t) * get(x, r * di + i, t);
                }
    mx_grouped_forward(&g, x, w, y);
    mx_grouped_dx(&g, dy, w, dx);
    mx_grouped_dw(&g, dy, x, dw, false);
    compare("y", y, ot, ry, n * no);
    compare("dx", dx, ot, rdx, n * di);
    compare("dw", dw, ot, rdw, e_count * di * no);
    mx_grouped_dw(&g, dy, x, dw, true);
    for (int64_t i = 0; i < e_count * di * no; i++)
        rdw[i] *= 2;
    compare("dw added to", dw, ot, rdw, e_count * di * no);
}

MX_TEST(grouped_matmul_matches_plain_loops)
{
    static const int32_t offsets[][6] = {
        {0, 3, 3, 20, 21, 40}, {0, 0, 0, 0, 0, 9}, {0, 0, 0, 0, 0, 0}};
    uint32_t s = 5;
    for (int i = 0; i < 18; i++) {
        mx_arena a = {0};
        mx_num t = i % 3 == 0 ? MX_NUM_F32 : i % 3 == 1 ? MX_NUM_BF16 : MX_NUM_F64;
        grouped_case(&a, t, i & 1, offsets[i / 6], 5, &s);
        mx_arena_fini(&a);
    }
}

MX_TEST(grouped_matmul_of_many_experts_matches_plain_loops)
{
    enum { E = 40 };
    int32_t offsets[E + 1] = {0};
    uint32_t s = 7;
    for (int e = 0; e < E; e++)
        offsets[e + 1] = offsets[e] + (int32_t)(next(&s) % 4);
    for (int i = 0; i < 4; i++) {
        mx_arena a = {0};
        grouped_case(&a, i & 1 ? MX_NUM_BF16 : MX_NUM_F32, i & 2, offsets, E, &s);
        mx_arena_fini(&a);
    }
}
