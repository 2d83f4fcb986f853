/* adamw_kernel.c - see adamw_kernel.h. */
#include "ops/cpu/adamw_kernel.h"

#include "base/simd.h"
#include "base/vmath.h"
#include <math.h>
#include <omp.h>

typedef struct {
    float clip, beta1, beta2, keep, rate, root, eps;
} factors;

/* With c1 = 1 - b1^step, c2 = 1 - b2^step the update is rate m / (root sqrt(v) + eps),
 * rate = lr / c1, root = 1 / sqrt(c2): the corrections are scalars, computed once in double. */
static factors factors_of(const mx_adamw_args *a)
{
    double c1 = 1 - pow(a->beta1, (double)a->step), c2 = 1 - pow(a->beta2, (double)a->step);
    return (factors){.clip = a->clip ? *a->clip : 1.0f,
                     .beta1 = (float)a->beta1,
                     .beta2 = (float)a->beta2,
                     .keep = (float)(1 - a->lr * a->weight_decay),
                     .rate = (float)(a->lr / c1),
                     .root = (float)(1 / sqrt(c2)),
                     .eps = (float)a->eps};
}

MX_CLONES static void update(const mx_adamw_args *a, const factors *f, int64_t i0, int64_t i1)
{
    float *restrict p = a->param, *restrict m = a->m, *restrict v = a->v;
    const float *restrict grad = a->grad;
    const float clip = f->clip, b1 = f->beta1, b2 = f->beta2, keep = f->keep, rate = f->rate;
    const float root = f->root, eps = f->eps, o1 = 1 - b1, o2 = 1 - b2;
    for (int64_t i = i0; i < i1; i++) {
        float g = grad[i] * clip;
        float mi = b1 * m[i] + o1 * g;
        float vi = b2 * v[i] + o2 * g * g;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - rate * mi / (sqrtf(vi) * root + eps);
    }
    uint16_t *restrict copy = a->copy;
    if (copy)
        for (int64_t i = i0; i < i1; i++)
            copy[i] = mx_bf16_of_float(p[i]);
}

void mx_adamw_step(const mx_adamw_args *a)
{
    enum { BLOCK = 4096 }; /* p of a block is still in L1 when the copy is written */
    factors f = factors_of(a);
    int threads = a->threads > 0 ? a->threads : omp_in_parallel() ? 1 : omp_get_max_threads();
    int64_t blocks = (a->n + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(threads) if (blocks > 8)
    for (int64_t b = 0; b < blocks; b++)
        update(a, &f, b * BLOCK, (b + 1) * BLOCK < a->n ? (b + 1) * BLOCK : a->n);
}
