/* remat.c - which forward values wait for the backward pass, and which are computed again there.
 *
 * Elementwise results are computed again when all they are made from is kept anyway: it costs
 * nothing inside a fused group and saves the memory (SwiGLU keeps its two projections, not their
 * elementwise product; a norm keeps its input).
 *
 * What else is kept is up to the policy (keys/remat_policies.h); tensors named in `save` or
 * `offload` are kept under every policy (offload.c moves the latter).
 *
 * Under every policy a weight that was gathered over a mesh is gathered again, a quantized weight
 * is dequantized again, and random numbers are drawn again; the experts that a token chose are kept
 * (8 bytes for each of them).
 *
 * A value that is made from one tensor of its size and small ones (a GEMM's result and its bias, a
 * row less its mean) is not kept itself. Its inputs are, and the forward pass writes one tensor
 * less.
 *
 * Stages of a pipeline keep what they receive. A copy is scheduled right before the first backward
 * node that needs it, so only one layer's activations live at a time.
 */
#include "compile/compile.h"

#include "keys/remat_policies.h"
#include "ops.h"
#include <string.h>

typedef enum { KEEP_WRITTEN, KEEP_ALL, KEEP_MATMULS, KEEP_BOUNDARIES } keeping;

typedef struct {
    mx_graph *g;
    keeping keep;
    const char *save, *offload; /* names of tensors that are kept whatever the policy */
    mx_node **copy;  /* of forward node i in the backward pass */
    char *available; /* of forward node i: 0 unknown, 1 yes, 2 no */
    bool *needed;    /* read by a backward node */
    bool *written;   /* of forward node i: read by a forward node that does not fuse with it */
} remat;

static bool elementwise(const mx_node *n)
{
    mx_op_kind k = n->op->kind;
    return (k == MX_ELEMENTWISE && !n->op->costly) || k == MX_ROW_MAP;
}

static bool is_source(const mx_node *n)
{
    return n->op->kind == MX_SOURCE;
}

static bool is_named(const remat *r, const mx_node *n)
{
    return n->name && (mx_glob_any(r->save, n->name) || mx_glob_any(r->offload, n->name));
}

static mx_node *through_views(mx_node *x)
{
    while (x && x->op->kind == MX_VIEW)
        x = x->in[0];
    return x;
}

/* Concatenated weights (merge.c): copied again rather than kept from pass to pass. */
static bool concats_weights(const mx_node *n)
{
    if (n->op != &mx_op_concat)
        return false;
    for (int i = 0; i < n->n_in; i++) {
        const mx_node *w = n->in[i]->op == &mx_op_vary ? n->in[i]->in[0] : n->in[i];
        if (!is_source(w->op == &mx_op_cast ? w->in[0] : w))
            return false;
    }
    return true;
}

/* A weight gathered over ranks, or the numbers of one that lies in codes or is rounded to
 * them, or random numbers. It is made again for the backward pass, whatever the policy
 * ("reshard after forward"): kept, it would be a copy of the model on every rank. */
static bool is_made_again(const mx_node *n)
{
    if (n->op->kind == MX_VIEW)
        return is_made_again(n->in[0]);
    if (n->op == &mx_op_dequantize || n->op == &mx_op_random_uniform)
        return true;
    if (n->op == &mx_op_output)
        return is_made_again(n->in[0]);
    if (n->op == &mx_op_quantize) /* of a gathered weight */
        return is_made_again(n->in[0]);
    if (n->op == &mx_op_fake_quantize) /* of a weight */
        return is_source(through_views(n->in[0])) || is_made_again(n->in[0]);
    return n->op == &mx_op_all_gather &&
           (is_source(through_views(n->in[0])) || is_made_again(n->in[0]) ||
            concats_weights(n->in[0]));
}

/* Is the value there in the backward pass without being kept for its own sake? */
static bool available(remat *r, const mx_node *n)
{
    if (is_source(n) || r->needed[n->id] || is_made_again(n))
        return true;
    if (!r->available[n->id]) {
        bool yes = elementwise(n) || n->op->kind == MX_VIEW || n->op->kind == MX_PROJECT;
        if (n->op->kind == MX_ROW_REDUCE)
            yes = false; /* small: kept rather than computed again */
        for (int i = 0; i < n->n_in && yes; i++)
            yes = !n->in[i] || available(r, n->in[i]);
        r->available[n->id] = yes ? 1 : 2;
    }
    return r->available[n->id] == 1;
}

/* A model's own split is a copy on devices without strided views, and kept rather than made twice.
 * One that stands for several matmuls (merge.c) is computed again where they would be. */
static bool is_models_split(const mx_node *n)
{
    if (n->op != &mx_op_split || n->in[0]->op != &mx_op_matmul)
        return n->op == &mx_op_split;
    const mx_node *w = n->in[0]->in[1];
    return !concats_weights(w->op == &mx_op_all_gather ? w->in[0] : w);
}

/* The experts of a token. In bfloat16 scores that are computed again differ in their last bits from
 * the first ones, since other nodes are fused: where two are as good as equal the backward pass
 * would go through another expert than the forward pass did. */
static bool is_choice(const mx_node *n)
{
    return n->op == &mx_op_top_k;
}

/* Should this forward value be kept? `user` is the node on whose behalf we ask. */
static bool kept(remat *r, const mx_node *n, const mx_node *user)
{
    if (is_source(n) || is_models_split(n) || is_named(r, n) || n->stage != user->stage ||
        is_choice(n))
        return true;
    if (is_made_again(n) || concats_weights(n))
        return false;
    if (r->keep == KEEP_WRITTEN && elementwise(n) && r->written[n->id])
        return true;
    if (elementwise(n) || n->op->kind == MX_VIEW || n->op->kind == MX_PROJECT) {
        bool cheap = true;
        for (int i = 0; i < n->n_in && cheap; i++)
            cheap = !n->in[i] || available(r, n->in[i]);
        if (cheap && (r->keep != KEEP_BOUNDARIES || mx_same_layer(n, user)))
            return false;
    }
    switch (r->keep) {
    case KEEP_WRITTEN:
    case KEEP_ALL:
        return true;
    case KEEP_MATMULS:
        return !mx_same_layer(n, user) || n->op->kind == MX_PLAIN;
    case KEEP_BOUNDARIES:
        return !mx_same_layer(n, user);
    }
    return true;
}

static mx_node *again(remat *r, mx_node *n, mx_node *user, int seq)
{
    if (kept(r, n, user))
        return n;
    if (!r->copy[n->id]) {
        mx_node *in[MX_MAX_IN];
        for (int i = 0; i < n->n_in; i++)
            in[i] = n->in[i] ? again(r, n->in[i], n, seq) : NULL;
        const char *scope = r->g->scope;
        r->g->scope = n->scope;
        r->g->stage = n->stage;
        r->g->seq = seq;
        mx_node *c = mx_apply_n(r->g, n->op, n->attr, n->n_in, in, n->n_out);
        r->g->seq = -1;
        r->g->scope = scope;
        r->g->stage = 0;
        c->recomputed = true;
        r->copy[n->id] = c;
    }
    return r->copy[n->id];
}

static const struct {
    const char *name;
    keeping keep;
    const char *save, *offload;
} policy[] = {
#define ROW(name, keep, save, offload) {name, KEEP_##keep, save, offload},
    MX_REMAT_POLICIES(ROW){"custom", KEEP_BOUNDARIES, "", ""}};

static int find_policy(const char *name)
{
    int i = (int)(sizeof policy / sizeof *policy) - 1;
    while (i >= 0 && strcmp(name, policy[i].name) != 0)
        i--;
    return i;
}

bool mx_remat_find(const char *name, mx_remat *out)
{
    int i = find_policy(name);
    if (i >= 0)
        *out = (mx_remat){policy[i].name, policy[i].save, policy[i].offload};
    return i >= 0;
}

bool mx_remat_keeps_gemm(mx_remat how, const mx_node *gemm)
{
    remat r = {.save = how.save, .offload = how.offload};
    int i = find_policy(how.policy);
    return i < 0 || policy[i].keep != KEEP_BOUNDARIES || is_named(&r, gemm);
}

static mx_status parse(mx_remat how, remat *r)
{
    r->save = how.save;
    r->offload = how.offload;
    int i = find_policy(how.policy);
    if (i < 0)
        return mx_fail(MX_USAGE, "remat_policy=%s is not known; use one of " MX_REMAT_CHOICES,
                       how.policy);
    r->keep = policy[i].keep;
    return MX_OK;
}

/* Keeps what n is made from instead of n, where that is no more to keep: numbers per row, and at
 * most one tensor of n's size. */
static bool keep_what_makes(remat *r, const mx_node *n)
{
    mx_node *keep[MX_MAX_IN];
    size_t size = mx_type_bytes(&n->type);
    int n_keep = 0, n_large = 0;
    for (int i = 0; i < n->n_in; i++) {
        mx_node *x = through_views(n->in[i]);
        if (!x || available(r, x)) {
            n_large += x && !is_source(x) && 8 * mx_type_bytes(&x->type) > size;
            continue;
        }
        bool large = 8 * mx_type_bytes(&x->type) > size;
        if (mx_type_bytes(&x->type) > size)
            return false;
        n_large += large;
        keep[n_keep++] = x;
    }
    for (int i = 0; i < n_keep && n_large < 2; i++)
        r->needed[keep[i]->id] = true;
    return n_large < 2;
}

/* Which forward values does the backward pass read, and which has the forward pass written? */
static void find_uses(remat *r, mx_node *const *order, int n, bool *used)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < order[i]->n_in; k++) {
            mx_node *x = through_views(order[i]->in[k]);
            mx_op_kind kind = order[i]->op->kind;
            if (!x || x->backward || kind == MX_VIEW)
                continue;
            if (order[i]->backward)
                used[x->id] = true;
            else if (order[i]->stage != x->stage) /* what another stage sends is there */
                r->needed[x->id] = true;
            else if (kind == MX_PLAIN)
                r->written[x->id] = true;
        }
    for (int i = 0; i < n; i++)
        if (used[order[i]->id] && !elementwise(order[i]) && !is_made_again(order[i]))
            r->needed[order[i]->id] = true;
    /* An elementwise value that is used and cannot be made from kept ones is kept itself; in the
     * order of execution, so that what is made from it can rely on it. */
    for (int i = 0; i < n; i++) {
        mx_node *x = order[i];
        if (!used[x->id] || !elementwise(x) || available(r, x))
            continue;
        if (!keep_what_makes(r, x))
            r->needed[x->id] = true;
        r->available[x->id] = 0;
    }
}

/* The tensors of the layers, as a list. */
static void names_of_layers(mx_node *const *order, int n, mx_str *out)
{
    for (int i = 0; i < n; i++)
        if (order[i]->name && !is_source(order[i]) && mx_scope_layer(order[i]->scope) &&
            !mx_glob_any(mx_str_text(out), order[i]->name))
            mx_str_addf(out, "%s%s", out->len ? "," : "", order[i]->name);
}

static bool is_there(mx_node *const *order, int n, const char *name)
{
    bool found = strcmp(name, "decoder_layer_input") == 0;
    for (int i = 0; i < n && !found; i++)
        found = order[i]->name && mx_glob_any(name, order[i]->name);
    return found;
}

/* Names of remat_policy=custom that fit nothing are an error: they are another model's. A policy of
 * the table names the tensors of all models. */
static mx_status check_names(mx_remat how, mx_node *const *order, int n)
{
    mx_arena a = {0};
    mx_str there = {0};
    mx_status st = MX_OK;
    bool custom = strcmp(how.policy, "custom") == 0;
    const char *lists[] = {how.save, how.offload};
    for (int i = 0; i < 2 && custom; i++)
        for (const char *p = lists[i] ? lists[i] : ""; *p && !st; p += *p == ',') {
            const char *name = mx_arena_printf(&a, "%.*s", (int)strcspn(p, ","), p);
            p += strlen(name);
            if (is_there(order, n, name))
                continue;
            names_of_layers(order, n, &there);
            st = mx_fail(MX_USAGE,
                         "remat_policy=custom: %s=%s, but this model has no tensor called %s; it "
                         "has %s. Leave it out or name one of those",
                         name, i ? "offload" : "device", name, mx_str_text(&there));
        }
    mx_str_fini(&there);
    mx_arena_fini(&a);
    return st;
}

mx_status mx_pass_remat(mx_graph *g, mx_remat how)
{
    mx_arena scratch = {0};
    remat r = {.g = g};
    MX_TRY(parse(how, &r));
    r.copy = MX_NEW_N(&scratch, mx_node *, g->n_nodes);
    r.available = MX_NEW_N(&scratch, char, g->n_nodes);
    r.needed = MX_NEW_N(&scratch, bool, g->n_nodes);
    r.written = MX_NEW_N(&scratch, bool, g->n_nodes);
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    mx_status st = check_names(how, order, n);
    if (st) {
        mx_arena_fini(&scratch);
        return st;
    }
    for (int i = 0; i < n; i++)
        order[i]->seq = i;
    find_uses(&r, order, n, MX_NEW_N(&scratch, bool, g->n_nodes));
    for (int i = 0; i < n; i++)
        for (int k = 0; order[i]->backward && k < order[i]->n_in; k++) {
            mx_node *x = order[i]->in[k];
            if (x && !x->backward)
                order[i]->in[k] = again(&r, x, order[i], order[i]->seq);
        }
    mx_arena_fini(&scratch);
    return MX_OK;
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    return mx_pass_remat(g, c->remat);
}

const mx_compile_pass mx_compile_pass_remat = {
    .name = "remat",
    .doc = "which forward values the backward pass keeps, which it computes again",
    .after = "optimizer",
    .programs = MX_IN_TRAINING,
    .run = run,
};
