/* activation_offload_test.c - activations that wait for the backward pass in host memory
 * (compile/offload.c).
 *
 * Steps of small models with and without it must give the same bits. They are played three times:
 * with tensors kept on the device, moved with copies that are made at once, and moved with copies
 * that are put off until somebody waits for them. Where something is overwritten or read too
 * early, the last two differ.
 */
#include "../test.h"
#include "../device/test_devices.h"

#include "base/io.h"
#include "ops.h"
#include "tiny_run.h"
#include "keys/keys.h"
#include "exec/plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, S = 16, LONG = 1024, V = 60, STEPS = 2, MOST_ARGS = 32 };

typedef struct {
    mx_config *cfg;
    mx_model_spec model;
    mx_step_options options;
    mx_batch_plan batch;
    mx_arena arena;
} setting;

static bool given(const char *argument, const char *const *args)
{
    size_t n = strcspn(argument, "=") + 1;
    while (*args && strncmp(argument, *args, n) != 0)
        args++;
    return *args != NULL;
}

/* `folder`: a checkpoint whose model it is; NULL: of the arguments. */
static mx_status configure(setting *t, const char *folder, const char *const *args)
{
    enum { SIZES = 7 }; /* the first are of the model: a checkpoint has its own */
    static const char *const small[] = {
        "base_emb_dim=32", "base_num_query_heads=4",    "base_num_kv_heads=2", "head_dim=8",
        "base_mlp_dim=64", "base_num_decoder_layers=5", "vocab_size=60",       "packing=false",
        "dtype=float32",   "per_device_batch_size=2",   "max_target_length=16"};
    const char *all[MOST_ARGS];
    int n = 0;
    while (args[n] && n < MOST_ARGS / 2)
        all[n] = args[n], n++;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (!given(small[i], args) && !(folder && i < SIZES))
            all[n++] = small[i];
    mx_config_request r = {.schema = &mx_keys, .args = all, .n_args = n};
    *t = (setting){0};
    MX_TRY(mx_config_load(&t->cfg, &r));
    MX_TRY(mx_model_open(&t->model, t->cfg, folder));
    MX_TRY(mx_batch_plan_make(&t->batch, t->cfg, 1, 1));
    return mx_step_configure(&t->options, t->cfg, &t->model, MX_STEP_TRAIN, B, &t->arena);
}

static void drop(setting *t)
{
    mx_config_free(t->cfg);
    mx_model_spec_fini(&t->model);
    mx_arena_fini(&t->arena);
}

/* --- steps, with copies that come late --- */

static bool starts_copy(const mx_exec_step *s)
{
    return s->op == &mx_op_offload || s->op == &mx_op_prefetch;
}

/* The copy that the step at `at` waits for. It has had about a layer's matmuls to hide behind. */
static void make_copy(const mx_exec *e, int at)
{
    const void *to = e->step[at].call.in[0].data;
    int from = at, matmuls = 0;
    while (from >= 0 && !(starts_copy(&e->step[from]) && e->step[from].call.out[0].data == to))
        matmuls += e->step[from--].op == &mx_op_matmul;
    MX_CHECK(from >= 0, "step %d waits for a copy that nobody started", at);
    if (from < 0)
        return;
    MX_CHECK(matmuls >= 4 && matmuls <= 40, "%s: %d matmuls from %s to its end",
             e->step[from].label, matmuls, e->step[from].op->name);
    e->step[from].op->cpu(&e->step[from].call);
}

/* Gives the number of copies. */
static int run_late(const mx_exec *e)
{
    int n = 0;
    for (int i = 0; i < e->n_steps; i++) {
        if (starts_copy(&e->step[i])) {
            n++;
            continue;
        }
        if (e->step[i].op == &mx_op_wait)
            make_copy(e, i);
        e->step[i].op->cpu(&e->step[i].call);
    }
    return n;
}

typedef enum { KEPT, MOVED, LATE } way;

static void write_batch(mx_exec *e, int step)
{
    int32_t tokens[B * S], labels[B * S];
    float scale = 1.0f / (B * S), rate = 0.01f, number = (float)step + 1;
    for (int i = 0; i < B * S; i++) {
        tokens[i] = (i * 7 + step) % V;
        labels[i] = (i * 5 + 3 * step) % V;
    }
    MX_CHECK_OK(mx_exec_write(e, "tokens", tokens));
    MX_CHECK_OK(mx_exec_write(e, "labels", labels));
    MX_CHECK_OK(mx_exec_write(e, "loss_scale", &scale));
    MX_CHECK_OK(mx_exec_write(e, "lr", &rate));
    MX_CHECK_OK(mx_exec_write(e, "step", &number));
}

/* Losses and all variables after a few steps, from mx_realloc. */
static mx_status state_after(const setting *t, way how, char **out, size_t *n_bytes)
{
    mx_session *s = NULL;
    mx_step step = {0};
    mx_step_options o = t->options;
    float loss[STEPS] = {0};
    o.compile.n_threads = 1;
    o.compile.device = how != KEPT ? &mx_test_remote : NULL;
    MX_TRY(mx_step_plan(&step, &t->model, &o));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    MX_CHECK_OK(mx_session_add(s, &step.program, &step.exec));
    MX_CHECK_OK(mx_session_init(s, 3));
    MX_CHECK(how == KEPT ? !step.program.host_bytes : step.program.host_bytes > 0, "%zu bytes",
             step.program.host_bytes);
    for (int i = 0; i < STEPS; i++) {
        write_batch(step.exec, i);
        if (how == LATE)
            MX_CHECK(run_late(step.exec) > 0);
        else
            MX_CHECK_OK(mx_exec_run(step.exec));
        MX_CHECK_OK(mx_exec_read(step.exec, "loss", &loss[i]));
        MX_CHECK(loss[i] > 1 && loss[i] < 10, "loss %g", (double)loss[i]);
    }
    size_t at = sizeof loss;
    for (int i = 0; i < mx_session_count(s); i++)
        at += mx_type_bytes(&mx_session_var(s, i)->type);
    char *all = *out = mx_realloc(NULL, at);
    memcpy(all, loss, sizeof loss);
    *n_bytes = at;
    at = sizeof loss;
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        MX_CHECK_OK(mx_var_read(s, v, all + at));
        at += mx_type_bytes(&v->type);
    }
    mx_session_close(s);
    mx_step_close(&step);
    return MX_OK;
}

static void check_family(const char *folder, const char *const *args)
{
    setting t;
    size_t n[3] = {0};
    char *state[3] = {0};
    mx_status st = configure(&t, folder, args);
    for (way w = KEPT; w <= LATE && !st; w++)
        st = state_after(&t, w, &state[w], &n[w]);
    MX_CHECK(!st, "%s %s %s: %s", folder, args[0], args[1], mx_status_text(st));
    bool same = n[KEPT] > 1000 && n[KEPT] == n[MOVED] && n[KEPT] == n[LATE];
    MX_CHECK(same, "%zu, %zu and %zu bytes", n[KEPT], n[MOVED], n[LATE]);
    for (way w = MOVED; w <= LATE && same; w++)
        MX_CHECK(memcmp(state[KEPT], state[w], n[KEPT]) == 0, "%s %s %s: other bits, moved%s",
                 folder, args[0], args[1], w == LATE ? " late" : "");
    mx_status_free(st);
    for (way w = KEPT; w <= LATE; w++)
        mx_free(state[w]);
    drop(&t);
}

static void check_bits(const char *const *args)
{
    check_family(NULL, args);
}

#define LLAMA "decoder_block=llama2"
#define GPT2 "decoder_block=gpt2", "base_num_kv_heads=4"
#define MIXTRAL "decoder_block=mixtral", "num_experts=4", "num_experts_per_tok=2"

MX_TEST(offloaded_activations_keep_the_bits)
{
    check_bits((const char *[]){LLAMA, "remat_policy=minimal_offloaded", NULL});
    check_bits((const char *[]){LLAMA, "remat_policy=qkv_proj_offloaded", NULL});
    check_bits((const char *[]){LLAMA, "remat_policy=custom", "decoder_layer_input=offload", NULL});
    check_bits((const char *[]){LLAMA, "remat_policy=custom", "decoder_layer_input=offload",
                                "context=offload", "mlpwi_0=offload", "out_proj=device", NULL});
    check_bits((const char *[]){LLAMA, "remat_policy=minimal_offloaded", "dtype=bfloat16", NULL});
}

MX_TEST(offloaded_activations_of_other_families)
{
    check_bits((const char *[]){GPT2, "remat_policy=minimal_offloaded", NULL});
    check_bits((const char *[]){GPT2, "remat_policy=custom", "decoder_layer_input=offload",
                                "query_proj=offload", "value_proj=offload", NULL});
    check_bits((const char *[]){MIXTRAL, "remat_policy=minimal_offloaded", NULL});
    check_bits((const char *[]){MIXTRAL, "remat_policy=custom", "moe_mlpwi_1=offload", NULL});
}

/* Joint projections, compressed keys, a recurrent layer; all with experts. */
MX_TEST(offloaded_activations_of_recorded_models)
{
    static const char *const names[] = {"llama4", "gpt-oss", "gemma4-moe", "deepseek-v3",
                                        "qwen3-next"};
    for (int i = 0; i < 5; i++) {
        char path[256];
        snprintf(path, sizeof path, "tests/fixtures/models/%s", names[i]);
        check_family(path, (const char *[]){"remat_policy=minimal_offloaded", "dtype=float32",
                                            NULL});
    }
}

/* --- plans --- */

/* Of sequences so long that activations are most of the memory. */
static void plan_for(const mx_device_traits *device, const char *const *args, mx_plan *plan)
{
    setting t;
    mx_plan_device d = {.traits = device};
    const char *all[8] = {"max_target_length=1024"};
    for (int n = 0; args[n]; n++)
        all[n + 1] = args[n];
    MX_CHECK_OK(configure(&t, NULL, all));
    MX_CHECK_OK(mx_plan_make(plan, &t.model, &(mx_programs_request){t.options, t.batch}, &d));
    drop(&t);
}

static void plan_of(const char *const *args, mx_plan *plan)
{
    plan_for(&mx_test_remote, args, plan);
}

/* Names go over to what rules make: as much is offloaded of a GELU that is an epilogue. */
MX_TEST(tensors_are_found_behind_rewrites)
{
    mx_device_traits fusing = mx_test_fusing();
    const char *const args[] = {GPT2, "remat_policy=minimal_offloaded", "dtype=bfloat16", NULL};
    mx_plan plain, rewritten;
    plan_of(args, &plain);
    plan_for(&fusing, args, &rewritten);
    MX_CHECK(plain.offloaded > 0 && plain.offloaded == rewritten.offloaded, "%g and %g bytes",
             plain.offloaded, rewritten.offloaded);
}

/* Of five layers the last stays. So does its input: what it gives itself is read by no layer. */
MX_TEST(a_plan_has_offloaded_bytes_beside_the_device)
{
    mx_plan kept, moved;
    double wide = 4.0 * B * LONG * 64, narrow = 4.0 * B * LONG * 32;
    plan_of((const char *[]){"remat_policy=custom", "mlpwi_0=device", NULL}, &kept);
    plan_of((const char *[]){"remat_policy=custom", "mlpwi_0=offload", NULL}, &moved);
    MX_CHECK(kept.offloaded == 0 && moved.offloaded == 4 * wide, "%g, expected %g", moved.offloaded,
             4 * wide);
    MX_CHECK(moved.total + 2 * wide < kept.total, "%g and %g", moved.total, kept.total);
    plan_of((const char *[]){"remat_policy=full", NULL}, &kept);
    plan_of((const char *[]){"remat_policy=custom", "decoder_layer_input=offload", NULL}, &moved);
    MX_CHECK(moved.offloaded == 4 * narrow, "%g, expected %g", moved.offloaded, 4 * narrow);
    MX_CHECK(moved.flops == kept.flops && moved.total + 2 * narrow < kept.total, "%g and %g",
             moved.total, kept.total);
    plan_of((const char *[]){"remat_policy=minimal", NULL}, &kept);
    plan_of((const char *[]){"remat_policy=minimal_offloaded", NULL}, &moved);
    MX_CHECK(moved.total + 0.5 * moved.offloaded < kept.total, "%g of %g offloaded, and %g",
             moved.total, moved.offloaded, kept.total);
}

/* One name that the model has does not excuse another. */
MX_TEST(tensors_that_a_model_has_not_are_neither_kept_nor_moved)
{
    static const struct {
        const char *setting, *error;
    } wrong[] = {{"mla_q=offload", "mla_q=offload, but this model has no tensor called mla_q"},
                 {"qkv_proj=device", "this model has no tensor called qkv_proj; it has query_proj,"
                                     "key_proj,value_proj,context,out_proj,mlpwi_0,"}};
    for (int i = 0; i < 4; i++) {
        setting t;
        mx_plan plan;
        mx_plan_device d = {.traits = i < 2 ? &mx_test_remote : &mx_cpu_traits};
        const char *args[] = {"remat_policy=custom", "context=device", wrong[i % 2].setting, NULL};
        MX_CHECK_OK(configure(&t, NULL, args));
        MX_CHECK_ERROR(
            mx_plan_make(&plan, &t.model, &(mx_programs_request){t.options, t.batch}, &d),
            wrong[i % 2].error);
        drop(&t);
    }
}

/* --- runs --- */

#define RUN "steps=8", "checkpoint_period=8", "base_num_decoder_layers=4"

MX_TEST(a_run_with_offloaded_activations_has_the_same_bits)
{
    static const char *const more[] = {"dtype=bfloat16", "gradient_accumulation_steps=2",
                                       "eval_interval=4"};
    char folder[256];
    for (int i = 0; i < 3; i++) {
        tiny_folder(folder, sizeof folder);
        int64_t none = tiny_train_queued(folder, "a",
                                    (const char *[]){RUN, more[i], "remat_policy=minimal", NULL});
        int64_t some = tiny_train_queued(
            folder, "b", (const char *[]){RUN, more[i], "remat_policy=minimal_offloaded", NULL});
        MX_CHECK(none == 0 && some > 10000, "%lld and %lld bytes", (long long)none,
                 (long long)some);
        tiny_same(folder, "a", "b", 8);
        char *log = tiny_text(folder, "b", "log.txt"), *plan = tiny_text(folder, "b", "plan.txt");
        char expected[96];
        snprintf(expected, sizeof expected, "in host memory %14lld  (of activations",
                 (long long)some);
        MX_CHECK(strstr(log, "of host memory for activations, beside that"), "%s", log);
        MX_CHECK(strstr(plan, expected), "no '%s' in:\n%s", expected, plan);
        free(log), free(plan);
        mx_status_free(mx_io_remove_tree(NULL, folder));
    }
}

MX_TEST(offloading_activations_on_the_cpu_says_that_it_changes_nothing)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){RUN, "remat_policy=minimal", NULL}));
    MX_CHECK_OK(
        tiny_train(folder, "b", (const char *[]){RUN, "remat_policy=minimal_offloaded", NULL}));
    tiny_same(folder, "a", "b", 8);
    char *log = tiny_text(folder, "b", "log.txt");
    MX_CHECK(strstr(log, "no activation is moved to host memory: the memory of the CPU is host"),
             "%s", log);
    free(log);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}
