/* run_faults_test.c - spikes, steps that are skipped, going back; optimizers; on a tiny model. */
#include "../test.h"
#include "small_step.h"
#include "tiny_run.h"

#include "base/io.h"
#include "train/run/spikes.h"
#include "exec/step.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MX_TEST(a_spike_is_above_mean_and_deviations)
{
    mx_arena a = {0};
    mx_spikes s;
    float loss, norm;
    mx_spikes_init(&s, &a, 4, 2);
    mx_spikes_limits(&s, &loss, &norm);
    MX_CHECK(isinf(loss) && isinf(norm), "nothing is known yet: %g", loss);
    mx_spikes_add(&s, 1, 10);
    mx_spikes_limits(&s, &loss, &norm);
    MX_CHECK(isinf(loss), "one value has no deviation: %g", loss);
    mx_spikes_add(&s, 3, 10);
    mx_spikes_add(&s, NAN, 1);
    mx_spikes_add(&s, 1, INFINITY);
    mx_spikes_limits(&s, &loss, &norm);
    /* mean 2, sample deviation sqrt(2); the norms do not vary */
    MX_CHECK(fabs(loss - (2 + 2 * sqrt(2))) < 1e-6 && norm == 10, "%g %g", loss, norm);
    for (int i = 0; i < 5; i++)
        mx_spikes_add(&s, (float)i, (float)i);
    mx_spikes t;
    float loss2, norm2;
    json_t *j = mx_spikes_to_json(&s);
    mx_spikes_init(&t, &a, 4, 2);
    mx_spikes_from_json(&t, j);
    json_decref(j);
    mx_spikes_limits(&s, &loss, &norm);
    mx_spikes_limits(&t, &loss2, &norm2);
    MX_CHECK(t.n == 4 && loss == loss2 && norm == norm2, "%g and %g after JSON", loss, loss2);
    MX_CHECK(fabs(loss - (2.5 + 2 * sqrt(5.0 / 3))) < 1e-6, "the last four are 1..4: %g", loss);
    mx_arena_fini(&a);
}

/* --- one step of a tiny model --- */

typedef struct {
    mx_model_spec model;
    mx_session *session;
    mx_step step, grads;
} bench;

static void bench_open(bench *b, const mx_optimizer *o, const char *trainable)
{
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "vocab_size", 64,
                          "hidden_size", 16, "intermediate_size", 40, "num_hidden_layers", 1,
                          "num_attention_heads", 2);
    static const int32_t ids[16] = {1, 2, 3, 9, 8, 7, 40, 41, 42, 1, 1, 5, 6, 33, 60, 2};
    MX_CHECK_OK(mx_model_from_json(&b->model, j, "test"));
    json_decref(j);
    MX_CHECK_OK(mx_session_open(&b->session, "cpu", 1));
    mx_step_options so = {.kind = MX_STEP_TRAIN,
                          .shape = {.batch = 1, .seq = 16},
                          .optimizer = *o,
                          .compile = {.n_threads = 1},
                          .trainable = trainable};
    MX_CHECK_OK(mx_step_open(&b->step, b->session, &b->model, &so));
    so.kind = MX_STEP_GRADS;
    MX_CHECK_OK(mx_step_open(&b->grads, b->session, &b->model, &so));
    MX_CHECK_OK(mx_session_init(b->session, 1));
    small_step_feed(b->step.exec, b->grads.exec, ids, 16);
}

static void bench_close(bench *b)
{
    mx_session_close(b->session);
    mx_step_close(&b->step);
    mx_step_close(&b->grads);
    mx_model_spec_fini(&b->model);
}

static float *values(bench *b, const char *name, int64_t *n)
{
    mx_var *v = mx_session_find(b->session, name);
    MX_CHECK(v != NULL, "there is no variable %s", name);
    *n = v ? mx_type_count(&v->type) : 0;
    float *x = calloc((size_t)*n + 1, sizeof *x);
    if (v && v->type.dtype == MX_F32)
        MX_CHECK_OK(mx_var_read(b->session, v, x));
    return x;
}

static const char *const up = "model.layers.0.mlp.up_proj.weight";

MX_TEST(a_step_above_its_limits_changes_nothing)
{
    bench b = {0};
    float loose = INFINITY, tight = 1e-3f;
    int64_t n;
    bench_open(&b, &(mx_optimizer){.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .skips_spikes = true}, NULL);
    float *before = values(&b, up, &n);
    for (int i = 0; i < 3; i++) {
        MX_CHECK_OK(mx_exec_write(b.step.exec, "norm_limit", i == 0 ? &tight : &loose));
        MX_CHECK_OK(mx_exec_write(b.step.exec, "loss_limit", i == 1 ? &tight : &loose));
        MX_CHECK_OK(mx_exec_run(b.step.exec));
        float *after = values(&b, up, &n);
        bool same = memcmp(before, after, sizeof *before * (size_t)n) == 0;
        MX_CHECK(same == (i < 2), "step %d: the weights %s", i, same ? "are the same" : "changed");
        free(after);
    }
    free(before);
    bench_close(&b);
}

MX_TEST(frozen_weights_have_no_state_and_do_not_move)
{
    bench b = {0};
    int64_t n, m;
    bench_open(&b, &(mx_optimizer){.b1 = 0.9, .b2 = 0.95, .eps = 1e-8}, "*mlp.*");
    const char *frozen = "model.layers.0.self_attn.q_proj.weight";
    float *a = values(&b, frozen, &n), *c = values(&b, up, &m);
    MX_CHECK_OK(mx_exec_run(b.step.exec));
    float *a2 = values(&b, frozen, &n), *c2 = values(&b, up, &m);
    MX_CHECK(memcmp(a, a2, sizeof *a * (size_t)n) == 0, "a frozen weight moved");
    MX_CHECK(memcmp(c, c2, sizeof *c * (size_t)m) != 0, "a trained weight did not move");
    MX_CHECK(!mx_session_find(b.session, "model.layers.0.self_attn.q_proj.weight.exp_avg"),
             "a frozen weight has moments");
    MX_CHECK(mx_session_find(b.session, "model.layers.0.mlp.up_proj.weight.exp_avg"), "no moments");
    free(a), free(a2), free(c), free(c2);
    bench_close(&b);
}

MX_TEST(moments_in_bfloat16_are_half_as_large_and_the_step_is_the_same)
{
    bench b[2] = {0};
    int64_t n;
    float *w[2];
    for (int i = 0; i < 2; i++) {
        bench_open(&b[i],
                   &(mx_optimizer){.b1 = 0.9,
                                   .b2 = 0.95,
                                   .eps = 1e-8,
                                   .mu_dtype = i ? MX_BF16 : MX_F32,
                                   .nu_dtype = i ? MX_BF16 : MX_F32},
                   NULL);
        MX_CHECK_OK(mx_exec_run(b[i].step.exec));
        w[i] = values(&b[i], up, &n);
    }
    mx_var *m = mx_session_find(b[1].session, "model.layers.0.mlp.up_proj.weight.exp_avg");
    MX_CHECK(m && m->type.dtype == MX_BF16, "the moment is not bfloat16");
    /* The first step is computed from the gradient: only what is stored is rounded. */
    MX_CHECK(memcmp(w[0], w[1], sizeof(float) * (size_t)n) == 0, "the first step differs");
    MX_CHECK_OK(mx_exec_run(b[1].step.exec));
    for (int i = 0; i < 2; i++) {
        free(w[i]);
        bench_close(&b[i]);
    }
}

/* Muon in doubles, from the gradient: one step from zero momentum. */
static void muon_by_hand(double *x, int rows, int cols, double lr, float *w)
{
    double norm = 0, gram[16 * 16], poly[16 * 16], next[16 * 40];
    for (int i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    for (int i = 0; i < rows * cols; i++)
        x[i] /= sqrt(norm) + 1e-8;
    for (int s = 0; s < 5; s++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                gram[i * rows + j] = 0;
                for (int k = 0; k < cols; k++)
                    gram[i * rows + j] += x[i * cols + k] * x[j * cols + k];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                double sum = 0;
                for (int k = 0; k < rows; k++)
                    sum += gram[i * rows + k] * gram[k * rows + j];
                poly[i * rows + j] = -4.7750 * gram[i * rows + j] + 2.0315 * sum;
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++) {
                next[i * cols + j] = 3.4445 * x[i * cols + j];
                for (int k = 0; k < rows; k++)
                    next[i * cols + j] += poly[i * rows + k] * x[k * cols + j];
            }
        memcpy(x, next, sizeof *x * (size_t)(rows * cols));
    }
    for (int i = 0; i < rows * cols; i++)
        w[i] -= (float)(lr * x[i]);
}

/* Both shapes: (16, 40) is wide, (40, 16) is worked on transposed and scaled by sqrt(40 / 16). */
MX_TEST(muon_turns_the_gradient_into_an_orthogonal_step)
{
    static const char *const names[] = {"model.layers.0.mlp.down_proj.weight",
                                        "model.layers.0.mlp.up_proj.weight"};
    for (int t = 0; t < 2; t++) {
        bench b = {0};
        int64_t n;
        char grad[128];
        double x[640];
        float d[640], turned[640];
        bench_open(&b,
                   &(mx_optimizer){.rule = &mx_optimizer_rule_muon,
                                   .b1 = 0.9,
                                   .b2 = 0.95,
                                   .eps = 1e-8,
                                   .own = &(mx_muon_rates){.beta = 0.95, .steps = 5}},
                   NULL);
        float *w = values(&b, names[t], &n);
        MX_CHECK(n == 640, "%lld values", (long long)n);
        snprintf(grad, sizeof grad, "grad:%s", names[t]);
        MX_CHECK_OK(mx_exec_run(b.grads.exec));
        MX_CHECK_OK(mx_exec_read(b.grads.exec, grad, d));
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 40; k++) {
                int from = t ? k * 16 + i : i * 40 + k;
                x[i * 40 + k] = d[from];
                turned[i * 40 + k] = w[from];
            }
        muon_by_hand(x, 16, 40, 0.01 * (t ? sqrt(2.5) : 1), turned);
        MX_CHECK_OK(mx_exec_run(b.step.exec));
        float *now = values(&b, names[t], &n);
        double worst = 0, moved = 0;
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 40; k++) {
                int at = t ? k * 16 + i : i * 40 + k;
                worst = fmax(worst, fabs(now[at] - turned[i * 40 + k]));
                moved = fmax(moved, fabs(now[at] - w[at]));
            }
        MX_CHECK(worst < 1e-5 && moved > 1e-3, "off by %g of steps up to %g", worst, moved);
        MX_CHECK(mx_session_find(b.session, "model.embed_tokens.weight.exp_avg"),
                 "the embedding is not AdamW's");
        MX_CHECK(!mx_session_find(b.session, "model.layers.0.mlp.up_proj.weight.exp_avg"),
                 "a matrix has AdamW's moments");
        free(w), free(now);
        bench_close(&b);
    }
}

MX_TEST(momentum_of_sgd_adds_up)
{
    bench b = {0};
    int64_t n;
    float d1[640], d2[640];
    bench_open(&b, &(mx_optimizer){.rule = &mx_optimizer_rule_sgd,
                                   .own = &(mx_sgd_rates){.momentum = 0.5}}, NULL);
    float *w = values(&b, up, &n);
    MX_CHECK_OK(mx_exec_run(b.grads.exec));
    MX_CHECK_OK(mx_exec_read(b.grads.exec, "grad:model.layers.0.mlp.up_proj.weight", d1));
    MX_CHECK_OK(mx_exec_run(b.step.exec));
    MX_CHECK_OK(mx_exec_run(b.grads.exec));
    MX_CHECK_OK(mx_exec_read(b.grads.exec, "grad:model.layers.0.mlp.up_proj.weight", d2));
    MX_CHECK_OK(mx_exec_run(b.step.exec));
    float *now = values(&b, up, &n);
    for (int64_t i = 0; i < n; i++) {
        double want = w[i] - 0.01 * d1[i] - 0.01 * (0.5 * d1[i] + d2[i]);
        MX_CHECK(fabs(now[i] - want) < 1e-6, "%lld: %g, not %g", (long long)i, now[i], want);
    }
    free(w), free(now);
    bench_close(&b);
}

/* --- whole runs --- */

static mx_status train(const char *folder, const char *name, const char *const *extra)
{
    static const char *const tiny[] = {"model_name=default",
                                       "decoder_block=llama2",
                                       "vocab_size=300",
                                       "base_emb_dim=32",
                                       "base_num_query_heads=4",
                                       "base_num_kv_heads=2",
                                       "head_dim=8",
                                       "base_mlp_dim=64",
                                       "base_num_decoder_layers=1",
                                       "max_target_length=32",
                                       "dtype=float32",
                                       "learning_rate=1e-2",
                                       "enable_tensorboard=false",
                                       "num_threads=1",
                                       "per_device_batch_size=2"};
    char out[512];
    const char *args[48];
    int n = 0;
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++)
        args[n++] = tiny[i];
    snprintf(out, sizeof out, "base_output_directory=%s/%s", folder, name);
    args[n++] = out;
    args[n++] = "run_name=r";
    for (; *extra; extra++)
        args[n++] = *extra;
    return tiny_run(args, n);
}

static char *text_of(const char *folder, const char *name)
{
    char path[512];
    char *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    mx_status st = mx_io_read_file(NULL, path, 1 << 24, &text, &n);
    MX_CHECK(!st, "%s", mx_status_text(st));
    mx_status_free(st);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; p && (p = strstr(p, what)); p++)
        n++;
    return n;
}

#define SPIKY                                                                                      \
    "learning_rate_schedule_steps=24", "checkpoint_period=4", "skip_step_on_spikes=true",          \
        "skip_step_interval=8", "skip_step_scaling_factor=0.8", "rollback_after_skips=2"

/* A run that skips and goes back, and the same in pieces, end in the same bits. */
MX_TEST(skips_and_rollbacks_are_repeated_exactly_by_a_resumed_run)
{
    char folder[256];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/maxc-spikes-XXXXXX", tmp ? tmp : "/tmp");
    MX_CHECK(mkdtemp(folder) != NULL, "cannot make %s", folder);
    MX_CHECK_OK(train(folder, "a", (const char *[]){SPIKY, "steps=24", NULL}));
    char *log = text_of(folder, "a/r/log.txt"), *metrics = text_of(folder, "a/r/metrics.jsonl");
    MX_CHECK(count(log, "going back from step") > 0, "the run never went back:\n%s", log);
    int lines = count(metrics, "\"step\": ");
    MX_CHECK(lines == 24, "%d lines of metrics", lines);
    MX_CHECK(count(log, "goodput ") == 1 && count(log, "really used") == 1, "%s", log);
    mx_free(log);
    mx_free(metrics);
    static const char *const stops[] = {"steps=4", "steps=8", "steps=16", "steps=24"};
    for (int i = 0; i < 4; i++)
        MX_CHECK_OK(train(folder, "b", (const char *[]){SPIKY, stops[i], NULL}));
    char *plan = text_of(folder, "b/r/plan.txt"), *account = text_of(folder, "b/r/goodput.json");
    MX_CHECK(strstr(plan, "weights") && strstr(plan, "total"), "%s", plan);
    MX_CHECK(strstr(account, "\"attempts\": 4"), "%s", account);
    mx_free(plan);
    mx_free(account);
    char *tensors[2];
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/r/checkpoints/24", folder, i ? "b" : "a");
        tensors[i] = tiny_checkpoint(path);
    }
    MX_CHECK(strlen(tensors[0]) > 100 && strcmp(tensors[0], tensors[1]) == 0, "the runs differ");
    free(tensors[0]);
    free(tensors[1]);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}
