/* engine.c - requests come and go. engine_schedule.c forms batches, engine_sample.c samples. */
#include "infer/engine.h"

#include "base/clock.h"
#include "exec/virtual_ranks.h"
#include "infer/batch_ranks.h"
#include "infer/engine_impl.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum { USUAL_SEQUENCES = 32, USUAL_DEVICE_SEQUENCES = 256, USUAL_STEP = 256,
       USUAL_DEVICE_STEP = 1024, USUAL_LENGTH = 32768, LEAST_CACHE = 1024 };
#define USUAL_MEMORY_SHARE 0.9

static mx_image_spec image_spec_of(const mx_model_spec *m)
{
    mx_image_spec s = {0};
    if (m->family->images)
        m->family->images(m->config, &s);
    return s;
}

static mx_engine_batch_settings settings_of(const mx_engine_options *o, int64_t pages)
{
    return (mx_engine_batch_settings){
        .tokens = o->step_tokens,
        .sequences = o->sequences,
        .rows = o->sequences * (1 + o->draft_tokens),
        .adapters = {.slots = o->adapter_slots, .rank = o->adapter_rank},
        .keep_hidden = o->mtp && o->draft_tokens > 0,
        .places = o->images && image_spec_of(&o->model->spec).places,
        .max_length = o->max_length,
        .page = MX_ENGINE_PAGE,
        .pages = pages,
        .compile = {.compute = o->compute, .weights_fixed = true, .quant = o->quant,
                    .partition = o->mesh_rank ? &o->mesh_rank->how : NULL}};
}

/* Of the MTP layer, whose entries lie in the same pages. */
static mx_engine_batch_settings draft_settings(const mx_engine_batch_settings *bs)
{
    mx_engine_batch_settings s = *bs;
    s.draft = true;
    s.keep_hidden = s.places = false;
    s.image_width = 0;
    s.adapters = (mx_lora){0};
    return s;
}

mx_status mx_engine_can(const mx_model_spec *m)
{
    mx_cache_bytes bytes;
    mx_engine_options o = {.step_tokens = 1, .sequences = 1, .max_length = MX_ENGINE_PAGE};
    mx_engine_batch_settings one = settings_of(&o, 1);
    return mx_engine_batch_cache_bytes(m, &one, &bytes);
}

/* Recurrent states exist only for the last token: no prefix can be shared, and a rejected draft
 * cannot be undone. */
static mx_status restrict_to_states(mx_engine_options *o)
{
    o->no_prefix_cache = true;
    if (!o->draft_tokens)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "%s keeps recurrent states, from which rejected drafts cannot be removed; "
                   "expected speculative_tokens=0",
                   o->model->spec.family->name);
}

/* Bytes that the KV cache may take. On the host: a quarter of the free memory. On a GPU: what
 * weights and activations leave of memory_share; the rest is for what no plan knows, such as memory
 * of libraries. */
static mx_status cache_room(const mx_engine *e, const mx_engine_batch_settings *bs, int64_t *room)
{
    const mx_engine_options *o = &e->o;
    const mx_device_traits *t = mx_session_traits(e->session);
    int ranks = o->mesh_rank ? o->mesh_rank->mesh->ranks : 1; /* of this process: they share it */
    int64_t other, free = mx_session_memory_available(e->session).bytes / ranks;
    *room = free / 4;
    if (t->host_memory || t->chip.memory_bytes <= 0)
        return MX_OK;
    double share = o->memory_share > 0 ? o->memory_share : USUAL_MEMORY_SHARE;
    MX_TRY(mx_engine_batch_other_bytes(e->session, &o->model->spec, bs, &other));
    *room = free - (int64_t)((1 - share) * t->chip.memory_bytes / ranks) - other;
    if (bs->keep_hidden) {
        mx_engine_batch_settings ms = draft_settings(bs);
        MX_TRY(mx_engine_batch_other_bytes(e->session, &o->model->spec, &ms, &other));
        *room -= other;
    }
    if (e->tower)
        *room -= mx_tower_bytes(e->tower);
    if (*room > 0)
        return MX_OK;
    char b1[32], b2[32];
    return mx_fail(MX_USAGE,
                   "the model and a batch of %lld tokens leave nothing of "
                   "gpu_memory_utilization=%g of the GPU's %s for keys and values "
                   "(%s are missing); lower batch, prefill_chunk_size or max_model_len, "
                   "use quantization=, or raise gpu_memory_utilization",
                   (long long)o->step_tokens, share,
                   mx_format_bytes(b1, sizeof b1, t->chip.memory_bytes),
                   mx_format_bytes(b2, sizeof b2, (double)-*room));
}

/* Pages for every sequence at max_length where memory allows, else as many as fit; LEAST_CACHE
 * tokens at least. */
static mx_status choose_pages(mx_engine *e, int64_t *pages)
{
    mx_engine_options *o = &e->o;
    mx_engine_batch_settings bs = settings_of(o, 1);
    mx_cache_bytes each;
    int64_t tokens = o->cache_tokens;
    MX_TRY(mx_engine_batch_cache_bytes(&o->model->spec, &bs, &each));
    if (bs.keep_hidden) {
        mx_cache_bytes more;
        mx_engine_batch_settings ms = draft_settings(&bs);
        MX_TRY(mx_engine_batch_cache_bytes(&o->model->spec, &ms, &more));
        each.token += more.token;
    }
    if (each.sequence)
        MX_TRY(restrict_to_states(o));
    if (!tokens) {
        int64_t room;
        MX_TRY(cache_room(e, &bs, &room));
        room = (room - o->sequences * each.sequence) / (each.token > 0 ? each.token : 1);
        if (__builtin_mul_overflow(o->sequences, o->max_length, &tokens))
            tokens = INT64_MAX / 2;
        tokens = tokens < room ? tokens : room;
        tokens = tokens > LEAST_CACHE ? tokens : LEAST_CACHE;
    }
    *pages = (tokens + MX_ENGINE_PAGE - 1) / MX_ENGINE_PAGE;
    if (*pages * MX_ENGINE_PAGE > INT32_MAX)
        return mx_fail(MX_USAGE,
                       "a cache of %lld tokens is more than can be numbered; lower "
                       "cache_tokens",
                       (long long)tokens);
    return MX_OK;
}

/* The most tokens of an image that must be in one batch: they see each other. */
static int64_t longest_image(const mx_engine_options *o)
{
    mx_image_spec s = image_spec_of(&o->model->spec);
    int64_t piece = s.side * s.patch;
    if (!o->images || !s.both_ways)
        return 0;
    return s.size ? s.tokens : s.max_pixels / (piece * piece) * s.tokens;
}

static mx_status choose(mx_engine *e)
{
    mx_engine_options *o = &e->o;
    int64_t most = o->model->spec.summary.max_positions;
    if (o->max_length > INT32_MAX || (most > 0 && o->max_length > most))
        return mx_fail(MX_USAGE,
                       "prompt and answer need %lld positions, but the model was made for %lld; "
                       "shorten the prompt, or lower max_new_tokens or max_model_len",
                       (long long)o->max_length, (long long)most);
    if (!o->max_length)
        o->max_length = most > 0 && most < USUAL_LENGTH ? most : USUAL_LENGTH;
    if (o->sequences <= 0)
        o->sequences = e->device_draws ? USUAL_DEVICE_SEQUENCES : USUAL_SEQUENCES;
    int64_t usual = e->device_draws ? USUAL_DEVICE_STEP : USUAL_STEP;
    o->step_tokens = o->step_tokens > 0 ? o->step_tokens : usual;
    int64_t answers = o->sequences * (1 + o->draft_tokens);
    answers += longest_image(o);
    if (o->step_tokens < answers)
        o->step_tokens = answers;
    e->model_vocab = e->vocab = o->model->spec.summary.vocab;
    /* The embedding may be padded beyond the last token; such ids have no text, and are not
     * sampled. */
    if (o->tokenizer && mx_tokenizer_vocab_size(o->tokenizer) < e->vocab)
        e->vocab = mx_tokenizer_vocab_size(o->tokenizer);
    return MX_OK;
}

/* Rank 0 of a mesh chooses for all. */
static mx_status share_pages(mx_engine *e, int64_t *pages)
{
    mx_engine_options *o = &e->o;
    if (!o->mesh_rank || !o->mesh_rank->rank)
        MX_TRY(choose_pages(e, pages));
    else
        *pages = mx_batch_ranks_pages(o->ranks);
    if (o->mesh_rank && !o->mesh_rank->rank)
        mx_batch_ranks_set_pages(o->ranks, *pages);
    return *pages ? MX_OK : mx_fail(MX_STOPPED, "the first rank of the mesh has not begun");
}

static mx_status load_weights(mx_engine *e)
{
    MX_TRY(mx_model_ref_weights(e->o.model, e->session, e->o.seed));
    MX_TRY(mx_engine_batch_lay_weights(e->batch));
    if (e->tower)
        MX_TRY(mx_engine_batch_lay_more(e->batch, mx_tower_graph(e->tower)));
    if (e->mtp)
        MX_TRY(mx_engine_batch_lay_more(e->batch, mx_engine_batch_graph(e->mtp)));
    MX_TRY(mx_engine_batch_warm_up(e->batch));
    return e->mtp ? mx_engine_batch_warm_up(e->mtp) : MX_OK;
}

mx_status mx_engine_open_model(mx_engine *e)
{
    mx_engine_options *o = &e->o;
    if (!e->session)
        MX_TRY(mx_mesh_rank_session(&e->session, o->mesh_rank, o->device, o->n_threads));
    e->device_draws = o->device_draws || !mx_session_traits(e->session)->host_memory;
    if (o->images && !o->model->spec.family->images)
        return mx_fail(MX_USAGE, "%s is a family without images", o->model->spec.family->name);
    if (o->mtp && o->draft_tokens > 0)
        MX_TRY(mx_engine_check_mtp(o->model));
    e->image_spec = image_spec_of(&o->model->spec);
    MX_TRY(choose(e));
    mx_engine_batch_settings bs = settings_of(o, 1);
    if (o->images)
        MX_TRY(mx_tower_open(&e->tower, e->session, &o->model->spec, &bs.compile));
    MX_TRY(share_pages(e, &bs.pages));
    bs.draw_vocab = e->device_draws ? e->vocab : 0;
    bs.image_width = e->tower ? mx_tower_width(e->tower) : 0;
    MX_TRY(mx_engine_batch_open(&e->batch, e->session, &o->model->spec, &bs));
    if (bs.keep_hidden) {
        mx_engine_batch_settings ms = draft_settings(&bs);
        MX_TRY(mx_engine_batch_open(&e->mtp, e->session, &o->model->spec, &ms));
    }
    if (e->tower)
        MX_TRY(mx_tower_add(e->tower));
    e->n_pages = bs.pages;
    e->n_rows = bs.rows;
    return load_weights(e);
}

static mx_status open_all(mx_engine *e)
{
    mx_engine_options *o = &e->o;
    MX_TRY(mx_engine_open_model(e));
    MX_TRY(mx_pages_open(&e->pages, e->n_pages, MX_ENGINE_PAGE));
    e->n_threads = mx_session_threads(e->session);
    MX_TRY(mx_alloc((void **)&e->work, 8 * (size_t)e->model_vocab * (size_t)e->n_threads,
                    "the sampler"));
    int64_t n = o->sequences;
    e->running = MX_NEW_N(&e->arena, mx_seq *, n + 1);
    for (int i = 0; i < 2; i++)
        e->inflight[i].part = MX_NEW_N(&e->arena, mx_inflight_part, n);
    e->free_rows = MX_NEW_N(&e->arena, int32_t, n);
    e->drawn = MX_NEW_N(&e->arena, mx_choice, e->n_rows);
    e->slot_contents = MX_NEW_N(&e->arena, uint64_t, o->adapter_slots);
    e->hidden = MX_NEW_N(&e->arena, float, e->n_rows *mx_engine_batch_width(e->batch));
    for (e->n_free_rows = 0; e->n_free_rows < n; e->n_free_rows++)
        e->free_rows[e->n_free_rows] = (int32_t)(n - 1 - e->n_free_rows);
    int32_t *ids = MX_NEW_N(&e->arena, int32_t, o->n_stop_ids);
    for (int i = 0; i < o->n_stop_ids; i++)
        ids[i] = o->stop_ids[i];
    o->stop_ids = ids;
    return MX_OK;
}

mx_status mx_engine_open(mx_engine **out, const mx_engine_options *o)
{
    mx_engine *e = mx_realloc(NULL, sizeof *e);
    *e = (mx_engine){.o = *o, .session = o->session};
    *out = NULL;
    const char *dir = o->model->has_adapter ? o->model->adapter.dir.path : NULL;
    mx_status st = dir ? mx_fail(MX_USAGE,
                                 "%s is an adapter; serve its model with lora=NAME=%s, or put it "
                                 "into the weights: maxc merge %s output=DIR",
                                 dir, dir, dir)
                       : open_all(e);
    if (st)
        mx_engine_close(e);
    else
        *out = e;
    return st;
}

static void free_seq(mx_seq *s)
{
    mx_tokens_fini(&s->r.tokens);
    mx_reply_fini(&s->r.reply);
    mx_status_free(s->r.error);
    mx_constraint_close(s->o.constraint);
    mx_image_set_release(s->o.images);
    mx_free(s->page);
    mx_free(s->r.log_prob);
    mx_free(s->r.embedding);
    mx_free(s->r.top);
    mx_arena_fini(&s->arena);
    mx_free(s);
}

void mx_engine_close(mx_engine *e)
{
    if (!e)
        return;
    while (e->all) {
        mx_seq *s = e->all;
        e->all = s->next;
        free_seq(s);
    }
    mx_free(e->news);
    mx_free(e->work);
    mx_pages_close(e->pages);
    mx_engine_batch_close(e->batch);
    mx_engine_batch_close(e->mtp);
    mx_tower_close(e->tower);
    mx_session_close(e->session);
    mx_arena_fini(&e->arena);
    mx_free(e);
}

/* --- requests --- */

static mx_status check(const mx_engine *e, const mx_tokens *prompt, const mx_request_options *o)
{
    if (prompt->n == 0)
        return mx_fail(MX_USAGE, "the prompt is empty and the tokenizer adds no start token; give "
                                 "some text");
    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= e->model_vocab)
            return mx_fail(MX_INPUT,
                           "token %lld of the prompt is %d, but the model has tokens 0 to "
                           "%lld",
                           (long long)i, prompt->ids[i], (long long)e->model_vocab - 1);
    if (o->images && !e->tower)
        return mx_fail(MX_USAGE, "the prompt has images, but the engine takes none of %s",
                       e->o.model->spec.family->name);
    if (o->adapter < 0 || o->adapter > e->o.adapter_slots)
        return mx_fail(MX_USAGE, "there is no adapter %lld", (long long)o->adapter);
    int64_t pages = mx_pages_count(e->pages), most = pages * MX_ENGINE_PAGE;
    most = most < e->o.max_length ? most : e->o.max_length;
    if (prompt->n > most || o->max_new > most - prompt->n)
        return mx_fail(MX_USAGE,
                       "%lld tokens of prompt and %lld new ones are more than there is "
                       "room for, %lld; shorten the prompt or ask for fewer tokens",
                       (long long)prompt->n, (long long)o->max_new, (long long)most);
    return MX_OK;
}

/* What the caller's options point to, as the request's own. */
static void copy_options(mx_engine *e, mx_seq *s, const mx_request_options *o)
{
    mx_arena *a = &s->arena;
    s->o = *o;
    s->o.stop_ids = mx_arena_copy(a, o->stop_ids, sizeof(int32_t) * (size_t)o->n_stop_ids);
    s->o.bias = mx_arena_copy(a, o->bias, sizeof *o->bias * (size_t)o->n_bias);
    s->o.salt = o->salt ? mx_arena_strdup(a, o->salt) : NULL;
    s->o.images = mx_image_set_hold(o->images);
    const char **stop = MX_NEW_N(a, const char *, o->n_stop);
    for (int i = 0; i < o->n_stop; i++)
        stop[i] = mx_arena_strdup(a, o->stop[i]);
    s->o.stop = stop;
    s->mtp_draft = MX_NEW_N(a, int32_t, e->o.draft_tokens);
    s->banned = MX_NEW_N(a, int32_t, o->n_stop_ids + e->o.n_stop_ids);
    for (int i = 0; i < o->n_stop_ids; i++)
        s->banned[s->n_banned++] = o->stop_ids[i];
    for (int i = 0; i < e->o.n_stop_ids && !o->ignore_eos; i++)
        s->banned[s->n_banned++] = e->o.stop_ids[i];
}

static mx_status make_room(const mx_engine *e, mx_seq *s)
{
    mx_request *r = &s->r;
    int64_t most = r->n_prompt + s->o.max_new;
    mx_tokens_reserve(&r->tokens, most - r->tokens.n);
    MX_TRY(mx_alloc((void **)&s->page, sizeof *s->page * (size_t)(most / MX_ENGINE_PAGE + 1),
                    "a request's pages"));
    if (s->o.embedding)
        MX_TRY(mx_alloc((void **)&r->embedding,
                        sizeof(float) * (size_t)mx_engine_batch_width(e->batch), "an embedding"));
    if (!s->o.log_probs)
        return MX_OK;
    r->n_top = s->o.n_top;
    MX_TRY(mx_alloc((void **)&r->log_prob, sizeof(float) * (size_t)most, "log-probabilities"));
    for (int64_t i = 0; i < most; i++)
        r->log_prob[i] = NAN;
    return mx_alloc((void **)&r->top, sizeof *r->top * (size_t)(most * r->n_top + 1),
                    "the likeliest tokens");
}

mx_status mx_engine_admit(mx_engine *e, const mx_tokens *prompt, const mx_request_options *o,
                          mx_request **out)
{
    *out = NULL;
    MX_TRY(check(e, prompt, o));
    mx_seq *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_seq){
        .row = -1,
        .r = {.n_prompt = prompt->n, .stop_id = -1, .owner = o->owner, .arrived = mx_clock_now()}};
    copy_options(e, s, o);
    mx_reply_init(&s->r.reply, e->o.tokenizer, !o->show_special, s->o.stop, s->o.n_stop);
    s->r.reply.keep_stop = o->keep_stop;
    s->scored = o->prompt_log_probs ? 1 : prompt->n;
    for (int64_t i = 0; i < prompt->n; i++)
        mx_tokens_add(&s->r.tokens, prompt->ids[i]);
    mx_status st = make_room(e, s);
    if (!st && o->images)
        st = mx_image_spots_find(&s->spots, o->images, prompt, &s->arena);
    if (st) {
        s->o.constraint = NULL; /* still the caller's */
        free_seq(s);
        return st;
    }
    s->next = e->all;
    if (e->all)
        e->all->prev = s;
    e->all = s;
    mx_engine_wait(e, s, false);
    *out = &s->r;
    return MX_OK;
}

static void unqueue(mx_engine *e, mx_seq *s)
{
    mx_seq *before = NULL;
    for (mx_seq *x = e->waiting; x; before = x, x = x->next_waiting)
        if (x == s) {
            *(before ? &before->next_waiting : &e->waiting) = s->next_waiting;
            if (e->last_waiting == s)
                e->last_waiting = before;
            return;
        }
}

void mx_engine_cancel(mx_engine *e, mx_request *r)
{
    mx_seq *s = (mx_seq *)r;
    mx_engine_evict(e, s);
    unqueue(e, s);
    *(s->prev ? &s->prev->next : &e->all) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    for (int64_t i = 0; i < e->n_news; i++)
        if (e->news[i] == s)
            e->news[i] = e->news[--e->n_news];
    free_seq(s);
}

mx_status mx_engine_adapt(mx_engine *e, int64_t slot, const mx_adapter *a)
{
    MX_ASSERT(slot >= 1 && slot <= e->o.adapter_slots, "slot %d", (int)slot);
    MX_TRY(mx_adapters_set(e->session, slot - 1, e->o.adapter_rank, a));
    e->slot_contents[slot - 1] = ++e->n_contents;
    return MX_OK;
}

bool mx_engine_busy(const mx_engine *e)
{
    return e->n_running || e->waiting;
}

/* --- a step --- */

static void list_news(mx_engine *e)
{
    for (int64_t i = e->n_running; i-- > 0;) {
        mx_seq *s = e->running[i];
        if (s->news && !s->listed) {
            MX_GROW(e->news, e->n_news, e->cap_news);
            e->news[e->n_news++] = s;
            s->listed = true;
        }
        s->news = false;
        if (s->r.finish)
            mx_engine_evict(e, s);
    }
}

/* Whether the host reads no logits of the batch. */
static bool is_plain_batch(const mx_engine *e)
{
    const mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    bool plain = e->device_draws && !e->o.draft_tokens && !in->has_images;
    for (int64_t i = 0; i < in->n_last; i++)
        plain &= !in->wants_logits[i];
    return plain;
}

/* A plain batch counts as computed from here on; its tokens are pending. */
static void count_as_computed(mx_engine *e, mx_inflight *f)
{
    f->n = 0;
    for (int64_t i = 0; i < e->n_running; i++) {
        mx_seq *s = e->running[i];
        if (!s->take)
            continue;
        int64_t unread = s->r.n_prompt - s->computed;
        if (unread > 0)
            e->counts.prompt_tokens += s->take < unread ? s->take : unread;
        f->part[f->n++] = (mx_inflight_part){s, s->take, s->first_row, s->n_rows};
        s->computed += s->take;
        s->n_pending += s->n_rows;
    }
}

/* Launches the batch as it is filled; f->n is 0 where there is nothing in it. */
static mx_status launch(mx_engine *e, mx_inflight *f)
{
    const mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    f->n = 0;
    if (!in->n)
        return MX_OK;
    double now = mx_clock_now();
    for (int64_t i = 0; i < e->n_running; i++)
        if (e->running[i]->take && !e->running[i]->r.started)
            e->running[i]->r.started = now;
    mx_engine_set_sampling(e);
    MX_TRY(mx_engine_fill_images(e));
    f->plain = is_plain_batch(e);
    f->n = 1;
    if (e->o.ranks)
        MX_TRY(mx_batch_ranks_send(e->o.ranks, in));
    MX_TRY(mx_engine_batch_launch(e->batch, &f->turn));
    if (f->plain)
        count_as_computed(e, f);
    e->counts.model_s += mx_clock_now() - now;
    e->counts.steps++;
    e->counts.batch_tokens += in->n;
    return MX_OK;
}

static mx_status wait_for(mx_engine *e, const mx_inflight *f)
{
    double now = mx_clock_now();
    bool hidden = false;
    MX_TRY(mx_engine_batch_wait(e->batch, f->turn));
    for (int64_t i = 0; i < e->n_running && !f->plain; i++)
        hidden |= e->running[i]->o.embedding && e->running[i]->n_rows;
    if (hidden)
        MX_TRY(mx_engine_batch_hidden(e->batch, e->hidden));
    e->counts.model_s += mx_clock_now() - now;
    return MX_OK;
}

/* The batch after a plain one is launched before that one is waited for. */
mx_status mx_engine_step(mx_engine *e)
{
    double began = mx_clock_now();
    mx_inflight *f = &e->inflight[0], *ahead = &e->inflight[1];
    if (!f->n) {
        mx_engine_schedule(e);
        MX_TRY(launch(e, f));
    }
    if (!f->n)
        return MX_OK;
    if (f->plain && mx_engine_has_room_ahead(e)) {
        mx_engine_schedule(e);
        MX_TRY(launch(e, ahead));
        e->counts.ahead += ahead->n > 0;
    }
    MX_TRY(wait_for(e, f));
    if (f->plain)
        mx_engine_complete(e, f);
    else
        mx_engine_sample(e);
    f->n = 0;
    if (e->mtp)
        MX_TRY(mx_engine_mtp_draft(e));
    list_news(e);
    mx_inflight done = *f;
    *f = *ahead;
    *ahead = done;
    e->counts.step_s += mx_clock_now() - began;
    return MX_OK;
}

mx_request *mx_engine_take(mx_engine *e)
{
    if (!e->n_news)
        return NULL;
    mx_seq *s = e->news[--e->n_news];
    s->listed = false;
    return &s->r;
}

mx_engine_counts mx_engine_count(const mx_engine *e)
{
    mx_engine_counts c = e->counts;
    c.running = e->n_running;
    for (const mx_seq *s = e->waiting; s; s = s->next_waiting)
        c.waiting++;
    c.pages = mx_pages_count(e->pages);
    c.pages_held = mx_pages_held(e->pages);
    return c;
}

int64_t mx_engine_max_length(const mx_engine *e)
{
    return e->o.max_length;
}

int64_t mx_engine_width(const mx_engine *e)
{
    return mx_engine_batch_width(e->batch);
}

int64_t mx_engine_vocab(const mx_engine *e)
{
    return e->vocab;
}
