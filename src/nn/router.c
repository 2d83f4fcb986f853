/* router.c - which experts a token goes to, and what keeps their loads even. See moe.h.
 *
 * Losses (over L layers of N tokens; p the softmax of the logits, n_e the entries of expert e):
 *     load balance   E sum_e (mean over layers of n_e / N) (mean over layers and tokens of p_e)
 *     z              mean over layers and tokens of (log sum_e exp(logit_e))^2
 * The first is transformers' own: means are taken over all layers before the product, so one layer
 * may favour what another neglects. The routing of a token that is padding counts like any other.
 *
 * Equal scores: the lower expert first, as top_k says.
 */
#include "nn/moe.h"

#include "ops.h"
#include <math.h>
#include <stdio.h>

mx_node *mx_router_logits(mx_graph *g, const mx_build *b, mx_node *x, const char *name,
                          int64_t experts, bool bias)
{
    int64_t d = x->type.dim[x->type.ndim - 1];
    mx_dtype out = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    mx_scope(g, "%s", name);
    mx_node *w = mx_param(g, "weight", MX_SHAPE(experts, d), ",embed",
                          MX_NORMAL(b->init_scale));
    x = mx_reshape(g, x, MX_SHAPE(b->batch * b->seq, d));
    mx_node *y = mx_matmul_as(g, "nd,ed->ne", x, w, out);
    if (bias)
        y = mx_add(g, y, mx_param(g, "bias", MX_SHAPE(experts), "", MX_ZEROS));
    return mx_scope_end(g, y);
}

/* Scores of experts outside the best groups become -infinity: choice (N, E). */
static mx_node *close_groups(mx_graph *g, mx_node *choice, const mx_gating *c)
{
    int64_t N = choice->type.dim[0], E = choice->type.dim[1], G = c->groups;
    if (E % G || c->open_groups < 1 || c->open_groups > G) {
        mx_graph_fail(g,
                      "%lld of %lld groups of %lld experts: the experts must divide evenly and the "
                      "open groups be some of them",
                      (long long)c->open_groups, (long long)G, (long long)E);
        return choice;
    }
    mx_node *grouped = mx_reshape(g, choice, MX_SHAPE(N, G, E / G));
    mx_node *best = mx_top_k(g, grouped, c->group_best < 1 ? 1 : c->group_best);
    best = mx_reshape(g, mx_row_sum(g, best), MX_SHAPE(N, G));
    mx_node *open = mx_output(g, mx_top_k(g, best, c->open_groups), 1); /* (N, open) */
    mx_dtype t = choice->type.dtype;
    mx_node *ones = mx_constant(g, MX_SHAPE(N, c->open_groups), t, 1);
    mx_node *mask = mx_reshape(g, mx_scatter_last(g, open, ones, G), MX_SHAPE(N, G, 1));
    mx_node *none = mx_constant(g, MX_SCALAR, t, -INFINITY);
    return mx_reshape(g, mx_where(g, mask, grouped, none), MX_SHAPE(N, E));
}

mx_routing mx_route(mx_graph *g, mx_node *logits, mx_node *scores, mx_gating c)
{
    mx_routing r = {.logits = logits, .experts = scores->type.dim[1], .k = c.k,
                    .expert = c.expert};
    bool plain = !c.bias && c.groups <= 1 && !c.expert;
    if (!r.expert) {
        mx_node *choice = c.bias ? mx_add(g, scores, c.bias) : scores;
        if (c.groups > 1)
            choice = close_groups(g, choice, &c);
        r.weight = mx_top_k(g, choice, c.k);
        r.expert = mx_output(g, r.weight, 1);
    }
    if (!plain)
        r.weight = mx_gather_last(g, scores, r.expert);
    if (c.renormalise) /* the small number: sigmoids of very negative logits are 0 */
        r.weight = mx_div(g, r.weight, mx_affine(g, mx_row_sum(g, r.weight), 1, 1e-20));
    if (c.scale != 0 && c.scale != 1)
        r.weight = mx_affine(g, r.weight, c.scale, 0);
    return r;
}

mx_routing mx_route_top(mx_graph *g, mx_node *logits, int64_t k)
{
    mx_node *top = mx_top_k(g, logits, k);
    return (mx_routing){.logits = logits, .experts = logits->type.dim[1], .k = k,
                        .expert = mx_output(g, top, 1), .weight = mx_softmax(g, top)};
}

/* Entries of each expert over the number of tokens, (E); they sum to k. */
static mx_node *load_of(mx_graph *g, mx_routing *r)
{
    int64_t E = r->experts, N = r->expert->type.dim[0];
    mx_dtype t = r->logits->type.dtype;
    if (!r->order)
        r->order = mx_sort_by_expert(g, r->expert, E);
    mx_node *start = mx_cast(g, mx_output(g, r->order, 1), t);
    mx_node *n = mx_sub(g, mx_slice(g, start, 0, 1, E), mx_slice(g, start, 0, 0, E));
    return mx_affine(g, n, 1 / (double)N, 0);
}

static mx_node *token_mean(mx_graph *g, mx_node *x)
{
    mx_node *sum = mx_sum_to(g, x, MX_SHAPE(x->type.dim[1]));
    return mx_affine(g, sum, 1 / (double)x->type.dim[0], 0);
}

static mx_node *log_sum_exp(mx_graph *g, mx_node *x)
{
    mx_node *max = mx_row_max(g, x);
    return mx_add(g, max, mx_log(g, mx_row_sum(g, mx_exp(g, mx_sub(g, x, max)))));
}

static void add_to(mx_graph *g, mx_node **sum, mx_node *x)
{
    *sum = *sum ? mx_add(g, *sum, x) : x;
}

/* The most and the least loaded expert so far, relative to an even load. */
static void enter_extremes(mx_graph *g, mx_router_sums *s, mx_routing *r)
{
    double even = (double)r->k / (double)r->experts;
    mx_node *load = mx_affine(g, load_of(g, r), 1 / even, 0);
    mx_node *most = mx_row_max(g, load);
    mx_node *least = mx_affine(g, mx_row_max(g, mx_affine(g, load, -1, 0)), -1, 0);
    s->most = s->most ? mx_maximum(g, s->most, most) : most;
    s->least = s->least ? mx_minimum(g, s->least, least) : least;
}

/* load_of and token_mean over the tokens that are no padding. */
static void enter_counted(mx_graph *g, mx_build *b, mx_routing *r)
{
    mx_router_sums *s = &b->routers;
    int64_t N = r->expert->type.dim[0], E = r->experts;
    mx_dtype t = r->logits->type.dtype;
    mx_node *zero = mx_constant(g, MX_SCALAR, MX_F32, 0);
    if (!s->there) {
        mx_node *segments = b->segments;
        if (!segments) /* rows of one document each, which padding follows */
            segments = mx_axes("activation_batch,activation_length",
                               mx_input(g, "segments", MX_SHAPE(b->batch, b->seq), MX_I32));
        segments = mx_cast(g, mx_reshape(g, segments, MX_SHAPE(N, 1)), MX_F32);
        s->there = mx_greater(g, segments, zero);
    }
    mx_node *there = mx_cast(g, s->there, t);
    mx_node *ones = mx_broadcast_to(g, mx_constant(g, MX_SCALAR, t, 1), MX_SHAPE(N, r->k));
    mx_node *chosen = mx_scatter_last(g, r->expert, ones, E); /* (N, E) */
    mx_node *n = mx_sum_all(g, s->there);
    n = mx_maximum(g, n, mx_constant(g, MX_SCALAR, MX_F32, 1));
    n = mx_cast(g, n, t);
    mx_node *share = mx_mul(g, mx_softmax(g, r->logits), there);
    add_to(g, &s->load, mx_div(g, mx_sum_to(g, mx_mul(g, chosen, there), MX_SHAPE(E)), n));
    add_to(g, &s->share, mx_div(g, mx_sum_to(g, share, MX_SHAPE(E)), n));
}

void mx_balance(mx_graph *g, mx_build *b, const mx_moe *m, mx_routing *r)
{
    mx_router_sums *s = &b->routers;
    if (b->training)
        enter_extremes(g, s, r);
    if (!(m->balance || b->balances) || b->cache_len)
        return;
    s->n++;
    s->balance_weight = m->balance_weight;
    s->z_weight = m->z_weight;
    if (m->balance_weight > 0 && b->balances) {
        enter_counted(g, b, r);
    } else if (m->balance_weight > 0) {
        add_to(g, &s->load, load_of(g, r));
        add_to(g, &s->share, token_mean(g, mx_softmax(g, r->logits)));
    }
    if (m->z_weight > 0) {
        mx_node *z = log_sum_exp(g, r->logits);
        add_to(g, &s->z, token_mean(g, mx_mul(g, z, z)));
    }
}

void mx_balance_finish(mx_graph *g, mx_build *b)
{
    mx_router_sums *s = &b->routers;
    if (s->load) {
        double E = (double)s->load->type.dim[0], L = (double)s->n;
        mx_node *sum = mx_sum_all(g, mx_mul(g, s->load, s->share));
        sum = mx_affine(g, sum, E / (L * L), 0);
        if (b->training && b->balances)
            mx_graph_root(g, MX_METRIC_ROOT "aux_loss", mx_affine(g, sum, 1, 0));
        sum = mx_affine(g, sum, s->balance_weight, 0);
        mx_add_aux_loss(g, b, MX_METRIC_ROOT "router_balance_loss", sum);
    }
    if (s->z)
        mx_add_aux_loss(g, b, MX_METRIC_ROOT "router_z_loss",
                 mx_affine(g, mx_sum_all(g, s->z), s->z_weight / s->n, 0));
    if (s->most) {
        mx_graph_root(g, MX_METRIC_ROOT "expert_load_max", mx_reshape(g, s->most, MX_SCALAR));
        mx_graph_root(g, MX_METRIC_ROOT "expert_load_min", mx_reshape(g, s->least, MX_SCALAR));
    }
    *s = (mx_router_sums){0};
}

mx_node *mx_router_table(mx_graph *g, const mx_build *b, const char *name, int64_t vocab,
                         const mx_moe *m)
{
    char full[512];
    snprintf(full, sizeof full, "%s.%s", g->scope, name);
    mx_type t = mx_type_of(MX_I32, MX_SHAPE(vocab, m->k));
    mx_var_attr a = {.kind = MX_VAR_WEIGHT, .frozen = true, .init = MX_CHOICE(m->experts, m->k)};
    mx_node *table = mx_graph_find(g, full);
    table = table ? table : mx_variable(g, full, t, a);
    return mx_embed(g, table, mx_reshape(g, b->tokens, MX_SHAPE(b->batch * b->seq)));
}

mx_node *mx_router_bias(mx_graph *g, const char *name, int64_t experts)
{
    mx_node *bias = mx_param(g, name, MX_SHAPE(experts), "", MX_ZEROS);
    mx_freeze(bias);
    return bias;
}

void mx_router_bias_update(mx_graph *g, const mx_build *b, mx_node *bias, mx_routing *r,
                           double rate)
{
    if (rate == 0 || !b->training)
        return;
    mx_var_attr *attr = mx_var_edit(bias);
    if (attr)
        attr->stepped = true;
    mx_dtype t = bias->type.dtype;
    mx_node *even = mx_constant(g, MX_SCALAR, t, (double)r->k / (double)r->experts);
    mx_node *load = mx_cast(g, load_of(g, r), t);
    mx_node *sign = mx_sub(g, mx_greater(g, even, load), mx_greater(g, load, even));
    mx_node *more = mx_constant(g, MX_SCALAR, MX_F32, 0); /* add, do not start a new sum */
    mx_graph_root(g, NULL, mx_accumulate(g, bias, mx_affine(g, sign, rate, 0), more));
}
