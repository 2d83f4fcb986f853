/* engine_images_test.c - requests with images give the same bits alone and in a batch: with prompts
 * cut into pieces, other images in the same batch, prefixes that are shared, and too few pages. */
#include "../test.h"

#include "base/rng.h"
#include "infer/engine.h"
#include "infer/pictures.h"
#include <stdio.h>
#include <string.h>

static const char root[] = "tests/fixtures/vision", corpus[] = "tests/fuzz/corpus/image";
enum { N_PROMPTS = 4, NEW = 6 };

/* One family, and prompts with images, the last one without. */
typedef struct {
    const char *name;
    mx_model_ref model;
    mx_tokenizer *tokenizer;
    mx_tokens prompt[N_PROMPTS];
    mx_image_set *images[N_PROMPTS];
    int32_t ids[N_PROMPTS][NEW]; /* of the answers alone */
    float log_prob[N_PROMPTS][NEW];
    int64_t longest;
} family;

static void family_open(family *f, const char *name)
{
    /* 0 and 1 have the same text, and pictures of the same size */
    static const char *const files[N_PROMPTS] = {"plain.png", "grey.png", "wide.png", NULL};
    static const char *const texts[N_PROMPTS] = {"what is it?", "what is it?", "the cat and",
                                                 "the cat and the dog"};
    char path[256];
    *f = (family){.name = name};
    snprintf(path, sizeof path, "%s/%s", root, name);
    MX_CHECK_OK(mx_model_ref_open(&f->model, path, NULL, NULL));
    MX_CHECK_OK(mx_tokenizer_open(&f->tokenizer, path, NULL));
    for (int i = 0; i < N_PROMPTS; i++) {
        char file[256];
        const char *const list[] = {file};
        mx_pictures p;
        snprintf(file, sizeof file, "%s/%s", corpus, files[i] ? files[i] : "");
        MX_CHECK_OK(mx_pictures_open(&p, &f->model.spec, path, list, files[i] != NULL, false));
        mx_encode_options o = {.add_special = true};
        if (files[i])
            MX_CHECK_OK(mx_pictures_encode(&p, f->tokenizer, texts[i], strlen(texts[i]), true,
                                           &f->prompt[i]));
        else
            MX_CHECK_OK(mx_tokenizer_encode(f->tokenizer, texts[i], strlen(texts[i]), &o,
                                            &f->prompt[i]));
        if (files[i])
            MX_CHECK_OK(mx_image_set_new(&f->images[i], &f->model.spec, p.pixels, p.n_images));
        f->longest = f->prompt[i].n > f->longest ? f->prompt[i].n : f->longest;
        mx_pictures_close(&p);
    }
}

static void family_close(family *f)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        mx_image_set_release(f->images[i]);
        mx_tokens_fini(&f->prompt[i]);
    }
    mx_tokenizer_close(f->tokenizer);
    mx_model_ref_close(&f->model);
}

static mx_engine_options options_of(const family *f)
{
    return (mx_engine_options){.model = &f->model,
                               .device = "cpu",
                               .n_threads = 1,
                               .compute = MX_F32,
                               .sequences = 1,
                               .images = true,
                               .step_tokens = 512,
                               .max_length = f->longest + NEW,
                               .cache_tokens = f->longest + NEW};
}

static mx_request *ask(mx_engine *e, family *f, int i)
{
    mx_request *r = NULL;
    mx_request_options q = {.sampling = {.repetition_penalty = 1},
                            .max_new = NEW,
                            .log_probs = true,
                            .ignore_eos = true,
                            .images = f->images[i],
                            .owner = &f->prompt[i]};
    MX_CHECK_OK(mx_engine_admit(e, &f->prompt[i], &q, &r));
    return r;
}

static void compare(family *f, const mx_request *r, bool first, const char *how)
{
    int64_t i = (mx_tokens *)r->owner - f->prompt;
    MX_CHECK(r->finish == MX_FINISH_LENGTH, "%s: prompt %d %s", f->name, (int)i, how);
    for (int64_t k = 0; k < NEW && r->finish == MX_FINISH_LENGTH; k++) {
        int32_t id = r->tokens.ids[r->n_prompt + k];
        float p = r->log_prob[r->n_prompt + k];
        if (first) {
            f->ids[i][k] = id;
            f->log_prob[i][k] = p;
        }
        MX_CHECK(id == f->ids[i][k] && memcmp(&p, &f->log_prob[i][k], sizeof p) == 0,
                 "%s: prompt %d, token %d %s: %d (%.9g), alone %d (%.9g)", f->name, (int)i, (int)k,
                 how, id, p, f->ids[i][k], f->log_prob[i][k]);
    }
}

static void run_alone(family *f)
{
    mx_engine_options o = options_of(f);
    for (int i = 0; i < N_PROMPTS; i++) {
        mx_engine *e;
        MX_CHECK_OK(mx_engine_open(&e, &o));
        mx_request *r = ask(e, f, i);
        while (mx_engine_busy(e))
            MX_CHECK_OK(mx_engine_step(e));
        compare(f, r, true, "alone");
        mx_engine_close(e);
    }
    MX_CHECK(memcmp(f->log_prob[0], f->log_prob[1], sizeof f->log_prob[0]) != 0,
             "%s: two pictures give the same answer", f->name);
}

/* Prompts come at any time; the cache has room for about two of them. */
static void run_batched(family *f, bool prefixes, int64_t drafts)
{
    mx_engine *e;
    mx_engine_options o = options_of(f);
    o.sequences = 3;
    o.step_tokens = 13; /* more where an image must be whole */
    o.cache_tokens = 2 * (f->longest + NEW) + 24;
    o.no_prefix_cache = !prefixes;
    o.draft_tokens = drafts;
    o.n_threads = 2;
    int done = 0;
    MX_CHECK_OK(mx_engine_open(&e, &o));
    for (int64_t step = 0; step < 24 || mx_engine_busy(e); step++) {
        mx_random4 x = mx_philox(11, 1, (uint64_t)step);
        if (step < 24)
            ask(e, f, (int)(x.v[0] % N_PROMPTS));
        MX_CHECK_OK(mx_engine_step(e));
        for (mx_request *r; (r = mx_engine_take(e));)
            if (r->finish) {
                compare(f, r, false, prefixes ? "in a batch" : "without shared prefixes");
                mx_engine_cancel(e, r);
                done++;
            }
    }
    mx_engine_counts c = mx_engine_count(e);
    MX_CHECK(done == 24 && c.pages_held == 0, "%s: %d answers, %d pages held", f->name, done,
             (int)c.pages_held);
    MX_CHECK((c.prefix_hits > 0) == prefixes, "%s: %d hits", f->name, (int)c.prefix_hits);
    mx_engine_close(e);
}

MX_TEST(engine_images_in_any_batch)
{
    static const char *const names[] = {"gemma3", "gemma4", "llama4", "qwen3vl"};
    for (int i = 0; i < 4; i++) {
        family f;
        family_open(&f, names[i]);
        run_alone(&f);
        run_batched(&f, true, 0);
        run_batched(&f, false, 2);
        family_close(&f);
    }
}

MX_TEST(engine_refuses_images_that_do_not_fit)
{
    family f;
    mx_engine *e;
    mx_request *r;
    family_open(&f, "gemma3");
    mx_engine_options o = options_of(&f);
    mx_request_options q = {.max_new = 1, .images = f.images[0]};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    MX_CHECK_ERROR(mx_engine_admit(e, &f.prompt[3], &q, &r), "image tokens for 0 of 1");
    mx_tokens cut = {.ids = f.prompt[0].ids, .n = f.prompt[0].n - 12};
    MX_CHECK_ERROR(mx_engine_admit(e, &cut, &q, &r), "image");
    mx_engine_close(e);
    o.images = false;
    MX_CHECK_OK(mx_engine_open(&e, &o));
    MX_CHECK_ERROR(mx_engine_admit(e, &f.prompt[0], &q, &r), "has images");
    mx_engine_close(e);
    family_close(&f);
}
