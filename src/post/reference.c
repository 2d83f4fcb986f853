/* reference.c - see reference.h. */
#include "post/reference.h"

#include "compile/lora.h"
#include "ops.h"
#include "post/mesh_rows.h"
#include "post/tokens.h"
#include "store/adapter.h"
#include "store/weights.h"
#include "exec/forward.h"
#include "exec/model_ref.h"
#include <string.h>

enum { MAX_SIZES = 4 };

typedef struct {
    double temperature;
} settings;

/* A program for batches of one size. */
typedef struct {
    mx_forward forward;
    int64_t rows;
    float *logps; /* on a mesh of the rows of all ranks, as roots are */
} sized;

struct mx_reference {
    const mx_objective_run *o;
    mx_session *session;
    bool own; /* the session is the reference's own */
    mx_step_options options;
    settings settings;
    sized size[MAX_SIZES];
    int n;
    float *ahead; /* of the rows of a step, those of all ranks: a microbatch after the other */
    int64_t cap_ahead;
};

static mx_node *logps(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, s->temperature);
    mx_graph_root(g, "logps", mx_reshape(g, mx_affine(g, t.logp, 1, 0),
                                         MX_SHAPE(t.batch, t.seq)));
    return mx_graph_root(g, "loss", mx_mul(g, mx_sum_all(g, t.logp), t.scale));
}

static mx_status size_for(mx_reference *r, int64_t rows, sized **out)
{
    for (int i = 0; i < r->n; i++)
        if (r->size[i].rows == rows) {
            *out = &r->size[i];
            return MX_OK;
        }
    MX_ASSERT(r->n < MAX_SIZES, "%d sizes of batches", r->n);
    sized *s = *out = &r->size[r->n];
    mx_step_options o = r->options;
    o.shape.batch = rows * (r->o->comm ? r->o->n_ranks : 1);
    r->n++;
    MX_TRY(mx_forward_open(&s->forward, r->session, r->o->model, &o, r->o->stages));
    s->rows = rows;
    return mx_alloc((void **)&s->logps, sizeof(float) * (size_t)(o.shape.batch * o.shape.seq),
                    "log-probabilities of the reference");
}

/* The weights of a session of its own: those of reference_path, or the model's and the adapter that
 * training began with. */
static mx_status load(mx_reference *r)
{
    const char *path = mx_config_text(r->o->config, "reference_path");
    const char *adapter = mx_config_text(r->o->config, "lora.lora_restore_path");
    mx_arena scratch = {0};
    mx_hf_dir dir = {0};
    mx_adapter a = {0};
    mx_status st = MX_OK;
    if (!*path)
        path = r->o->model_dir;
    if (!path)
        MX_TRY_OUT(st, mx_fail(MX_USAGE, "there is no reference: the run begins with random "
                               "weights; set load_parameters_path, or reference_path"));
    MX_TRY_OUT(st, mx_model_place(path, MX_FETCH_MODEL, r->o->config, &scratch, &path));
    MX_TRY_OUT(st, mx_hf_dir_open(&dir, path, MX_HF_ALL));
    MX_TRY_OUT(st, mx_status_wrap(mx_weights_load(r->session, r->o->model, &dir,
                                                  (mx_load_options){0}), "the reference"));
    if (r->options.lora) {
        MX_TRY_OUT(st, mx_adapter_open(&a, adapter));
        st = mx_adapter_load(r->session, &a.dir);
    }
out:
    mx_adapter_close(&a);
    mx_hf_dir_close(&dir);
    mx_arena_fini(&scratch);
    return st;
}

static void configure(mx_reference *r, const mx_objective_run *o, double temperature, bool policy)
{
    const mx_config *c = o->config;
    *r = (mx_reference){.o = o, .options = *o->options, .settings = {temperature}};
    bool named = *mx_config_text(c, "reference_path") != 0;
    bool restored = !named && *mx_config_text(c, "lora.lora_restore_path");
    r->options.kind = MX_STEP_LOSS;
    r->options.loss = logps;
    r->options.settings = &r->settings;
    r->options.compile.weights_fixed = !policy;
    r->own = !policy && (!r->options.lora || restored || named);
    if (!restored && !policy)
        r->options.lora = NULL;
}

mx_status mx_reference_beside(const mx_objective_run *o, double temperature, bool policy,
                              mx_beside *out)
{
    mx_reference r;
    configure(&r, o, temperature, policy);
    r.options.shape.batch = r.options.compile.partition ? o->microbatch * o->n_ranks
                                                        : o->microbatch;
    return mx_beside_step(out, policy ? "policy" : "reference", o->model, &r.options,
                          (mx_beside_how){o->stages, !policy && r.own});
}

mx_status mx_reference_open(mx_reference **out, const mx_objective_run *o, double temperature,
                            bool policy)
{
    const mx_config *c = o->config;
    mx_reference *r = mx_realloc(NULL, sizeof *r);
    configure(r, o, temperature, policy);
    *out = r;
    r->session = o->session;
    if (r->own) {
        MX_TRY(mx_session_open(&r->session, mx_config_text(c, "device"),
                               mx_session_threads(o->session)));
        mx_session_share_groups(r->session, o->session);
        if (o->stages)
            mx_session_set_stage(r->session);
    }
    sized *first;
    MX_TRY(size_for(r, o->microbatch, &first));
    return r->own ? load(r) : MX_OK;
}

void mx_reference_close(mx_reference *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        mx_free(r->size[i].logps);
        mx_exec_close(r->size[i].forward.step.exec);
        mx_forward_close(&r->size[i].forward);
    }
    if (r->own)
        mx_session_close(r->session);
    mx_free(r->ahead);
    mx_free(r);
}

typedef struct {
    const mx_batch *b;
    int64_t row;
    float *logps;
} asked;

static mx_status write_rows(void *ctx, int microbatch, mx_exec *e)
{
    const asked *q = ctx;
    (void)microbatch;
    return mx_feed_frozen(e, q->b, q->row);
}

static mx_status read_logps(void *ctx, int microbatch, mx_exec *e)
{
    (void)microbatch;
    return mx_exec_read(e, "logps", ((const asked *)ctx)->logps);
}

mx_status mx_reference_run(mx_reference *r, const mx_batch *b, int64_t row, int64_t rows,
                           const float **out)
{
    sized *s;
    MX_TRY(size_for(r, rows, &s));
    asked q = {b, row, s->logps};
    size_t all = sizeof(float) * (size_t)(rows * mx_rows_parts(r->o) * b->seq_len);
    MX_TRY(mx_forward_run(&s->forward, &(mx_pipeline_feed){write_rows, read_logps, &q}));
    MX_TRY(mx_forward_share(&s->forward, s->logps, all));
    *out = s->logps + mx_rows_part(r->o) * rows * b->seq_len;
    return MX_OK;
}

mx_status mx_reference_ahead(mx_reference *r, const mx_batch *b, int64_t rows)
{
    int64_t each = rows * mx_rows_parts(r->o) * b->seq_len, n = b->rows / rows * each;
    if (n > r->cap_ahead) {
        r->cap_ahead = n;
        r->ahead = mx_realloc(r->ahead, sizeof(float) * (size_t)n);
    }
    for (int64_t k = 0; k < b->rows / rows; k++) {
        const float *own;
        MX_TRY(mx_reference_run(r, b, k * rows, rows, &own));
        memcpy(r->ahead + k * each, mx_reference_of_all(r, rows), sizeof(float) * (size_t)each);
    }
    return MX_OK;
}

mx_status mx_reference_find(mx_reference *r, const mx_batch *b, int64_t row, int64_t rows,
                            const float **out)
{
    int64_t parts = mx_rows_parts(r->o);
    if (!r->o->stages)
        return mx_reference_run(r, b, row, rows, out);
    *out = r->ahead + (row * parts + mx_rows_part(r->o) * rows) * b->seq_len;
    return MX_OK;
}

const float *mx_reference_of_all(const mx_reference *r, int64_t rows)
{
    for (int i = 0; i < r->n; i++)
        if (r->size[i].rows == rows)
            return r->size[i].logps;
    return NULL;
}
