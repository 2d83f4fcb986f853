/* mixture_test.c - experts in either spelling of a checkpoint, written as they were read, and what
 * a configuration may not say. */
#include "../store/test_dir.h"
#include "../test.h"

#include "base/arena.h"
#include "store/weights.h"
#include "exec/step.h"
#include "train/check/verify.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char root[] = "tests/fixtures/models";

/* --- another spelling of a fixture --- */

typedef struct {
    mx_arena arena;
    mx_hf_dir dir;
    mx_st_source out[512];
    int64_t n;
} rewriter;

static float *values(rewriter *w, const mx_st_tensor *t)
{
    float *x = MX_NEW_N(&w->arena, float, t->n);
    MX_CHECK_OK(mx_st_read(t, 0, t->n, MX_ST_F32, x, NULL));
    return x;
}

static void put(rewriter *w, const char *name, int ndim, const int64_t *dim, const float *x)
{
    mx_st_source *s = &w->out[w->n++];
    *s = (mx_st_source){.name = mx_arena_strdup(&w->arena, name), .dtype = MX_ST_F32, .ndim = ndim,
                        .data = x};
    memcpy(s->dim, dim, sizeof *dim * (size_t)ndim);
}

/* PREFIX.experts.N.{gate, up, down} (f, d) of all N joined to PREFIX.experts.{gate_up,
 * down}_proj. */
static void join(rewriter *w, const char *prefix, const char *out_prefix,
                 const char *const from[3])
{
    char name[256];
    float *all[3] = {0};
    int64_t E = 0, rows[3] = {0}, cols[3] = {0};
    for (int p = 0; p < 3; p++)
        for (E = 0;; E++) {
            snprintf(name, sizeof name, "%s.experts.%lld.%s.weight", prefix, (long long)E, from[p]);
            const mx_st_tensor *t = mx_hf_dir_find(&w->dir, name);
            if (!t)
                break;
            rows[p] = t->dim[0], cols[p] = t->dim[1];
            all[p] = all[p] ? all[p] : MX_NEW_N(&w->arena, float, 64 * t->n);
            memcpy(all[p] + E * t->n, values(w, t), sizeof(float) * (size_t)t->n);
        }
    int64_t f = rows[0], d = cols[0], half = f * d;
    float *both = MX_NEW_N(&w->arena, float, E * 2 * half);
    for (int64_t e = 0; e < E; e++) {
        memcpy(both + e * 2 * half, all[0] + e * half, sizeof(float) * (size_t)half);
        memcpy(both + e * 2 * half + half, all[1] + e * half, sizeof(float) * (size_t)half);
    }
    snprintf(name, sizeof name, "%s.experts.gate_up_proj", out_prefix);
    put(w, name, 3, (int64_t[]){E, 2 * f, d}, both);
    snprintf(name, sizeof name, "%s.experts.down_proj", out_prefix);
    put(w, name, 3, (int64_t[]){E, d, f}, all[2]);
}

/* The opposite: matrix e of rows [from, from + f) of the joined tensor, turned if it is (in,
 * out). */
static void part(rewriter *w, const mx_st_tensor *t, const char *prefix, const char *name_,
                 int64_t from, int64_t f, bool turned)
{
    int64_t E = t->dim[0], R = t->dim[1], C = t->dim[2], in = turned ? R : C;
    float *x = values(w, t);
    for (int64_t e = 0; e < E; e++) {
        char name[256];
        float *y = MX_NEW_N(&w->arena, float, f * in);
        for (int64_t i = 0; i < f; i++)
            for (int64_t j = 0; j < in; j++)
                y[i * in + j] = x[e * R * C + (turned ? j * C + from + i : (from + i) * C + j)];
        snprintf(name, sizeof name, "%s.experts.%lld.%s.weight", prefix, (long long)e, name_);
        put(w, name, 2, (int64_t[]){f, in}, y);
    }
}

/* Every tensor of the fixture, the experts respelled. */
static void respell(rewriter *w, bool turned)
{
    for (int64_t i = 0; i < w->dir.n_tensors; i++) {
        const mx_st_tensor *t = w->dir.tensors[i];
        char prefix[256], name[256];
        const char *at = strstr(t->name, ".experts.");
        snprintf(prefix, sizeof prefix, "%.*s", at ? (int)(at - t->name) : 0, t->name);
        if (at && strcmp(at, ".experts.gate_up_proj") == 0) {
            int64_t f = t->dim[turned ? 2 : 1] / 2;
            part(w, t, prefix, "gate_proj", 0, f, turned);
            part(w, t, prefix, "up_proj", f, f, turned);
        } else if (at && strcmp(at, ".experts.down_proj") == 0) {
            part(w, t, prefix, "down_proj", 0, t->dim[turned ? 2 : 1], turned);
        } else if (at && strcmp(at, ".experts.0.w1.weight") == 0) {
            snprintf(name, sizeof name, "%.*s.mlp", (int)(strlen(prefix) - 17), prefix);
            join(w, prefix, name, (const char *const[]){"w1", "w3", "w2"});
        } else if (at && strcmp(at, ".experts.0.gate_proj.weight") == 0) {
            join(w, prefix, prefix, (const char *const[]){"gate_proj", "up_proj", "down_proj"});
        } else if (!at) {
            const char *block = strstr(t->name, ".block_sparse_moe.");
            snprintf(name, sizeof name, "%s", t->name);
            if (block)
                snprintf(name, sizeof name, "%.*s.mlp.%s", (int)(block - t->name), t->name,
                         block + 18);
            put(w, name, t->ndim, t->dim, values(w, t));
        }
    }
}

/* Every tensor of the fixture, joined experts with their last two dims exchanged. */
static void exchange(rewriter *w, bool turned)
{
    (void)turned;
    for (int64_t i = 0; i < w->dir.n_tensors; i++) {
        const mx_st_tensor *t = w->dir.tensors[i];
        float *x = values(w, t), *y = MX_NEW_N(&w->arena, float, t->n);
        if (t->ndim != 3 || !strstr(t->name, ".experts.")) {
            put(w, t->name, t->ndim, t->dim, x);
            continue;
        }
        int64_t R = t->dim[1], C = t->dim[2];
        for (int64_t k = 0; k < t->n; k++)
            y[k / (R * C) * R * C + k % C * R + k / C % R] = x[k];
        put(w, t->name, 3, (int64_t[]){t->dim[0], C, R}, y);
    }
}

static void check_written(const char *family, void (*write)(rewriter *w, bool turned), bool turned)
{
    rewriter w = {0};
    test_dir d;
    char path[256], golden[320];
    snprintf(path, sizeof path, "%s/%s", root, family);
    snprintf(golden, sizeof golden, "%s/golden.safetensors", path);
    test_dir_make(&d);
    MX_CHECK_OK(mx_hf_dir_open(&w.dir, path, MX_HF_ALL));
    write(&w, turned);
    mx_hf_extra config = {.name = "config.json",
                          .from = mx_arena_printf(&w.arena, "%s/config.json", path)};
    MX_CHECK_OK(mx_hf_save(d.path, w.out, w.n, &config, 1, &(mx_hf_save_opts){0}));
    mx_verify_report r;
    mx_verify_options o = {.tolerance = 2e-4, .device = "cpu", .n_threads = 1, .golden = golden};
    MX_CHECK_OK(mx_verify(d.path, &o, &r));
    MX_CHECK(r.n >= 5, "%s: %d quantities", family, r.n);
    for (int i = 0; i < r.n; i++)
        MX_CHECK(r.row[i].ok, "%s: %s %g of %g", family, r.row[i].name, r.row[i].error,
                 r.row[i].magnitude);
    mx_hf_dir_close(&w.dir);
    mx_arena_fini(&w.arena);
    test_dir_remove(&d);
}

MX_TEST(experts_load_joined_where_they_are_apart)
{
    check_written("mixtral", respell, false);
    check_written("qwen3-moe", respell, false);
}

MX_TEST(experts_load_apart_where_they_are_joined)
{
    check_written("gemma4-moe", respell, false);
    check_written("llama4", respell, true);
}

/* As Qwen3-VL was released. */
MX_TEST(experts_load_with_exchanged_dims)
{
    check_written("qwen3-vl-moe", exchange, false);
}

/* --- written as read --- */

static void check_round_trip(const char *family)
{
    char path[256];
    test_dir d;
    mx_arena a = {0};
    mx_hf_dir in = {0}, out = {0};
    mx_model_spec m = {0};
    mx_session *s = NULL;
    mx_step step = {0};
    mx_step_options o = {.kind = MX_STEP_LOGITS, .shape = {.batch = 1, .seq = 4}};
    snprintf(path, sizeof path, "%s/%s", root, family);
    test_dir_make(&d);
    MX_CHECK_OK(mx_hf_dir_open(&in, path, MX_HF_ALL));
    MX_CHECK_OK(mx_model_from_json(&m, in.config, path));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    MX_CHECK_OK(mx_step_open(&step, s, &m, &o));
    MX_CHECK_OK(mx_weights_load(s, &m, &in, (mx_load_options){0}));
    MX_CHECK_OK(mx_weights_save(s, &m, d.path, MX_F32));
    MX_CHECK_OK(mx_hf_dir_open(&out, d.path, MX_HF_ALL));
    MX_CHECK(in.n_tensors == out.n_tensors, "%s: %lld tensors became %lld", family,
             (long long)in.n_tensors, (long long)out.n_tensors);
    for (int64_t i = 0; i < in.n_tensors; i++) {
        const mx_st_tensor *t = in.tensors[i], *u = mx_hf_dir_find(&out, t->name);
        MX_CHECK(u && u->n == t->n && u->ndim == t->ndim, "%s: %s", family, t->name);
        if (!u || u->n != t->n)
            continue;
        float *x = MX_NEW_N(&a, float, t->n), *y = MX_NEW_N(&a, float, t->n);
        MX_CHECK_OK(mx_st_read(t, 0, t->n, MX_ST_F32, x, NULL));
        MX_CHECK_OK(mx_st_read(u, 0, u->n, MX_ST_F32, y, NULL));
        MX_CHECK(memcmp(x, y, sizeof(float) * (size_t)t->n) == 0, "%s: %s", family, t->name);
    }
    mx_session_close(s);
    mx_step_close(&step);
    mx_model_spec_fini(&m);
    mx_hf_dir_close(&in);
    mx_hf_dir_close(&out);
    mx_arena_fini(&a);
    test_dir_remove(&d);
}

MX_TEST(mixtures_are_written_as_they_were_read)
{
    const char *family[] = {"mixtral", "qwen3-moe", "gpt-oss", "llama4", "gemma4-moe"};
    for (size_t i = 0; i < sizeof family / sizeof *family; i++)
        check_round_trip(family[i]);
}

/* --- what a configuration may not say --- */

static mx_status with(const char *family, const char *key, json_t *value)
{
    char path[256];
    mx_model_spec m = {0};
    snprintf(path, sizeof path, "%s/%s/config.json", root, family);
    json_t *json = json_load_file(path, 0, NULL);
    json_object_set_new(json, key, value);
    mx_status st = mx_model_from_json(&m, json, "config.json");
    mx_model_spec_fini(&m);
    json_decref(json);
    return st;
}

MX_TEST(mixtures_refuse_what_cannot_be_built)
{
    MX_CHECK_ERROR(with("mixtral", "num_experts_per_tok", json_integer(5)),
                   "a token goes to 5 of 4 experts");
    MX_CHECK_ERROR(with("mixtral", "num_local_experts", json_integer(0)), "number of experts is 0");
    MX_CHECK_ERROR(with("qwen3-moe", "decoder_sparse_step", json_integer(0)),
                   "decoder_sparse_step");
    MX_CHECK_ERROR(with("gpt-oss", "swiglu_limit", json_real(-1)), "swiglu_limit");
    MX_CHECK_ERROR(with("gpt-oss", "router_aux_loss_coef", json_real(-1)),
                   "from 0 to 1000000");
    MX_CHECK_ERROR(with("llama4", "no_rope_layers", json_pack("[i]", 1)), "names 1 layers");
    MX_CHECK_ERROR(with("llama4", "interleave_moe_layer_step", json_integer(0)),
                   "from 1 to 65536");
    MX_CHECK_ERROR(with("gemma4", "num_kv_shared_layers", json_integer(6)), "no layer before");
    MX_CHECK_ERROR(with("gemma4-moe", "top_k_experts", json_integer(9)), "9 of 4 experts");
    MX_CHECK_ERROR(with("gemma4", "per_layer_config",
                        json_pack("{s:{s:i}}", "2", "head_dim", 8)), "must be alike");
    MX_CHECK_OK(with("mixtral", "num_experts_per_tok", json_integer(4)));
}

/* --- routers that go wrong, experts that go without --- */

typedef struct {
    mx_hf_dir dir;
    mx_model_spec model;
    mx_session *session;
    mx_step step;
    mx_arena arena;
    int64_t batch, seq;
} trial;

static void trial_open(trial *t, const char *family)
{
    char path[256];
    int32_t tokens[48], labels[48];
    float scale = 1.0f / 48;
    *t = (trial){.batch = 2, .seq = 24};
    snprintf(path, sizeof path, "%s/%s", root, family);
    MX_CHECK_OK(mx_hf_dir_open(&t->dir, path, MX_HF_ALL));
    MX_CHECK_OK(mx_model_from_json(&t->model, t->dir.config, path));
    MX_CHECK_OK(mx_session_open(&t->session, "cpu", 1));
    mx_step_options o = {.kind = MX_STEP_GRADS, .shape = {.batch = t->batch, .seq = t->seq}};
    o.compile.n_threads = mx_session_threads(t->session);
    MX_CHECK_OK(mx_step_open(&t->step, t->session, &t->model, &o));
    MX_CHECK_OK(mx_weights_load(t->session, &t->model, &t->dir, (mx_load_options){0}));
    for (int i = 0; i < 48; i++) {
        tokens[i] = 3 + i * 7 % 150;
        labels[i] = 3 + i * 11 % 150;
    }
    MX_CHECK_OK(mx_exec_write(t->step.exec, "tokens", tokens));
    MX_CHECK_OK(mx_exec_write(t->step.exec, "labels", labels));
    MX_CHECK_OK(mx_exec_write(t->step.exec, "loss_scale", &scale));
}

static void trial_close(trial *t)
{
    mx_session_close(t->session);
    mx_step_close(&t->step);
    mx_model_spec_fini(&t->model);
    mx_hf_dir_close(&t->dir);
    mx_arena_fini(&t->arena);
}

/* Elements [first, first + n) of every weight that the pattern matches; n = 0: all. */
static void fill(trial *t, const char *pattern, int64_t first, int64_t n, float value)
{
    int found = 0;
    for (int i = 0; i < mx_session_count(t->session); i++) {
        mx_var *v = mx_session_var(t->session, i);
        if (v->attr.kind != MX_VAR_WEIGHT || !mx_glob_match(pattern, v->name))
            continue;
        int64_t all = mx_type_count(&v->type), per = n ? all / v->type.dim[0] : 1;
        float *x = MX_NEW_N(&t->arena, float, all);
        MX_CHECK_OK(mx_var_read(t->session, v, x));
        int64_t from = n ? first * per : 0, to = n ? (first + n) * per : all;
        for (int64_t k = from; k < to; k++)
            x[k] = value;
        MX_CHECK_OK(mx_var_write(t->session, v, x));
        found++;
    }
    MX_CHECK(found > 0, "no weight is called %s", pattern);
}

static float loss_of(trial *t)
{
    float loss = 0;
    MX_CHECK_OK(mx_exec_run(t->step.exec));
    MX_CHECK_OK(mx_exec_read(t->step.exec, "loss", &loss));
    return loss;
}

/* Equal logits send every token to the first k experts. What the others hold is not looked at, and
 * their gradients are zero, not leftovers. */
MX_TEST(experts_without_tokens_are_not_touched)
{
    trial t;
    trial_open(&t, "qwen3-moe");
    fill(&t, "*.mlp.gate.weight", 0, 0, 0);
    float loss = loss_of(&t);
    MX_CHECK(isfinite(loss), "loss %g", loss);
    static const char grad[] = "grad:model.layers.0.mlp.experts.*.up_proj.weight";
    const mx_type *d = mx_exec_type(t.step.exec, grad);
    MX_ASSERT(d, "no gradient of the experts");
    int64_t E = d->dim[0], n = mx_type_count(d), k = 2;
    float *x = MX_NEW_N(&t.arena, float, n);
    MX_CHECK_OK(mx_exec_read(t.step.exec, grad, x));
    double used = 0, unused = 0;
    for (int64_t i = 0; i < n; i++)
        *(i < k * (n / E) ? &used : &unused) += fabs((double)x[i]);
    MX_CHECK(used > 0 && unused == 0, "gradients of %g with tokens, %g without", used, unused);
    fill(&t, "*.experts.*", k, E - k, NAN);
    MX_CHECK(loss_of(&t) == loss, "experts without tokens changed the loss");
    trial_close(&t);
}

/* NaN from a router reaches the loss, where a run notices it, and no index out of range. */
MX_TEST(routers_with_nan_make_the_loss_nan)
{
    static const char *const families[][2] = {
        {"qwen3-moe", "*.mlp.gate.weight"},  {"mixtral", "*.gate.weight"},
        {"deepseek-v3", "*.gate.weight"},    {"gpt-oss", "*.router.weight"},
        {"llama4", "*.router.weight"},       {"gemma4-moe", "*.router.proj.weight"},
        {"qwen3-next", "*.mlp.gate.weight"}, {"qwen3.5-moe", "*.mlp.gate.weight"},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        trial t;
        trial_open(&t, families[i][0]);
        fill(&t, families[i][1], 0, 0, NAN);
        float loss = loss_of(&t);
        MX_CHECK(isnan(loss), "%s: loss %g", families[i][0], loss);
        trial_close(&t);
    }
}
