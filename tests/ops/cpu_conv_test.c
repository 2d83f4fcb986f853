/* cpu_conv_test.c - the short causal convolution against a plain sum, its gradients by
 * transposition. */
#include "../test.h"
#include "numbers.h"

#include "ops/cpu/conv_kernel.h"
#include <math.h>
#include <string.h>

static void compare(const char *what, const void *got, mx_num t, const double *want, int64_t n,
                    double tol)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(get(got, i, t) - want[i]) / (1 + fabs(want[i]));
        worst = isnan(d) ? INFINITY : fmax(worst, d);
    }
    MX_CHECK(worst <= tol, "%s: off by %g (limit %g)", what, worst, tol);
}

static void check(mx_arena *m, mx_conv c, uint32_t *s)
{
    int64_t ch = c.channels, n = c.batch * c.len * ch, keep = c.taps - 1;
    mx_num t = c.type, st = t == MX_NUM_F64 ? t : MX_NUM_F32;
    double tol = t == MX_NUM_F64 ? 1e-12 : t == MX_NUM_F32 ? 1e-5 : 1e-2;
    void *dy = random_array(m, n, t, s), *y = random_array(m, n, t, s);
    void *dx = random_array(m, n, t, s);
    void *dw = random_array(m, ch * c.taps, st, s), *db = random_array(m, ch, st, s);
    c.x = random_array(m, n, t, s);
    c.w = random_array(m, ch * c.taps, t, s);
    double *ry = MX_NEW_N(m, double, n), *rdx = MX_NEW_N(m, double, n);
    double *rdw = MX_NEW_N(m, double, ch *c.taps), *rdb = MX_NEW_N(m, double, ch);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i % ch, tt = i / ch % c.len, b = i / ch / c.len;
        ry[i] = c.bias ? get(c.bias, at, t) : 0;
        rdb[at] += get(dy, i, t);
        for (int k = 0; k < c.taps; k++) {
            int64_t from = tt - keep + k, seg = b * c.len + (from > 0 ? from : 0);
            if (c.segments && c.segments[seg] != c.segments[b * c.len + tt])
                continue;
            double w = get(c.w, at * c.taps + k, t), x = 0;
            if (from >= 0) {
                x = get(c.x, (b * c.len + from) * ch + at, t);
                rdx[(b * c.len + from) * ch + at] += w * get(dy, i, t);
            } else if (c.state) {
                x = get(c.state, (b * keep + keep + from) * ch + at, t);
            }
            ry[i] += w * x;
            rdw[at * c.taps + k] += x * get(dy, i, t);
        }
    }
    void *work = mx_arena_alloc(m, mx_conv_work_bytes(&c));
    mx_conv_forward(&c, y, 0, work);
    mx_conv_backward(&c, dy, dx, dw, db, work);
    compare("y", y, t, ry, n, tol);
    compare("dx", dx, t, rdx, n, tol);
    compare("dw", dw, st, rdw, ch * c.taps, tol);
    compare("dbias", db, st, rdb, ch, tol);
}

MX_TEST(conv_matches_plain_sum)
{
    uint32_t s = 1;
    for (int i = 0; i < 40; i++) {
        mx_arena m = {0};
        mx_conv c = {.type = i % 3 == 0   ? MX_NUM_F32
                             : i % 3 == 1 ? MX_NUM_BF16
                                          : MX_NUM_F64};
        c.batch = 1 + next(&s) % 3;
        c.len = 1 + next(&s) % 20;
        c.channels = 1 + next(&s) % 200;
        c.taps = 1 + (int)(next(&s) % 5);
        c.threads = (int)(next(&s) % 3);
        if (next(&s) % 2)
            c.bias = random_array(&m, c.channels, c.type, &s);
        if (next(&s) % 2)
            c.state = random_array(&m, c.batch * (c.taps - 1) * c.channels, c.type, &s);
        int32_t *seg = MX_NEW_N(&m, int32_t, c.batch *c.len), id = 0;
        for (int64_t k = 0; k < c.batch * c.len; k++)
            seg[k] = id += k % c.len == 0 || next(&s) % 5 == 0;
        c.segments = next(&s) % 2 ? seg : 0;
        check(&m, c, &s);
        mx_arena_fini(&m);
    }
}

/* Pieces of a sequence, the state replaced in place, give the bits of the whole. */
MX_TEST(conv_continues_from_its_state)
{
    enum { S = 13, C = 7, K = 4 };
    mx_arena m = {0};
    uint32_t s = 2;
    float *x = random_array(&m, S * C, MX_NUM_F32, &s);
    float *w = random_array(&m, C * K, MX_NUM_F32, &s);
    float whole[S * C], parts[S * C], state[(K - 1) * C] = {0};
    mx_conv c = {.batch = 1, .len = S, .channels = C, .taps = K, .x = x, .w = w};
    void *work = mx_arena_alloc(&m, mx_conv_work_bytes(&c));
    mx_conv_forward(&c, whole, 0, work);
    c.state = state;
    static const int64_t lens[] = {1, 5, 2, 1, 1, 3};
    for (int64_t i = 0, t = 0; i < 6; t += lens[i++]) {
        c.x = x + t * C;
        c.len = lens[i];
        mx_conv_forward(&c, parts + t * C, state, work);
    }
    MX_CHECK(memcmp(whole, parts, sizeof whole) == 0, "parts differ from the whole");
    mx_arena_fini(&m);
}
