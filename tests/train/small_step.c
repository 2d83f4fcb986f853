/* small_step.c - see small_step.h. */
#include "small_step.h"

#include "../test.h"
#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 2, SEQ = 12 };

void small_step_feed(mx_exec *step, mx_exec *grads, const int32_t *ids, int n)
{
    float one = 1, scale = 1.0f / (float)n, lr = 0.01f;
    mx_exec *e[2] = {step, grads};
    for (int i = 0; i < 2; i++) {
        MX_CHECK_OK(mx_exec_write(e[i], "tokens", ids));
        MX_CHECK_OK(mx_exec_write(e[i], "labels", ids));
        MX_CHECK_OK(mx_exec_write(e[i], "loss_scale", &scale));
    }
    MX_CHECK_OK(mx_exec_write(step, "lr", &lr));
    MX_CHECK_OK(mx_exec_write(step, "step", &one));
}

void small_step_open(small_step *s, const char *fixture, mx_step_options o)
{
    char path[256];
    int32_t ids[ROWS * SEQ];
    snprintf(path, sizeof path, "tests/fixtures/models/%s/config.json", fixture);
    json_t *json = json_load_file(path, 0, NULL);
    MX_CHECK_OK(mx_model_from_json(&s->model, json, path));
    json_decref(json);
    MX_CHECK_OK(mx_session_open(&s->session, "cpu", 1));
    o.kind = MX_STEP_TRAIN;
    o.shape.batch = ROWS;
    o.shape.seq = SEQ;
    o.compile.n_threads = 1;
    MX_CHECK_OK(mx_step_open(&s->step, s->session, &s->model, &o));
    o.kind = MX_STEP_GRADS;
    MX_CHECK_OK(mx_step_open(&s->grads, s->session, &s->model, &o));
    MX_CHECK_OK(mx_session_init(s->session, 1));
    for (int i = 0; i < ROWS * SEQ; i++)
        ids[i] = 3 + i * 37 % 140;
    small_step_feed(s->step.exec, s->grads.exec, ids, ROWS * SEQ);
}

void small_step_close(small_step *s)
{
    mx_session_close(s->session);
    mx_step_close(&s->step);
    mx_step_close(&s->grads);
    mx_model_spec_fini(&s->model);
}

const mx_var *small_step_weight(small_step *s, const char *pattern)
{
    for (int i = 0; i < mx_session_count(s->session); i++) {
        const mx_var *v = mx_session_var(s->session, i);
        if (v->attr.kind == MX_VAR_WEIGHT && mx_glob_match(pattern, v->name))
            return v;
    }
    MX_CHECK(false, "%s has no weight %s", s->model.family->name, pattern);
    return NULL;
}

float *small_step_values(small_step *s, const mx_var *v)
{
    float *x = calloc((size_t)mx_type_count(&v->type) + 1, sizeof *x);
    MX_CHECK_OK(mx_var_read(s->session, v, x));
    return x;
}
