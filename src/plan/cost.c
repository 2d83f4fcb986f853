/* cost.c - see cost.h. */
#include "plan/cost.h"

#include <math.h>

/* Rings of attention over `context` reach this share of what one rank does alone: blocks are
 * shorter and the diagonal falls unevenly (zigzag on 8 ranks, published). */
static const double RING_SHARE = 0.90;
static const double BF16_BYTES = 2;

typedef struct {
    const mx_cost_request *q;
    mx_layer_cost *to;
    double tokens; /* of a microbatch on one rank */
    double layers; /* of the kind on all stages, for sums of traffic */
    mx_layer_costs *all;
} layer;

/* Forward, input gradient and weight gradient of a GEMM, of which a share is quantized. A chip
 * without such units multiplies in what the rest is computed in. */
static void time_gemm(layer *l, mx_plan_gemm g, double quantized)
{
    const mx_run_kind *run = l->q->run;
    const mx_plan_chip *c = l->q->chip;
    mx_plan_gemm all[3] = {
        g, {g.m, g.k, g.n, g.groups, g.rate}, {g.n, g.k, g.m, g.groups, g.rate}};
    for (int i = 0; i < (run->frozen ? 2 : 3); i++) {
        double seconds = (1 - quantized) * mx_gemm_seconds(c, &all[i]);
        all[i].rate = c->sustained[run->narrow[i]] > 0 ? run->narrow[i] : g.rate;
        if (quantized > 0)
            seconds += quantized * mx_gemm_seconds(c, &all[i]);
        l->to->gemm[i > 0] += seconds;
    }
}

static void send(layer *l, mx_plan_group group, mx_traffic kind, double bytes, double times)
{
    double sent[MX_LEVELS];
    mx_traffic_bytes(kind, bytes, mx_layout_span(l->q->layout, group), sent);
    for (int i = 0; i < MX_LEVELS; i++)
        l->all->sent[group][i] += times * l->layers * sent[i];
}

static double wire(layer *l, mx_plan_group group, mx_traffic kind, double bytes)
{
    send(l, group, kind, bytes, (double)l->q->layout->n_microbatches);
    return mx_traffic_seconds(l->q->network, kind, bytes, mx_layout_span(l->q->layout, group));
}

/* Seconds that kernels wait for a collective which runs in `pieces` beside work of its own. */
static void overlap(layer *l, int pass, double comm, double work, double pieces)
{
    double seen = comm / pieces + fmax(0, comm * (1 - 1 / pieces) - work);
    l->to->exposed[pass] += seen;
    l->to->hidden[pass] += comm - seen;
}

static void dense_gemm(layer *l, const mx_profile_gemm *g, double quantized)
{
    const mx_layout *o = l->q->layout;
    double t = (double)o->tensor, before[2] = {l->to->gemm[0], l->to->gemm[1]};
    time_gemm(l,
              (mx_plan_gemm){l->tokens * g->rows, g->cut == MX_GEMM_COLUMN ? g->n / t : g->n,
                             g->cut == MX_GEMM_ROW ? g->k / t : g->k, 1, l->q->run->rate},
              quantized);
    if (g->cut != MX_GEMM_ROW || o->tensor == 1)
        return;
    double bytes = l->tokens * l->q->profile->width * BF16_BYTES;
    for (int pass = 0; pass < 2; pass++) {
        double comm = wire(l, MX_GROUP_TENSOR, MX_ALL_GATHER, bytes) +
                      wire(l, MX_GROUP_TENSOR, MX_REDUCE_SCATTER, bytes);
        if (pass && !l->q->run->frozen)
            comm += wire(l, MX_GROUP_TENSOR, MX_ALL_GATHER, bytes);
        /* its neighbour, cut by columns, has as much work as it has itself */
        double work = 2 * (l->to->gemm[pass] - before[pass]);
        overlap(l, pass, comm, work, l->q->run->overlap_tensor ? t : 1);
    }
}

static void expert_gemm(layer *l, const mx_profile_gemm *g, double quantized)
{
    const mx_layout *o = l->q->layout;
    double et = (double)o->expert_tensor, here = g->experts / (double)o->expert;
    double rows = l->tokens * g->rows * et / (double)o->tensor;
    time_gemm(l,
              (mx_plan_gemm){rows / here, g->cut == MX_GEMM_COLUMN ? g->n / et : g->n,
                             g->cut == MX_GEMM_ROW ? g->k / et : g->k, here, l->q->run->rate},
              quantized);
}

/* Of the copies of a row that cross nodes, the part that is left when each node gets one. */
static double once_per_node(mx_group_span s, double top_k)
{
    double nodes = s.size / s.inside;
    if (nodes <= 1)
        return 1;
    return nodes * (1 - pow(1 - 1 / nodes, top_k)) / top_k;
}

/* Rows to their experts and back. */
static void exchange(layer *l, const mx_profile_work *w)
{
    const mx_layout *o = l->q->layout;
    double rows = l->tokens / (double)o->tensor * w->top_k;
    double bytes = rows * l->q->profile->width * BF16_BYTES;
    if (l->q->run->deduplicate)
        bytes *= once_per_node(mx_layout_span(o, MX_GROUP_EXPERT), w->top_k);
    for (int pass = 0; pass < 2 && o->expert > 1; pass++)
        l->to->exposed[pass] += 2 * wire(l, MX_GROUP_EXPERT, MX_ALL_TO_ALL, bytes);
    double gathered = bytes * (double)o->expert_tensor;
    for (int pass = 0; pass < 2 && o->expert_tensor > 1; pass++)
        l->to->exposed[pass] += wire(l, MX_GROUP_EXPERT_TENSOR, MX_ALL_GATHER, gathered) +
                                wire(l, MX_GROUP_EXPERT_TENSOR, MX_REDUCE_SCATTER, gathered);
}

/* Keys and values of all context ranks, in bytes. */
static double whole_keys(const mx_cost_request *q, const mx_profile_attention *a)
{
    const mx_layout *o = q->layout;
    double kv = fmax(1, a->kv_heads / (double)o->tensor);
    return (double)o->microbatch * q->profile->length * kv * (a->d_qk + a->d_v) * BF16_BYTES;
}

static void attend(layer *l, const mx_profile_attention *a)
{
    const mx_layout *o = l->q->layout;
    double length = l->q->profile->length, flops = l->tokens * a->flops / (double)o->tensor;
    double known = l->q->run->attention_share > 0 ? l->q->run->attention_share : 1;
    double share = known * (o->context > 1 ? RING_SHARE : 1), seen = fmin(length, 2 * a->keys);
    double bytes = whole_keys(l->q, a);
    double head = (a->d_qk + a->d_v) / 2;
    for (int pass = 0; pass < 2; pass++) {
        double s = mx_attention_seconds(l->q->chip, flops * (pass ? 2.5 : 1), seen, head, pass);
        l->to->attention[pass] += s / share;
        double comm = o->context > 1 ? wire(l, MX_GROUP_CONTEXT, MX_ALL_GATHER, bytes) : 0;
        if (pass && o->context > 1)
            comm += wire(l, MX_GROUP_CONTEXT, MX_REDUCE_SCATTER, bytes);
        overlap(l, pass, comm, s / share, (double)o->context);
    }
}

static void recur(layer *l, const mx_profile_work *w)
{
    const mx_plan_chip *c = l->q->chip;
    double t = (double)l->q->layout->tensor;
    double flops = l->tokens * w->recurrent_flops / t, bytes = l->tokens * w->recurrent_bytes / t;
    for (int pass = 0; pass < 2 && flops > 0; pass++) {
        double times = pass ? 2.5 : 1;
        l->to->attention[pass] += mx_recurrence_seconds(c, times * flops, times * bytes, pass);
    }
}

/* Norms and residuals are cut by the tensor axis as well, along their width or their length. */
static double on_rank(const layer *l, double per_token)
{
    return l->tokens * per_token / (double)l->q->layout->tensor;
}

/* An op alone reads and writes what a fused group keeps in registers. */
static const double UNFUSED = 2.5;

static void stream(layer *l, const mx_profile_passes *p)
{
    double times = l->q->run->unfused ? UNFUSED : 1, t = (double)l->q->layout->tensor;
    for (int pass = 0; pass < 2; pass++)
        l->to->stream[pass] += mx_stream_seconds(
            l->q->chip,
            times * on_rank(l, p->stream[pass]) + p->weight_stream[pass] / t,
            times * p->kernels[pass]) +
            mx_random_seconds(l->q->chip, on_rank(l, p->random[pass]),
                              on_rank(l, p->random_stream[pass]));
    double all = (double)l->q->layout->expert, some = l->q->run->exchange_factor;
    double room = (some > 0 && some < all ? some : all) - 1;
    l->to->saved_bytes = on_rank(l, p->saved + room * p->saved_rows) + p->weight_saved / t;
}

/* The part of a layer's values that waits for the backward pass. */
static double kept_share(const mx_layer_kind *k)
{
    const double *again = k->passes.again; /* of a whole layer, or of little */
    return 1 - fmin(1, fmax(again[0], again[1]));
}

static void keep_keys(layer *l, const mx_layer_kind *k)
{
    double others = 1 - 1 / (double)l->q->layout->context;
    for (int i = 0; i < k->work.n_attention && l->q->run->whole_keys; i++)
        l->to->saved_bytes += kept_share(k) * others * whole_keys(l->q, &k->work.attention[i]);
}

/* What the tensor axis has gathered before a pair of GEMMs waits whole for the backward pass,
 * unless that computes it again, or GEMMs take it in pieces. */
static void keep_gathered(layer *l, const mx_layer_kind *k)
{
    if (l->q->run->overlap_tensor)
        return;
    double t = (double)l->q->layout->tensor, kept = kept_share(k);
    double whole = l->tokens * l->q->profile->width * BF16_BYTES;
    for (int i = 0; i < k->work.n_gemm; i++)
        if (k->work.gemm[i].cut == MX_GEMM_ROW && k->work.gemm[i].experts <= 0)
            l->to->saved_bytes += kept * (1 - 1 / t) * whole;
}

/* Forward work that is done a second time before the backward pass, with its collectives. */
static void compute_again(layer *l, const mx_profile_passes *p)
{
    bool given = l->q->run->again >= 0;
    double gemm = given ? l->q->run->again : p->again[0], attention = given ? 0 : p->again[1];
    l->to->gemm[1] += gemm * l->to->gemm[0];
    l->to->attention[1] += attention * l->to->attention[0];
    l->to->exposed[1] += gemm * l->to->exposed[0];
    if (given)
        l->to->stream[1] += gemm * l->to->stream[0];
}

/* Weights that lie cut are gathered for each pass, and their gradients scattered. */
static void gather_weights(layer *l, mx_plan_group group, double weights)
{
    const mx_run_kind *r = l->q->run;
    if (mx_layout_span(l->q->layout, group).size <= 1)
        return;
    double copy = r->rate == MX_RATE_F32 ? r->weight_bytes : BF16_BYTES;
    for (int pass = 0; pass < 2; pass++)
        l->to->gather[pass] += wire(l, group, MX_ALL_GATHER, weights * copy);
    if (!r->frozen)
        l->to->scatter += wire(l, group, MX_REDUCE_SCATTER, weights * r->gradient_bytes);
}

/* Kernels cannot run faster than the host launches them. */
static void wait_for_host(layer *l, const mx_profile_passes *p)
{
    mx_layer_cost *c = l->to;
    for (int pass = 0; pass < 2; pass++) {
        double host = UNFUSED * p->kernels[pass] * l->q->run->host_seconds;
        double busy = c->gemm[pass] + c->attention[pass] + c->stream[pass] + c->exposed[pass];
        c->stream[pass] += fmax(0, host - busy);
    }
}

static void cost_layer(layer *l, const mx_layer_kind *k)
{
    const mx_profile_work *w = &k->work;
    const mx_layout *o = l->q->layout;
    for (int i = 0; i < w->n_gemm; i++)
        w->gemm[i].experts > 0 ? expert_gemm(l, &w->gemm[i], k->passes.narrow[1])
                               : dense_gemm(l, &w->gemm[i], k->passes.narrow[0]);
    for (int i = 0; i < w->n_attention; i++)
        attend(l, &w->attention[i]);
    recur(l, w);
    if (w->experts > 0)
        exchange(l, w);
    stream(l, &k->passes);
    keep_gathered(l, k);
    keep_keys(l, k);
    compute_again(l, &k->passes);
    wait_for_host(l, &k->passes);
    gather_weights(l, MX_GROUP_SHARD, w->weights_cut / (double)o->tensor + w->weights_whole);
    if (w->weights_expert > 0)
        gather_weights(l, MX_GROUP_EXPERT_SHARD,
                       w->weights_expert / (double)(o->expert * o->expert_tensor));
}

static void cost_ends(layer *embedding, layer *head)
{
    const mx_cost_request *q = embedding->q;
    const mx_profile *p = q->profile;
    double t = (double)q->layout->tensor;
    time_gemm(head, (mx_plan_gemm){head->tokens, p->vocab / t, p->width, 1, q->run->rate}, 0);
    /* logits are computed in pieces and not kept: the backward pass makes them again from lse */
    stream(head, &p->ends);
    double logits = head->tokens * p->vocab / t * BF16_BYTES;
    head->to->stream[0] += mx_stream_seconds(q->chip, logits * (q->run->unfused ? 8 : 1), 3);
    gather_weights(head, MX_GROUP_SHARD, p->head / t);
    double bytes = 3 * head->tokens * p->width * BF16_BYTES;
    for (int pass = 0; pass < 2; pass++)
        embedding->to->stream[pass] += mx_stream_seconds(q->chip, bytes, 2);
    if (!p->tied)
        gather_weights(embedding, MX_GROUP_SHARD, p->embedding / t);
}

/* Gradients of weights that several ranks have, once per update. */
static void send_gradients(const mx_cost_request *q, mx_layer_costs *out)
{
    mx_rank_weights w = mx_rank_weights_of(q);
    layer l = {.q = q, .layers = 1, .all = out};
    double dense = w.dense_kept + w.ends_kept;
    if (q->run->frozen)
        return;
    send(&l, MX_GROUP_REPLICA, MX_ALL_REDUCE, dense * q->run->gradient_bytes, 1);
    send(&l, MX_GROUP_EXPERT_REPLICA, MX_ALL_REDUCE, w.expert_kept * q->run->gradient_bytes, 1);
}

void mx_layer_costs_of(const mx_cost_request *q, mx_layer_costs *out)
{
    const mx_layout *o = q->layout;
    double tokens = (double)o->microbatch * q->profile->length / (double)o->context;
    *out = (mx_layer_costs){0};
    for (int k = 0; k < q->profile->n_kinds; k++) {
        const mx_layer_kind *kind = &q->profile->kind[k];
        layer l = {q, &out->kind[k], tokens, (double)kind->layers / (double)o->stage, out};
        cost_layer(&l, kind);
    }
    layer embedding = {q, &out->embedding, tokens, 1, out}, head = {q, &out->head, tokens, 1, out};
    cost_ends(&embedding, &head);
    send_gradients(q, out);
    if (o->stage > 1) {
        layer l = {q, NULL, tokens, 1, out};
        double bytes = tokens * q->profile->width * BF16_BYTES;
        send(&l, MX_GROUP_STAGE, MX_SEND, bytes / (double)o->tensor,
             2 * (double)(o->n_microbatches * o->chunks));
    }
}

double mx_layer_seconds(const mx_layer_cost *c, int pass)
{
    return c->gemm[pass] + c->attention[pass] + c->stream[pass] + c->exposed[pass];
}

/* ---- memory ---- */

mx_rank_weights mx_rank_weights_of(const mx_cost_request *q)
{
    const mx_profile *p = q->profile;
    const mx_layout *o = q->layout;
    double t = (double)o->tensor, cut = (double)o->shard;
    mx_rank_weights w = {0};
    for (int k = 0; k < p->n_kinds; k++) {
        const mx_profile_work *work = &p->kind[k].work;
        double layers = p->kind[k].layers / (double)o->stage;
        w.dense += layers * (work->weights_cut / t + work->weights_whole);
        w.expert += layers * work->weights_expert / (double)(o->expert * o->expert_tensor);
    }
    w.ends = o->stage > 1 ? fmax(p->embedding, p->head) / t
                          : (p->embedding + (p->tied ? 0 : p->head)) / t;
    w.dense_kept = w.dense / cut;
    w.ends_kept = w.ends / cut;
    w.expert_kept = w.expert / (double)o->expert_shard;
    return w;
}

static double most_in_flight(const mx_layout *o)
{
    double p = (double)o->stage, v = (double)o->chunks, m = (double)o->n_microbatches;
    if (p <= 1)
        return 1;
    return v > 1 ? fmin(m, p * (1 + (p - 1) / (p * v))) : fmin(m, p);
}

/* Microbatches wait on the first stage; the last has the logits. */
mx_rank_memory mx_rank_memory_of(const mx_cost_request *q, const mx_layer_costs *c)
{
    const mx_layout *o = q->layout;
    const mx_run_kind *r = q->run;
    const mx_profile *p = q->profile;
    mx_rank_weights w = mx_rank_weights_of(q);
    double kept = w.dense_kept + w.expert_kept + w.ends_kept;
    double replicas = mx_layout_span(o, MX_GROUP_REPLICA).size;
    double state = r->state_bytes / (o->shard_optimizer || r->shared_moments ? replicas : 1);
    double trained = r->frozen ? 0.01 : 1; /* adapters of a few ranks */
    mx_rank_memory m = {.weights = kept * r->weight_bytes / (o->shard_optimizer ? replicas : 1),
                        .copies = kept * r->copy_bytes,
                        .gradients = kept * trained * r->gradient_bytes,
                        .optimizer = kept * trained * state};
    double tokens = (double)o->microbatch * p->length / (double)o->context, saved = 0, largest = 0;
    double keys = 0;
    for (int k = 0; k < p->n_kinds; k++) {
        const mx_profile_work *work = &p->kind[k].work;
        saved += p->kind[k].layers / (double)o->stage * c->kind[k].saved_bytes;
        largest = fmax(largest, work->weights_cut / (double)o->tensor + work->weights_whole +
                                    work->weights_expert / (double)(o->expert * o->expert_tensor));
        for (int i = 0; i < work->n_attention && o->context > 1 && r->whole_keys; i++)
            keys = fmax(keys, whole_keys(q, &work->attention[i]));
    }
    m.activations = saved * most_in_flight(o) + tokens * p->working / (double)o->tensor;
    /* Where gradients are not added up, those of a layer come as what it has saved goes; experts'
     * are too large for that. */
    if (o->stage == 1 && o->n_microbatches == 1 && w.expert == 0)
        m.gradients -= fmin(m.gradients, saved);
    /* the gathered weights of a layer */
    m.communication = o->shard * o->expert_shard > 1 ? largest * BF16_BYTES : 0;
    m.communication += o->tensor > 1 ? 2 * tokens * p->width * BF16_BYTES : 0;
    m.communication += 2 * keys; /* and their gradients, of a layer */
    m.workspace = 0x1p28;
    m.total = m.weights + m.copies + m.gradients + m.optimizer + m.activations + m.communication +
              m.workspace;
    return m;
}
