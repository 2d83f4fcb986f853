/* quantize_weights.c - see quantize_weights.h. */
#include "compile/quantize_weights.h"

#include "compile/quantize.h"
#include "ir/source.h"
#include "ops.h"
#include <stdio.h>
#include <string.h>

#define HEADS "lm_head.weight,*.lm_head.weight,*embed_tokens.weight,wte.weight"
#define STAYS "*router*,*.gate.weight"

static bool is_head(const mx_node *w)
{
    return mx_glob_any(HEADS, w->name);
}

/* The weight that the matmul n reads as it is, (out, in); NULL: there is none. */
static mx_node *quantizable_weight(const mx_node *n)
{
    bool in_out;
    mx_node *w = n->n_in > 1 ? n->in[1] : NULL;
    if (!w || mx_weight_of_matmul(n, &in_out) != w || in_out || mx_glob_any(STAYS, w->name))
        return NULL;
    return mx_scope_layer(w->name) || is_head(w) ? w : NULL;
}

/* Is the weight read by something that takes no quantized one? */
static bool read_otherwise(const mx_graph *g, const mx_node *w)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            const mx_node *n = g->node[i];
            bool lookup = n->op == &mx_op_embed && k == 0;
            if (n->in[k] == w && !n->forward && !lookup && (k != 1 || quantizable_weight(n) != w))
                return true;
        }
    return false;
}

int64_t mx_code_group(int64_t cols, int64_t wanted)
{
    if (wanted > 0 && cols % wanted == 0 && wanted % 2 == 0)
        return wanted;
    return cols % 128 == 0 ? 128 : cols % 64 == 0 ? 64 : cols % 32 == 0 ? 32 : 0;
}

/* The scales of a weight, which this call quantizes unless it already is. */
static mx_node *encode(mx_graph *g, mx_node *w, mx_weight_quant quant)
{
    char name[512];
    mx_var_attr *a = mx_var_edit(w);
    snprintf(name, sizeof name, "%s" MX_CODE_SCALES, w->name);
    if (a->quantized)
        return mx_graph_find(g, name);
    int64_t cols = w->type.dim[1], group = mx_code_group(cols, quant.group);
    bool four = quant.dtype == MX_U8 && group && !is_head(w) &&
                !(quant.eight && quant.eight(quant.config, w->name));
    w->type.dtype = four ? MX_U8 : is_head(w) || quant.dtype == MX_U8 ? MX_I8 : quant.dtype;
    w->type.dim[1] = four ? cols / 2 : cols;
    a->quantized = true;
    const char *scope = g->scope;
    g->scope = "";
    mx_type t = mx_type_of(MX_F32, MX_SHAPE(w->type.dim[0], four ? cols / group : 1));
    mx_node *s = mx_variable(g, name, t, (mx_var_attr){.kind = MX_VAR_COPY, .copy_of = ""});
    g->scope = scope;
    return s;
}

static void replace(mx_graph *g, mx_node *n, mx_node *w, mx_node *s)
{
    mx_dtype wide = MX_F32;
    mx_node *y;
    if (n->op == &mx_op_embed)
        y = mx_mul(g, mx_cast(g, mx_embed(g, w, n->in[1]), wide), mx_embed(g, s, n->in[1]));
    else
        y = mx_dequant_matmul(g, n->in[0], w, s, n->type.dtype == wide);
    mx_node_forward(n, n->type.dtype == y->type.dtype ? y : mx_cast(g, y, n->type.dtype));
}

/* Quantizes what it can. A model whose layers have matrices (in, out) alone would be left as it is
 * without a word. */
static void encode_all(mx_graph *g, int n_old, mx_weight_quant quant)
{
    int n_layers = 0;
    const mx_node *turned = NULL;
    for (int i = 0; i < n_old; i++) {
        bool in_out = false;
        const mx_node *n = g->node[i], *of = n->forward ? NULL : mx_weight_of_matmul(n, &in_out);
        mx_node *w = n->forward ? NULL : quantizable_weight(n);
        if (of && in_out && mx_scope_layer(of->name))
            turned = of;
        if (!w || (!mx_var_edit(w)->quantized && read_otherwise(g, w)))
            continue;
        n_layers += !is_head(w);
        encode(g, w, quant);
    }
    if (turned && !n_layers)
        mx_graph_fail(g,
                      "quantization= takes matrices stored (out, in), and %s is stored (in, out), "
                      "as are the others; leave the key out",
                      turned->name);
}

void mx_pass_quantize_weights(mx_graph *g, mx_weight_quant quant)
{
    int n_old = g->n_nodes;
    if (quant.dtype == MX_F32 || g->error)
        return;
    encode_all(g, n_old, quant);
    for (int i = 0; i < n_old && !g->error; i++) {
        mx_node *n = g->node[i], *w = n->op == &mx_op_embed ? n->in[0] : quantizable_weight(n);
        if (n->forward || !w || w->op != &mx_op_variable || !mx_var_edit(w)->quantized)
            continue;
        const char *scope = g->scope;
        g->scope = n->scope;
        g->seq = n->seq;
        replace(g, n, w, encode(g, w, quant));
        g->seq = -1;
        g->scope = scope;
    }
    mx_graph_resolve(g);
}
