/* calibrate.c - see calibrate.h.
 *
 * The graph of the model is walked for the tensors that matrices read; each becomes a root of its
 * sum of squares (d, d), or of its largest magnitudes (d), which are added up over the windows of
 * the text. Both walks find the same tensors in the same order, so that a number names one. A round
 * of GPTQ begins where the one before it stopped (held.h).
 */
#include "train/check/calibrate.h"

#include "compile/quantize.h"
#include "compile/uses.h"
#include "exec/step.h"
#include "ops.h"
#include "store/gptq.h"
#include "train/check/held.h"
#include "train/check/smooth.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A tensor that matrices read. */
typedef struct {
    int64_t n; /* of its last dim */
    const char **weight;
    int n_weights;
    float *sums; /* (n, n) or (n) */
    mx_smooth_source source;
} input;

typedef struct {
    const mx_calibrate_of *of;
    mx_calibrated *out;
    input *in;
    int n, cap;
    int first, end; /* those whose sums are roots of the graph */
    mx_held was, now; /* gptq: between rounds */
} inputs;

/* --- the graph --- */

static mx_node *sums_of(mx_graph *g, mx_node *x, mx_calibrate_method method)
{
    int64_t n = x->type.dim[x->type.ndim - 1];
    if (method == MX_CALIBRATE_GPTQ)
        return mx_matmul_as(g, "*a,*b->ab", x, x, MX_F32);
    mx_node *magnitude = mx_maximum(g, x, mx_affine(g, x, -1, 0));
    mx_node *rows = mx_reshape(g, magnitude, MX_SHAPE(mx_type_count(&x->type) / n, n));
    return mx_row_max(g, mx_transpose(g, rows, "td->dt"));
}

const mx_node *mx_calibrate_weight(const mx_node *n, const mx_calibrate_of *of)
{
    bool in_out = false;
    const mx_node *w = mx_weight_of_matmul(n, &in_out);
    if (w ? w != n->in[1] || in_out : !(w = mx_weight_by_heads(n)))
        return NULL;
    return mx_quant_wanted(of->write, w->name, w->type.ndim, w->type.dim) ? w : NULL;
}

static void enter(inputs *all, const mx_node *x, const mx_node *w, int *index_of)
{
    mx_arena *a = &all->out->arena;
    int *at = &index_of[x->id];
    if (!*at) {
        MX_GROW(all->in, all->n, all->cap);
        all->in[all->n] = (input){.n = x->type.dim[x->type.ndim - 1]};
        *at = ++all->n;
    }
    input *in = &all->in[*at - 1];
    const char **more = MX_NEW_N(a, const char *, in->n_weights + 1);
    if (in->n_weights)
        memcpy(more, in->weight, sizeof *more * (size_t)in->n_weights);
    more[in->n_weights++] = mx_arena_strdup(a, w->name);
    in->weight = more;
}

/* Every weight that the directory has is one of the session. */
static void root_weights(mx_graph *g, const mx_head *h)
{
    mx_graph_root(g, "hidden", h->hidden);
    mx_graph_root(g, "head", mx_slice(g, h->weight, 0, 0, 1));
}

static void root_sums(mx_graph *g, const inputs *all, mx_node *const *x)
{
    for (int k = all->first; k < all->end; k++) {
        char name[32];
        snprintf(name, sizeof name, "sums:%d", k);
        mx_graph_root(g, name, sums_of(g, x[k], all->of->method));
    }
}

/* The tensors that matrices read, into x, and by node id the last one a weight is read with. */
static int find_reads(const mx_graph *g, const mx_calibrate_of *of, mx_node **x, int *rank,
                      int *index_of)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++)
        rank[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *w = mx_calibrate_weight(g->node[i], of);
        if (!w)
            continue;
        int *at = &index_of[g->node[i]->in[0]->id];
        if (!*at) {
            x[n] = g->node[i]->in[0];
            *at = ++n;
        }
        rank[w->id] = *at - 1 > rank[w->id] ? *at - 1 : rank[w->id];
    }
    return n;
}

static void list(mx_graph *g, inputs *all, int *index_of)
{
    mx_uses uses;
    mx_uses_init(&uses, g);
    for (int i = 0, n_nodes = g->n_nodes; i < n_nodes; i++) {
        const mx_node *w = mx_calibrate_weight(g->node[i], all->of);
        mx_node *x = w ? g->node[i]->in[0] : NULL;
        if (!x)
            continue;
        bool seen = index_of[x->id] != 0;
        enter(all, x, w, index_of);
        if (!seen)
            all->in[all->n - 1].source = mx_smooth_source_of(&uses, x, all->of, &all->out->arena);
    }
    mx_uses_fini(&uses);
}

/* In place of a loss: the sums are what the program is for. */
static mx_node *build(mx_graph *g, const mx_head *h, mx_build *b, const void *settings)
{
    (void)b;
    inputs *all = *(inputs *const *)settings;
    mx_arena scratch = {0};
    int n_old = g->n_nodes, *index_of = MX_NEW_N(&scratch, int, n_old);
    if (all->n == 0) {
        root_weights(g, h);
        list(g, all, index_of);
    } else {
        mx_node **x = MX_NEW_N(&scratch, mx_node *, all->n);
        /* sums are three nodes or so for a tensor; none of them is a weight */
        int *rank = MX_NEW_N(&scratch, int, n_old + 16 * all->n);
        int n = find_reads(g, all->of, x, rank, index_of);
        MX_ASSERT(n == all->n, "%d tensors, %d before", n, all->n);
        root_sums(g, all, x);
        for (int i = n_old; i < g->n_nodes; i++)
            rank[i] = -1;
        if (all->of->method == MX_CALIBRATE_GPTQ)
            mx_held_cut(g, &(mx_held_reads){x, n, rank}, &all->was, &all->now);
    }
    mx_arena_fini(&scratch);
    return g->root[0];
}

static mx_status open_step(mx_step *s, mx_session *session, const mx_model_ref *m, inputs *all)
{
    mx_step_options o = {.kind = MX_STEP_LOSS, .shape = {.batch = 1, .seq = all->of->text.length},
                         .compile = {.compute = MX_F32, .n_threads = mx_session_threads(session)},
                         .loss = build, .settings = &all};
    return mx_step_open(s, session, &m->spec, &o);
}

/* --- the text --- */

static void add_sums(input *in, const float *more, mx_calibrate_method method)
{
    int64_t n = method == MX_CALIBRATE_GPTQ ? in->n * in->n : in->n;
#pragma omp parallel for schedule(static) if (n > 1 << 15)
    for (int64_t i = 0; i < n; i++)
        in->sums[i] = method == MX_CALIBRATE_GPTQ ? in->sums[i] + more[i]
                                                  : fmaxf(in->sums[i], more[i]);
}

/* What the round before has held of window i goes in, what the next one begins with comes out. */
static mx_status run_window(inputs *all, mx_step *step, int i)
{
    mx_held *was = &all->was, *now = &all->now;
    char name[32];
    float *at = was->n ? was->values[i] : NULL;
    for (int k = 0; k < was->n; at += was->count[k++]) {
        snprintf(name, sizeof name, "held:%d", k);
        MX_TRY(mx_exec_write(step->exec, name, at));
    }
    MX_TRY(mx_exec_run(step->exec));
    mx_held_drop(was, i);
    if (!now->n)
        return MX_OK;
    MX_TRY(mx_held_room(now, i, (int)(all->of->text.n / all->of->text.length)));
    at = now->values[i];
    for (int k = 0; k < now->n; at += now->count[k++]) {
        snprintf(name, sizeof name, "hold:%d", k);
        MX_TRY(mx_exec_read(step->exec, name, at));
    }
    return MX_OK;
}

static mx_status add_window(inputs *all, mx_step *step, int window, float *host)
{
    const mx_perplexity_of *t = &all->of->text;
    MX_TRY(mx_exec_write(step->exec, "tokens", t->ids + window * t->length));
    MX_TRY(run_window(all, step, window));
    for (int i = all->first; i < all->end; i++) {
        char name[32];
        snprintf(name, sizeof name, "sums:%d", i);
        MX_TRY(mx_exec_read(step->exec, name, host));
        add_sums(&all->in[i], host, all->of->method);
    }
    return MX_OK;
}

static int64_t held_numbers(const inputs *all)
{
    int64_t windows = all->of->text.n / all->of->text.length;
    return (int64_t)(all->of->most_bytes / sizeof(float)) / (windows ? windows : 1);
}

/* Sums of the inputs [first, end) over the whole windows of the text. */
static mx_status add_text(inputs *all, mx_session *session, const mx_model_ref *m)
{
    const mx_perplexity_of *t = &all->of->text;
    mx_step step = {0};
    float *host = NULL;
    int64_t most = 0;
    bool squares = all->of->method == MX_CALIBRATE_GPTQ;
    mx_status st = MX_OK;
    all->now = (mx_held){.first = all->first, .end = all->end, .most = held_numbers(all)};
    for (int i = all->first; i < all->end; i++) {
        int64_t n = squares ? all->in[i].n * all->in[i].n : all->in[i].n;
        MX_TRY_OUT(st, mx_alloc((void **)&all->in[i].sums, sizeof(float) * (size_t)n,
                                all->in[i].weight[0]));
        most = n > most ? n : most;
    }
    MX_TRY_OUT(st, mx_alloc((void **)&host, sizeof *host * (size_t)most, "calibration"));
    MX_TRY_OUT(st, open_step(&step, session, m, all));
    for (int i = 0; i < t->n / t->length; i++)
        MX_TRY_OUT(st, add_window(all, &step, i, host));
out:
    mx_free(host);
    mx_exec_close(step.exec);
    mx_step_close(&step);
    mx_held_fini(&all->was);
    all->was = all->now;
    all->now = (mx_held){0};
    return st;
}

/* --- what is made of it --- */

mx_quant_change *mx_calibrated_change(mx_calibrated *c, const char *name)
{
    mx_quant_change *found = (mx_quant_change *)mx_quant_change_find(&c->changes, name);
    if (found)
        return found;
    MX_GROW(c->changes.of, c->changes.n, c->changes.cap);
    c->changes.of[c->changes.n] = (mx_quant_change){.name = mx_arena_strdup(&c->arena, name)};
    return &c->changes.of[c->changes.n++];
}

static mx_status round_weight(const inputs *all, mx_session *s, const mx_gptq_factor *f,
                              const char *name)
{
    mx_var *v = mx_session_find(s, name);
    MX_ASSERT(v && v->type.dtype == MX_F32, "%s", name);
    mx_quant_change *c = mx_calibrated_change(all->out, name);
    const mx_quant_form *form = mx_quant_form_of(all->of->write, name);
    mx_gptq_weight w = {.kind = mx_quant_form_codes(form), .rows = v->type.dim[0]};
    int64_t n = mx_type_count(&v->type);
    w.group = w.kind == MX_CODE_INT4 ? all->of->write->group : f->n;
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&w.w, sizeof *w.w * (size_t)n, name));
    MX_TRY_OUT(st, mx_alloc((void **)&c->codes, (size_t)n, name));
    MX_TRY_OUT(st, mx_alloc((void **)&c->scale, sizeof(float) * (size_t)(n / w.group), name));
    if (mx_quant_form_zeros(form))
        MX_TRY_OUT(st, mx_alloc((void **)&c->zero, (size_t)(n / w.group), name));
    w.codes = c->codes;
    w.scale = c->scale;
    w.zero = c->zero;
    MX_TRY_OUT(st, mx_var_read(s, v, w.w));
    MX_TRY_OUT(st, mx_gptq_round(f, &w, &all->out->outputs));
    MX_TRY_OUT(st, mx_var_write(s, v, w.w));
    all->out->n_calibrated++;
out:
    mx_free(w.w);
    return st;
}

static mx_status round_inputs(const inputs *all, mx_session *s)
{
    mx_status st = MX_OK;
    for (int i = all->first; i < all->end && !st; i++) {
        input *in = &all->in[i];
        mx_gptq_factor f;
        MX_TRY(mx_gptq_factor_make(&f, in->sums, in->n, all->of->act_order, in->weight[0]));
        for (int k = 0; k < in->n_weights && !st; k++)
            st = round_weight(all, s, &f, in->weight[k]);
        mx_gptq_factor_close(&f);
        mx_free(in->sums);
        in->sums = NULL;
    }
    return st;
}

/* As many inputs as have room and are this round's share, at least one. */
static int end_of_round(const inputs *all, int first)
{
    size_t bytes = 0;
    int i = first, rounds = all->of->rounds > 0 ? all->of->rounds : all->n;
    int end = first + (all->n + rounds - 1) / rounds;
    for (; i < all->n && i < end; i++) {
        bytes += sizeof(float) * (size_t)(all->in[i].n * all->in[i].n);
        if (i > first && bytes > all->of->most_bytes)
            break;
    }
    return i;
}

static mx_status run_gptq(inputs *all, mx_session *s, const mx_model_ref *m)
{
    for (all->end = 0; all->end < all->n;) {
        all->first = all->end;
        all->end = end_of_round(all, all->first);
        MX_TRY(add_text(all, s, m));
        MX_TRY(round_inputs(all, s));
    }
    return MX_OK;
}

static mx_status run_smooth(inputs *all, mx_session *s, const mx_model_ref *m)
{
    all->end = all->n;
    MX_TRY(add_text(all, s, m));
    for (int i = 0; i < all->n; i++) {
        const input *in = &all->in[i];
        mx_smooth_input x = {.n = in->n, .most = in->sums, .weight = in->weight,
                             .n_weights = in->n_weights, .source = in->source,
                             .exponent = all->of->smoothing};
        MX_TRY(mx_smooth(all->out, s, &x));
    }
    return MX_OK;
}

mx_status mx_calibrate(const mx_model_ref *m, const mx_calibrate_of *of, mx_calibrated *out)
{
    mx_session *session = NULL;
    mx_step listing = {0};
    inputs all = {.of = of, .out = out};
    *out = (mx_calibrated){0};
    mx_status st;
    MX_TRY_OUT(st, mx_session_open(&session, of->text.device, of->text.n_threads));
    MX_TRY_OUT(st, open_step(&listing, session, m, &all));
    MX_TRY_OUT(st, mx_model_ref_weights(m, session, 0));
    if (of->text.n < of->text.length)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "the calibration text has %lld tokens, expected %lld or "
                               "more", (long long)of->text.n, (long long)of->text.length));
    st = (of->method == MX_CALIBRATE_GPTQ ? run_gptq : run_smooth)(&all, session, m);
out:
    for (int i = 0; i < all.n; i++)
        mx_free(all.in[i].sums);
    mx_free(all.in);
    mx_held_fini(&all.was);
    mx_step_close(&listing);
    mx_session_close(session);
    return st;
}

void mx_calibrated_fini(mx_calibrated *c)
{
    for (int i = 0; i < c->changes.n; i++) {
        mx_free(c->changes.of[i].numbers);
        mx_free(c->changes.of[i].codes);
        mx_free(c->changes.of[i].scale);
        mx_free(c->changes.of[i].zero);
    }
    mx_free(c->changes.of);
    mx_arena_fini(&c->arena);
    *c = (mx_calibrated){0};
}
