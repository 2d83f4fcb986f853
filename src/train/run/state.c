/* state.c - weights and moments as tensors by name, the rest as a small JSON object. */
#include "train/run/state.h"

#include "compile/optimizer.h"
#include "store/adapter.h"
#include "store/staged_load.h"
#include "store/weights.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

static mx_st_source source_of(const mx_session *session, mx_var *v)
{
    const mx_type *whole = mx_var_whole(v);
    mx_st_source s = {.name = v->name,
                      .dtype = mx_st_dtype_of(v->type.dtype),
                      .ndim = v->type.ndim,
                      .user = v,
                      .data = mx_var_host(session, v),
                      .box = v->box,
                      .local = &v->type};
    for (int i = 0; i < whole->ndim; i++)
        s.dim[i] = whole->dim[i];
    return s;
}

static int64_t collect(mx_session *s, mx_var_kind kind, mx_arena *a, mx_st_source **out)
{
    int64_t n = 0;
    *out = MX_NEW_N(a, mx_st_source, mx_session_count(s));
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_session_var(s, i)->attr.kind == kind)
            (*out)[n++] = source_of(s, mx_session_var(s, i));
    return n;
}

static char *state_text(const mx_run_state *st)
{
    json_t *j = json_pack("{s:I, s:I, s:I, s:I, s:I, s:i}", "step", (json_int_t)st->step, "tokens",
                          (json_int_t)st->tokens, "skipped", (json_int_t)st->skipped,
                          "skipped_in_row", (json_int_t)st->skipped_in_row, "rollbacks",
                          (json_int_t)st->rollbacks, "threads", st->threads);
    if (st->ranks > 1)
        json_object_set_new(j, "ranks", json_integer(st->ranks));
    if (st->inputs)
        json_object_set_new(j, "inputs", json_integer(st->inputs));
    json_t *loader = st->loader ? json_loadb(st->loader, st->loader_bytes, 0, NULL) : NULL;
    if (loader)
        json_object_set_new(j, "loader", loader);
    if (st->spikes)
        json_object_set_new(j, "spikes", mx_spikes_to_json(st->spikes));
    char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

/* A variable on a device, on its way into the snapshot. */
static mx_status fetch(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n)
{
    return mx_var_read_part(ctx, s->user, at, dst, n);
}

/* Adapters and what is trained whole, as PEFT calls them: an embedding that the head is tied to is
 * the head's tensor too. */
static int64_t collect_adapter(mx_session *s, mx_arena *a, mx_st_source **out)
{
    int64_t n = 0;
    const mx_var *tied = mx_adapter_saves_tied(s);
    *out = MX_NEW_N(a, mx_st_source, mx_session_count(s) + 1);
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT || v->attr.frozen)
            continue;
        (*out)[n] = source_of(s, v);
        (*out)[n++].name = mx_adapter_tensor_name(s, a, v);
        if (v == tied) {
            (*out)[n] = source_of(s, v);
            (*out)[n++].name = MX_ADAPTER_TIED_HEAD;
        }
    }
    return n;
}

/* The session's weights, and tensors that are passed through. */
static int64_t collect_weights(mx_session *s, mx_passthrough *passthrough, mx_arena *a,
                               mx_st_source **out)
{
    mx_st_source *own;
    int64_t n = collect(s, MX_VAR_WEIGHT, a, &own), more = passthrough ? passthrough->n : 0;
    *out = MX_NEW_N(a, mx_st_source, n + more);
    memcpy(*out, own, sizeof *own * (size_t)n);
    for (int64_t i = 0; i < more; i++)
        (*out)[n + i] = mx_passthrough_source(passthrough, i);
    return n + more;
}

/* The request of a save, handed to mx_ckpt_save or mx_ckpt_reserve. */
static mx_status with_request(mx_ckpt *c, mx_session *s, const mx_model_spec *m,
                              const mx_run_state *st, double metric, const mx_model_files *files,
                              mx_status (*use)(mx_ckpt *c, const mx_ckpt_request *r))
{
    mx_arena scratch = {0};
    mx_ckpt_request r = {.step = st->step, .metric = metric, .fetch = fetch, .fetch_ctx = s};
    mx_st_source *weights, *moments;
    r.n_weights = st->lora ? collect_adapter(s, &scratch, &weights)
                           : collect_weights(s, st->passthrough, &scratch, &weights);
    r.stem = st->lora ? "adapter_model" : NULL;
    if (st->passthrough) {
        r.fetch = mx_passthrough_fetch;
        r.fetch_ctx = st->passthrough;
    }
    r.n_optimizer = collect(s, MX_VAR_OPTIMIZER, &scratch, &moments);
    r.weights = weights;
    r.optimizer = moments;
    mx_dtype dtype = MX_F32;
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_session_var(s, i)->attr.kind == MX_VAR_WEIGHT)
            dtype = mx_session_var(s, i)->type.dtype;
    int n_files = files ? files->n : 0;
    mx_hf_extra *extra = MX_NEW_N(&scratch, mx_hf_extra, n_files + 2);
    char *config =
        st->lora ? mx_adapter_config(s, st->lora, st->base) : mx_weights_config(m, dtype);
    char *state = state_text(st);
    r.state_json = state;
    r.extras = extra;
    if (n_files)
        memcpy(extra, files->v, sizeof *extra * (size_t)n_files);
    r.n_extras = n_files;
    extra[r.n_extras++] =
        (mx_hf_extra){.name = st->lora ? "adapter_config.json" : "config.json", .data = config,
                      .n_bytes = strlen(config)};
    if (st->config)
        extra[r.n_extras++] = (mx_hf_extra){.name = "maxc_config.yml", .data = st->config,
                                            .n_bytes = strlen(st->config)};
    mx_status status = use(c, &r);
    mx_free(config);
    mx_free(state);
    mx_arena_fini(&scratch);
    return status;
}

mx_status mx_state_save(mx_ckpt *c, mx_session *s, const mx_model_spec *m, const mx_run_state *st,
                        double metric, const mx_model_files *files)
{
    return with_request(c, s, m, st, metric, files, mx_ckpt_save);
}

mx_status mx_state_reserve(mx_ckpt *c, mx_session *s, const mx_model_spec *m,
                           const mx_run_state *st, const mx_model_files *files)
{
    return with_request(
        c, s, m,
        &(mx_run_state){.passthrough = st->passthrough, .lora = st->lora, .base = st->base}, NAN,
        files, mx_ckpt_reserve);
}

/* Moments by name. A weight that was frozen in the saved run has none: it starts from zero. */
static mx_status restore_moments(const mx_ckpt_view *v, mx_session *s)
{
    mx_arena scratch = {0};
    mx_status st = MX_OK;
    float skipped = (float)json_integer_value(json_object_get(v->state, "skipped"));
    mx_quant_tensor *from = MX_NEW_N(&scratch, mx_quant_tensor, mx_session_count(s));
    mx_staged_load *loads = MX_NEW_N(&scratch, mx_staged_load, mx_session_count(s));
    int64_t n = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *var = mx_session_var(s, i);
        if (var->attr.kind != MX_VAR_OPTIMIZER)
            continue;
        const mx_st_tensor *t = v->has_optimizer ? mx_hf_dir_find(&v->optimizer, var->name) : NULL;
        if (!t && strcmp(var->name, MX_SKIPPED_STEPS) == 0)
            MX_TRY_OUT(st, mx_var_write(s, var, &skipped)); /* without moments it counts too */
        if (!t)
            continue;
        if (t->n != mx_type_count(mx_var_whole(var)))
            MX_TRY_OUT(st, mx_fail(MX_INPUT, "the checkpoint's %s has %lld values, the run needs "
                                   "%lld", t->name, (long long)t->n,
                                   (long long)mx_type_count(mx_var_whole(var))));
        from[n] = (mx_quant_tensor){.name = t->name, .kind = MX_QUANT_PLAIN, .n = t->n, .data = t};
        loads[n] = (mx_staged_load){var, &from[n], {0}};
        n++;
    }
    st = mx_staged_load_all(s, loads, n);
out:
    mx_arena_fini(&scratch);
    return st;
}

mx_status mx_state_restore(const char *checkpoint, mx_session *s, const mx_model_spec *m,
                           mx_run_state *st)
{
    mx_ckpt_view v = {0};
    *st = (mx_run_state){.spikes = st->spikes, .passthrough = st->passthrough, .lora = st->lora,
                         .base = st->base};
    /* Already verified when this checkpoint was chosen; sizes are checked once more. */
    MX_TRY(mx_ckpt_open(&v, checkpoint, MX_CHECK_SIZES, mx_session_threads(s)));
    mx_status status = st->lora ? mx_adapter_load(s, &v.model)
                                : mx_weights_load(s, m, &v.model, (mx_load_options){0});
    if (!status)
        status = restore_moments(&v, s);
    if (!status) {
        st->step = json_integer_value(json_object_get(v.state, "step"));
        st->tokens = json_integer_value(json_object_get(v.state, "tokens"));
        st->inputs = json_integer_value(json_object_get(v.state, "inputs"));
        st->skipped = json_integer_value(json_object_get(v.state, "skipped"));
        st->skipped_in_row = json_integer_value(json_object_get(v.state, "skipped_in_row"));
        st->rollbacks = json_integer_value(json_object_get(v.state, "rollbacks"));
        if (st->spikes)
            mx_spikes_from_json(st->spikes, json_object_get(v.state, "spikes"));
        st->threads = (int)json_integer_value(json_object_get(v.state, "threads"));
        st->ranks = (int)json_integer_value(json_object_get(v.state, "ranks"));
        st->ranks = st->ranks > 0 ? st->ranks : 1;
        const json_t *loader = json_object_get(v.state, "loader");
        if (loader) {
            st->loader = json_dumps(loader, JSON_COMPACT);
            st->loader_bytes = strlen(st->loader);
        }
    }
    mx_ckpt_close(&v);
    return status;
}
