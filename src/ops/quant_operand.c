/* quant_operand.c - builds a quantized operand of a matmul: granularity, layout, delayed scales. */
#include "ops.h"
#include "base/rng.h"

#include <stdio.h>

/* The variable behind a layer's weight: through casts, views and what merges several. */
static const mx_node *quant_weight(const mx_node *w)
{
    while (w->op != &mx_op_variable && w->n_in && w->in[0])
        w = w->in[0];
    return w;
}

/* The scalar input that is not 0 in the first microbatch of a step; where there is one microbatch,
 * the constant 1. */
static mx_node *first_microbatch(mx_graph *g)
{
    mx_node *first = mx_graph_find(g, "first");
    return first ? first : mx_constant(g, MX_SCALAR, MX_F32, 1);
}

/* The same numbers serve sums over rows and over columns. */
static bool serves_both(const mx_quant_operand *o)
{
    return o->grain == MX_GRANULARITY_TENSOR || (o->weight && o->grain == MX_GRANULARITY_BLOCK);
}

/* The factor of a delayed recipe, from a history that this step's amax is added to. */
static mx_node *quantize_delayed(mx_graph *g, mx_node *x, const mx_quant_operand *o,
                                 const mx_quantize_attr *a)
{
    char name[512];
    const mx_node *w = quant_weight(o->of);
    snprintf(name, sizeof name, "%s.%s_amax", w->name ? w->name : "", o->role);
    mx_node *history = mx_graph_find(g, name), *first = first_microbatch(g);
    if (!history)
        history = mx_variable(g, name, mx_type_of(MX_F32, MX_SHAPE(MX_AMAX_SLOTS)),
                              (mx_var_attr){.kind = MX_VAR_OPTIMIZER});
    mx_node *factor = mx_amax_factor(g, history, first, a->dtype, a->power_of_two);
    mx_node *q = mx_quantize(g, x, factor, a);
    if (o->training)
        mx_graph_root(g, NULL, mx_amax_record(g, history, mx_output(g, q, 2), first));
    return q;
}

static mx_node *quantize(mx_graph *g, mx_node *x, const mx_quant_operand *o)
{
    mx_quantize_attr a = {.dtype = o->dtype, .power_of_two = o->recipe->power_of_two,
                          .stochastic = o->stochastic};
    int64_t along = o->grain == MX_GRANULARITY_BLOCK ? MX_QUANT_BLOCK : 0;
    int64_t across = o->grain == MX_GRANULARITY_TENSOR ? 0 : o->grain == MX_GRANULARITY_ROW ? 1
                     : o->weight                  ? MX_QUANT_BLOCK : 1;
    a.both = o->over_rows || (o->training && serves_both(o));
    a.block_rows = o->over_rows ? along : across;
    a.block_cols = o->over_rows ? across : along;
    if (a.stochastic)
        a.salt = (int64_t)mx_stream_of(quant_weight(o->of)->name);
    return o->recipe->delayed ? quantize_delayed(g, x, o, &a) : mx_quantize(g, x, NULL, &a);
}

mx_quantized mx_quant_operand_make(mx_graph *g, mx_node *x, const mx_quant_operand *o)
{
    mx_node *q = serves_both(o) && o->made ? o->made : quantize(g, x, o);
    mx_quantized out = {q, mx_output(g, q, 1)};
    if (!o->over_rows)
        return out;
    out.q = mx_output(g, q, 3);
    if (o->grain == MX_GRANULARITY_ROW)
        out.scale = mx_reshape(g, out.scale, MX_SHAPE(out.q->type.dim[0], 1));
    else if (o->grain == MX_GRANULARITY_BLOCK)
        out.scale = mx_transpose(g, out.scale, "ab->ba");
    return out;
}
