/* fake_quantize.c - x rounded to what its codes would stand for (ops/cpu/encode.h).
 *
 *     x (*, d)  ->  y (*, d) of x's dtype: code(x / s) s, with one s for each `group` of the last
 *                   dim (0: for all of it)
 * dynamic: the scale is not rounded and nothing is searched for, as activations are quantized while
 * a model runs: absmax / 127.5 with codes of -128..127 for int8, absmax / 448 for E4M3
 * (compressed-tensors' definition). zeros: the range of the numbers, which holds 0, over 255, and a
 * zero point that puts its lower end on -128. Otherwise scales and codes are those that
 * `maxc quantize` stores.
 *
 * A number that is not finite makes its whole group NaN. The gradient passes straight through: a
 * weight is trained to be good when it is rounded (QAT).
 */
#include "ops.h"
#include "base/fp8.h"
#include "ops/cpu/gemm.h"
#include "ops/fake_quantize.h"
#include "ops/load.h"

#include <math.h>

static int64_t group_of(const mx_fake_quantize_attr *a, const mx_type *t)
{
    int64_t d = t->ndim ? t->dim[t->ndim - 1] : 1;
    return a->group ? a->group : d;
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_fake_quantize_attr *a = n->attr;
    const mx_type *t = &n->in[0]->type;
    int64_t d = t->ndim ? t->dim[t->ndim - 1] : 1;
    if (t->ndim < 1 || a->group < 0 || (a->group && d % a->group))
        mx_graph_fail_inputs(g, n, "expected rows of whole groups of %lld", (long long)a->group);
    if (a->dynamic && a->kind == MX_CODE_INT4)
        mx_graph_fail_inputs(g, n, "int4 has no dynamic scales");
    if (a->zeros && !(a->dynamic && a->kind == MX_CODE_INT8))
        mx_graph_fail_inputs(g, n, "zero points are those of dynamic int8");
    n->type = *t;
}

static float dynamic_scale(int64_t kind, const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most == 0 ? 1 : most / (kind == MX_CODE_E4M3 ? MX_E4M3_MAX : 127.5f);
}

static float signed_byte(float x)
{
    float q = rintf(x);
    return q < -128 ? -128 : q > 127 ? 127 : q;
}

static float rounded(const mx_fake_quantize_attr *a, float x)
{
    if (a->dynamic && a->kind == MX_CODE_INT8)
        return signed_byte(x);
    return mx_code_value((mx_code_kind)a->kind, mx_code_of((mx_code_kind)a->kind, x));
}

static bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static void round_with_zero(float *x, int64_t n)
{
    float low = 0, high = 0;
    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float s = (high - low) / 255, zero = signed_byte(-128 - low / s);
    for (int64_t i = 0; i < n && s > 0; i++)
        x[i] = (signed_byte(x[i] / s + zero) - zero) * s;
}

/* One group, x in float32. */
static void round_group(const mx_fake_quantize_attr *a, float *x, int64_t n)
{
    if (!all_finite(x, n)) {
        for (int64_t i = 0; i < n; i++)
            x[i] = NAN;
        return;
    }
    if (a->zeros) {
        round_with_zero(x, n);
        return;
    }
    float s = a->dynamic ? dynamic_scale(a->kind, x, n)
                         : mx_code_scale((mx_code_kind)a->kind, x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = rounded(a, x[i] / s) * s;
}

static void fake_cpu(const mx_call *c)
{
    const mx_fake_quantize_attr *a = c->attr;
    int64_t group = group_of(a, &c->in[0].type), n = mx_type_count(&c->in[0].type);
    int threads = mx_kernel_threads(0);
#pragma omp parallel num_threads(threads) if (n > 1 << 14)
    {
        float *x = (float *)c->work + omp_get_thread_num() * group;
#pragma omp for schedule(static)
        for (int64_t at = 0; at < n; at += group) {
            mx_load_run_f32(&c->in[0], at, group, x);
            round_group(a, x, group);
            mx_store_run_f32(&c->out[0], at, group, x);
        }
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    return sizeof(float) * (size_t)(group_of(n->attr, &n->in[0]->type) * n_threads);
}

mx_node *mx_fake_quantize(mx_graph *g, mx_node *x, mx_code_kind kind, int64_t group)
{
    mx_fake_quantize_attr a = {.kind = kind, .group = group};
    return MX_APPLY(g, &mx_op_fake_quantize, &a, x);
}

mx_node *mx_fake_quantize_inputs(mx_graph *g, mx_node *x, mx_code_kind kind, bool zeros)
{
    mx_fake_quantize_attr a = {.kind = kind, .dynamic = true, .zeros = zeros};
    return MX_APPLY(g, &mx_op_fake_quantize, &a, x);
}

static void fake_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    (void)g, (void)n;
    din[0] = dout[0];
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.bytes = 2 * (double)mx_type_bytes(&n->type)};
}

#define X(...) {__VA_ARGS__, .lo = -3, .hi = 5, .no_grad = true}
#define CASE(...) &(mx_fake_quantize_attr){__VA_ARGS__}
const mx_op mx_op_fake_quantize = {
    .name = "fake_quantize",
    .doc = "numbers rounded to what 8 or 4 bits hold",
    .attr_size = sizeof(mx_fake_quantize_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_fake_quantize_attr, MX_ATTR_INT, kind),
                                      MX_FIELD(mx_fake_quantize_attr, MX_ATTR_INT, group),
                                      MX_FIELD(mx_fake_quantize_attr, MX_ATTR_BOOL, dynamic),
                                      MX_FIELD(mx_fake_quantize_attr, MX_ATTR_BOOL, zeros), {0}},
    .dtypes = MX_REALS,
    .no_cast = true,
    .same_value = true,
    .infer = infer,
    .grad = fake_vjp,
    .cost = cost,
    .cpu = fake_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){
        {1, {X(2, {6, 64})}, CASE(MX_CODE_INT4, 32, false)},
        {1, {X(2, {6, 20})}, CASE(MX_CODE_INT8, 0, false)},
        {1, {X(2, {130, 128})}, CASE(MX_CODE_E4M3, 0, false)},
        {1, {X(3, {2, 3, 20})}, CASE(MX_CODE_INT8, 0, true)},
        {1, {X(3, {2, 70, 128})}, CASE(MX_CODE_E4M3, 0, true)},
        {1, {X(3, {2, 3, 20})}, CASE(MX_CODE_INT8, 0, true, true)}, {0}},
};
