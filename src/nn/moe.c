/* moe.c - experts: dispatch, their matmuls, combine. Routers and losses are in router.c. */
#include "nn/moe.h"

#include "ops.h"
#include <stdio.h>

mx_dispatch mx_dispatch_tokens(mx_graph *g, const mx_build *b, mx_node *x, const mx_routing *r,
                               double capacity)
{
    int64_t N = b->batch * b->seq, k = r->k, m = N * k, d = x->type.dim[x->type.ndim - 1];
    mx_node *expert = r->expert; /* (N, k) */
    if (capacity > 0 && !b->cache_len) {
        int64_t places = (int64_t)((double)(b->seq * k) / (double)r->experts * capacity);
        mx_node *by_row = mx_reshape(g, expert, MX_SHAPE(b->batch, b->seq * k));
        expert = mx_limit_experts(g, by_row, r->experts, places);
        expert = mx_reshape(g, expert, MX_SHAPE(b->batch, b->seq, k));
        expert->axes = "activation_batch_moe,activation_length_moe,";
        expert = mx_reshape(g, expert, MX_SHAPE(N, k));
    }
    if (!x->axes && x->type.ndim == 3) /* rows are copied whole: gathered before they are */
        x->axes = "activation_batch_moe,activation_length_moe,";
    mx_node *order = expert == r->expert && r->order ? r->order
                                                     : mx_sort_by_expert(g, expert, r->experts);
    mx_dispatch t = {.order = order, .start = mx_output(g, order, 1),
                     .place = mx_output(g, order, 2), .experts = r->experts, .tokens = N};
    t.rows = mx_permute_rows(g, mx_reshape(g, x, MX_SHAPE(N, d)), order, t.place);
    t.weight = mx_permute_rows(g, mx_reshape(g, r->weight, MX_SHAPE(m, 1)), order, t.place);
    mx_node *ids = mx_permute_rows(g, mx_reshape(g, expert, MX_SHAPE(m, 1)), order, t.place);
    t.expert = mx_reshape(g, ids, MX_SHAPE(m));
    return t;
}

mx_node *mx_combine(mx_graph *g, const mx_build *b, const mx_dispatch *t, mx_node *y)
{
    y = mx_unpermute_rows(g, y, t->order, t->place, t->tokens);
    y = mx_reshape(g, y, MX_SHAPE(b->batch, b->seq, y->type.dim[1]));
    y = mx_axes("activation_batch_moe,activation_norm_length_moe,activation_embed_moe", y);
    return mx_name(g, "moe_out", y);
}

mx_node *mx_weigh(mx_graph *g, const mx_dispatch *t, mx_node *h)
{
    return mx_mul(g, h, t->weight);
}

mx_node *mx_expert_linear(mx_graph *g, const mx_build *b, const mx_dispatch *t, mx_node *h,
                          const char *name, int64_t out, const char *axes, bool in_out)
{
    int64_t in = h->type.dim[1];
    mx_shape shape = in_out ? MX_SHAPE(t->experts, in, out) : MX_SHAPE(t->experts, out, in);
    mx_node *w = mx_param(g, name, shape, axes, MX_NORMAL(b->init_scale));
    mx_var_attr *attr = mx_var_edit(w);
    if (attr)
        attr->in_out = in_out;
    return mx_grouped_matmul(g, h, w, t->start, in_out);
}

const char *mx_gate_up_axes(mx_graph *g, int64_t f, bool in_out)
{
    long long n = f;
    return in_out ? mx_axes_text(g, "exp,embed_moe,mlp_moe(%lld+%lld)", n, n)
                  : mx_axes_text(g, "exp,mlp_moe(%lld+%lld),embed_moe", n, n);
}

mx_node *mx_expert_bias(mx_graph *g, const mx_dispatch *t, mx_node *h, const char *name,
                        const char *axes)
{
    mx_node *w = mx_param(g, name, MX_SHAPE(t->experts, h->type.dim[1]), axes, MX_ZEROS);
    return mx_add(g, h, mx_embed(g, w, t->expert));
}

mx_node *mx_expert_mlp(mx_graph *g, const mx_build *b, mx_node *x, const mx_routing *r,
                       const mx_moe *m, mx_expert_names names, mx_act act)
{
    char gate[64], up[64], down[64];
    snprintf(gate, sizeof gate, "experts.*.%s.weight", names.gate);
    snprintf(up, sizeof up, "experts.*.%s.weight", names.up);
    snprintf(down, sizeof down, "experts.*.%s.weight", names.down);
    int64_t d = x->type.dim[2];
    mx_dispatch t = mx_dispatch_tokens(g, b, x, r, m->capacity);
    mx_node *u = mx_expert_linear(g, b, &t, t.rows, gate, m->d_ff, "exp,mlp_moe,embed_moe", false);
    mx_node *v = mx_expert_linear(g, b, &t, t.rows, up, m->d_ff, "exp,mlp_moe,embed_moe", false);
    u = mx_name(g, "moe_mlpwi_0", u);
    v = mx_name(g, "moe_mlpwi_1", v);
    mx_node *h = mx_weigh(g, &t, mx_mul(g, mx_activation(g, u, act), v));
    h = mx_expert_linear(g, b, &t, h, down, d, "exp,embed_moe,mlp_moe", false);
    return mx_combine(g, b, &t, mx_name(g, "moe_mlpwo", h));
}

mx_node *mx_shared_expert(mx_graph *g, const mx_build *b, mx_node *x, const char *name,
                          int64_t d_ff, mx_act act, const char *gate)
{
    mx_scope(g, "%s", name);
    mx_node *y = mx_scope_end(g, mx_gated_mlp(g, b, x, d_ff, act, false));
    if (gate)
        y = mx_mul(g, y, mx_sigmoid(g, mx_linear(g, b, x, gate, 1, ",embed", false)));
    return y;
}
