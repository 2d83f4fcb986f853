/* mixture.c - see mixture.h. */
#include "models/mixture.h"

#include "ops.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

mx_status mx_check_moe(const mx_moe *m)
{
    if (m->experts < 1)
        return mx_fail(MX_INPUT, "the number of experts is %lld, expected at least 1",
                       (long long)m->experts);
    if (m->k < 1 || m->k > m->experts)
        return mx_fail(MX_INPUT, "a token goes to %lld of %lld experts; expected 1 to %lld",
                       (long long)m->k, (long long)m->experts, (long long)m->experts);
    if (m->d_ff < 1)
        return mx_fail(MX_INPUT, "the hidden size of an expert is %lld, expected 1 or more",
                       (long long)m->d_ff);
    return MX_OK;
}

bool mx_is_dense(const mx_moe *m, const mx_sparse_layers *s, int64_t l)
{
    for (int i = 0; i < s->dense.n; i++)
        if (s->dense.v[i] == l)
            return true;
    return m->experts == 0 || (l + 1) % s->step != 0;
}

mx_node *mx_qwen_experts(mx_graph *g, mx_build *b, const mx_moe *m, mx_node *x, mx_act act)
{
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_gating choice = {.k = m->k, .renormalise = m->renormalise};
    mx_routing r = mx_route(g, logits, mx_softmax(g, logits), choice);
    mx_balance(g, b, m, &r);
    mx_expert_names names = {"gate_proj", "up_proj", "down_proj"};
    return mx_expert_mlp(g, b, x, &r, m, names, act);
}

mx_status mx_check_groups(const mx_moe *m, int64_t groups, int64_t open)
{
    if (groups > 1 && (m->experts % groups || open < 1 || open > groups ||
                       open * (m->experts / groups) < m->k))
        return mx_fail(MX_INPUT, "%lld of %lld groups of %lld experts for %lld choices: the groups "
                       "must divide the experts, and the open ones hold enough of them",
                       (long long)open, (long long)groups, (long long)m->experts, (long long)m->k);
    return MX_OK;
}

/* NAME = PREFIX MIDDLE REST: the length of the prefix, or -1. */
static int before(const char *name, const char *middle)
{
    const char *at = strstr(name, middle);
    return at ? (int)(at - name) : -1;
}

int mx_fused_experts(const char *name, const mx_type *type, mx_weight_part *out)
{
    static const struct {
        const char *single, *joined;
        int half; /* 0: gate, 1: up, -1: all */
    } rows[] = {
        {".gate_proj.weight", "gate_up_proj", 0}, {".w1.weight", "gate_up_proj", 0},
        {".up_proj.weight", "gate_up_proj", 1},   {".w3.weight", "gate_up_proj", 1},
        {".down_proj.weight", "down_proj", -1},   {".w2.weight", "down_proj", -1},
    };
    static const char middle[] = ".experts.*";
    int n = before(name, middle);
    if (n < 0 || type->ndim != 3)
        return 0;
    const char *rest = name + n + sizeof middle - 1;
    /* Mixtral's block is called mlp where its experts are stacked. */
    static const char block[] = ".block_sparse_moe";
    int old = (int)sizeof block - 1, stem = n - old;
    bool renamed = stem > 0 && memcmp(name + stem, block, (size_t)old) == 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rest, rows[i].single) != 0)
            continue;
        int64_t f = type->dim[1];
        int half = rows[i].half;
        *out = (mx_weight_part){.cut = 1, .of = half < 0 ? f : 2 * f, .from = half > 0 ? f : 0,
                                .count = f};
        snprintf(out->name, sizeof out->name, "%.*s%s.experts.%s", renamed ? stem : n, name,
                 renamed ? ".mlp" : "", rows[i].joined);
        return 1;
    }
    return 0;
}

static int single(const char *name, const mx_type *type, mx_weight_part *out, bool transposed)
{
    static const char *const one[] = {"down_proj"}, *const two[] = {"gate_proj", "up_proj"};
    static const char middle[] = ".experts.";
    int n = before(name, middle);
    if (n < 0 || type->ndim != 3)
        return 0;
    const char *rest = name + n + sizeof middle - 1;
    bool both = strcmp(rest, "gate_up_proj") == 0;
    if (!both && strcmp(rest, "down_proj") != 0)
        return 0;
    int n_parts = both ? 2 : 1, cut = transposed ? 2 : 1;
    int64_t f = type->dim[cut] / n_parts;
    for (int i = 0; i < n_parts; i++) {
        out[i] = (mx_weight_part){.transposed = transposed, .cut = cut, .of = f, .to = i * f,
                                  .count = f};
        snprintf(out[i].name, sizeof out[i].name, "%.*s.experts.*.%s.weight", n, name,
                 (both ? two : one)[i]);
    }
    return n_parts;
}

int mx_separate_experts(const char *name, const mx_type *type, mx_weight_part *out)
{
    return single(name, type, out, false);
}

int mx_separate_experts_transposed(const char *name, const mx_type *type, mx_weight_part *out)
{
    return single(name, type, out, true);
}
