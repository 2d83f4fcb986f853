/* xent_test.cuh - cross-entropy without a pass over the logits (xent_exp.h), in double.
 *
 * Among the rows are some that do not count, some whose label has nearly all of the probability,
 * and some whose label has almost none, so that exponentials about its logit would not fit. */
#ifndef MX_TESTS_XENT_CUH
#define MX_TESTS_XENT_CUH

#include "check.cuh"
#include "device/cuda/train/xent_exp.h"

enum row_kind { ORDINARY, UNCOUNTED, SURE, FAR };
static row_kind kind_of(int row)
{
    return row % 7 == 1 ? UNCOUNTED : row % 7 == 2 ? SURE : row % 35 == 3 ? FAR : ORDINARY;
}

struct xent_rows {
    mx_xent_exp s;
    std::vector<int32_t> labels;
    std::vector<float> weight;
    std::vector<uint16_t> x;
    vec w, loss, lse, dz; /* dz: (rows, vocab), of the logits before the cap, without scale */
};

static uint16_t to_bf16(double v)
{
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static void make_rows(xent_rows &t, const uint16_t *w)
{
    const mx_xent_exp &s = t.s;
    t.w = host(w, s.vocab * s.d);
    mx_bf16 *noise = device_random<mx_bf16>(s.rows * s.d, 31, 1);
    vec x = host(noise, s.rows * s.d);
    for (int i = 0; i < s.rows; i++) {
        int label = i == 0 ? (int)s.vocab - 1 : (int)((i * 2654435761u) % s.vocab);
        const double *own = &t.w[label * s.d];
        double size = 0;
        for (int q = 0; q < s.d; q++)
            size += own[q] * own[q];
        for (int q = 0; q < s.d; q++) {
            double &v = x[i * s.d + q];
            v += kind_of(i) == SURE ? own[q] * (8 + i % 20) / size / s.scale : 0;
            v *= kind_of(i) == FAR ? 60 : 1;
            t.x.push_back(to_bf16(v));
        }
        t.labels.push_back(kind_of(i) == UNCOUNTED ? -100 : label);
        t.weight.push_back((0.5f + i % 5) / s.rows);
    }
    cudaFree(noise);
}
static void row_in_double(xent_rows &t, int i)
{
    const mx_xent_exp &s = t.s;
    int label = t.labels[i];
    vec z(s.vocab);
    double most = -1e300, others = 0;
    for (int j = 0; j < s.vocab; j++) {
        double l = 0;
        for (int q = 0; q < s.d; q++)
            l += to_double(t.x[i * s.d + q]) * t.w[j * s.d + q];
        l *= s.scale;
        z[j] = s.softcap > 0 ? s.softcap * tanh(l / s.softcap) : l;
        most = std::max(most, z[j]);
    }
    if (label < 0)
        return;
    for (int j = 0; j < s.vocab; j++)
        others += j == label ? 0 : exp(z[j] - most);
    double own = exp(z[label] - most), lse = most + log(own + others);
    t.lse[i] = lse;
    t.loss[i] = (own > 0.5 ? log1p(others / own) : lse - z[label]) + s.z_loss * lse * lse;
    for (int j = 0; j < s.vocab; j++) {
        double p = exp(z[j] - lse), g = j == label
                                            ? 2 * s.z_loss * lse * p - others / (own + others)
                                            : (1 + 2 * s.z_loss * lse) * p;
        double derivative = s.softcap > 0 ? 1 - z[j] * z[j] / s.softcap / s.softcap : 1;
        t.dz[i * s.vocab + j] = t.weight[i] * g * derivative;
    }
}

/* The largest and the mean of |a - r| / |r| over rows of d; a row of zeros must be one. */
static double worst_row(const vec &a, const vec &r, int64_t d, double *mean)
{
    double worst = 0, sum = 0;
    for (size_t i = 0; i < r.size(); i += d) {
        double e = rel_error(vec(a.begin() + i, a.begin() + i + d),
                             vec(r.begin() + i, r.begin() + i + d));
        worst = std::max(worst, e), sum += e;
    }
    *mean = sum / (r.size() / d);
    return worst;
}

static void test_xent_exp(int rows, int vocab, int d, float scale, float cap, float z_loss)
{
    int ld = (vocab + 7) / 8 * 8, tiles = (vocab + MX_XENT_WIDE - 1) / MX_XENT_WIDE;
    xent_rows t = {{rows, d, vocab, ld, scale, cap, z_loss}};
    if (!mx_cuda_xent_exp_is_possible(&t.s))
        return;
    mx_bf16 *w = device_random<mx_bf16>((int64_t)vocab * d, 30, 0.2f);
    make_rows(t, w);
    t.loss.assign(rows, 0), t.lse.assign(rows, 0), t.dz.assign((size_t)rows * vocab, 0);
    for (int i = 0; i < rows; i++)
        row_in_double(t, i);
    float *rest = device_alloc<float>(7 * rows + tiles * rows);
    mx_bf16 *e = device_alloc<mx_bf16>((int64_t)rows * ld), *dx = device_alloc<mx_bf16>(rows * d);
    CU(cudaMemset(rest, 0xff, (7 + tiles) * rows * 4));
    CU(cudaMemset(e, 0xff, (size_t)rows * ld * 2));
    mx_xent_exp_args a = {device_copy(t.x), w, device_copy(t.labels), device_copy(t.weight), e,
                          device_alloc<mx_bf16>(rows * d), rest, rest + rows, rest + 2 * rows,
                          rest + 3 * rows, rest + 4 * rows, rest + 7 * rows,
                          (int32_t *)rest + 6 * rows,
                          device_alloc<int32_t>(rows / MX_XENT_BAND + 2)};
    CU(mx_cuda_xent_exp(&t.s, &a, 0));
    CU(cudaDeviceSynchronize());
    vec factor = host(a.factor, rows), full = host(e, (int64_t)rows * ld), got, beyond, sx, lost;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < ld; j++)
            (j < vocab ? got : beyond).push_back(full[i * ld + j] * (j < vocab ? factor[i] : 1));
    vec loss = host(a.loss, rows);
    for (int i = 0; i < rows; i++)
        lost.push_back(fabs(loss[i] - t.loss[i]) / (fabs(t.loss[i]) + 1e-9));
    char name[96];
    snprintf(name, sizeof name, "cross-entropy by exponentials %d x %d x %d cap %.0f z %g", rows,
             vocab, d, cap, z_loss);
    check(name, rel_error(loss, t.loss), 1e-3);
    check("  loss, worst row", *std::max_element(lost.begin(), lost.end()), 4e-3);
    check("  lse", rel_error(host(a.lse, rows), t.lse), 1e-4);
    double mean, worst = worst_row(got, t.dz, vocab, &mean);
    check("  gradient of logits, mean row", mean, 3e-3);
    check("  gradient of logits, worst row", worst, 1.2e-2);
    check("  columns beyond the vocabulary",
          beyond.empty() ? 0 : rel_error(beyond, vec(beyond.size())), 0);
    for (int64_t i = 0; i < rows * d; i++)
        sx.push_back(to_double(t.x[i]) * factor[i / d]);
    check("  x times factors", rel_error(host(a.scaled, rows * d), sx), 3e-3);
    float *sums = device_random<float>(rows * d, 5, 1);
    CU(mx_cuda_xent_scale(dx, sums, a.factor, rows, d, 0));
    vec hs = host(sums, rows * d);
    for (int64_t i = 0; i < rows * d; i++)
        hs[i] *= factor[i / d];
    check("  dx", rel_error(host(dx, rows * d), hs), 3e-3);
    CU(mx_cuda_xent_exp(&t.s, &a, 0));
    check("  again: same bits", rel_error(host(e, (int64_t)rows * ld), full) +
                                    rel_error(host(a.loss, rows), loss), 0);
    for (const void *p : {(const void *)a.x, (const void *)w, (const void *)a.labels,
                          (const void *)a.weight, (const void *)e, (const void *)a.scaled,
                          (const void *)rest, (const void *)a.bands, (const void *)dx,
                          (const void *)sums})
        cudaFree((void *)p);
}

static void test_xent_exps()
{
    test_xent_exp(300, 1003, 200, 1, 0, 0);
    test_xent_exp(300, 1003, 200, 0.5f, 0, 0.01f);
    test_xent_exp(530, 2056, 776, 1, 30, 0);
    test_xent_exp(129, 509, 128, 1, 50, 0.01f);
    test_xent_exp(1, 8, 1032, 1, 0, 0);
}

#endif
