/* amax_record.c - a step's largest magnitude into the history of a tensor, in place.
 *
 *     history (n) float32   amax () float32   first () float32
 * The first microbatch of a step moves all entries back by one and writes entry 0; the others raise
 * it. An amax that is not finite leaves 0: the step is skipped, and its magnitude says nothing.
 */
#include "ops.h"
#include "ops/inputs.h"

#include <math.h>
#include <string.h>

enum { MX_INPUTS_AMAX_RECORD };

static void record_cpu(const mx_call *c)
{
    float *history = c->out[0].data, amax = *(const float *)c->in[RECORD_AMAX].data;
    int64_t n = mx_type_count(&c->in[RECORD_HISTORY].type);
    amax = isfinite(amax) ? amax : 0;
    if (*(const float *)c->in[RECORD_FIRST].data != 0)
        memmove(history + 1, history, sizeof *history * (size_t)(n - 1));
    else
        amax = history[0] > amax ? history[0] : amax;
    history[0] = amax;
}

mx_node *mx_amax_record(mx_graph *g, mx_node *history, mx_node *amax, mx_node *first)
{
    return MX_APPLY(g, &mx_op_amax_record, NULL, history, amax, first);
}

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[RECORD_HISTORY]->type;
}

#define IN(low, high) {0, {0}, .lo = low, .hi = high, .no_grad = true, .fixed = true}
const mx_op mx_op_amax_record = {
    .name = "amax_record",
    .doc = "a largest magnitude into its history, in place",
    .alias = {1},
    .dtypes = MX_F32_ONLY,
    .no_cast = true,
    .infer = infer,
    .cpu = record_cpu,
    .cases = (const mx_case[]){
        {3, {{1, {9}, .hi = 9, .no_grad = true, .fixed = true}, IN(0, 9), IN(1, 2)}},
        {3, {{1, {1025}, .hi = 9, .no_grad = true, .fixed = true}, IN(0, 9), IN(0, 1e-300)}},
        {0}},
};
