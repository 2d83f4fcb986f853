/* profile.c - see profile.h. */
#include "plan/profile.h"

#include "compile/mesh/axis_rules.h"
#include "ops.h"
#include "ops/quantize.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Is its time arithmetic, and not bytes that come and go? GEMMs, attention, recurrences. */
static bool multiplies(const mx_node *n)
{
    mx_cost c = mx_node_cost(n);
    return n->op->kind == MX_PLAIN && c.flops > 4 * c.bytes;
}

/* ---- the forward graph ---- */

typedef struct {
    mx_profile_work work[MX_MAX_LAYERS];
    const mx_node *read[MX_MAX_LAYERS][MX_PROFILE_GEMMS]; /* the input of each GEMM */
    mx_axis_rules rules;
    double tokens;
} walk;

/* The number of the layer that a scope lies in; -1: none. */
static int layer_of(const char *scope)
{
    size_t end = mx_scope_layer(scope), at = end;
    while (at > 0 && scope[at - 1] != '.')
        at--;
    int64_t l = end ? strtol(scope + at, NULL, 10) : -1;
    return l < MX_MAX_LAYERS ? (int)l : -1;
}

/* The variable that a value is, behind views and casts; NULL: it is none. */
static const mx_node *weight_of(const mx_node *n)
{
    while (n && (n->op->kind == MX_VIEW || n->op == &mx_op_cast))
        n = n->in[0];
    return n && n->op == &mx_op_variable ? n : NULL;
}

/* Does the tensor axis cut dims of this logical name ("heads*128", "mlp")? */
static bool is_cut(const walk *w, const char *name, size_t n)
{
    n = n < strcspn(name, "*(") ? n : strcspn(name, "*(");
    for (int i = 0; i < w->rules.n; i++) {
        const mx_axis_rule *r = &w->rules.rule[i];
        if (strlen(r->name) == n && memcmp(r->name, name, n) == 0)
            return r->axes >> MX_AXIS_TENSOR & 1;
    }
    return false;
}

/* Bit d: the tensor axis cuts dim d of the weight. */
static unsigned cut_dims(const walk *w, const mx_node *weight)
{
    unsigned cut = 0;
    const char *s = weight->axes ? weight->axes : "";
    for (int d = 0; d < weight->type.ndim; d++) {
        size_t n = strcspn(s, ",");
        cut |= is_cut(w, s, n) ? 1u << d : 0;
        s += n + (s[n] == ',');
    }
    return cut;
}

static double last_dim(const mx_type *t)
{
    return t->ndim ? (double)t->dim[t->ndim - 1] : 1;
}

/* Which dim of a matrix is the GEMM's n, when the other is k. */
static mx_gemm_cut cut_of(const walk *w, const mx_node *weight, double n, bool n_first)
{
    unsigned cut = cut_dims(w, weight);
    int d = weight->type.ndim;
    if (d < 2 || !cut)
        return MX_GEMM_WHOLE;
    const int64_t *dim = weight->type.dim + (d - 2);
    cut >>= d - 2;
    int at = dim[0] == dim[1] ? !n_first : (double)dim[1] == n;
    return cut >> at & 1 ? MX_GEMM_COLUMN : MX_GEMM_ROW;
}

static void add_gemm(walk *w, int layer, const mx_node *input, mx_profile_gemm g)
{
    mx_profile_work *work = &w->work[layer];
    for (int i = 0; i < work->n_gemm; i++) {
        mx_profile_gemm *have = &work->gemm[i];
        if (w->read[layer][i] == input && have->cut == g.cut && have->experts == g.experts &&
            have->k == g.k && g.cut != MX_GEMM_ROW && g.experts == 0) {
            have->n += g.n;
            return;
        }
    }
    if (work->n_gemm == MX_PROFILE_GEMMS)
        return;
    w->read[layer][work->n_gemm] = input;
    work->gemm[work->n_gemm++] = g;
}

static void see_matmul(walk *w, int layer, const mx_node *n)
{
    const mx_node *weight = weight_of(n->in[1]), *input = n->in[0];
    double flops = mx_node_cost(n).flops / w->tokens;
    double out = (double)mx_type_count(&n->type) / w->tokens;
    mx_profile_gemm g = {.rows = 1, .n = out, .k = flops / (2 * out)};
    if (weight && weight->type.ndim == 2 && weight->axes)
        g.cut = cut_of(w, weight, out, true);
    while (input->op->kind == MX_VIEW)
        input = input->in[0];
    add_gemm(w, layer, input, g);
}

static void see_grouped(walk *w, int layer, const mx_node *n)
{
    const mx_node *weight = weight_of(n->in[1]);
    if (!weight || weight->type.ndim != 3)
        return;
    double rows = (double)n->type.dim[0] / w->tokens, out = last_dim(&n->type);
    double k = (double)weight->type.dim[1] * (double)weight->type.dim[2] / out;
    mx_profile_gemm g = {.rows = rows, .n = out, .k = k, .experts = (double)weight->type.dim[0]};
    g.cut = cut_of(w, weight, out, true);
    w->work[layer].top_k = rows;
    w->work[layer].experts = g.experts;
    add_gemm(w, layer, n->in[0], g);
}

static void see_attention(walk *w, int layer, const mx_node *n)
{
    mx_profile_work *work = &w->work[layer];
    const mx_type *q = &n->in[0]->type, *k = &n->in[1]->type, *v = &n->in[2]->type;
    mx_profile_attention a = {.heads = (double)q->dim[2],
                              .kv_heads = (double)k->dim[2],
                              .d_qk = (double)q->dim[3],
                              .d_v = (double)v->dim[3],
                              .flops = mx_node_cost(n).flops / w->tokens};
    a.keys = a.flops / (2 * a.heads * (a.d_qk + a.d_v));
    if (work->n_attention < MX_PROFILE_ATTENTIONS)
        work->attention[work->n_attention++] = a;
}

static void see_variable(walk *w, mx_profile *p, int layer, const mx_node *n)
{
    const mx_var_attr *v = n->attr;
    if (v->kind != MX_VAR_WEIGHT)
        return;
    double size = (double)mx_type_count(&n->type);
    bool expert = n->axes && mx_starts_with(n->axes, "exp");
    p->parameters += size;
    if (layer < 0)
        return;
    mx_profile_work *work = &w->work[layer];
    *(expert                ? &work->weights_expert
      : cut_dims(w, n) != 0 ? &work->weights_cut
                            : &work->weights_whole) += size;
}

static void see(walk *w, mx_profile *p, const mx_node *n)
{
    int layer = layer_of(n->scope);
    if (n->op == &mx_op_variable)
        see_variable(w, p, layer, n);
    if (layer < 0)
        return;
    p->n_layers = layer + 1 > p->n_layers ? layer + 1 : p->n_layers;
    if (n->op == &mx_op_matmul)
        see_matmul(w, layer, n);
    else if (n->op == &mx_op_grouped_matmul)
        see_grouped(w, layer, n);
    else if (n->op == &mx_op_attention)
        see_attention(w, layer, n);
    else if (multiplies(n)) {
        mx_cost c = mx_node_cost(n);
        w->work[layer].recurrent_flops += c.flops / w->tokens;
        w->work[layer].recurrent_bytes += c.bytes / 2 / w->tokens; /* built in float32 */
    }
}

static mx_status name_kinds(mx_profile *p, const walk *w)
{
    for (int l = 0; l < p->n_layers; l++) {
        int k = 0;
        while (k < p->n_kinds && memcmp(&p->kind[k].work, &w->work[l], sizeof w->work[l]) != 0)
            k++;
        if (k == MX_PROFILE_KINDS)
            return mx_fail(MX_USAGE,
                           "the model has layers of more than %d kinds, which a plan for "
                           "a mesh cannot take",
                           MX_PROFILE_KINDS);
        if (k == p->n_kinds)
            p->kind[p->n_kinds++].work = w->work[l];
        p->kind[k].layers++;
        p->of[l] = (unsigned char)k;
    }
    return MX_OK;
}

mx_status mx_profile_model(mx_profile *p, const mx_model_spec *m, int64_t length)
{
    mx_arena arena = {0};
    mx_graph g;
    mx_build b;
    walk *w = MX_NEW(&arena, walk);
    *p = (mx_profile){.width = (double)m->summary.d_model,
                      .vocab = (double)m->summary.vocab,
                      .length = (double)length,
                      .tied = m->summary.tied};
    mx_graph_init(&g);
    w->tokens = (double)length;
    mx_axis_rules_init(&w->rules);
    mx_head head =
        mx_model_build(&g, m, (mx_model_shape){.batch = 1, .seq = length, .training = true}, &b);
    mx_status st = mx_graph_check(&g);
    for (int i = 0; i < g.n_nodes && !st; i++)
        see(w, p, g.node[i]);
    if (!st) {
        p->head = (double)mx_type_count(&head.weight->type);
        p->embedding = p->vocab * p->width;
        st = name_kinds(p, w);
    }
    mx_axis_rules_fini(&w->rules);
    mx_graph_fini(&g);
    mx_arena_fini(&arena);
    return st;
}

double mx_profile_flops(const mx_profile *p)
{
    double sum = 2 * p->head;
    for (int k = 0; k < p->n_kinds; k++) {
        const mx_profile_work *w = &p->kind[k].work;
        double layer = w->recurrent_flops;
        for (int i = 0; i < w->n_gemm; i++)
            layer += 2 * w->gemm[i].rows * w->gemm[i].n * w->gemm[i].k;
        for (int i = 0; i < w->n_attention; i++)
            layer += w->attention[i].flops;
        sum += layer * p->kind[k].layers;
    }
    return sum;
}

/* ---- a compiled program ---- */

typedef struct {
    mx_profile_passes layer[MX_MAX_LAYERS], ends;
    double again[MX_MAX_LAYERS][2], forward[MX_MAX_LAYERS][2]; /* FLOPs of GEMMs, attention */
    double narrow[MX_MAX_LAYERS][2]; /* FLOPs of GEMMs of 8-bit numbers, dense and of experts */
} sums;

/* Of 8-bit numbers, in the forward pass? */
static void see_narrow(sums *s, int layer, const mx_node *n)
{
    bool experts = mx_starts_with(n->op->name, "grouped");
    if (layer >= 0 && n->n_in && n->in[0] && mx_dtype_bytes(n->in[0]->type.dtype) == 1)
        s->narrow[layer][experts] += mx_node_cost(n).flops;
}

/* Is the value as large as a weight and not as a sequence? Sums of gradients are. */
static bool of_weights(const mx_node *n)
{
    return n->op->alias[0] > 0 || n->op == &mx_op_embed_grad;
}

/* A weight, or several put together? */
static bool is_weights(const mx_node *n)
{
    bool all = n->op == &mx_op_concat;
    for (int i = 0; i < n->n_in && all; i++)
        all = is_weights(n->in[i]);
    return all || weight_of(n) != NULL;
}

/* Does it read weights, and give as many numbers? Quantized and merged weights are made so. */
static bool from_weight(const mx_node *n)
{
    if (!n->n_in || !n->in[0] || !is_weights(n->in[0]))
        return false;
    return mx_type_count(&n->in[0]->type) == mx_type_count(&n->type) || is_weights(n);
}

static double bytes_in(const mx_node *n)
{
    double sum = 0;
    for (int i = 0; i < n->n_in; i++)
        sum += n->in[i] ? (double)mx_type_bytes(&n->in[i]->type) : 0;
    return sum;
}

static double bytes_out(const mx_node *n)
{
    double sum = 0;
    for (int k = 0; k < n->n_out; k++)
        sum += (double)mx_type_bytes(mx_node_type(n, k));
    return sum;
}

/* What quantizing reads a second time: a tensor whose scales have to be known first. */
static double bytes_again(const mx_node *n)
{
    double once = bytes_in(n) + bytes_out(n);
    return n->op == &mx_op_quantize ? fmax(0, mx_node_cost(n).bytes - once) : 0;
}

/* Numbers that are rounded with random bits of their own: arithmetic, and not only bytes. */
static void see_random(const mx_profile *p, mx_profile_passes *s, const mx_node *n, int pass)
{
    const mx_quantize_attr *a = n->attr;
    if (n->op != &mx_op_quantize || !a->stochastic)
        return;
    s->random[pass] += (double)mx_type_count(&n->type) / p->tokens;
    s->random_stream[pass] += (bytes_in(n) + bytes_out(n)) / p->tokens;
}

/* What one node launches. A tile that is quantized on the way: a memset and a kernel; else two and
 * three, for the largest magnitudes, the factors and the codes (quantize.cu). */
static double launches(const mx_node *n)
{
    if (n->op != &mx_op_quantize)
        return 1;
    return n->n_in == 1 && bytes_again(n) == 0 ? 2 : 5;
}

static void see_stream(const mx_profile *p, mx_profile_passes *s, const mx_node *n, int pass)
{
    if (of_weights(n))
        return;
    s->kernels[pass] += launches(n);
    if (from_weight(n)) {
        s->weight_stream[pass] += bytes_in(n) + bytes_out(n) + bytes_again(n);
        return;
    }
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && !weight_of(n->in[i]))
            s->stream[pass] += (double)mx_type_bytes(&n->in[i]->type) / p->tokens;
    s->stream[pass] += (bytes_out(n) + bytes_again(n)) / p->tokens;
    see_random(p, s, n, pass);
}

/* Where the forward pass ends: at the loss. */
static int find_loss(const mx_program *program)
{
    for (int i = 0; i < program->n; i++)
        if (mx_starts_with(program->order[i]->op->name, "linear_xent"))
            return i;
    return program->n;
}

/* Of rows that were copied to their experts? */
static bool is_expert_rows(const mx_profile *p, int layer, const mx_type *t)
{
    double top_k = layer < 0 ? 0 : p->kind[p->of[layer]].work.top_k;
    return top_k > 0 && t->ndim == 2 && (double)t->dim[0] == top_k * p->tokens;
}

static void see_saved(const mx_profile *p, mx_profile_passes *s, const mx_program *program,
                      const mx_node *n, int loss)
{
    int layer = layer_of(n->scope);
    for (int k = 0; k < n->n_out; k++) {
        const mx_place *q = mx_program_place(program, n, k);
        const mx_type *t = mx_node_type(n, k);
        bool own = q->root == n && q->out == k && q->offset >= 0 && !q->hosted;
        if (!own || q->first >= loss || q->last <= loss || n->op->kind == MX_SOURCE)
            continue;
        if (from_weight(n)) {
            s->weight_saved += (double)mx_type_bytes(t);
            continue;
        }
        s->saved += (double)mx_type_bytes(t) / p->tokens;
        if (is_expert_rows(p, layer, t))
            s->saved_rows += (double)mx_type_bytes(t) / p->tokens;
    }
}

static void divide(mx_profile_passes *s, double by)
{
    double *v = (double *)s;
    for (size_t i = 0; i < sizeof *s / sizeof *v; i++)
        v[i] /= by;
}

static void add_passes(mx_profile_passes *to, const mx_profile_passes *from)
{
    double *a = (double *)to;
    const double *b = (const double *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
        a[i] += b[i];
}

/* FLOPs of a layer's GEMMs in the program, forward. */
static double gemm_flops(const mx_profile *p, int layer, bool experts)
{
    const mx_profile_work *w = &p->kind[p->of[layer]].work;
    double sum = 0;
    for (int i = 0; i < w->n_gemm; i++)
        if ((w->gemm[i].experts > 0) == experts)
            sum += 2 * w->gemm[i].rows * w->gemm[i].n * w->gemm[i].k * p->tokens;
    return sum;
}

/* The rank of the program's adapters; 0: none. */
static double adapter_rank(const mx_program *program)
{
    double rank = 0;
    for (int i = 0; i < program->n; i++) {
        const mx_node *n = program->order[i];
        const char *at = n->op == &mx_op_variable && n->name ? strstr(n->name, ".lora_A.") : NULL;
        rank = at ? fmax(rank, (double)n->type.dim[0]) : rank;
    }
    return rank;
}

/* A GEMM of an adapter does less for each number it reads than the rank: its time is bytes. */
static bool of_adapter(const mx_node *n, double rank)
{
    double numbers = (double)mx_type_count(&n->type);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && !weight_of(n->in[i]))
            numbers += (double)mx_type_count(&n->in[i]->type);
    return n->op == &mx_op_matmul && mx_node_cost(n).flops < 2 * rank * numbers;
}

/* What layers of a kind have on average: the first and the last differ a little. */
static double share_out(mx_profile *p, sums *s)
{
    double saved = 0;
    for (int k = 0; k < p->n_kinds; k++)
        p->kind[k].passes = (mx_profile_passes){0};
    for (int l = 0; l < p->n_layers; l++) {
        for (int i = 0; i < 2; i++)
            s->layer[l].again[i] = s->forward[l][i] > 0 ? s->again[l][i] / s->forward[l][i] : 0;
        for (int i = 0; i < 2; i++) {
            double all = gemm_flops(p, l, i);
            s->layer[l].narrow[i] = all > 0 ? fmin(1, s->narrow[l][i] / all) : 0;
        }
        add_passes(&p->kind[p->of[l]].passes, &s->layer[l]);
        saved += s->layer[l].saved + s->layer[l].weight_saved / p->tokens;
    }
    for (int k = 0; k < p->n_kinds; k++)
        divide(&p->kind[k].passes, p->kind[k].layers);
    p->ends = s->ends;
    return saved + s->ends.saved;
}

void mx_profile_program(mx_profile *p, const mx_program *program, int64_t sequences)
{
    mx_arena arena = {0};
    p->tokens = (double)sequences * p->length;
    sums *s = MX_NEW(&arena, sums);
    int loss = find_loss(program);
    double rank = adapter_rank(program);
    for (int i = 0; i < program->n; i++) {
        const mx_node *n = program->order[i];
        int l = layer_of(n->scope), pass = i > loss;
        mx_profile_passes *to = l < 0 ? &s->ends : &s->layer[l];
        see_saved(p, to, program, n, loss);
        if (!mx_program_runs(program, n))
            continue;
        bool attention = n->op == &mx_op_attention;
        if (l >= 0 && multiplies(n) && (n->recomputed || !pass))
            (n->recomputed ? s->again : s->forward)[l][attention] += mx_node_cost(n).flops;
        if (!pass && !n->recomputed)
            see_narrow(s, l, n);
        if (multiplies(n) && !of_adapter(n, rank))
            to->kernels[pass] += 1;
        else
            see_stream(p, to, n, pass);
    }
    double saved = share_out(p, s);
    double rest = (program->bytes.activations + program->bytes.workspace) / p->tokens - saved;
    p->working = rest > 0 ? rest : 0;
    mx_arena_fini(&arena);
}
