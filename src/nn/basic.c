/* basic.c - linear maps, norms, embeddings, the gated MLP. */
#include "nn/nn.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    mx_act act;
} act_names[] = {
    {"silu", MX_ACT_SILU},           {"swish", MX_ACT_SILU},
    {"gelu_pytorch_tanh", MX_ACT_GELU_TANH}, {"gelu_new", MX_ACT_GELU_TANH},
    {"gelu_fast", MX_ACT_GELU_TANH}, {"gelu", MX_ACT_GELU_ERF},
    {"relu", MX_ACT_RELU},
};

bool mx_act_parse(const char *name, mx_act *out)
{
    for (size_t i = 0; i < sizeof act_names / sizeof *act_names; i++)
        if (strcmp(name, act_names[i].name) == 0) {
            *out = act_names[i].act;
            return true;
        }
    return false;
}

const char *mx_act_names(void)
{
    return "silu, swish, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu";
}

static mx_node *relu(mx_graph *g, mx_node *x)
{
    return mx_maximum(g, x, mx_constant(g, MX_SCALAR, x->type.dtype, 0));
}

mx_node *mx_activation(mx_graph *g, mx_node *x, mx_act act)
{
    static mx_node *(*const build[MX_ACT_COUNT])(mx_graph *, mx_node *) = {
        [MX_ACT_SILU] = mx_silu,
        [MX_ACT_GELU_TANH] = mx_gelu_tanh,
        [MX_ACT_GELU_ERF] = mx_gelu_erf,
        [MX_ACT_RELU] = relu,
    };
    return build[act](g, x);
}

static int64_t last_dim(const mx_node *x)
{
    return x->type.ndim ? x->type.dim[x->type.ndim - 1] : 1;
}

const char *mx_result_axes(mx_graph *g, const char *name)
{
    static const struct {
        const char *weight, *batch_and_length, *features;
    } rows[] = {
        {"q_heads", "activation_batch_attn,activation_length_attn", "activation_heads"},
        {"kv_heads", "activation_kv_batch,activation_length_attn", "activation_kv_heads"},
        {"gdn_head", "activation_batch_attn,activation_length_attn", "activation_heads"},
        {"q_lora_up_proj", "activation_batch_attn,activation_length_attn", ""},
        {"kv_lora_up_proj", "activation_kv_batch,activation_length_attn", ""},
        {"mlp", "activation_batch,activation_length", "activation_mlp"},
        /* What goes back into the residual stream is cut along the sequence as that is. */
        {"embed", "activation_batch,activation_norm_length", "activation_embed"},
    };
    size_t n = strcspn(name, "*(,"), all = strcspn(name, ",");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strlen(rows[i].weight) == n && memcmp(rows[i].weight, name, n) == 0)
            return mx_axes_text(g, "%s,%s%.*s", rows[i].batch_and_length, rows[i].features,
                                *rows[i].features ? (int)(all - n) : 0, name + n);
    return "activation_batch,activation_length,";
}

mx_head_axes mx_attention_axes(mx_graph *g, int64_t head_dim)
{
    long long D = head_dim;
    return (mx_head_axes){.q = mx_axes_text(g, "q_heads*%lld,embed", D),
                          .kv = mx_axes_text(g, "kv_heads*%lld,embed", D),
                          .out = mx_axes_text(g, "embed,heads*%lld", D)};
}

mx_node *mx_linear(mx_graph *g, const mx_build *b, mx_node *x, const char *name, int64_t out,
                   const char *axes, bool bias)
{
    mx_scope(g, "%s", name);
    mx_node *w = mx_param(g, "weight", MX_SHAPE(out, last_dim(x)), axes, MX_NORMAL(b->init_scale));
    mx_node *y = mx_matmul(g, "*d,fd->*f", x, w);
    if (y->type.ndim == 3)
        y->axes = mx_result_axes(g, axes);
    if (bias) {
        const char *own = mx_axes_text(g, "%.*s", (int)strcspn(axes, ","), axes);
        y = mx_add(g, y, mx_param(g, "bias", MX_SHAPE(out), own, MX_ZEROS));
    }
    return mx_scope_end(g, y);
}

void mx_freeze_since(mx_graph *g, int n)
{
    for (int i = n; i < g->n_nodes; i++)
        mx_freeze(g->node[i]);
}

mx_node *mx_buffer(mx_graph *g, const char *name, mx_shape shape, mx_init init)
{
    mx_node *n = mx_param(g, name, shape, shape.ndim == 1 ? "norm" : "", init);
    mx_freeze(n);
    return n;
}

mx_node *mx_rms_scale(mx_graph *g, mx_node *x, double eps)
{
    mx_node *mean = mx_row_mean(g, mx_mul(g, x, x)); /* (*, 1) */
    return mx_mul(g, x, mx_rsqrt(g, mx_affine(g, mean, 1, eps)));
}

mx_node *mx_rms_norm(mx_graph *g, mx_node *x, const char *name, double eps, bool plus_one)
{
    mx_scope(g, "%s", name);
    mx_node *w = mx_param(g, "weight", MX_SHAPE(last_dim(x)), "norm",
                          plus_one ? MX_ZEROS : MX_ONES);
    if (plus_one)
        w = mx_affine(g, w, 1, 1);
    return mx_scope_end(g, mx_mul(g, mx_rms_scale(g, x, eps), w));
}

mx_node *mx_layer_norm(mx_graph *g, mx_node *x, const char *name, double eps)
{
    mx_scope(g, "%s", name);
    mx_node *w = mx_param(g, "weight", MX_SHAPE(last_dim(x)), "norm", MX_ONES);
    mx_node *bias = mx_param(g, "bias", MX_SHAPE(last_dim(x)), "norm", MX_ZEROS);
    mx_node *c = mx_sub(g, x, mx_row_mean(g, x));
    mx_node *y = mx_mul(g, mx_rms_scale(g, c, eps), w);
    return mx_scope_end(g, mx_add(g, y, bias));
}

/* x, where a token is the padding's without gradient. */
static mx_node *fix_pad(mx_graph *g, const mx_build *b, mx_node *x)
{
    mx_node *pad = mx_constant(g, MX_SCALAR, MX_F32, (double)(b->fixed_pad - 1));
    mx_node *is = mx_equal(g, mx_cast(g, b->tokens, MX_F32), pad);
    is = mx_reshape(g, is, MX_SHAPE(b->batch, b->seq, 1));
    return mx_axes(MX_RESIDUAL_AXES, mx_where(g, is, mx_detach(g, x), x));
}

mx_node *mx_embedding(mx_graph *g, const mx_build *b, const char *name, int64_t vocab, int64_t d)
{
    mx_scope(g, "%s", name);
    mx_node *table = mx_param(g, "weight", MX_SHAPE(vocab, d), "vocab,embed_vocab",
                              MX_NORMAL(b->init_scale));
    mx_node *x = mx_axes(MX_RESIDUAL_AXES, mx_embed(g, table, b->tokens));
    return mx_scope_end(g, b->fixed_pad ? fix_pad(g, b, x) : x);
}

mx_node *mx_gated_mlp(mx_graph *g, const mx_build *b, mx_node *x, int64_t d_ff, mx_act act,
                      bool bias)
{
    mx_node *gate = mx_name(g, "mlpwi_0", mx_linear(g, b, x, "gate_proj", d_ff, "mlp,embed", bias));
    mx_node *up = mx_name(g, "mlpwi_1", mx_linear(g, b, x, "up_proj", d_ff, "mlp,embed", bias));
    mx_node *h = mx_mul(g, mx_activation(g, gate, act), up);
    return mx_name(g, "mlpwo", mx_linear(g, b, h, "down_proj", last_dim(x), "embed,mlp", bias));
}

void mx_add_aux_loss(mx_graph *g, mx_build *b, const char *metric, mx_node *loss)
{
    if (b->training)
        mx_graph_root(g, metric, loss);
    b->aux_loss = b->aux_loss ? mx_add(g, b->aux_loss, loss) : loss;
}
