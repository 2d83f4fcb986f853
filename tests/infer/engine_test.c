/* engine_test.c - requests through the engine give what transformers gave, alone and in a batch,
 * bit for bit: with prompts cut into pieces, shared beginnings, too few pages, and requests that
 * leave. */
#include "../test.h"

#include "base/rng.h"
#include "infer/engine.h"
#include "infer/generate.h"
#include "infer/pages.h"
#include "store/safetensors.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char root[] = "tests/fixtures/models";

typedef struct {
    mx_model_ref model;
    int32_t *want; /* prompt and greedy answer */
    int64_t total, n_prompt;
    float *alone; /* log-probabilities */
    mx_arena arena;
} family;

static mx_status family_open(family *f, const char *name)
{
    mx_st_file golden;
    const char *path = mx_arena_printf(&f->arena, "%s/%s", root, name);
    MX_TRY(mx_model_ref_open(&f->model, path, NULL, NULL));
    MX_TRY(mx_st_open(&golden, mx_arena_printf(&f->arena, "%s/golden.safetensors", path)));
    const mx_st_tensor *t = mx_st_find(&golden, "generated");
    if (t) {
        f->total = t->dim[t->ndim - 1];
        f->want = MX_NEW_N(&f->arena, int32_t, f->total);
        f->alone = MX_NEW_N(&f->arena, float, f->total);
        MX_TRY(mx_st_read(t, 0, f->total, MX_ST_I32, f->want, NULL));
        f->n_prompt = f->total == 24 ? 12 : 8;
    }
    mx_st_close(&golden);
    return MX_OK;
}

static void family_close(family *f)
{
    mx_model_ref_close(&f->model);
    mx_arena_fini(&f->arena);
}

static mx_engine_options options_of(const family *f)
{
    return (mx_engine_options){.model = &f->model,
                               .device = "cpu",
                               .n_threads = 1,
                               .compute = MX_F32,
                               .sequences = 1,
                               .step_tokens = 64,
                               .max_length = 48,
                               .cache_tokens = 48};
}

static mx_request_options greedy(const family *f, void *owner)
{
    return (mx_request_options){.sampling = {.repetition_penalty = 1},
                                .max_new = f->total - f->n_prompt,
                                .log_probs = true,
                                .n_top = 2,
                                .owner = owner};
}

/* The request got the golden's tokens; its log-probabilities are those of the first time, or they
 * are the first time. */
static void compare(const char *name, family *f, const mx_request *r, bool first)
{
    MX_CHECK(r->finish == MX_FINISH_LENGTH && r->tokens.n == f->total, "%s: %d of %d tokens", name,
             (int)r->tokens.n, (int)f->total);
    for (int64_t i = f->n_prompt; i < f->total && i < r->tokens.n; i++) {
        MX_CHECK(r->tokens.ids[i] == f->want[i], "%s: token %d is %d, not %d", name, (int)i,
                 r->tokens.ids[i], f->want[i]);
        if (first)
            f->alone[i] = r->log_prob[i];
        MX_CHECK(memcmp(&f->alone[i], &r->log_prob[i], sizeof(float)) == 0,
                 "%s: token %d: log-probability %.9g alone, %.9g in a batch", name, (int)i,
                 f->alone[i], r->log_prob[i]);
    }
}

static void run_alone(const char *name, family *f)
{
    mx_engine *e;
    mx_request *r;
    mx_engine_options o = options_of(f);
    mx_request_options q = greedy(f, NULL);
    mx_tokens prompt = {.ids = f->want, .n = f->n_prompt};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r));
    while (mx_engine_busy(e))
        MX_CHECK_OK(mx_engine_step(e));
    MX_CHECK(mx_engine_take(e) == r && !mx_engine_take(e), "news");
    compare(name, f, r, true);
    mx_engine_close(e);
}

/* Families whose layers keep a state of the last token: no beginnings are shared. */
static bool has_states(const char *name)
{
    return strncmp(name, "qwen3.5", 7) == 0 || strcmp(name, "qwen3-next") == 0 ||
           strcmp(name, "deepseek-v4") == 0;
}

/* Requests of any length arrive at any step, some go away again; the golden's come among them. With
 * `drafts`, tokens are drafted. */
static void run_batched(const char *name, family *f, int64_t rounds, int64_t drafts)
{
    mx_engine *e;
    int here, n_golden = 0, n_others = 0;
    mx_engine_options o = options_of(f);
    o.sequences = 5;
    o.step_tokens = 11;
    o.cache_tokens = 112;
    o.n_threads = 2;
    o.draft_tokens = drafts;
    MX_CHECK_OK(mx_engine_open(&e, &o));
    for (int64_t step = 0; step < rounds || mx_engine_busy(e); step++) {
        mx_random4 x = mx_philox(7, 1, (uint64_t)step);
        mx_request *r, *leaves = NULL;
        mx_request_options q = greedy(f, &here);
        mx_tokens prompt = {.ids = f->want, .n = f->n_prompt};
        int32_t other[40];
        if (step < rounds && x.v[0] % 4 == 0) {
            MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r));
        } else if (step < rounds && x.v[0] % 4 < 3) {
            q.owner = NULL;
            q.sampling.temperature = 1;
            q.max_new = x.v[1] % 8 + 1 + 8 * (x.v[1] % 3);
            prompt = (mx_tokens){.ids = other, .n = x.v[2] % 23 + 1};
            for (int64_t i = 0; i < prompt.n; i++) /* many begin alike */
                other[i] = i < (int64_t)(x.v[3] % 60) ? f->want[i % f->n_prompt] : (int32_t)(i % 7);
            MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r));
            leaves = x.v[3] % 5 == 0 ? r : NULL;
        }
        MX_CHECK_OK(mx_engine_step(e));
        if (leaves)
            mx_engine_cancel(e, leaves);
        while ((r = mx_engine_take(e))) {
            if (!r->finish)
                continue;
            if (r->owner)
                compare(name, f, r, false);
            *(r->owner ? &n_golden : &n_others) += 1;
            mx_engine_cancel(e, r);
        }
    }
    mx_engine_counts c = mx_engine_count(e);
    MX_CHECK(n_golden > 2 && n_others > 2 && c.pages_held == 0, "%s: %d, %d, %d pages held", name,
             n_golden, n_others, (int)c.pages_held);
    MX_CHECK(c.preemptions > 0 && (c.prefix_hits > 0) == !has_states(name),
             "%s: %d preemptions, %d hits", name, (int)c.preemptions, (int)c.prefix_hits);
    MX_CHECK(!drafts || (c.drafted > 0 && c.accepted <= c.drafted), "%s: %d of %d drafts", name,
             (int)c.accepted, (int)c.drafted);
    mx_engine_close(e);
}

/* --- one step ahead --- */

enum { AHEAD_ROUNDS = 80, AHEAD_MOST = 48 };
typedef struct {
    int32_t ids[AHEAD_ROUNDS][AHEAD_MOST];
    int64_t n[AHEAD_ROUNDS]; /* 0: there was none, or it left */
} drawn_answers;

/* What comes at a step: a golden prompt, or another one whose tokens are drawn at random; some want
 * log-probabilities, which stops the engine from going ahead; some end at a token. */
static void ahead_request(const family *f, int64_t step, mx_tokens *prompt, mx_request_options *q)
{
    mx_random4 x = mx_philox(9, 1, (uint64_t)step);
    static int32_t stop = 3;
    *q = greedy(f, NULL);
    q->log_probs = x.v[1] % 6 == 0;
    q->n_top = 0;
    *prompt = (mx_tokens){.ids = prompt->ids, .n = f->n_prompt};
    memcpy(prompt->ids, f->want, sizeof *f->want * (size_t)f->n_prompt);
    if (x.v[0] % 3 == 0)
        return;
    q->sampling.temperature = 1;
    q->sampling.seed = (uint64_t)step;
    q->max_new = x.v[1] % 16; /* none: the prompt is only read */
    q->stop_ids = &stop;
    q->n_stop_ids = x.v[3] % 2;
    prompt->n = x.v[2] % 23 + 1;
    for (int64_t i = 0; i < prompt->n; i++)
        prompt->ids[i] = f->want[(i * (1 + step % 3)) % f->n_prompt];
}

static void run_ahead(family *f, mx_engine_options o, drawn_answers *out)
{
    mx_engine *e;
    bool alone = o.sequences == 1;
    int32_t ids[AHEAD_MOST];
    mx_request *all[AHEAD_ROUNDS] = {0};
    memset(out, 0, sizeof *out);
    o.device_draws = true;
    MX_CHECK_OK(mx_engine_open(&e, &o));
    for (int64_t step = 0; step < AHEAD_ROUNDS || mx_engine_busy(e); step++) {
        mx_tokens prompt = {.ids = ids};
        mx_request_options q;
        if (step < AHEAD_ROUNDS) {
            ahead_request(f, step, &prompt, &q);
            q.owner = &all[step];
            MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &all[step]));
        }
        while (alone && mx_engine_busy(e))
            MX_CHECK_OK(mx_engine_step(e));
        MX_CHECK_OK(mx_engine_step(e));
        if (!alone && step >= 7 && step < AHEAD_ROUNDS && step % 7 == 0 && all[step - 3]) {
            mx_engine_cancel(e, all[step - 3]); /* it leaves, perhaps with a token in flight */
            all[step - 3] = NULL;
        }
        for (mx_request *r; (r = mx_engine_take(e));) {
            mx_request **own = r->owner;
            if (!r->finish)
                continue;
            MX_CHECK(r->finish != MX_FINISH_ERROR, "%s", mx_status_text(r->error));
            out->n[own - all] = r->tokens.n;
            memcpy(out->ids[own - all], r->tokens.ids, sizeof(int32_t) * (size_t)r->tokens.n);
            mx_engine_cancel(e, r);
            *own = NULL;
        }
    }
    mx_engine_counts c = mx_engine_count(e);
    MX_CHECK(c.ahead > c.steps / (alone ? 4 : 16) && c.pages_held == 0,
             "%d of %d steps ahead, %d pages held", (int)c.ahead, (int)c.steps, (int)c.pages_held);
    MX_CHECK(alone || c.preemptions > 0, "%d preemptions", (int)c.preemptions);
    mx_engine_close(e);
}

/* Batches that are launched before the tokens of the one before are known give the same tokens as
 * one request at a time does, and goldens where nothing is random. */
static void check_ahead(const char *name)
{
    family f = {0};
    static drawn_answers alone, batched;
    MX_CHECK_OK(family_open(&f, name));
    mx_engine_options o = options_of(&f);
    run_ahead(&f, o, &alone);
    o.sequences = 5;
    o.step_tokens = 11;
    o.cache_tokens = 112;
    run_ahead(&f, o, &batched);
    int same = 0, golden = 0;
    for (int i = 0; i < AHEAD_ROUNDS; i++) {
        if (!batched.n[i])
            continue;
        size_t bytes = sizeof(int32_t) * (size_t)alone.n[i];
        MX_CHECK(batched.n[i] == alone.n[i] &&
                     memcmp(batched.ids[i], alone.ids[i], bytes) == 0,
                 "%s: request %d: %d tokens alone, %d in a batch, or others", name, i,
                 (int)alone.n[i], (int)batched.n[i]);
        same++;
        golden += batched.n[i] == f.total &&
                  memcmp(batched.ids[i], f.want, sizeof(int32_t) * (size_t)f.total) == 0;
    }
    MX_CHECK(same > AHEAD_ROUNDS / 2 && golden > AHEAD_ROUNDS / 8, "%s: %d, %d goldens", name, same,
             golden);
    family_close(&f);
}

MX_TEST(engine_one_step_ahead_changes_nothing)
{
    check_ahead("llama3");
    check_ahead("qwen3-next");
    check_ahead("deepseek-v3");
}

static void check_family(const char *name, int64_t rounds)
{
    family f = {0};
    MX_CHECK_OK(family_open(&f, name));
    MX_CHECK_OK(mx_engine_can(&f.model.spec));
    if (f.want && !f.model.spec.family->images) {
        run_alone(name, &f);
        run_batched(name, &f, rounds, 0);
        if (strcmp(name, "llama3") == 0 || strcmp(name, "deepseek-v3") == 0)
            run_batched(name, &f, rounds, 3);
    }
    family_close(&f);
}

MX_TEST(engine_gives_goldens_in_any_batch)
{
    DIR *d = opendir(root);
    struct dirent *x;
    MX_CHECK(d, "%s", root);
    while (d && (x = readdir(d)))
        if (x->d_name[0] != '.')
            check_family(x->d_name, strcmp(x->d_name, "llama3") == 0 ? 200 : 40);
    if (d)
        closedir(d);
}

/* --- answers of one engine, compared with another's --- */

enum { ANSWER = 24 };
typedef struct {
    int32_t ids[ANSWER];
    float log_prob[ANSWER];
    int64_t n;
} answer;

static void ask(mx_engine *e, const mx_tokens *prompt, mx_request_options q, answer *out)
{
    mx_request *r = NULL;
    q.log_probs = true;
    q.max_new = q.max_new ? q.max_new : ANSWER;
    MX_CHECK_OK(mx_engine_admit(e, prompt, &q, &r));
    while (r && mx_engine_busy(e))
        MX_CHECK_OK(mx_engine_step(e));
    while (mx_engine_take(e))
        ;
    out->n = r ? r->tokens.n - r->n_prompt : 0;
    for (int64_t i = 0; i < out->n; i++) {
        out->ids[i] = r->tokens.ids[r->n_prompt + i];
        out->log_prob[i] = r->log_prob[r->n_prompt + i];
    }
    if (r)
        mx_engine_cancel(e, r);
}

static void same_answer(const char *what, const answer *a, const answer *b)
{
    MX_CHECK(a->n == b->n && a->n > 0 &&
                 memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->n) == 0 &&
                 memcmp(a->log_prob, b->log_prob, sizeof *a->log_prob * (size_t)a->n) == 0,
             "%s: other tokens or log-probabilities (%d, %d tokens; first %d, %d)", what, (int)a->n,
             (int)b->n, a->ids[0], b->ids[0]);
}

static bool differ(const answer *a, const answer *b)
{
    return memcmp(a->log_prob, b->log_prob, sizeof *a->log_prob * (size_t)a->n) != 0;
}

/* Drafts change neither greedy answers nor drawn ones, and some of them are right. */
MX_TEST(engine_guesses_change_nothing)
{
    family f = {0};
    MX_CHECK_OK(family_open(&f, "llama3"));
    int64_t accepted = 0;
    for (int t = 0; t < 3; t++) {
        answer got[2];
        for (int drafts = 0; drafts < 2; drafts++) {
            mx_engine *e;
            mx_engine_options o = options_of(&f);
            int32_t ids[16];
            mx_tokens prompt = {.ids = ids, .n = 16};
            for (int i = 0; i < 16; i++)
                ids[i] = 5 + i % 2;
            o.draft_tokens = 4 * drafts;
            o.compute = t == 2 ? MX_BF16 : MX_F32;
            /* few tokens to choose among, so that answers repeat themselves */
            mx_logit_bias bias[] = {{5, 40}, {6, 40}};
            mx_request_options q = {.bias = bias, .n_bias = 2,
                                    .sampling = {.repetition_penalty = 1, .temperature = t == 1,
                                                 .frequency_penalty = t == 1 ? 0.1 : 0, .seed = 3}};
            MX_CHECK_OK(mx_engine_open(&e, &o));
            ask(e, &prompt, q, &got[drafts]);
            accepted += mx_engine_count(e).accepted;
            MX_CHECK(!drafts || mx_engine_count(e).drafted > 0, "nothing was drafted");
            mx_engine_close(e);
        }
        same_answer(t == 1 ? "drawn" : "greedy", &got[0], &got[1]);
    }
    MX_CHECK(accepted > 0, "no draft was accepted");
    family_close(&f);
}

/* The same prompt again, from the cache, and in an engine without one. */
MX_TEST(engine_prefix_cache_changes_nothing)
{
    family f = {0};
    MX_CHECK_OK(family_open(&f, "llama3"));
    answer got[3];
    int32_t ids[20];
    mx_tokens prompt = {.ids = ids, .n = 20};
    for (int i = 0; i < 20; i++)
        ids[i] = 3 + i * 7 % 50;
    for (int off = 0; off < 2; off++) {
        mx_engine *e;
        mx_engine_options o = options_of(&f);
        o.no_prefix_cache = off;
        mx_request_options q = {.sampling = {.repetition_penalty = 1}};
        MX_CHECK_OK(mx_engine_open(&e, &o));
        ask(e, &prompt, q, &got[off ? 2 : 0]);
        if (!off)
            ask(e, &prompt, q, &got[1]);
        MX_CHECK((mx_engine_count(e).prefix_hits > 0) == !off, "hits");
        mx_engine_close(e);
    }
    same_answer("found in the cache", &got[0], &got[1]);
    same_answer("without a cache", &got[0], &got[2]);
    family_close(&f);
}

/* --- adapters --- */

static const char posted[] = "tests/fixtures/post";

static mx_engine *open_adapted(const mx_model_ref *m, int64_t slots, int64_t rank)
{
    mx_engine *e = NULL;
    mx_engine_options o = {.model = m, .device = "cpu", .n_threads = 1, .compute = MX_F32,
                           .sequences = 2, .step_tokens = 32, .max_length = 48,
                           .cache_tokens = 480, .adapter_slots = slots, .adapter_rank = rank};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    return e;
}

static void ask_adapted(mx_engine *e, int64_t adapter, answer *out)
{
    int32_t ids[20];
    mx_tokens prompt = {.ids = ids, .n = 20};
    mx_request_options q = {
        .sampling = {.repetition_penalty = 1}, .adapter = adapter, .max_new = 12};
    for (int i = 0; i < 20; i++)
        ids[i] = 3 + i * 7 % 50;
    ask(e, &prompt, q, out);
}

/* What the adapter gives where it is the model's only one: the program of `maxc generate`. */
static void same_as_generate(const char *dir, const answer *a)
{
    char path[256];
    mx_model_ref m;
    mx_generate_counts counts;
    mx_answer got = {0};
    int32_t ids[20];
    mx_tokens prompt = {.ids = ids, .n = 20};
    for (int i = 0; i < 20; i++)
        ids[i] = 3 + i * 7 % 50;
    snprintf(path, sizeof path, "%s/model", posted);
    MX_CHECK_OK(mx_model_ref_open(&m, path, NULL, NULL));
    MX_CHECK_OK(mx_model_ref_adapt(&m, dir));
    mx_generate_options o = {.sampling = {.repetition_penalty = 1}, .max_new_tokens = 12,
                             .device = "cpu", .n_threads = 1, .compute = MX_F32};
    MX_CHECK_OK(mx_generate(&m, NULL, &prompt, 1, &o, NULL, NULL, &got, &counts));
    for (int64_t i = 0; i < a->n && i < got.ids.n; i++)
        MX_CHECK(a->ids[i] == got.ids.ids[i], "%s: token %d is %d beside others, %d alone", dir,
                 (int)i, a->ids[i], got.ids.ids[i]);
    MX_CHECK(got.ids.n == a->n, "%d tokens, %d", (int)got.ids.n, (int)a->n);
    mx_answer_fini(&got);
    mx_model_ref_close(&m);
}

/* An adapter beside others gives what it gives alone, in any slot and whoever has the other ones;
 * without it the model is as it was; and what one has written is not found by another. */
MX_TEST(engine_serves_adapters_beside_each_other)
{
    mx_model_ref m;
    mx_adapter a = {0}, all = {0}, dora = {0};
    answer plain, first, other, again;
    char dir[3][256];
    static const char *const names[] = {"lora_plain", "lora_all", "lora_dora"};
    for (int i = 0; i < 3; i++)
        snprintf(dir[i], sizeof dir[i], "%s/%s", posted, names[i]);
    char path[256];
    snprintf(path, sizeof path, "%s/model", posted);
    MX_CHECK_OK(mx_model_ref_open(&m, path, NULL, NULL));
    MX_CHECK_OK(mx_adapter_open(&a, dir[0]));
    MX_CHECK_OK(mx_adapter_open(&all, dir[1]));
    MX_CHECK_OK(mx_adapter_open(&dora, dir[2]));
    mx_engine *e = open_adapted(&m, 0, 0);
    ask_adapted(e, 0, &plain);
    mx_engine_close(e);
    e = open_adapted(&m, 3, 16);
    MX_CHECK_OK(mx_engine_adapt(e, 2, &a));
    ask_adapted(e, 2, &first);
    MX_CHECK(differ(&plain, &first), "the adapter changes nothing");
    same_as_generate(dir[0], &first);
    ask_adapted(e, 0, &again);
    same_answer("the model beside its adapters", &plain, &again);
    MX_CHECK_OK(mx_engine_adapt(e, 1, &all));
    ask_adapted(e, 1, &other);
    MX_CHECK(differ(&first, &other), "two adapters give the same");
    same_as_generate(dir[1], &other);
    ask_adapted(e, 2, &again);
    same_answer("beside another one", &first, &again);
    MX_CHECK_OK(mx_engine_adapt(e, 3, &a));
    ask_adapted(e, 3, &again);
    same_answer("in another slot", &first, &again);
    MX_CHECK_OK(mx_engine_adapt(e, 2, &all));
    ask_adapted(e, 2, &again);
    same_answer("in a slot that held another", &other, &again);
    MX_CHECK_OK(mx_engine_adapt(e, 2, NULL));
    ask_adapted(e, 2, &again);
    same_answer("a slot that was emptied", &plain, &again);
    MX_CHECK_ERROR(mx_engine_adapt(e, 1, &dora), "DoRA");
    mx_engine_close(e);
    e = open_adapted(&m, 1, 1);
    MX_CHECK_ERROR(mx_engine_adapt(e, 1, &a), "max_lora_rank=");
    mx_engine_close(e);
    mx_adapter_close(&a);
    mx_adapter_close(&all);
    mx_adapter_close(&dora);
    mx_model_ref_close(&m);
}

/* --- embeddings --- */

MX_TEST(engine_embeds)
{
    family f = {0};
    mx_engine *e;
    mx_request *r[2];
    MX_CHECK_OK(family_open(&f, "llama3"));
    mx_engine_options o = options_of(&f);
    o.sequences = 2;
    o.step_tokens = 8; /* the prompts come in pieces */
    mx_tokens prompt = {.ids = f.want, .n = f.n_prompt};
    mx_request_options q = {.embedding = true, .sampling = {.repetition_penalty = 1}};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    for (int i = 0; i < 2; i++)
        MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r[i]));
    while (mx_engine_busy(e))
        MX_CHECK_OK(mx_engine_step(e));
    double squares = 0;
    for (int64_t i = 0; i < mx_engine_width(e); i++)
        squares += r[0]->embedding[i] * r[0]->embedding[i];
    MX_CHECK(r[0]->finish == MX_FINISH_LENGTH && squares > 0, "finish %d, %g", r[0]->finish,
             squares);
    MX_CHECK(memcmp(r[0]->embedding, r[1]->embedding,
                    sizeof(float) * (size_t)mx_engine_width(e)) == 0, "in a batch");
    mx_engine_close(e);
    family_close(&f);
}
