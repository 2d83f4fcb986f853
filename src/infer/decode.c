/* decode.c - runs of tokens through the cache programs.
 *
 * A run feeds up to T tokens of every sequence at once; sequences with fewer are padded with
 * position -1, which the caches do not store and the mask does not see. For each fed token the host
 * says its position and, for every cache size the model has, its slot: position mod slots.
 *
 * A run is of text for all sequences, or of one image each for those whose next token is an
 * image's.
 */
#include "infer/decode.h"

#include "data/image/image_process.h"
#include "ir/placement.h"
#include "ops/inputs.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MX_SAMPLE_SETTINGS };
enum { MAX_SIZES = 8, PROMPT_RUN = 128, LEAST_RUN = 256 };

typedef struct {
    mx_forward forward;
    int64_t seq;
    int64_t slots[MAX_SIZES]; /* cache sizes it has inputs for */
    int n_sizes;
    int32_t *tokens, *positions, *slot, *last, *places;
} runner;

struct mx_decode {
    mx_session *session; /* borrows */
    mx_forward_stages stages; /* where it goes through any: all its programs are cut alike */
    int64_t batch, max_length, vocab;
    runner one, many, image;
    bool has_many, has_image;
    mx_image_spec spec;
    int64_t image_tokens; /* of one image at most */
    float *pixels; /* of one image for each sequence */
    int64_t *length, *next; /* tokens of each sequence; with places, that of its next token */
    float *logits; /* (B, vocab) */
    mx_readback fresh; /* (B, vocab), of the last run; the logits themselves where B is 1. Where
                          tokens are sampled (2, B): ids, as bits, and their log-probabilities */
    bool draws;
    float *how;     /* (B, N_SETTINGS): how tokens are sampled */
    int32_t *drawn; /* (B) */
    float *logp;    /* (B) */
    mx_arena arena;
};

/* The cache sizes are the inputs called cache_slots.N. */
static void find_sizes(runner *r)
{
    static const char prefix[] = "cache_slots.";
    const mx_graph *g = mx_forward_graph(&r->forward);
    for (int i = 0; i < g->n_nodes; i++) {
        const char *name = g->node[i]->name;
        int64_t n;
        if (name && mx_starts_with(name, prefix) && mx_parse_i64(name + sizeof prefix - 1, &n) &&
            mx_graph_find(g, name) == g->node[i]) { /* several stages may have it */
            MX_ASSERT(r->n_sizes < MAX_SIZES, "more than %d cache sizes", MAX_SIZES);
            r->slots[r->n_sizes++] = n;
        }
    }
}

/* What the image program takes: an image of each sequence, or the pieces of the longest one. */
static int64_t images_of(const mx_decode *d)
{
    return d->batch * (d->spec.size ? 1 : d->image_tokens / d->spec.tokens);
}

static mx_step_options runner_options(const mx_decode *d, int64_t seq, int64_t images,
                                      const mx_decode_settings *o)
{
    int64_t run = o->image_tokens > LEAST_RUN ? o->image_tokens : LEAST_RUN;
    if (o->one_path) /* keys lie by position, as in training: no ring */
        run = d->max_length;
    return (mx_step_options){.kind = MX_STEP_NEXT,
                             .compile = o->compile,
                             .lora = o->lora,
                             .temperature = o->temperature,
                             .draw_vocab = o->draw_vocab,
                             .shape = {.batch = d->batch,
                                       .seq = seq,
                                       .cache_len = d->max_length,
                                       .images = images,
                                       .places = d->spec.places,
                                       .max_run = run,
                                       .one_path = o->one_path,
                                       .cache_dtype = o->compile.compute,
                                       .cache_quant = o->compile.quant.cache,
                                       .cache_by_token = o->compile.quant.cache_by_token}};
}

/* Tokens of a prompt that are fed at once. */
static int64_t prompt_run(const mx_decode_settings *o)
{
    int64_t run = o->prompt_hint > 0 && o->prompt_hint < PROMPT_RUN ? o->prompt_hint : PROMPT_RUN;
    return run < o->max_length ? run : o->max_length;
}

mx_status mx_decode_bytes(const mx_model_spec *m, const mx_decode_settings *o, double *bytes)
{
    mx_decode d = {.batch = o->batch, .max_length = o->max_length};
    int64_t run = prompt_run(o);
    double cache = 0;
    *bytes = 0;
    for (int i = 0; i < (run > 1 ? 2 : 1); i++) {
        mx_forward f;
        mx_step_options so = runner_options(&d, i ? run : 1, 0, o);
        double added = 0, by_itself;
        mx_status st = mx_forward_plan(&f, m, &so, o->stages);
        if (!st)
            mx_forward_bytes(&f, &added, &by_itself);
        cache = st ? 0 : mx_forward_caches(&f);
        *bytes += added - cache; /* both have the same */
        mx_forward_close(&f);
        MX_TRY(st);
    }
    *bytes += cache;
    return MX_OK;
}

static mx_status open_runner(mx_decode *d, runner *r, const mx_model_spec *m, int64_t seq,
                             const mx_decode_settings *o)
{
    mx_step_options so = runner_options(d, seq, r == &d->image ? images_of(d) : 0, o);
    so.compile.n_threads = mx_session_threads(d->session);
    MX_TRY(mx_forward_open(&r->forward, d->session, m, &so, o->stages ? &d->stages : NULL));
    if (o->stages && !d->stages.how.as)
        d->stages.how.as = &r->forward.pipeline.cut;
    r->seq = seq;
    find_sizes(r);
    r->tokens = MX_NEW_N(&d->arena, int32_t, d->batch * seq);
    r->positions = MX_NEW_N(&d->arena, int32_t, d->batch * seq);
    r->slot = MX_NEW_N(&d->arena, int32_t, d->batch * seq);
    r->last = MX_NEW_N(&d->arena, int32_t, d->batch);
    r->places = MX_NEW_N(&d->arena, int32_t, d->spec.places ? 3 * d->batch * seq : 0);
    return MX_OK;
}

static mx_status open_images(mx_decode *d, const mx_model_spec *m, const mx_decode_settings *o)
{
    d->image_tokens = o->image_tokens;
    if (d->image_tokens > d->max_length)
        return mx_fail(MX_INPUT, "an image has %lld tokens, but there is room for %lld in all",
                       (long long)d->image_tokens, (long long)d->max_length);
    MX_TRY(open_runner(d, &d->image, m, d->image_tokens, o));
    d->has_image = true;
    size_t floats = (size_t)(images_of(d) * mx_image_floats(&d->spec));
    return mx_alloc((void **)&d->pixels, sizeof(float) * floats, "the images of a batch");
}

/* Plain sampling: temperature 1, no top-k, no top-p. */
static mx_status open_draws(mx_decode *d)
{
    d->how = MX_NEW_N(&d->arena, float, d->batch * N_SETTINGS);
    d->drawn = MX_NEW_N(&d->arena, int32_t, d->batch);
    d->logp = MX_NEW_N(&d->arena, float, d->batch);
    for (int64_t b = 0; b < d->batch; b++) {
        d->how[b * N_SETTINGS + TEMPERATURE] = 1;
        d->how[b * N_SETTINGS + TOP_P] = 1;
    }
    return mx_readback_open(&d->fresh, d->session, (int)(2 * d->batch));
}

mx_status mx_decode_open(mx_decode **out, mx_session *s, const mx_model_spec *m,
                         const mx_decode_settings *o)
{
    *out = NULL;
    int64_t limit = m->summary.max_positions;
    if (limit > 0 && o->max_length > limit)
        return mx_fail(MX_USAGE,
                       "prompt and answer need %lld positions, but the model was made for "
                       "%lld; shorten the prompt or lower max_new_tokens",
                       (long long)o->max_length, (long long)limit);
    if (o->image_tokens && !m->family->images)
        return mx_fail(MX_USAGE, "%s is a family without images", m->family->name);
    mx_decode *d = mx_realloc(NULL, sizeof *d);
    *d = (mx_decode){.session = s, .batch = o->batch, .max_length = o->max_length,
                     .vocab = m->summary.vocab, .draws = o->draw_vocab > 0};
    if (o->stages)
        d->stages = *o->stages;
    if (o->image_tokens)
        m->family->images(m->config, &d->spec);
    d->length = MX_NEW_N(&d->arena, int64_t, d->batch);
    d->next = MX_NEW_N(&d->arena, int64_t, d->batch);
    int64_t run = prompt_run(o);
    mx_status st = MX_OK;
    if (d->draws)
        st = open_draws(d);
    else if (d->batch > INT_MAX / d->vocab)
        st = mx_fail(MX_USAGE, "%lld sequences of a vocabulary of %lld are too many at once; lower "
                     "batch", (long long)d->batch, (long long)d->vocab);
    else
        st = mx_readback_open(&d->fresh, s, (int)(d->batch * d->vocab));
    if (!st && !d->draws)
        d->logits =
            d->batch == 1 ? d->fresh.value : MX_NEW_N(&d->arena, float, d->batch * d->vocab);
    if (!st)
        st = open_runner(d, &d->one, m, 1, o);
    if (!st && run > 1) {
        st = open_runner(d, &d->many, m, run, o);
        d->has_many = !st;
    }
    if (!st && o->image_tokens)
        st = open_images(d, m, o);
    if (st)
        mx_decode_close(d);
    else
        *out = d;
    return st;
}

void mx_decode_close(mx_decode *d)
{
    if (!d)
        return;
    mx_forward_close(&d->one.forward);
    mx_forward_close(&d->many.forward);
    mx_forward_close(&d->image.forward);
    mx_readback_close(&d->fresh);
    mx_free(d->pixels);
    mx_arena_fini(&d->arena);
    mx_free(d);
}

/* What a call of feed is about, and how far it has come. */
typedef struct {
    const int32_t *const *tokens;
    const int64_t *n;
    const float *const *pixels; /* NULL: image tokens are tokens like any other */
    int64_t *done, *images;     /* tokens and images fed */
    int64_t *take;              /* tokens of the next run */
} feed;

/* take[b] tokens of each sequence from done[b] on. */
static void fill(mx_decode *d, runner *r, const feed *f)
{
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t take = f->take[b];
        for (int64_t i = 0; i < r->seq; i++) {
            r->tokens[b * r->seq + i] = i < take ? f->tokens[b][f->done[b] + i] : 0;
            r->positions[b * r->seq + i] = i < take ? (int32_t)(d->length[b] + i) : -1;
        }
        r->last[b] = (int32_t)(b * r->seq + (take > 0 ? take - 1 : 0));
        bool image = r == &d->image;
        const float *pixels = image ? d->pixels + b * r->seq * mx_image_floats(&d->spec) : NULL;
        if (d->spec.places)
            mx_image_places(&d->spec, r->tokens + b * r->seq, NULL, take, pixels, image ? take : 0,
                            &d->next[b], r->places + b * r->seq, d->batch * r->seq);
    }
}

typedef struct {
    mx_decode *d;
    runner *r;
} running;

static mx_status write_run(void *ctx, int microbatch, mx_exec *e)
{
    mx_decode *d = ((const running *)ctx)->d;
    runner *r = ((const running *)ctx)->r;
    (void)microbatch;
    if (d->spec.places)
        MX_TRY(mx_exec_write_whole(e, "places", r->places));
    if (r == &d->image)
        MX_TRY(mx_exec_write_whole(e, "pixels", d->pixels));
    MX_TRY(mx_exec_write_whole(e, "tokens", r->tokens));
    MX_TRY(mx_exec_write_whole(e, "positions", r->positions));
    MX_TRY(mx_exec_write_whole(e, "last", r->last));
    for (int s = 0; s < r->n_sizes; s++) {
        char name[64];
        snprintf(name, sizeof name, "cache_slots.%lld", (long long)r->slots[s]);
        for (int64_t i = 0; i < d->batch * r->seq; i++)
            r->slot[i] = r->positions[i] < 0 ? -1 : (int32_t)(r->positions[i] % r->slots[s]);
        MX_TRY(mx_exec_write_whole(e, name, r->slot));
    }
    return d->draws ? mx_exec_write_whole(e, "sampling", d->how) : MX_OK;
}

static mx_status read_run(void *ctx, int microbatch, mx_exec *e)
{
    mx_decode *d = ((const running *)ctx)->d;
    (void)microbatch;
    if (!d->draws)
        return mx_readback_copy(&d->fresh, e, "logits", 0);
    MX_TRY(mx_readback_copy(&d->fresh, e, "drawn", 0));
    return mx_readback_copy(&d->fresh, e, "drawn_logp", (int)d->batch);
}

static mx_status run(mx_decode *d, runner *r, const feed *f)
{
    running now = {d, r};
    int64_t fresh = d->batch * (d->draws ? 2 : d->vocab);
    fill(d, r, f);
    MX_TRY(mx_forward_run(&r->forward, &(mx_pipeline_feed){write_run, read_run, &now}));
    MX_TRY(mx_readback_mark(&d->fresh));
    MX_TRY(mx_readback_wait(&d->fresh));
    return mx_forward_share(&r->forward, d->fresh.value, sizeof(float) * (size_t)fresh);
}

static const float *next_image(const mx_decode *d, const feed *f, int64_t b)
{
    return f->pixels[b] + f->images[b] * mx_image_floats(&d->spec);
}

/* How many of the next tokens, at most `most`, are all text or all of one image; *image: which. */
static int64_t stretch(const mx_decode *d, const feed *f, int64_t b, int64_t most, bool *image)
{
    int64_t left = f->n[b] - f->done[b], k = 0;
    *image = false;
    if (!left)
        return 0;
    const int32_t *t = f->tokens[b] + f->done[b];
    *image = f->pixels && t[0] == d->spec.token;
    if (*image)
        most = mx_image_run_tokens(&d->spec, next_image(d, f, b));
    while (k < left && k < most && (!f->pixels || (t[k] == d->spec.token) == *image))
        k++;
    return k;
}

/* Sequences whose next token is an image's go first, with that image's pixels. */
static mx_status take_images(mx_decode *d, const feed *f, bool *any)
{
    int64_t floats = mx_image_floats(&d->spec), room = images_of(d) / d->batch, n = 0;
    if (!d->spec.size)
        mx_pieces_clear(&d->spec, d->pixels, images_of(d));
    for (int64_t b = 0; b < d->batch; b++) {
        bool image;
        int64_t k = stretch(d, f, b, 0, &image);
        f->take[b] = image ? k : 0;
        if (!image)
            continue;
        const float *from = next_image(d, f, b);
        int64_t tokens = mx_image_run_tokens(&d->spec, from), pieces = mx_image_run(&d->spec, from);
        if (k < tokens || tokens > d->image_tokens)
            return mx_fail(MX_INPUT,
                           "an image of sequence %lld has %lld of its %lld tokens, and %lld are "
                           "taken",
                           (long long)b, (long long)k, (long long)tokens,
                           (long long)d->image_tokens);
        /* Whole images follow each other, pieces begin with their sequence. */
        memcpy(d->pixels + floats * (d->spec.size ? n : b * room), from,
               sizeof(float) * (size_t)(pieces * floats));
        f->images[b] += pieces;
        n++;
    }
    *any = n > 0;
    return MX_OK;
}

/* One more run, of the program that fits; *ran: there was something left. */
static mx_status feed_run(mx_decode *d, const feed *f, bool *ran)
{
    runner *r = &d->image;
    *ran = false;
    if (f->pixels)
        MX_TRY(take_images(d, f, ran));
    if (!*ran) {
        int64_t most = 0, room = d->has_many ? d->many.seq : 1;
        for (int64_t b = 0; b < d->batch; b++) {
            bool image;
            f->take[b] = stretch(d, f, b, room, &image);
            most = f->take[b] > most ? f->take[b] : most;
        }
        r = most > 1 ? &d->many : &d->one;
        *ran = most > 0;
    }
    return *ran ? run(d, r, f) : MX_OK;
}

/* What the last run gave for sequence b, whose last token it was. */
static void keep(mx_decode *d, int64_t b)
{
    if (d->draws) {
        memcpy(&d->drawn[b], &d->fresh.value[b], sizeof d->drawn[b]);
        d->logp[b] = d->fresh.value[d->batch + b];
    } else if (d->logits != d->fresh.value) {
        memcpy(d->logits + b * d->vocab, d->fresh.value + b * d->vocab,
               sizeof(float) * (size_t)d->vocab);
    }
}

mx_status mx_decode_feed_images(mx_decode *d, const int32_t *const *tokens, const int64_t *n,
                                const float *const *pixels)
{
    mx_arena scratch = {0};
    feed f = {.tokens = tokens, .n = n, .pixels = d->has_image ? pixels : NULL};
    f.done = MX_NEW_N(&scratch, int64_t, d->batch);
    f.images = MX_NEW_N(&scratch, int64_t, d->batch);
    f.take = MX_NEW_N(&scratch, int64_t, d->batch);
    mx_status st = MX_OK;
    for (int64_t b = 0; b < d->batch && !st; b++)
        if (d->length[b] + n[b] > d->max_length)
            st = mx_fail(MX_USAGE,
                         "sequence %lld would have %lld tokens, the cache holds %lld; shorten "
                         "the prompt or lower max_new_tokens",
                         (long long)b, (long long)(d->length[b] + n[b]), (long long)d->max_length);
    for (bool ran = true; ran && !st;) {
        st = feed_run(d, &f, &ran);
        for (int64_t b = 0; b < d->batch && !st; b++) {
            if (!ran || !f.take[b])
                continue;
            f.done[b] += f.take[b];
            d->length[b] += f.take[b];
            if (f.done[b] == n[b])
                keep(d, b);
        }
    }
    mx_arena_fini(&scratch);
    return st;
}

mx_status mx_decode_feed(mx_decode *d, const int32_t *const *tokens, const int64_t *n)
{
    return mx_decode_feed_images(d, tokens, n, NULL);
}

const float *mx_decode_logits(const mx_decode *d, int64_t b)
{
    return d->logits + b * d->vocab;
}

void mx_decode_decide(mx_decode *d, int64_t b, double uniform)
{
    float u = (float)uniform;
    d->how[b * N_SETTINGS + UNIFORM] = u < 1 ? u : 0x1.fffffep-1f; /* rounding may give 1 */
}

int32_t mx_decode_drawn(const mx_decode *d, int64_t b, float *logp)
{
    *logp = d->drawn[b] < 0 ? NAN : d->logp[b];
    return d->drawn[b];
}

int64_t mx_decode_length(const mx_decode *d, int64_t b)
{
    return d->length[b];
}

bool mx_decode_is_exact(const mx_decode *d)
{
    int keys = 0, values = 0, others = 0;
    for (int i = 0; i < mx_session_count(d->session); i++) {
        const char *at = strstr(mx_session_var(d->session, i)->name, ".cache_");
        keys += at && strcmp(at, ".cache_k") == 0;
        values += at && strcmp(at, ".cache_v") == 0;
        others += at != NULL;
    }
    return mx_session_traits(d->session)->host_memory && keys == values && others == 2 * keys;
}

/* The sequence that element k of a cache (batch, slots) belongs to. */
static int64_t row_of(const mx_var *v, int64_t k)
{
    int64_t at = v->box ? mx_box_element(v->box, &v->type, k) : k;
    return at / mx_var_whole(v)->dim[1];
}

/* Positions of the sequence's slots become -1: what the caches hold is then invisible. */
mx_status mx_decode_reset(mx_decode *d, int64_t b)
{
    for (int64_t k = b < 0 ? 0 : b; k < (b < 0 ? d->batch : b + 1); k++)
        d->length[k] = d->next[k] = 0;
    for (int i = 0; i < mx_session_count(d->session); i++) {
        mx_var *v = mx_session_var(d->session, i);
        if (!mx_starts_with(v->name, "cache_positions."))
            continue;
        int32_t *host = NULL;
        MX_TRY(mx_alloc((void **)&host, mx_type_bytes(&v->type), v->name));
        mx_status st = mx_var_read(d->session, v, host);
        for (int64_t k = 0; k < mx_type_count(&v->type); k++)
            host[k] = b < 0 || row_of(v, k) == b ? -1 : host[k];
        if (!st)
            st = mx_var_write(d->session, v, host);
        mx_free(host);
        MX_TRY(st);
    }
    return MX_OK;
}
