/* teacher.c - see teacher.h. */
#include "post/teacher.h"

#include "base/str.h"
#include "compile/mesh/partition.h"
#include "exec/forward.h"
#include "exec/model_ref.h"
#include "ops.h"
#include "post/tokens.h"
#include "text/tokenizer/tokenizer_files.h"
#include <stdio.h>
#include <string.h>

enum { MAX_SIZES = 4, MOST = 1 << 24 };
enum { LOGITS_OF, IDS_OF, FEATURES_OF, N_RESULTS };

typedef struct {
    int64_t top_k, width;
    const int64_t *layers;
    int n_layers;
} settings;

/* A program for batches of one size. */
typedef struct {
    mx_forward forward;
    int64_t rows, microbatches; /* microbatches: that there is room for */
    void *given[N_RESULTS]; /* of one microbatch after the other; NULL: there is none here */
    size_t bytes[N_RESULTS];
} sized;

struct mx_teacher {
    mx_model_ref model;
    mx_session *session;
    mx_step_options options;
    settings settings;
    int64_t d_model, parts;
    bool piped;
    mx_forward_stages stages; /* where piped */
    sized size[MAX_SIZES];
    int n;
};

/* --- the graph --- */

/* The matmul with the output projection of a layer's attention; NULL: none. */
static mx_node *attention_output(mx_graph *g, int64_t layer)
{
    char names[320];
    int l = (int)layer;
    snprintf(names, sizeof names,
             "*.%d.*attn*.o_proj.weight,*.%d.*attn*.out_proj.weight,*.%d.*attn*.c_proj.weight,"
             "*.%d.*attn*.dense.weight,*.%d.*attention*.o_proj.weight,*.%d.*attention.dense.weight",
             l, l, l, l, l, l);
    mx_node *y = NULL;
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        if (n->op == &mx_op_matmul && n->in[1]->op == &mx_op_variable &&
            mx_glob_any(names, n->in[1]->name))
            y = n;
        else if (y && n->op == &mx_op_add && n->in[0] == y && n->in[1]->op == &mx_op_variable)
            y = n; /* its bias */
    }
    return y;
}

mx_node *mx_attention_outputs(mx_graph *g, const mx_build *b, const int64_t *layers, int n)
{
    mx_node *all = NULL;
    for (int i = 0; i < n; i++) {
        mx_node *y = attention_output(g, layers[i]);
        if (!y) {
            mx_graph_fail(g, "layer %lld has no attention with an output projection, and no "
                          "feature loss; set distill_layer_indices, or distill_beta=0",
                          (long long)layers[i]);
            return NULL;
        }
        int64_t rows = b->batch * b->seq, d = mx_type_count(&y->type) / rows;
        mx_node *one = mx_reshape(g, y, MX_SHAPE(1, rows, d));
        all = all ? mx_concat(g, 2, (mx_node *[]){all, one}, 0) : one;
    }
    return all;
}

#define LOGITS MX_SHARD_ROOT "teacher_logits"
#define IDS MX_SHARD_ROOT "teacher_ids"
#define FEATURES MX_SHARD_ROOT "teacher_features"

static void root(mx_graph *g, const char *name, mx_node *x, const char *axes)
{
    x->axes = axes;
    mx_graph_root(g, name, x);
}

/* The largest k logits of some places of every row at a time: no more than MOST logits exist
 * together. */
static void top_logits(mx_graph *g, const mx_head *h, const settings *s, const mx_build *b)
{
    int64_t rows = b->row_ranks > 1 ? b->batch / b->row_ranks : b->batch;
    int64_t step = MOST / h->weight->type.dim[0] / rows;
    mx_node *values = NULL, *ids = NULL;
    step = step < 1 ? 1 : step;
    for (int64_t at = 0; at < b->seq; at += step) {
        mx_head some = *h;
        if (step < b->seq)
            some.hidden = mx_slice(g, h->hidden, 1, at, b->seq - at < step ? b->seq - at : step);
        mx_node *z = mx_slice(g, mx_model_logits(g, &some), 2, 0, s->width);
        mx_node *top = mx_top_k(g, z, s->top_k), *id = mx_output(g, top, 1);
        values = values ? mx_concat(g, 2, (mx_node *[]){values, top}, 1) : top;
        ids = ids ? mx_concat(g, 2, (mx_node *[]){ids, id}, 1) : id;
    }
    root(g, LOGITS, mx_affine(g, values, 1, 0), MX_PLACES_AXES);
    root(g, IDS, mx_reshape(g, ids, MX_SHAPE(b->batch, b->seq, s->top_k)), MX_PLACES_AXES);
}

static mx_node *teach(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, 1);
    if (s->top_k)
        top_logits(g, h, s, b);
    else
        root(g, LOGITS, mx_affine(g, mx_slice(g, mx_model_logits(g, h), 2, 0, s->width), 1, 0),
             MX_PLACES_AXES);
    mx_node *x = s->n_layers ? mx_attention_outputs(g, b, s->layers, s->n_layers) : NULL;
    if (x) {
        mx_shape shape = MX_SHAPE(s->n_layers, b->batch, b->seq, x->type.dim[2]);
        x = mx_reshape(g, mx_cast(g, mx_affine(g, x, 1, 0), MX_F32), shape);
        root(g, FEATURES, x, "," MX_PLACES_AXES);
    }
    return mx_graph_root(g, "loss", mx_mul(g, mx_sum_all(g, t.counts), t.scale));
}

/* --- the model --- */

mx_status mx_feature_layers(const mx_config *c, int64_t n_layers, mx_arena *a,
                            const int64_t **layers, int *n)
{
    const int64_t *given;
    int count = mx_config_ints(c, "distill_layer_indices", &given);
    int64_t *all = MX_NEW_N(a, int64_t, count ? count : n_layers);
    for (int i = 0; i < (count ? count : n_layers); i++) {
        all[i] = count ? given[i] : i;
        if (all[i] >= n_layers)
            return mx_fail(MX_USAGE, "%s: there is no layer %lld: the model has %lld, from 0",
                           mx_config_where(c, "distill_layer_indices"), (long long)all[i],
                           (long long)n_layers);
    }
    *layers = all;
    *n = (int)(count ? count : n_layers);
    return MX_OK;
}

static mx_status check_tokenizer(const mx_teacher *t, const mx_tokenizer *own)
{
    mx_tokenizer *other = NULL;
    mx_status st = MX_OK;
    if (!own || !t->model.path || !mx_tokenizer_is_in(t->model.path))
        return MX_OK;
    MX_TRY(mx_tokenizer_open(&other, t->model.path, NULL));
    int32_t n = mx_tokenizer_vocab_size(own), m = mx_tokenizer_vocab_size(other);
    for (int32_t i = 0; i < (n < m ? n : m) && !st; i++) {
        size_t a = 0, b = 0;
        const char *x = mx_tokenizer_token(own, i, &a), *y = mx_tokenizer_token(other, i, &b);
        if (x && y && (a != b || memcmp(x, y, a) != 0))
            st = mx_fail(MX_INPUT,
                         "the teacher (%s) has another tokenizer: token %d is \"%.*s\" to the "
                         "student and \"%.*s\" to it; distillation compares the two token by token",
                         t->model.path, i, (int)a, x, (int)b, y);
    }
    mx_tokenizer_close(other);
    return st;
}

static mx_status check(const mx_teacher *t, const mx_teacher_request *r)
{
    const mx_model_summary *m = &t->model.spec.summary;
    if (!t->model.has_weights)
        return mx_fail(MX_USAGE, "the teacher %s has no weights", r->path);
    if (r->n_layers && m->d_model != r->d_model)
        return mx_fail(MX_USAGE,
                       "a feature loss compares outputs of attention layers, which have %lld "
                       "elements in the student and %lld in the teacher; set distill_beta=0",
                       (long long)r->d_model, (long long)m->d_model);
    for (int i = 0; i < r->n_layers; i++)
        if (r->layers[i] >= m->n_layers)
            return mx_fail(MX_USAGE, "the teacher has no layer %lld; set distill_layer_indices",
                           (long long)r->layers[i]);
    if (r->top_k > t->settings.width)
        return mx_fail(MX_USAGE, "distill_top_k=%lld is more than the vocabulary's %lld tokens",
                       (long long)r->top_k, (long long)t->settings.width);
    return check_tokenizer(t, r->tokenizer);
}

static const char *const results[N_RESULTS] = {LOGITS, IDS, FEATURES};

/* Room for a result of microbatch k, on a mesh this rank's part of it; NULL: there is none. */
static mx_status room(sized *s, int result, int64_t k, void **out)
{
    const mx_node *n = mx_graph_find_root(mx_forward_graph(&s->forward), results[result]);
    *out = NULL;
    if (!n)
        return MX_OK;
    s->bytes[result] = mx_type_bytes(&n->type);
    if (!s->given[result])
        MX_TRY(mx_alloc(&s->given[result], s->bytes[result] * (size_t)s->microbatches,
                        "what the teacher says"));
    *out = (char *)s->given[result] + (size_t)k * s->bytes[result];
    return MX_OK;
}

static mx_status size_for(mx_teacher *t, int64_t rows, sized **out)
{
    for (int i = 0; i < t->n; i++)
        if (t->size[i].rows == rows) {
            *out = &t->size[i];
            return MX_OK;
        }
    MX_ASSERT(t->n < MAX_SIZES, "%d sizes of batches", t->n);
    sized *s = *out = &t->size[t->n];
    mx_step_options o = t->options;
    o.shape.batch = rows * t->parts;
    t->n++;
    MX_TRY(mx_forward_open(&s->forward, t->session, &t->model.spec, &o,
                           t->piped ? &t->stages : NULL));
    s->rows = rows;
    s->microbatches = 1;
    return MX_OK;
}

/* As far as it goes without a session. */
static mx_status configure(mx_teacher *t, const mx_teacher_request *r)
{
    *t = (mx_teacher){.options = *r->options, .d_model = r->d_model,
                      .parts = r->parts, .piped = r->stages != NULL,
                      .settings = {.top_k = r->top_k, .layers = r->layers,
                                   .n_layers = r->n_layers}};
    if (r->stages)
        t->stages = mx_forward_other(r->stages);
    MX_TRY(mx_status_wrap(mx_model_ref_open(&t->model, r->path, NULL, r->config), "the teacher"));
    int64_t V = t->model.spec.summary.vocab;
    t->settings.width = V < r->vocab ? V : r->vocab;
    MX_TRY(check(t, r));
    t->options.kind = MX_STEP_LOSS;
    t->options.loss = teach;
    t->options.settings = &t->settings;
    t->options.compile.weights_fixed = true;
    t->options.compile.quantization = NULL;
    t->options.compile.frozen_quant = NULL;
    t->options.trainable = t->options.frozen = NULL;
    t->options.lora = t->model.has_adapter ? &t->model.adapter.lora : NULL;
    return MX_OK;
}

mx_status mx_teacher_beside(const mx_teacher_request *r, mx_beside *out)
{
    mx_teacher t;
    mx_status st = configure(&t, r);
    if (!st)
        st = mx_beside_step(out, "teacher", &t.model.spec, &t.options,
                            (mx_beside_how){t.piped ? &t.stages : NULL, true});
    mx_model_ref_close(&t.model);
    return st;
}

mx_status mx_teacher_open(mx_teacher **out, const mx_teacher_request *r)
{
    mx_teacher *t = *out = mx_realloc(NULL, sizeof *t);
    MX_TRY(configure(t, r));
    MX_TRY(mx_session_open(&t->session, mx_config_text(r->config, "device"), r->threads));
    if (r->beside)
        mx_session_share_groups(t->session, r->beside);
    if (t->piped)
        mx_session_set_stage(t->session);
    sized *first;
    MX_TRY(size_for(t, r->rows, &first));
    return mx_status_wrap(mx_model_ref_weights(&t->model, t->session, 0), "the teacher");
}

void mx_teacher_close(mx_teacher *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++) {
        mx_exec_close(t->size[i].forward.step.exec);
        mx_forward_close(&t->size[i].forward);
        for (int k = 0; k < N_RESULTS; k++)
            mx_free(t->size[i].given[k]);
    }
    mx_session_close(t->session);
    mx_model_ref_close(&t->model);
    mx_free(t);
}

int64_t mx_teacher_width(const mx_teacher *t)
{
    return t->settings.width;
}

typedef struct {
    sized *s;
    const mx_batch *b;
    int64_t row, k; /* k: the microbatch */
} asked;

static mx_status write_rows(void *ctx, int microbatch, mx_exec *e)
{
    const asked *q = ctx;
    (void)microbatch;
    return mx_feed_frozen(e, q->b, q->row);
}

static mx_status read_results(void *ctx, int microbatch, mx_exec *e)
{
    const asked *q = ctx;
    (void)microbatch;
    for (int i = 0; i < N_RESULTS; i++) {
        void *to;
        MX_TRY(room(q->s, i, q->k, &to));
        if (to)
            MX_TRY(mx_exec_read(e, results[i], to));
    }
    return MX_OK;
}

/* Features are compared where the student's layers are. */
static mx_status share_features(const asked *q)
{
    void *at;
    MX_TRY(room(q->s, FEATURES_OF, q->k, &at));
    return at ? mx_forward_share(&q->s->forward, at, q->s->bytes[FEATURES_OF]) : MX_OK;
}

static mx_taught taught(const sized *s, int64_t k)
{
    void *of[N_RESULTS];
    for (int i = 0; i < N_RESULTS; i++)
        of[i] = s->given[i] ? (char *)s->given[i] + (size_t)k * s->bytes[i] : NULL;
    return (mx_taught){of[LOGITS_OF], of[IDS_OF], of[FEATURES_OF]};
}

mx_status mx_teacher_run(mx_teacher *t, const mx_batch *b, int64_t row, int64_t rows,
                         mx_taught *out)
{
    asked q = {.b = b, .row = row};
    MX_TRY(size_for(t, rows, &q.s));
    MX_TRY(mx_forward_run(&q.s->forward, &(mx_pipeline_feed){write_rows, read_results, &q}));
    *out = taught(q.s, 0);
    return MX_OK;
}

mx_status mx_teacher_ahead(mx_teacher *t, const mx_batch *b, int64_t rows)
{
    asked q = {.b = b};
    MX_TRY(size_for(t, rows, &q.s));
    if (b->rows / rows > q.s->microbatches) {
        q.s->microbatches = b->rows / rows;
        for (int i = 0; i < N_RESULTS; i++) {
            mx_free(q.s->given[i]);
            q.s->given[i] = NULL;
        }
    }
    for (; q.row < b->rows; q.row += rows, q.k++) {
        MX_TRY(mx_forward_run(&q.s->forward, &(mx_pipeline_feed){write_rows, read_results, &q}));
        MX_TRY(share_features(&q));
    }
    return MX_OK;
}

mx_status mx_teacher_find(mx_teacher *t, const mx_batch *b, int64_t row, int64_t rows,
                          mx_taught *out)
{
    sized *s;
    if (!t->piped)
        return mx_teacher_run(t, b, row, rows, out);
    MX_TRY(size_for(t, rows, &s));
    *out = taught(s, row / rows);
    return MX_OK;
}

void mx_teacher_as_run(const mx_teacher *t, const mx_objective_run *o, mx_objective_run *out)
{
    *out = *o;
    out->model = &t->model.spec;
    out->session = t->session;
    out->options = &t->options;
    out->stages = t->piped ? &t->stages : NULL;
}
