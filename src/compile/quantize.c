/* quantize.c - matmuls of layers' weights become matmuls of 8-bit numbers, by rules on names.
 *
 * Runs after precision and merging, before autodiff. A matmul of activations and a weight,
 *     y = x w^T        ->       y = scaled_matmul(quantize(x), quantize(w))
 * carries its recipe along, from which its gradient builds the other two (ops/scaled_matmul.c).
 * Activations that several matmuls read are quantized once. On a mesh a weight is quantized after
 * the gather, and activations by each rank for itself. Everything else stays in high
 * precision: the embedding and the head, which are in no layer; norms, softmax and attention, which
 * are no matmuls of a weight; routers, by a rule of their names (exec/quant_config.c).
 *
 * Recipes for quantization-aware training leave the matmul and round what it reads:
 *     y = x w^T        ->       y = x fake_quantize(w)^T
 *
 * A matmul whose sizes the recipe's units do not take (multiples of 16) stays as it is, and the
 * report says so.
 */
#include "compile/quantize.h"
#include "compile/quantize_frozen.h"

#include "compile/compile.h"
#include "compile/quantize_weights.h"
#include "ops.h"
#include "ops/matmul.h"
#include <stdio.h>
#include <string.h>

#define E4M3 MX_F8_E4M3
#define E5M2 MX_F8_E5M2
#define ALL(grain) grain, grain, grain
static const mx_quant_recipe recipes[] = {
    {"fp8", "delayed scaling: one scale for a tensor, from the last 1,024 steps", E4M3, E5M2,
     ALL(MX_GRANULARITY_TENSOR), .delayed = true},
    {"fp8_tensorwise", "one scale for a tensor, from the tensor itself", E4M3, E5M2,
     ALL(MX_GRANULARITY_TENSOR)},
    {"fp8_rowwise", "a scale for each row", E4M3, E4M3, ALL(MX_GRANULARITY_ROW)},
    {"fp8_rowwise_gw_hp", "a scale for each row; weight gradients in high precision", E4M3, E4M3,
     MX_GRANULARITY_ROW, MX_GRANULARITY_ROW, MX_GRANULARITY_HIGH},
    {"fp8_e5m2", "a scale for each row, all of it E5M2", E5M2, E5M2, ALL(MX_GRANULARITY_ROW)},
    {"fp8_blockwise", "a scale for 1 x 128 numbers, of weights for 128 x 128", E4M3, E4M3,
     ALL(MX_GRANULARITY_BLOCK), .power_of_two = true},
    {"fp8_blockwise_hybrid", "the same with gradients in E5M2", E4M3, E5M2,
     ALL(MX_GRANULARITY_BLOCK), .power_of_two = true},
    {"int8", "a scale for each row; gradients with stochastic rounding", MX_I8, MX_I8,
     ALL(MX_GRANULARITY_ROW), .stochastic = true},
    {"int8_rowwise", "a scale for each row", MX_I8, MX_I8, ALL(MX_GRANULARITY_ROW)},
    {"int8_tensorwise", "one scale for a tensor", MX_I8, MX_I8, ALL(MX_GRANULARITY_TENSOR)},
    {"int4", "QAT: weights rounded to 4 bits in groups", MX_U8, .fake_weights = true},
    {"qat_int8", "QAT: weights rounded to int8, a scale for each row", MX_I8, .fake_weights = true},
    {"qat_fp8", "QAT: weights rounded to E4M3, a scale for each row", MX_F8_E4M3,
     .fake_weights = true},
    {"qat_w8a8", "QAT: weights and activations rounded to int8", MX_I8, .fake_weights = true,
     .fake_inputs = true, .input_zeros = true},
};

/* MaxText's names for the same. */
static const struct {
    const char *name, *recipe;
} alias[] = {{"te_fp8_delayedscaling", "fp8"},         {"te_fp8_currentscaling", "fp8_tensorwise"},
             {"fp8_full", "fp8_tensorwise"},           {"fp8_gpu", "fp8_tensorwise"},
             {"fp8_e4m3", "fp8_rowwise"},              {"te_fp8_blockscaling", "fp8_blockwise"}};

enum { N_RECIPES = sizeof recipes / sizeof *recipes, N_ALIASES = sizeof alias / sizeof *alias };

const mx_quant_recipe *mx_quant_recipe_find(const char *name)
{
    for (int i = 0; i < N_ALIASES; i++)
        if (strcmp(alias[i].name, name) == 0)
            name = alias[i].recipe;
    for (int i = 0; i < N_RECIPES; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    return NULL;
}

void mx_quant_recipe_list(mx_str *out)
{
    for (int i = 0; i < N_RECIPES; i++)
        mx_str_addf(out, "%s%s", i ? ", " : "", recipes[i].name);
}

bool mx_quantization_is_delayed(const mx_quantization *q)
{
    bool any = false;
    for (int i = 0; q && i < q->n_rules; i++)
        any |= q->rule[i].recipe && q->rule[i].recipe->delayed;
    return any;
}

const mx_node *mx_weight_of_matmul(const mx_node *n, bool *in_out)
{
    if (n->op != &mx_op_matmul || n->n_in != 2 || n->forward)
        return NULL;
    const char *s = ((const mx_matmul_attr *)n->attr)->spec;
    if (strlen(s) != 9 || s[0] != '*' || s[2] != ',' || strncmp(s + 5, "->*", 3) != 0)
        return NULL;
    *in_out = s[3] == s[1] && s[4] == s[8];
    if (!*in_out && !(s[4] == s[1] && s[3] == s[8]))
        return NULL;
    const mx_node *w = n->in[1];
    while (w->op == &mx_op_cast || w->op == &mx_op_concat || w->op == &mx_op_vary ||
           w->op == &mx_op_all_gather)
        w = w->in[0];
    bool weight = w->op == &mx_op_variable && w->type.ndim == 2 &&
                  ((const mx_var_attr *)w->attr)->kind == MX_VAR_WEIGHT;
    return weight ? w : NULL;
}

/* "xyk,zk->...": do the factors share their last dim, and no other? */
static bool sums_last(const char *spec)
{
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    if (!comma || !arrow || comma == spec || comma[-1] != arrow[-1])
        return false;
    for (const char *a = spec; a < comma - 1; a++)
        if (memchr(comma + 1, *a, (size_t)(arrow - comma - 1)))
            return false;
    return true;
}

const mx_node *mx_weight_by_heads(const mx_node *n)
{
    if (n->op != &mx_op_matmul || n->n_in != 2 || n->forward ||
        !sums_last(((const mx_matmul_attr *)n->attr)->spec))
        return NULL;
    const mx_node *w = n->in[1];
    while (w->op == &mx_op_cast || w->op == &mx_op_reshape)
        w = w->in[0];
    bool weight = w->op == &mx_op_variable && w->type.ndim == 2 &&
                  ((const mx_var_attr *)w->attr)->kind == MX_VAR_WEIGHT;
    return weight && n->in[1]->type.ndim == 3 && n->in[1]->type.dim[2] == w->type.dim[1] ? w : NULL;
}

static const mx_node *layer_weight_of(const mx_node *n, bool *in_out)
{
    const mx_node *w = mx_weight_of_matmul(n, in_out);
    return w && mx_scope_layer(w->name) ? w : NULL;
}

static const mx_quant_rule *rule_of(const mx_quantization *q, const char *name)
{
    for (int i = 0; i < q->n_rules; i++)
        if (mx_glob_any(q->rule[i].pattern, name))
            return &q->rule[i];
    return NULL;
}

typedef struct {
    mx_graph *g;
    const mx_quantization *q;
    bool training;
    struct {
        const mx_quant_recipe *recipe;
        mx_quantized is;
    } *made; /* of activations, by id */
} quantize;

static mx_quantized input_of(quantize *p, mx_node *n, const mx_quant_recipe *r)
{
    mx_node *x = n->in[0];
    mx_quant_operand o = {.recipe = r, .grain = r->forward, .dtype = r->value, .of = n->in[1],
                          .role = "input", .training = p->training};
    if (p->made[x->id].recipe != r) {
        p->made[x->id].recipe = r;
        p->made[x->id].is = mx_quant_operand_make(p->g, x, &o);
    }
    return p->made[x->id].is;
}

static void replace(quantize *p, mx_node *n, const mx_quant_recipe *r, bool in_out)
{
    mx_graph *g = p->g;
    const char *scope = g->scope;
    mx_quant_operand w = {.recipe = r, .grain = r->forward, .dtype = r->value, .weight = true,
                          .over_rows = in_out, .of = n->in[1], .role = "weight",
                          .training = p->training};
    g->scope = n->scope;
    g->stage = n->stage;
    g->seq = n->seq;
    mx_quantized x = input_of(p, n, r);
    mx_node *y = mx_scaled_matmul(g, x, mx_quant_operand_make(g, n->in[1], &w), n->type.dtype, r);
    y->name = n->name;
    g->seq = -1;
    g->stage = 0;
    g->scope = scope;
    mx_node_forward(n, y);
}

static mx_code_kind codes_of(const mx_quant_recipe *r)
{
    return r->value == MX_U8 ? MX_CODE_INT4 : r->value == MX_I8 ? MX_CODE_INT8 : MX_CODE_E4M3;
}

static bool is_fake(const mx_quant_recipe *r)
{
    return r->fake_weights || r->fake_inputs;
}

/* The matmul reads rounded numbers. */
static void fake(quantize *p, mx_node *n, const mx_quant_recipe *r)
{
    mx_graph *g = p->g;
    const char *scope = g->scope;
    mx_node *x = n->in[0];
    mx_code_kind kind = codes_of(r);
    g->scope = n->scope;
    g->stage = n->stage;
    g->seq = n->seq;
    if (r->fake_inputs && p->made[x->id].recipe != r) {
        p->made[x->id].recipe = r;
        p->made[x->id].is.q = mx_fake_quantize_inputs(g, x, kind, r->input_zeros);
    }
    mx_node *w = n->in[1], *in[2] = {r->fake_inputs ? p->made[x->id].is.q : x, w};
    if (r->fake_weights)
        in[1] = mx_fake_quantize(
            g, w, kind, kind == MX_CODE_INT4 ? mx_code_group(w->type.dim[1], 0) : 0);
    mx_node *y = mx_node_copy(g, n, in);
    g->seq = -1;
    g->stage = 0;
    g->scope = scope;
    mx_node_forward(n, y);
}

/* Rows of a weight hold whole groups; one that is stored (in, out) has no such rows. */
static bool fits_fake(const mx_node *n, const mx_quant_recipe *r, bool in_out)
{
    return !r->fake_weights ||
           (!in_out && (codes_of(r) != MX_CODE_INT4 || mx_code_group(n->in[1]->type.dim[1], 0)));
}

/* The units take rows of 16 bytes. */
static bool fits(const mx_node *n)
{
    const mx_type *x = &n->in[0]->type, *w = &n->in[1]->type;
    int64_t rows = mx_type_count(x) / (x->dim[x->ndim - 1] ? x->dim[x->ndim - 1] : 1);
    return rows % 16 == 0 && w->dim[0] % 16 == 0 && w->dim[1] % 16 == 0 && rows > 0;
}

static void add_line(mx_quant_report *r, const char *line)
{
    size_t have = strlen(r->kept);
    if (!strstr(r->kept, line) && have + strlen(line) < sizeof r->kept)
        memcpy(r->kept + have, line, strlen(line) + 1);
}

static void keep(const quantize *p, const mx_node *n, const mx_node *w, const char *needed)
{
    mx_quant_report *r = p->q->report;
    char name[256];
    if (!r)
        return;
    mx_scope_of_all(w->name, name, sizeof name);
    const mx_type *x = &n->in[0]->type, *t = &n->in[1]->type;
    char line[512];
    snprintf(line, sizeof line, "%s: %lld rows times (%lld, %lld); %s\n", name,
             (long long)(mx_type_count(x) / x->dim[x->ndim - 1]), (long long)t->dim[0],
             (long long)t->dim[1], needed);
    add_line(r, line);
}

/* No recipe takes the GEMMs of experts. */
static void keep_experts(const mx_node *n, mx_quant_report *r)
{
    char name[256], line[512];
    mx_scope_of_all(n->scope, name, sizeof name);
    snprintf(line, sizeof line, "%s: matmuls of experts; no recipe takes them\n", name);
    add_line(r, line);
    r->n_high++;
}

static void visit(quantize *p, mx_node *n, mx_quant_report *r)
{
    bool in_out;
    const mx_node *w = layer_weight_of(n, &in_out);
    if (n->op == &mx_op_grouped_matmul)
        keep_experts(n, r);
    if (!w)
        return;
    const mx_quant_rule *rule = rule_of(p->q, w->name);
    bool rounds = rule && rule->recipe && is_fake(rule->recipe);
    bool wanted = rule && rule->recipe && (rounds || rule->recipe->forward != MX_GRANULARITY_HIGH);
    if (rounds && ((const mx_var_attr *)w->attr)->adapter)
        wanted = false; /* it is stored as a part of the weight it adapts, or in full */
    if (wanted && (rounds ? fits_fake(n, rule->recipe, in_out) : fits(n))) {
        if (rounds)
            fake(p, n, rule->recipe);
        else
            replace(p, n, rule->recipe, in_out);
        r->n_quantized++;
        return;
    }
    r->n_high++;
    if (wanted)
        keep(p, n, w, !rounds  ? "multiples of 16 are needed"
                      : in_out ? "a matrix that is stored (out, in) is needed"
                               : "rows of a multiple of 32 are needed");
}

/* After precision and merge. training: gradients will follow, and histories of a delayed recipe are
 * written. */
static void pass_quantize(mx_graph *g, const mx_quantization *q, bool training)
{
    if (!q || g->error)
        return;
    mx_arena scratch = {0};
    mx_quant_report unread = {0}, *r = q->report ? q->report : &unread;
    int n_old = g->n_nodes;
    quantize p = {.g = g, .q = q, .training = training};
    p.made = mx_arena_alloc(&scratch, sizeof *p.made * (size_t)n_old);
    r->n_quantized = r->n_high = 0;
    for (int i = 0; i < n_old && !g->error; i++)
        visit(&p, g->node[i], r);
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

static bool same(const mx_node *a, const mx_node *b)
{
    if (a->op != b->op || a->n_in != b->n_in ||
        (a->op->attr_size && memcmp(a->attr, b->attr, a->op->attr_size) != 0))
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i] != b->in[i])
            return false;
    return true;
}

void mx_pass_quantize_share(mx_graph *g)
{
    mx_arena scratch = {0};
    mx_node **last = MX_NEW_N(&scratch, mx_node *, g->n_nodes); /* of the readers of node i */
    mx_node **before = MX_NEW_N(&scratch, mx_node *, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        if (n->forward || (n->op != &mx_op_quantize && n->op != &mx_op_transpose &&
                           n->op != &mx_op_reshape && n->op != &mx_op_output))
            continue;
        for (int k = 0; k < n->n_in; k++)
            while (n->in[k]->forward)
                n->in[k] = n->in[k]->forward;
        mx_node *x = n->in[0], *c = last[x->id];
        while (c && !same(c, n))
            c = before[c->id];
        if (c) {
            mx_node_forward(n, c);
            continue;
        }
        before[i] = last[x->id];
        last[x->id] = n;
    }
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    if (!c->o->partition) /* that pass has done it */
        mx_pass_quantize_frozen(g, c->o->frozen_quant);
    pass_quantize(g, c->o->quantization, c->training);
    if (!c->training && c->o->weights_fixed)
        mx_pass_quantize_weights(g, c->o->quant);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_quantize = {
    .name = "quantize",
    .doc = "matmuls of 8-bit numbers, by scope pattern",
    .after = "stages",
    .programs = MX_IN_FORWARD | MX_IN_TRAINING,
    .run = run,
};
