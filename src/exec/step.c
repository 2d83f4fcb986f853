/* step.c - the loss on top of a model's head, compiled for what is wanted.
 *
 * Inputs: tokens, labels (B, S) int32 (shifted: see mx_shift_labels), loss_scale = 1 / tokens that
 * count in the whole step, over all microbatches and ranks, so that the loss is a mean over tokens
 * whatever the accumulation. lr and step feed the optimizer.
 */
#include "exec/step.h"

#include "compile/lora.h"
#include "compile/mesh/partition.h"
#include "compile/mesh/stages.h"
#include "compile/quantize_frozen.h"
#include "exec/dropout.h"
#include "models/classes.h"
#include "ops.h"
#include "ops/inputs.h"
#include <string.h>

/* Weights that are not trained get neither gradient nor optimizer state. */
static void freeze(mx_graph *g, const mx_step_options *o)
{
    bool some = o->trainable && *o->trainable;
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        if (n->op == &mx_op_variable && ((some && !mx_glob_any(o->trainable, n->name)) ||
                                         (o->frozen && mx_glob_any(o->frozen, n->name))))
            mx_freeze(n);
    }
}

/* Positions that count, as 0 and 1. */
static mx_node *counted(mx_graph *g, mx_node *labels)
{
    return mx_greater(g, mx_cast(g, labels, MX_F32), mx_constant(g, MX_SCALAR, MX_F32, -0.5));
}

/* The mask of MTP's loss: 1 where position i predicts the label of i + k, that is where i + k is in
 * the same document and has one. want (B (S - k)): the labels of i + k. */
static mx_node *mtp_mask(mx_graph *g, const mx_build *b, mx_node *want, int64_t k)
{
    int64_t S = b->seq;
    mx_node *counts = counted(g, want);
    if (!b->segments)
        return counts;
    mx_node *same = mx_equal(g, mx_slice(g, b->segments, 1, 0, S - k),
                             mx_slice(g, b->segments, 1, k, S - k));
    return mx_mul(g, counts, mx_reshape(g, same, mx_shape_of(&want->type)));
}

/* The loss of multi-token prediction: the mean over MTP layers k = 1, 2, ..., times its weight.
 * labels (B, S) are those of the next token; layer k predicts at i the label of i + k, as long as
 * that is in the same row and document. */
static mx_node *mtp_loss(mx_graph *g, const mx_head *h, const mx_build *b, mx_node *labels)
{
    int64_t B = b->batch, S = b->seq, d = h->hidden->type.dim[2];
    mx_node *sum = NULL, *count = NULL;
    for (int i = 0; i < h->n_mtp; i++) {
        int64_t k = i + 1, n = B * (S - k);
        mx_node *x = mx_slice(g, h->mtp[i], 1, 0, S - k);
        mx_node *want = mx_reshape(g, mx_slice(g, labels, 1, k, S - k), MX_SHAPE(n));
        mx_node *each = mx_linear_xent(g, mx_reshape(g, x, MX_SHAPE(n, d)), h->weight, want,
                                       h->scale, h->softcap, 0);
        mx_node *counts = mtp_mask(g, b, want, k);
        if (b->segments)
            each = mx_mul(g, each, counts);
        sum = sum ? mx_add(g, sum, mx_sum_all(g, each)) : mx_sum_all(g, each);
        count = count ? mx_add(g, count, mx_sum_all(g, counts)) : mx_sum_all(g, counts);
    }
    mx_node *mean = mx_div(g, sum, mx_affine(g, count, 1, 1e-8));
    return mx_affine(g, mean, h->mtp_weight, 0);
}

/* The token that each row of x (n, d) predicts: (n, 1) int32. Logits exist for some rows at a time;
 * a cap or a scale would not change their order. */
static mx_node *predicted(mx_graph *g, const mx_head *h, mx_node *x)
{
    enum { MOST = 1 << 24 }; /* logits at a time */
    int64_t n = x->type.dim[0], V = h->weight->type.dim[0], rows = MOST / V < 1 ? 1 : MOST / V;
    mx_node *all = NULL;
    for (int64_t at = 0; at < n; at += rows) {
        mx_node *some = mx_slice(g, x, 0, at, n - at < rows ? n - at : rows);
        mx_node *logits = mx_matmul_as(g, "*d,vd->*v", some, h->weight, MX_F32);
        mx_node *best = mx_output(g, mx_top_k(g, logits, 1), 1);
        all = all ? mx_concat(g, 2, (mx_node *[]){all, best}, 0) : best;
    }
    return all;
}

/* How often MTP layer k predicts the token that the model itself predicts there: as a draft it
 * would be accepted. Roots mtp_accepted and mtp_asked, numbers of tokens. */
static void mtp_acceptance(mx_graph *g, const mx_head *h, const mx_build *b, mx_node *labels)
{
    int64_t B = b->batch, S = b->seq, d = h->hidden->type.dim[2], k = b->mtp_eval, n = B * (S - k);
    if (k > h->n_mtp) {
        mx_graph_fail(g, "mtp_eval_target_module=%lld, but the model has %d MTP layers "
                      "(mtp_num_layers)", (long long)k, h->n_mtp);
        return;
    }
    mx_node *draft = mx_slice(g, h->mtp[k - 1], 1, 0, S - k);
    mx_node *own = mx_slice(g, h->hidden, 1, k, S - k);
    mx_node *want = mx_reshape(g, mx_slice(g, labels, 1, k, S - k), MX_SHAPE(n));
    mx_node *asked = mtp_mask(g, b, want, k);
    mx_node *same = mx_equal(g, predicted(g, h, mx_reshape(g, draft, MX_SHAPE(n, d))),
                             predicted(g, h, mx_reshape(g, own, MX_SHAPE(n, d))));
    same = mx_mul(g, mx_cast(g, mx_reshape(g, same, MX_SHAPE(n)), MX_F32), asked);
    mx_graph_root(g, "mtp_accepted", mx_sum_all(g, same));
    mx_graph_root(g, "mtp_asked", mx_sum_all(g, asked));
}

/* Where the loss is more than the cross-entropy, that is a root of its own, lm_loss. */
static mx_node *loss_of(mx_graph *g, const mx_head *h, mx_build *b, double z_loss)
{
    int64_t n = b->batch * b->seq, d = h->hidden->type.dim[2];
    /* The vocabulary is split over more axes than the tokens, which are gathered for it. */
    h->hidden->axes = "activation_embed_and_logits_batch,activation_length,";
    mx_node *x = mx_reshape(g, h->hidden, MX_SHAPE(n, d));
    mx_node *rows = mx_input(g, "labels", MX_SHAPE(b->batch, b->seq), MX_I32);
    rows->axes = "activation_batch,activation_length";
    mx_node *labels = mx_reshape(g, rows, MX_SHAPE(n));
    mx_node *each = mx_linear_xent(g, x, h->weight, labels, h->scale, h->softcap, z_loss);
    mx_node *scale = mx_input(g, "loss_scale", MX_SCALAR, MX_F32);
    mx_node *loss = mx_mul(g, mx_sum_all(g, each), scale), *lm = loss;
    if (z_loss != 0) {
        mx_node *lse = mx_output(g, each, 1);
        mx_node *squares = mx_mul(g, mx_mul(g, lse, lse), counted(g, labels));
        lm = mx_sub(g, loss, mx_affine(g, mx_mul(g, mx_sum_all(g, squares), scale), z_loss, 0));
    }
    if (h->n_mtp && b->training)
        mx_add_aux_loss(g, b, MX_METRIC_ROOT "mtp_loss", mtp_loss(g, h, b, rows));
    if (b->mtp_eval)
        mtp_acceptance(g, h, b, rows);
    if (b->aux_loss) {
        /* Weighted by this microbatch's share of the step's tokens, like everything else. */
        mx_node *share = mx_mul(g, mx_sum_all(g, counted(g, labels)), scale);
        loss = mx_add(g, loss, mx_mul(g, b->aux_loss, share));
    }
    if (lm != loss)
        mx_graph_root(g, "lm_loss", lm);
    return mx_graph_root(g, "loss", loss);
}

/* Ranks of the mesh that have other rows of the batch. */
static int64_t row_ranks(const mx_partition *p, int64_t batch)
{
    mx_placement at;
    mx_type rows = mx_type_of(MX_I32, MX_SHAPE(batch));
    if (!p || !mx_axis_rules_place(p->rules, p->mesh, "activation_batch", &rows, &at, NULL))
        return 1;
    return mx_mesh_size(p->mesh, mx_cut_axes(&at.dim[0]));
}

static mx_node *wanted_loss(mx_graph *g, const mx_head *h, mx_build *b, const mx_step_options *o)
{
    b->row_ranks = row_ranks(o->compile.partition, b->batch);
    if (o->loss && o->z_loss != 0)
        mx_graph_fail(g, "z_loss_multiplier=%g is part of the loss of maxc train; this one has no "
                         "such part, leave it out", o->z_loss);
    if (o->loss)
        return o->loss(g, h, b, o->settings);
    return loss_of(g, h, b, o->z_loss);
}

/* Row `last` of each sequence: x (B, S, d) -> (B, d). The host gives row numbers of the flat x. */
static mx_node *last_rows(mx_graph *g, const mx_build *b, mx_node *x, int64_t n)
{
    int64_t d = x->type.dim[2];
    mx_node *last = mx_input(g, "last", MX_SHAPE(n ? n : b->batch), MX_I32);
    return mx_embed(g, mx_reshape(g, x, MX_SHAPE(b->batch * b->seq, d)), last);
}

static bool has_root(const mx_graph *g, const char *name)
{
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i]->name && strcmp(g->root[i]->name, name) == 0)
            return true;
    return false;
}

/* What does not run on a mesh yet. */
static void check_mesh(mx_graph *g, const mx_step_options *o)
{
    const char *what = !o->lora                    ? NULL
                       : o->lora->slots            ? "serving adapters"
                                                   : NULL;
    if (o->compile.partition && what)
        mx_graph_fail(g, "%s does not run on a mesh yet; leave mesh= or it out", what);
}

static void drop(mx_graph *g, const mx_step_options *o)
{
    mx_pass_dropout(g, o->dropout);
    mx_pass_attention_dropout(g, o->attention_dropout);
}

mx_node *mx_step_build(mx_graph *g, const mx_model_spec *m, const mx_step_options *o)
{
    mx_build b;
    mx_model_shape shape = o->shape;
    shape.training = o->kind != MX_STEP_LOSS; /* with every weight that is trained */
    mx_head h = mx_model_build(g, m, shape, &b);
    mx_node *loss = wanted_loss(g, &h, &b, o);
    check_mesh(g, o);
    if (shape.training)
        drop(g, o);
    if (o->lora)
        mx_pass_lora(g, o->lora, shape.training);
    freeze(g, o);
    return loss;
}

enum { MX_SAMPLE_SETTINGS };
/* log p of one token a row: x (R, V), ids (R) -> (R, 1). */
static mx_node *logp_of(mx_graph *g, mx_node *x, mx_node *ids)
{
    mx_node *top = mx_row_max(g, x), *at = mx_reshape(g, ids, MX_SHAPE(x->type.dim[0], 1));
    mx_node *sum = mx_row_sum(g, mx_exp(g, mx_sub(g, x, top)));
    return mx_sub(g, mx_sub(g, mx_gather_last(g, x, at), top), mx_log(g, sum));
}

/* Tokens that are drawn are kept for the next batch, by sequence, where it may follow them. */
static void give_logits(mx_graph *g, mx_node *logits, const mx_step_options *o, mx_node *kept)
{
    int64_t rows = logits->type.dim[0];
    mx_graph_root(g, "logits", logits);
    if (!o->draw_vocab)
        return;
    mx_node *how = mx_input(g, "sampling", MX_SHAPE(rows, N_SETTINGS), MX_F32);
    mx_node *drawn = mx_graph_root(g, "drawn", mx_sample_token(g, logits, how, o->draw_vocab));
    if (!o->shape.pages)
        mx_graph_root(g, "drawn_logp", logp_of(g, logits, drawn));
    if (!kept)
        return;
    mx_node *of = mx_input(g, "drawn_rows", MX_SHAPE(1, rows), MX_I32);
    mx_node *fresh = mx_reshape(g, drawn, MX_SHAPE(1, rows));
    mx_graph_root(g, "kept_drawn", mx_cache_write(g, kept, fresh, of));
}

mx_node *mx_step_graph(mx_graph *g, const mx_model_spec *m, const mx_step_options *o)
{
    mx_build b;
    mx_model_shape shape = o->shape;
    shape.training = o->kind == MX_STEP_TRAIN || o->kind == MX_STEP_ACCUMULATE ||
                     o->kind == MX_STEP_GRADS;
    mx_head h = mx_model_build(g, m, shape, &b);
    mx_node *loss = NULL;
    if (o->kind == MX_STEP_NEXT && (shape.keep_hidden || shape.draft))
        mx_graph_root(g, "after", mx_cast(g, b.after, MX_F32));
    if (o->kind == MX_STEP_NEXT)
        h.hidden = last_rows(g, &b, h.hidden, shape.last);
    if (o->kind == MX_STEP_NEXT && o->temperature != 0)
        h.scale = (h.scale != 0 ? h.scale : 1) / o->temperature;
    if (o->kind == MX_STEP_NEXT && shape.pages) /* what embeddings are made of */
        mx_graph_root(g, "hidden", mx_cast(g, h.hidden, MX_F32));
    if (o->kind == MX_STEP_LOGITS || o->kind == MX_STEP_NEXT)
        give_logits(g, mx_model_logits(g, &h), o, b.drawn);
    else if (o->kind == MX_STEP_FEATURES)
        mx_graph_root(g, "features", mx_cast(g, b.features, MX_F32));
    else
        loss = wanted_loss(g, &h, &b, o);
    if (mx_classes_of(m->json) && !has_root(g, "scores"))
        mx_graph_fail(g, "this model gives scores, not tokens (%s): it is what loss_type=reward "
                      "trains and reward_model_path judges with", MX_SCORE_WEIGHT);
    check_mesh(g, o);
    if (shape.training)
        drop(g, o);
    if (o->lora && o->lora->slots)
        mx_pass_lora_slots(g, o->lora->slots, o->lora->rank);
    else if (o->lora)
        mx_pass_lora(g, o->lora, shape.training);
    if (loss)
        freeze(g, o);
    return loss;
}

static mx_status compile(mx_step *s, const mx_model_spec *m, const mx_step_options *o)
{
    mx_graph *g = &s->graph;
    mx_node *loss = mx_step_graph(g, m, o);
    if (!loss)
        return mx_compile_forward(g, &o->compile, &s->program);
    switch (o->kind) {
    case MX_STEP_LOSS:
        return mx_compile_forward(g, &o->compile, &s->program);
    case MX_STEP_GRADS:
        return mx_compile_training(g, loss, MX_GRADS_KEEP, NULL, &o->compile, &s->program);
    case MX_STEP_ACCUMULATE:
        return mx_compile_training(g, loss, MX_GRADS_ACCUMULATE, NULL, &o->compile, &s->program);
    default:
        return mx_compile_training(g, loss, MX_GRADS_APPLY, &o->optimizer, &o->compile,
                                   &s->program);
    }
}

static mx_status compile_apply(mx_step *s, const mx_model_spec *m, const mx_step_options *o)
{
    mx_graph model;
    mx_graph_init(&model);
    (void)mx_step_build(&model, m, o);
    /* the weights, and their copies, as the step that made the gradients has them */
    mx_pass_precision(&model, o->compile.compute);
    if (o->compile.narrow_weights || o->compile.narrow_frozen)
        mx_pass_narrow_weights(&model, o->compile.narrow_weights);
    if (o->compile.partition)
        mx_pass_quantize_frozen(&model, o->compile.frozen_quant);
    mx_status st = o->compile.partition ? mx_pass_partition(&model, o->compile.partition) : MX_OK;
    if (!st && o->compile.stages)
        st = mx_pass_stages(&model, o->compile.stages);
    if (!st)
        st = mx_compile_apply(&s->graph, &model, &o->optimizer, &o->compile, &s->program);
    mx_graph_fini(&model);
    return st;
}

mx_status mx_step_plan(mx_step *s, const mx_model_spec *m, const mx_step_options *o)
{
    *s = (mx_step){0};
    mx_graph_init(&s->graph);
    if (o->compile.compute == MX_F64)
        s->graph.param_dtype = MX_F64;
    mx_status st = o->kind == MX_STEP_APPLY ? compile_apply(s, m, o) : compile(s, m, o);
    if (st)
        mx_step_close(s);
    return st;
}

mx_step_options mx_step_options_for(const mx_session *session, const mx_step_options *o)
{
    mx_step_options here = *o;
    if (!here.compile.device)
        here.compile.device = mx_session_traits(session);
    return here;
}

mx_status mx_step_open(mx_step *s, mx_session *session, const mx_model_spec *m,
                       const mx_step_options *o)
{
    mx_step_options here = mx_step_options_for(session, o);
    MX_TRY(mx_step_plan(s, m, &here));
    return mx_session_add(session, &s->program, &s->exec);
}

void mx_step_close(mx_step *s)
{
    mx_program_fini(&s->program);
    mx_graph_fini(&s->graph);
    *s = (mx_step){0};
}

int64_t mx_shift_labels(const int32_t *labels, int64_t batch, int64_t seq, int32_t *out)
{
    int64_t n = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < seq; i++) {
            int32_t next = i + 1 < seq ? labels[b * seq + i + 1] : -100;
            out[b * seq + i] = next;
            n += next >= 0;
        }
    return n;
}
