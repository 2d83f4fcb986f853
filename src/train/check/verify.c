/* verify.c - logits, loss, gradients, AdamW steps and decoded tokens against a golden file.
 *
 * The golden's AdamW: lr 1e-3, betas 0.9 / 0.95, eps 1e-8, weight decay 0.1 on every tensor, clip
 * 1.0.
 */
#include "train/check/verify.h"

#include "exec/quant_config.h"
#include "infer/decode.h"
#include "infer/sample.h"
#include "store/weights.h"
#include "train/check/golden_images.h"
#include "train/check/verify_run.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { N_STEPS_MAX = 64 };

typedef struct {
    const mx_verify_options *o;
    const mx_mesh_rank *mesh_rank; /* of a mesh; NULL: one device */
    mx_verify_report *report;
    mx_hf_dir dir;
    mx_model_spec model;
    mx_st_file golden, grads;
    bool have_grads;
    int64_t batch, seq;
    int32_t *tokens, *labels; /* (B, S); labels shifted */
    int64_t n_labels;
    mx_golden_images images;
    mx_arena arena;
} verifier;

static mx_verify_row *new_row(mx_verify_report *r, const char *name)
{
    MX_ASSERT(r->n < 16);
    mx_verify_row *row = &r->row[r->n++];
    *row = (mx_verify_row){.ok = true};
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

/* Takes n values into the row; a difference that is not a number is infinitely large. */
static void compare(mx_verify_row *row, const float *have, const float *want, int64_t n,
                    double tolerance, const char *where)
{
    double error = 0, magnitude = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)have[i] - want[i]), m = fabs((double)want[i]);
        error = e == e ? fmax(error, e) : INFINITY;
        magnitude = fmax(magnitude, m);
    }
    bool ok = error <= tolerance * magnitude || error == 0;
    double ratio = magnitude > 0 ? error / magnitude : error;
    double worst = row->magnitude > 0 ? row->error / row->magnitude : row->error;
    if (ratio >= worst) {
        row->error = error;
        row->magnitude = magnitude;
        snprintf(row->worst, sizeof row->worst, "%s", where);
    }
    row->ok &= ok;
}

static mx_status read_floats(mx_arena *a, const mx_st_tensor *t, float **out)
{
    *out = MX_NEW_N(a, float, t->n);
    return mx_st_read(t, 0, t->n, MX_ST_F32, *out, NULL);
}

static mx_status read_ints(mx_arena *a, const mx_st_tensor *t, int32_t **out)
{
    *out = MX_NEW_N(a, int32_t, t->n);
    return mx_st_read(t, 0, t->n, MX_ST_I32, *out, NULL);
}

static mx_status read_golden(verifier *v)
{
    const mx_st_tensor *ids = mx_st_find(&v->golden, "input_ids");
    const mx_st_tensor *labels = mx_st_find(&v->golden, "labels");
    if (!ids || ids->ndim != 2)
        return mx_fail(MX_INPUT, "%s has no input_ids of shape (batch, length)", v->golden.path);
    v->batch = ids->dim[0];
    v->seq = ids->dim[1];
    MX_TRY(read_ints(&v->arena, ids, &v->tokens));
    for (int64_t i = 0; i < ids->n; i++)
        if (v->tokens[i] < 0 || v->tokens[i] >= v->model.summary.vocab)
            return mx_fail(MX_INPUT, "%s: input_ids[%lld] is %d, the vocabulary has %lld tokens",
                           v->golden.path, (long long)i, v->tokens[i],
                           (long long)v->model.summary.vocab);
    v->labels = MX_NEW_N(&v->arena, int32_t, ids->n);
    if (!labels)
        return MX_OK;
    int32_t *raw;
    MX_TRY(read_ints(&v->arena, labels, &raw));
    if (labels->n != ids->n)
        return mx_fail(MX_INPUT, "%s: labels and input_ids differ in shape", v->golden.path);
    v->n_labels = mx_shift_labels(raw, v->batch, v->seq, v->labels);
    return MX_OK;
}

/* Floats into an input, which a program in float64 has in float64. */
static mx_status write_input(mx_exec *e, const char *name, const float *values)
{
    const mx_type *t = mx_exec_type(e, name);
    if (!t || t->dtype != MX_F64)
        return mx_exec_write(e, name, values);
    int64_t n = mx_type_count(t);
    mx_arena scratch = {0};
    double *wide = MX_NEW_N(&scratch, double, n);
    for (int64_t i = 0; i < n; i++)
        wide[i] = values[i];
    mx_status st = mx_exec_write(e, name, wide);
    mx_arena_fini(&scratch);
    return st;
}

/* --- one program --- */

/* What a run of it reads. */
typedef struct {
    verifier *v;
    mx_verify_run run;
    float loss, *logits;
} checked;

static mx_status write_rows(void *ctx, int microbatch, mx_exec *e)
{
    const checked *w = ctx;
    verifier *v = w->v;
    int64_t at = microbatch * w->run.rows * v->seq;
    float scale = v->n_labels ? 1.0f / (float)v->n_labels : 0;
    MX_TRY(mx_exec_write_whole(e, "tokens", v->tokens + at));
    MX_TRY(mx_exec_write_whole(e, "labels", v->labels + at));
    if (v->images.n)
        MX_TRY(write_input(e, "pixels", mx_golden_images_laid(&v->images, v->batch, &v->arena)));
    if (v->images.spec.places)
        MX_TRY(mx_exec_write(e, "places",
                             mx_golden_images_places(&v->images, v->tokens, v->batch, v->seq,
                                                     &v->arena)));
    return mx_exec_write(e, "loss_scale", &scale);
}

static mx_status read_rows(void *ctx, int microbatch, mx_exec *e)
{
    checked *w = ctx;
    float loss;
    (void)microbatch;
    if (w->logits)
        return mx_verify_result(e, "logits", w->logits);
    MX_TRY(mx_verify_result(e, "loss", &loss));
    w->loss += loss;
    return MX_OK;
}

/* The model's weights and a program of the given kind. */
static mx_status open_work(checked *w, verifier *v, mx_step_kind kind)
{
    mx_step_options o = {
        .kind = kind,
        .shape = {.batch = v->batch, .seq = v->seq},
        .optimizer = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                      .clip = 1.0},
        .compile = v->o->compile,
    };
    mx_verify_place on = {v->mesh_rank, v->o->keys, v->o->device, v->o->n_threads,
                          .whole = v->images.n > 0};
    o.shape.places = v->images.spec.places;
    o.shape.images = v->images.spec.size ? v->images.n : v->batch * v->images.per_row;
    *w = (checked){.v = v};
    MX_TRY(mx_verify_run_open(&w->run, &v->model, &o, &on));
    MX_TRY(mx_weights_load(w->run.session, &v->model, &v->dir, (mx_load_options){0}));
    return mx_session_init(w->run.session, 0);
}

static mx_status run_work(checked *w)
{
    w->loss = 0;
    return mx_verify_run_forward(&w->run, &(mx_pipeline_feed){write_rows, read_rows, w});
}

/* log sum exp of a row */
static double log_sum(const float *x, int64_t n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - top);
    return top + log(sum);
}

/* Mean over the tokens of KL(want || have), in nats: how far the predictions differ, whatever
 * the size of the logits. */
static void compare_predictions(verifier *v, const float *have, const float *want)
{
    int64_t rows = v->batch * v->seq, n = v->model.summary.vocab;
    double sum = 0;
    for (int64_t r = 0; r < rows; r++, have += n, want += n) {
        double a = log_sum(want, n), b = log_sum(have, n);
        for (int64_t i = 0; i < n; i++)
            sum += exp(want[i] - a) * ((want[i] - a) - (have[i] - b));
    }
    mx_verify_row *row = new_row(v->report, "kl");
    row->error = rows ? sum / (double)rows : 0;
    row->magnitude = 1;
    bool narrow = mx_dtype_bytes(v->o->compile.compute) < sizeof(float);
    row->ok = row->error <= (narrow ? MX_VERIFY_KL : v->o->tolerance);
}

static mx_status check_logits(verifier *v)
{
    const mx_st_tensor *t = mx_st_find(&v->golden, "logits");
    if (!t)
        return MX_OK;
    checked w;
    mx_status st;
    float *want, *have = MX_NEW_N(&v->arena, float, t->n);
    MX_TRY_OUT(st, open_work(&w, v, MX_STEP_LOGITS));
    if (t->n != v->batch * v->seq * v->model.summary.vocab) {
        st = mx_fail(MX_INPUT, "%s: logits have %lld values, the model gives %lld", v->golden.path,
                     (long long)t->n, (long long)(v->batch * v->seq * v->model.summary.vocab));
        goto out;
    }
    MX_TRY_OUT(st, read_floats(&v->arena, t, &want));
    w.logits = have;
    MX_TRY_OUT(st, run_work(&w));
    bool speaks = w.run.speaks;
    compare(new_row(v->report, "logits"), have, want, speaks ? t->n : 0, v->o->tolerance, "");
    compare_predictions(v, speaks ? have : want, want);
out:
    mx_verify_run_close(&w.run);
    return st;
}

/* Buffers (a router's bias, a layer's factor) have no gradient and stand in the file with their own
 * values: is this one? */
static bool is_buffer(verifier *v, mx_arena *scratch, const mx_st_tensor *t, const float *values)
{
    const mx_st_tensor *weight = mx_hf_dir_find(&v->dir, t->name);
    float *own = NULL;
    if (!weight || weight->n != t->n)
        return false;
    mx_status st = read_floats(scratch, weight, &own);
    bool same = !st && memcmp(own, values, sizeof(float) * (size_t)t->n) == 0;
    mx_status_free(st);
    return same;
}

static double largest(const float *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++)
        m = x[i] == x[i] ? fmax(m, fabs((double)x[i])) : INFINITY;
    return m;
}

/* A gradient that is 0 by its mathematics (of a key's bias without rotary positions: the softmax
 * does not see it) is recorded as what rounding left of it, below this: float32's half unit of the
 * largest gradient. There is nothing to compare there but that ours is as small. */
static mx_status rounding_of_gradients(verifier *v, double *out)
{
    *out = 0;
    for (int64_t i = 0; i < v->grads.n_tensors; i++) {
        mx_arena scratch = {0};
        float *x;
        mx_status st = read_floats(&scratch, &v->grads.tensors[i], &x);
        if (!st)
            *out = fmax(*out, ldexp(largest(x, v->grads.tensors[i].n), -24));
        mx_arena_fini(&scratch);
        MX_TRY(st);
    }
    return MX_OK;
}

static mx_status compare_gradients(verifier *v, const mx_verify_run *run)
{
    mx_verify_row *row = new_row(v->report, "gradients");
    double rounding;
    MX_TRY(rounding_of_gradients(v, &rounding));
    for (int64_t i = 0; i < v->grads.n_tensors; i++) {
        const mx_st_tensor *t = &v->grads.tensors[i];
        mx_arena scratch = {0};
        float *want;
        mx_status st = read_floats(&scratch, t, &want);
        mx_verify_gradient g = mx_verify_gradient_find(run, t->name);
        float *have = MX_NEW_N(&scratch, float, t->n);
        /* A weight that nothing depends on has no gradient, which the file records as 0. What other
         * ranks have is theirs to compare. */
        if (!st && ((g.type && v->mesh_rank) || g.elsewhere))
            memcpy(have, want, sizeof *have * (size_t)t->n);
        if (!st && g.type)
            st = mx_verify_gradient_read(run, &g, t->n, have);
        double size = st ? 0 : largest(want, t->n);
        bool vanishes = size > 0 && size <= rounding && largest(have, t->n) <= rounding;
        if (!st && !vanishes && (g.type || g.elsewhere || !is_buffer(v, &scratch, t, want)))
            compare(row, have, want, t->n, v->o->tolerance, t->name);
        mx_arena_fini(&scratch);
        MX_TRY(st);
    }
    return MX_OK;
}

static mx_status check_loss(verifier *v)
{
    const mx_st_tensor *t = mx_st_find(&v->golden, "loss");
    if (!t)
        return MX_OK;
    checked w;
    mx_status st;
    float *want;
    MX_TRY_OUT(st, open_work(&w, v, v->have_grads ? MX_STEP_GRADS : MX_STEP_LOSS));
    MX_TRY_OUT(st, read_floats(&v->arena, t, &want));
    MX_TRY_OUT(st, run_work(&w));
    compare(new_row(v->report, "loss"), &w.loss, want, w.run.speaks, v->o->tolerance, "");
    if (v->have_grads)
        st = compare_gradients(v, &w.run);
out:
    mx_verify_run_close(&w.run);
    return st;
}

static mx_status check_adamw(verifier *v)
{
    const mx_st_tensor *t = mx_st_find(&v->golden, "adamw_losses");
    const mx_st_tensor *u = mx_st_find(&v->golden, "adamw_grad_norms");
    if (!t || !u || t->n > N_STEPS_MAX || u->n != t->n)
        return MX_OK;
    checked w;
    mx_status st;
    float *losses, *norms, loss[N_STEPS_MAX], norm[N_STEPS_MAX], lr = 1e-3f;
    MX_TRY_OUT(st, open_work(&w, v, MX_STEP_TRAIN));
    MX_TRY_OUT(st, read_floats(&v->arena, t, &losses));
    MX_TRY_OUT(st, read_floats(&v->arena, u, &norms));
    for (int64_t i = 0; i < t->n; i++) {
        float number = (float)(i + 1);
        mx_exec *last = mx_verify_run_last(&w.run);
        MX_TRY_OUT(st, mx_exec_write(last, "lr", &lr));
        MX_TRY_OUT(st, mx_exec_write(last, "step", &number));
        MX_TRY_OUT(st, run_work(&w));
        MX_TRY_OUT(st, mx_verify_run_update(&w.run));
        MX_TRY_OUT(st, mx_exec_read(last, "grad_norm", &norm[i]));
        loss[i] = w.loss;
    }
    compare(new_row(v->report, "adamw losses"), loss, losses, w.run.speaks ? t->n : 0,
            v->o->tolerance, "");
    compare(new_row(v->report, "adamw norms"), norm, norms, u->n, v->o->tolerance, "");
out:
    mx_verify_run_close(&w.run);
    return st;
}

/* The golden's continuation: its first half is the prompt (12 of 24), or 8 tokens where it is
 * longer. */
static int64_t prompt_length(const verifier *v, const mx_st_tensor *t, const int32_t *ids)
{
    int64_t n = 0, limit = t->dim[1] < v->seq ? t->dim[1] : v->seq;
    while (n < limit && ids[n] == v->tokens[n])
        n++;
    int64_t half = t->dim[1] == 24 ? 12 : 8;
    return n < half ? n : half;
}

static mx_status check_generated(verifier *v)
{
    const mx_st_tensor *t = mx_st_find(&v->golden, "generated");
    if (!t || t->ndim != 2 || t->dim[1] < 2)
        return MX_OK;
    mx_session *session = NULL;
    mx_decode *d = NULL;
    mx_forward_stages stages;
    mx_status st;
    int32_t *want;
    MX_TRY(read_ints(&v->arena, t, &want));
    int64_t total = t->dim[1], n = prompt_length(v, t, want);
    float *a = MX_NEW_N(&v->arena, float, total), *b = MX_NEW_N(&v->arena, float, total);
    void *work = mx_arena_alloc(&v->arena, 8 * (size_t)v->model.summary.vocab);
    int32_t *ids = MX_NEW_N(&v->arena, int32_t, total);
    memcpy(ids, want, sizeof(int32_t) * (size_t)n);
    mx_decode_settings o = {.batch = 1, .max_length = total, .prompt_hint = n,
                            .image_tokens = mx_image_longest(&v->images.spec, v->images.pixels,
                                                             v->images.n),
                            .compile = v->o->compile};
    o.compile.weights_fixed = true;
    o.stages = mx_mesh_rank_stages(v->mesh_rank, &stages);
    o.compile.partition = v->mesh_rank ? &v->mesh_rank->how : NULL;
    MX_TRY_OUT(st, mx_mesh_rank_session(&session, v->mesh_rank, v->o->device, v->o->n_threads));
    if (o.stages)
        mx_session_set_stage(session);
    MX_TRY_OUT(st, mx_decode_open(&d, session, &v->model, &o));
    MX_TRY_OUT(st, mx_weights_load(session, &v->model, &v->dir, (mx_load_options){0}));
    MX_TRY_OUT(st, mx_session_init(session, 0));
    for (int64_t fed = 0; n < total; n++) {
        const float *pixels = fed ? NULL : v->images.pixels;
        MX_TRY_OUT(st, mx_decode_feed_images(d, (const int32_t *const[]){ids + fed},
                                             &(int64_t){n - fed}, pixels ? &pixels : NULL));
        fed = n;
        ids[n] = mx_sample(&(mx_sampling){.repetition_penalty = 1}, mx_decode_logits(d, 0),
                           v->model.summary.vocab, NULL, 0, 0, 0, work).id;
    }
    for (int64_t i = 0; i < total; i++) {
        a[i] = (float)(ids[i] != want[i]);
        b[i] = 0;
    }
    compare(new_row(v->report, "generated"), a, b, total, 0, "");
out:
    mx_decode_close(d);
    mx_session_close(session);
    return st;
}

static mx_status open_files(verifier *v, const char *model_dir)
{
    MX_TRY(mx_hf_dir_open(&v->dir, model_dir, MX_HF_ALL));
    const char *where = mx_arena_printf(&v->arena, "%s/config.json", v->dir.path);
    MX_TRY(mx_model_from_json(&v->model, v->dir.config, where));
    const char *golden = v->o->golden && *v->o->golden
                             ? v->o->golden
                             : mx_arena_printf(&v->arena, "%s/golden.safetensors", v->dir.path);
    MX_TRY(mx_st_open(&v->golden, golden));
    const char *slash = strrchr(golden, '/');
    const char *grads = mx_arena_printf(&v->arena, "%.*sgrad.safetensors",
                                        slash ? (int)(slash - golden + 1) : 0, golden);
    if (access(grads, R_OK) == 0) {
        MX_TRY(mx_st_open(&v->grads, grads));
        v->have_grads = true;
    }
    MX_TRY(read_golden(v));
    return mx_golden_images_read(&v->images, &v->golden, &v->model, v->tokens, v->batch, v->seq,
                                 &v->arena);
}

static mx_status verify(const char *model_dir, const mx_verify_options *o,
                        const mx_mesh_rank *mesh_rank, mx_verify_report *report)
{
    mx_verify_options as_stored = *o;
    verifier v = {.o = &as_stored, .mesh_rank = mesh_rank, .report = report};
    report->n = 0;
    mx_status st;
    MX_TRY_OUT(st, open_files(&v, model_dir));
    MX_TRY_OUT(st, mx_quant_activations(&as_stored.compile.quantization, v.dir.config, &v.arena));
    MX_TRY_OUT(st, check_logits(&v));
    MX_TRY_OUT(st, check_loss(&v));
    if (o->compile.compute != MX_F64) { /* the optimizer and decoding have no float64 */
        MX_TRY_OUT(st, check_adamw(&v));
        MX_TRY_OUT(st, check_generated(&v));
    }
    if (!report->n)
        st = mx_fail(MX_INPUT,
                     "%s holds nothing to compare (logits, loss, adamw_losses, generated)",
                     v.golden.path);
out:
    mx_st_close(&v.golden);
    mx_st_close(&v.grads);
    mx_model_spec_fini(&v.model);
    mx_hf_dir_close(&v.dir);
    mx_arena_fini(&v.arena);
    return st;
}

/* --- on a mesh --- */

typedef struct {
    const char *model_dir;
    const mx_verify_options *o;
    mx_verify_report *report; /* of each rank */
} meshed;

static mx_status verify_rank(void *ctx, const mx_mesh_rank *mesh_rank)
{
    const meshed *m = ctx;
    return verify(m->model_dir, m->o, mesh_rank, &m->report[mesh_rank->rank]);
}

static double ratio_of(const mx_verify_row *r)
{
    return r->magnitude > 0 ? r->error / r->magnitude : r->error;
}

/* Of every quantity the rank that is furthest off. Stages that do not have it say 0 of 0. */
static void take_worst(mx_verify_report *all, const mx_verify_report *one)
{
    for (int i = 0; i < all->n; i++) {
        bool ok = all->row[i].ok && one->row[i].ok;
        if (ratio_of(&one->row[i]) > ratio_of(&all->row[i]) || all->row[i].magnitude == 0)
            all->row[i] = one->row[i];
        all->row[i].ok = ok;
    }
}

mx_status mx_verify(const char *model_dir, const mx_verify_options *o, mx_verify_report *report)
{
    if (!o->mesh || o->mesh->ranks == 1)
        return verify(model_dir, o, NULL, report);
    mx_arena a = {0};
    meshed m = {model_dir, o, MX_NEW_N(&a, mx_verify_report, o->mesh->ranks)};
    mx_status st = mx_virtual_ranks(o->mesh, o->n_threads, verify_rank, &m);
    *report = m.report[0];
    for (int i = 1; i < o->mesh->ranks && !st; i++)
        take_worst(report, &m.report[i]);
    mx_arena_fini(&a);
    return st;
}
