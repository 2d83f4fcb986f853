/* lora_experts.c - adapters on the weights of experts.
 *
 * Each expert has an A and a B of its own. They come in two forms, as PEFT's files have them:
 *
 *     modules     X.experts.N.up_proj       A (r, in), B (out, r) of every expert; here as stacks,
 *                                           X.experts.*.up_proj: A (E, r, in)  B (E, out, r)
 *     parameters  X.experts.gate_up_proj    (target_parameters) A (E r, in), experts one below the
 *                 X.experts.down_proj       other; B (out, r E), an expert's columns E apart
 *
 * The second is about weights as transformers 5 stacks them, gate above up. Where the model has
 * gate and up apart, they share an A, and each reads its own rows of B.
 *
 *     y_i = W_e x_i + s B_e (A_e x_i)     for the rows of expert e: two more grouped matmuls
 */
#include "compile/lora_experts.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

bool mx_expert_stack_of(const char *name, const mx_type *type, bool in_out, mx_expert_stack *out)
{
    static const struct {
        const char *end, *stack;
        int halves, half;
    } rows[] = {
        {".experts.*.gate_proj.weight", "gate_up_proj", 2, 0},
        {".experts.*.up_proj.weight", "gate_up_proj", 2, 1},
        {".experts.*.down_proj.weight", "down_proj", 1, 0},
        {".experts.*.w1.weight", "gate_up_proj", 2, 0},
        {".experts.*.w3.weight", "gate_up_proj", 2, 1},
        {".experts.*.w2.weight", "down_proj", 1, 0},
        {".experts.gate_up_proj", "gate_up_proj", 1, 0},
        {".experts.down_proj", "down_proj", 1, 0},
    };
    static const char block[] = ".block_sparse_moe"; /* Mixtral's, which transformers calls mlp */
    for (size_t i = 0; i < sizeof rows / sizeof *rows && type->ndim == 3; i++) {
        if (!mx_ends_with(name, rows[i].end))
            continue;
        int n = (int)(strlen(name) - strlen(rows[i].end)), old = (int)sizeof block - 1;
        bool renamed = n > old && memcmp(name + n - old, block, (size_t)old) == 0;
        int64_t rows_here = type->dim[in_out ? 2 : 1];
        *out = (mx_expert_stack){.experts = type->dim[0], .in = type->dim[in_out ? 1 : 2],
                                 .out = rows_here, .rows = rows_here * rows[i].halves,
                                 .from = rows_here * rows[i].half};
        snprintf(out->module, sizeof out->module, "%.*s%s.experts.%s", renamed ? n - old : n, name,
                 renamed ? ".mlp" : "", rows[i].stack);
        return true;
    }
    return false;
}

static mx_node *exp_first(mx_node *x)
{
    if (x)
        x->axes = "exp,,";
    return x;
}

/* (E, r, in) of an A of either form. */
static mx_node *a_of(mx_graph *g, mx_node *a, const mx_expert_stack *s)
{
    if (a->type.ndim == 3)
        return a;
    int64_t r = a->type.dim[0] / s->experts;
    return exp_first(mx_reshape(g, a, MX_SHAPE(s->experts, r, s->in)));
}

/* (E, out, r) of a B of either form. */
static mx_node *b_of(mx_graph *g, mx_node *b, const mx_expert_stack *s)
{
    if (b->type.ndim == 3)
        return b;
    int64_t r = b->type.dim[1] / s->experts;
    mx_node *rows = mx_reshape(g, b, MX_SHAPE(s->rows, r, s->experts));
    rows = mx_slice(g, rows, 0, s->from, s->out);
    return exp_first(mx_transpose(g, rows, "ore->eor"));
}

mx_node *mx_lora_beside_experts(mx_graph *g, mx_node *y, mx_node *a, mx_node *b,
                                const mx_expert_stack *s, double scale)
{
    mx_node *own = mx_apply_n(g, y->op, y->attr, y->n_in, y->in, y->n_out);
    mx_node *low = mx_grouped_matmul(g, y->in[0], a_of(g, a, s), y->in[2], false);
    mx_node *more = mx_grouped_matmul(g, mx_affine(g, low, scale, 0), b_of(g, b, s), y->in[2],
                                      false);
    return mx_add(g, own, mx_cast(g, more, own->type.dtype));
}
