/* engine_test.c - requests through the engine give what transformers gave, alone and in company,
 * bit for bit: with prompts cut into pieces, shared beginnings, too few pages, and requests that
 * leave. */
#include "../test.h"

#include "base/rng.h"
#include "infer/engine.h"
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
                 "%s: token %d: log-probability %.9g alone, %.9g in company", name, (int)i,
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

/* Requests of any length arrive at any step, some go away again; the golden's come among them. */
static void run_in_company(const char *name, family *f, int64_t rounds)
{
    mx_engine *e;
    int here, n_golden = 0, n_others = 0;
    mx_engine_options o = options_of(f);
    o.sequences = 5;
    o.step_tokens = 11;
    o.cache_tokens = 112;
    o.n_threads = 2;
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
    MX_CHECK(c.preemptions > 0 && c.prefix_hits > 0, "%s: %d preemptions, %d hits", name,
             (int)c.preemptions, (int)c.prefix_hits);
    mx_engine_close(e);
}

/* Families whose states do not lie in pages are refused, and by name: see docs/serving.md. */
static bool is_unpaged(const char *name)
{
    return strncmp(name, "deepseek-v3.2", 13) == 0 || strcmp(name, "deepseek-v4") == 0 ||
           strncmp(name, "qwen3.5", 7) == 0 || strcmp(name, "qwen3-next") == 0;
}

static void check_family(const char *name, int64_t rounds)
{
    family f = {0};
    MX_CHECK_OK(family_open(&f, name));
    mx_status cannot = mx_engine_can(&f.model.spec);
    MX_CHECK(!cannot == !is_unpaged(name), "%s: %s", name, mx_status_text(cannot));
    if (!cannot && f.want && !f.model.spec.family->images) {
        run_alone(name, &f);
        run_in_company(name, &f, rounds);
    }
    mx_status_free(cannot);
    family_close(&f);
}

MX_TEST(engine_gives_goldens_in_any_company)
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
