/* amax_factor.c - the factor of a tensor's quantization from the amax of earlier steps.
 *
 *     history (n + 1) float32   first () float32  ->  () float32:  most / max(history)
 * Entry 0 is the newest step. Where `first` is 0, a microbatch of the current step has left its
 * amax there already (amax_record.c), and the n entries after it count instead of the n first: all
 * microbatches of a step have one factor. An empty history gives 0: the tensor's own is to be used.
 */
#include "ops.h"
#include "ops/inputs.h"

enum { MX_INPUTS_AMAX_FACTOR };

typedef struct {
    mx_dtype dtype; /* that is quantized to */
    bool power_of_two;
} factor_attr;

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = mx_type_of(MX_F32, MX_SCALAR);
}

static void factor_cpu(const mx_call *c)
{
    const factor_attr *a = c->attr;
    const float *history = c->in[AMAX_HISTORY].data;
    int64_t n = mx_type_count(&c->in[AMAX_HISTORY].type),
            skip = *(const float *)c->in[AMAX_FIRST].data == 0;
    float most = 0;
    for (int64_t i = skip; i < n - 1 + skip; i++)
        most = history[i] > most ? history[i] : most;
    *(float *)c->out[0].data = most > 0 ? mx_quant_factor(most, a->dtype, a->power_of_two) : 0;
}

mx_node *mx_amax_factor(mx_graph *g, mx_node *history, mx_node *first, mx_dtype d, bool pow2)
{
    factor_attr a = {.dtype = d, .power_of_two = pow2};
    return MX_APPLY(g, &mx_op_amax_factor, &a, history, first);
}

#define HISTORY(n) {1, {n}, .hi = 9, .no_grad = true, .fixed = true}
#define FIRST(low, high) {0, {0}, .lo = low, .hi = high, .no_grad = true, .fixed = true}
const mx_op mx_op_amax_factor = {
    .name = "amax_factor",
    .doc = "the factor of a quantization from the largest magnitudes of earlier steps",
    .attr_size = sizeof(factor_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(factor_attr, MX_ATTR_DTYPE, dtype),
                                      MX_FIELD(factor_attr, MX_ATTR_BOOL, power_of_two), {0}},
    .dtypes = MX_F32_ONLY,
    .no_cast = true,
    .infer = infer,
    .cpu = factor_cpu,
    .cases = (const mx_case[]){{2, {HISTORY(9), FIRST(1, 2)}, &(factor_attr){MX_F8_E4M3, false}},
                               {2, {HISTORY(9), FIRST(0, 1e-300)}, &(factor_attr){MX_I8, true}},
                               {0}},
};
