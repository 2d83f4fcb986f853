/* quantize_frozen.c - see quantize_frozen.h. */
#include "compile/quantize_frozen.h"

#include "compile/lora.h"
#include "compile/quantize_weights.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/cpu/nf4.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    mx_graph *g;
    const mx_frozen_quant *quant;
    mx_node *map;      /* of nested absmax; NULL: not needed yet */
    mx_node **numbers; /* by the id of a variable: its `dequantize`, once something has read it */
} pass;

/* A matrix of a layer, or its experts'. */
static bool is_quantized(const pass *p, const mx_node *w)
{
    const mx_var_attr *a = w->op == &mx_op_variable ? w->attr : NULL;
    if (!a || a->kind != MX_VAR_WEIGHT || a->adapter || w->type.ndim < 2 ||
        !mx_dtype_is_float(w->type.dtype) || !mx_scope_layer(w->name) ||
        !mx_lora_is_linear(w->name) || mx_glob_any("*bias", w->name))
        return false;
    char module[512];
    size_t n = strlen(w->name) - (mx_ends_with(w->name, ".weight") ? strlen(".weight") : 0);
    snprintf(module, sizeof module, "%.*s", (int)n, w->name);
    return !mx_lora_saves(p->quant->keep, module);
}

static mx_node *scales(pass *p, const mx_node *w, const char *end, mx_type t, mx_init init)
{
    char name[640];
    snprintf(name, sizeof name, "%s%s", w->name, end);
    return mx_variable(p->g, name, t,
                       (mx_var_attr){.init = init, .kind = MX_VAR_COPY, .copy_of = ""});
}

/* Random codes of this scale have the deviation that the weight was to begin with. */
static double scale_for(const mx_init *init, double deviation)
{
    return init->kind == MX_INIT_NORMAL ? init->scale / deviation : 0;
}

static double deviation_of_values(void)
{
    double sum = 0;
    for (int i = 0; i < MX_NF4_VALUES; i++)
        sum += (double)mx_nf4_values[i] * mx_nf4_values[i];
    return sqrt(sum / MX_NF4_VALUES);
}

/* W becomes NF4; in[0..] what `dequantize` reads. */
static int encode_nf4(pass *p, mx_node *w, mx_init began, mx_node **in)
{
    int64_t cols = w->type.dim[w->type.ndim - 1], blocks = mx_nf4_blocks(mx_type_count(&w->type));
    mx_init most = MX_VALUE(scale_for(&began, deviation_of_values()));
    bool nested = p->quant->nested;
    if (cols % 2)
        mx_graph_fail(p->g, "lora_weight_qtype=nf4: %s has rows of %lld numbers, and two lie in a "
                      "byte; use int8, or name the module in modules_to_save", w->name,
                      (long long)cols);
    w->type.dtype = MX_U8;
    w->type.dim[w->type.ndim - 1] = cols / 2;
    mx_var_edit(w)->init = MX_CHOICE(256, 1);
    in[1] = scales(p, w, MX_NF4_ABSMAX, mx_type_of(nested ? MX_U8 : MX_F32, MX_SHAPE(blocks)),
                   nested ? MX_ZEROS : most);
    if (!nested)
        return 2;
    if (!p->map) {
        double map[MX_NF4_CODES];
        mx_nf4_map(map);
        p->map = mx_table(p->g, MX_SHAPE(MX_NF4_CODES), MX_F32, map);
    }
    in[2] = scales(p, w, MX_NF4_NESTED, mx_type_of(MX_F32, MX_SHAPE(mx_nf4_nests(blocks))),
                   MX_ZEROS);
    in[3] = scales(p, w, MX_NF4_OFFSET, mx_type_of(MX_F32, MX_SCALAR), most);
    in[4] = p->map;
    return 5;
}

static int encode_rows(pass *p, mx_node *w, mx_init began, mx_node **in)
{
    enum { MOST = 127 };
    int64_t rows = mx_dims_before(&w->type, w->type.ndim - 1);
    mx_init random = {.kind = MX_INIT_UNIFORM, .scale = MOST};
    w->type.dtype = p->quant->dtype;
    mx_var_edit(w)->init = random;
    in[1] = scales(p, w, MX_CODE_SCALES, mx_type_of(MX_F32, MX_SHAPE(rows, 1)),
                   MX_VALUE(scale_for(&began, MOST / sqrt(3))));
    return 2;
}

/* The numbers of w where `by`, the first to read it, stands. */
static mx_node *numbers(pass *p, mx_node *w, const mx_node *by)
{
    mx_node *in[5] = {w};
    mx_dtype dtype = w->type.dtype;
    mx_var_attr *a = mx_var_edit(w);
    mx_init began = a->init;
    const char *scope = p->g->scope;
    p->g->scope = "";
    a->quantized = true;
    w->axes = NULL; /* a mesh does not cut blocks */
    int n = (p->quant->dtype == MX_U8 ? encode_nf4 : encode_rows)(p, w, began, in);
    p->g->scope = by->scope;
    p->g->seq = by->seq;
    mx_node *made = mx_dequantize(p->g, n, in, dtype);
    p->g->seq = -1;
    p->g->scope = scope;
    return made;
}

void mx_pass_quantize_frozen(mx_graph *g, const mx_frozen_quant *quant)
{
    int n_old = g->n_nodes;
    if (!quant || g->error)
        return;
    mx_arena scratch = {0};
    pass p = {.g = g, .quant = quant, .numbers = MX_NEW_N(&scratch, mx_node *, n_old)};
    for (int i = 0; i < n_old && !g->error; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            mx_node *n = g->node[i], *w = n->in[k];
            if (!w || w->id >= n_old || (!p.numbers[w->id] && !is_quantized(&p, w)))
                continue;
            if (!p.numbers[w->id])
                p.numbers[w->id] = numbers(&p, w, n);
            n->in[k] = p.numbers[w->id];
        }
    mx_arena_fini(&scratch);
}
