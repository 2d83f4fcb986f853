/* engine_mesh_test.c - the engine on virtual ranks gives the goldens' tokens, requests side by side
 * and their prompts in pieces, on meshes of several kinds. */
#include "../test.h"

#include "base/config.h"
#include "infer/engine_mesh.h"
#include "keys/keys.h"
#include "store/safetensors.h"
#include <stdio.h>

enum { REQUESTS = 3, LONGEST = 64 };

typedef struct {
    const char *name, *mesh;
    int32_t want[LONGEST];
    int64_t total, n_prompt;
    int right;
} trial;

static mx_status read_golden(trial *t)
{
    mx_st_file golden;
    char path[256];
    snprintf(path, sizeof path, "tests/fixtures/models/%s/golden.safetensors", t->name);
    MX_TRY(mx_st_open(&golden, path));
    const mx_st_tensor *g = mx_st_find(&golden, "generated");
    t->total = g->dim[g->ndim - 1];
    MX_ASSERT(t->total <= LONGEST, "%d tokens", (int)t->total);
    t->n_prompt = t->total == 24 ? 12 : 8;
    mx_status st = mx_st_read(g, 0, t->total, MX_ST_I32, t->want, NULL);
    mx_st_close(&golden);
    return st;
}

/* The same request several times, each a step later than the one before it. */
static mx_status use(void *ctx, mx_engine *e)
{
    trial *t = ctx;
    mx_tokens prompt = {.ids = t->want, .n = t->n_prompt};
    mx_request_options q = {.sampling = {.repetition_penalty = 1},
                            .max_new = t->total - t->n_prompt};
    mx_request *r[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        MX_TRY(mx_engine_admit(e, &prompt, &q, &r[i]));
        MX_TRY(mx_engine_step(e));
    }
    while (mx_engine_busy(e))
        MX_TRY(mx_engine_step(e));
    for (int i = 0; i < REQUESTS; i++) {
        bool same = r[i]->finish == MX_FINISH_LENGTH && r[i]->tokens.n == t->total;
        for (int64_t k = 0; k < t->total && same; k++)
            same = r[i]->tokens.ids[k] == t->want[k];
        t->right += same;
    }
    return MX_OK;
}

static mx_status run(trial *t, mx_engine_options *o)
{
    char path[256], mesh[64];
    mx_model_ref model;
    mx_config *c = NULL;
    snprintf(path, sizeof path, "tests/fixtures/models/%s", t->name);
    snprintf(mesh, sizeof mesh, "mesh=%s", t->mesh);
    MX_CHECK_OK(mx_model_ref_open(&model, path, NULL, NULL));
    MX_CHECK_OK(read_golden(t));
    const char *args[] = {mesh};
    mx_config_request q = {.schema = &mx_keys, .user = "serve", .args = args, .n_args = 1};
    MX_CHECK_OK(mx_config_load(&c, &q));
    o->model = &model;
    mx_status st = mx_engine_run(&(mx_engine_use){c, o, "this test", use, t});
    mx_config_free(c);
    mx_model_ref_close(&model);
    return st;
}

static mx_engine_options small(void)
{
    return (mx_engine_options){.device = "cpu", .n_threads = 2, .compute = MX_F32, .sequences = 2,
                               .step_tokens = 6, .max_length = 48, .cache_tokens = 96};
}

MX_TEST(engine_on_a_mesh_gives_goldens)
{
    static const char *const trials[][2] = {
        {"llama3", "tensor=2"},      {"llama3", "tensor=4"},    {"llama3", "data=2"},
        {"llama3", "fsdp=2,tensor=2"}, {"gemma3", "tensor=2"},  {"gpt-oss", "tensor=2"},
        {"mixtral", "expert=2"},     {"qwen3-moe", "expert=2,tensor=2"},
        {"deepseek-v3", "tensor=2"}, {"deepseek-v3", "expert=2"}, {"qwen3-next", "tensor=2"},
    };
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        trial t = {.name = trials[i][0], .mesh = trials[i][1]};
        mx_engine_options o = small();
        MX_CHECK_OK(run(&t, &o));
        MX_CHECK(t.right == REQUESTS, "%s on %s: %d of %d answers are the golden's", t.name, t.mesh,
                 t.right, REQUESTS);
    }
}

MX_TEST(engine_on_a_mesh_says_what_it_cannot_do)
{
    trial t = {.name = "llama3", .mesh = "stage=2"};
    mx_engine_options o = small();
    MX_CHECK_ERROR(run(&t, &o), "stage");
    t.mesh = "tensor=2";
    o.adapter_slots = 1;
    o.adapter_rank = 4;
    MX_CHECK_ERROR(run(&t, &o), "on one device alone");
    o = small();
    o.max_length = 1 << 30; /* rank 0 does not get as far as to tell the others */
    MX_CHECK_ERROR(run(&t, &o), "positions");
}
