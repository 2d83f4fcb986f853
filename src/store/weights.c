/* weights.c - loading checks everything before it changes anything.
 *
 * A weight is looked up under its own name and then under the family's other spelling. Tensors that no
 * weight asks for are errors too, except what old checkpoints carry along: rotary tables, causal masks,
 * and a head that is tied to the embedding.
 */
#include "store/weights.h"

#include "ops/load.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const ignorable[] = {"*rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias",
                                        "*.masked_bias", "*position_ids"};

static bool is_ignorable(const char *name, bool tied)
{
    for (size_t i = 0; i < sizeof ignorable / sizeof *ignorable; i++)
        if (mx_glob_match(ignorable[i], name))
            return true;
    return tied && mx_ends_with(name, "lm_head.weight");
}

static const mx_st_tensor *find_tensor(const mx_hf_dir *dir, const mx_model *family, const char *name)
{
    char other[512];
    const mx_st_tensor *t = mx_hf_dir_find(dir, name);
    if (!t && family->other_name && family->other_name(name, other, sizeof other))
        t = mx_hf_dir_find(dir, other);
    return t;
}

static bool same_shape(const mx_st_tensor *t, const mx_type *want)
{
    if (t->ndim != want->ndim)
        return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] != want->dim[i])
            return false;
    return true;
}

enum { MAX_LISTED = 40 };

typedef struct {
    mx_str text;
    int n;
} list;

static void add(list *l, const char *fmt, ...) MX_PRINTF(2, 3);
static void add(list *l, const char *fmt, ...)
{
    char line[768];
    if (l->n++ >= MAX_LISTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    mx_str_addf(&l->text, "\n  %s", line);
}

static mx_status report(list *l, const char *path)
{
    if (l->n > MAX_LISTED)
        mx_str_addf(&l->text, "\n  ... and %d more", l->n - MAX_LISTED);
    mx_status st = l->n ? mx_fail(MX_INPUT, "%s does not fit its config.json: %d tensors are wrong:%s\n"
                                  "Check that config.json and the weights belong together.", path,
                                  l->n, mx_str_text(&l->text))
                        : MX_OK;
    mx_str_fini(&l->text);
    return st;
}

/* Fills jobs[i] for weight i, or complains. */
static mx_status match(mx_session *s, const mx_model_spec *m, mx_hf_dir *dir, mx_st_job *jobs)
{
    list bad = {0};
    int64_t used = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT)
            continue;
        const mx_st_tensor *t = find_tensor(dir, m->family, v->name);
        char found[128];
        mx_str want = {0};
        mx_type_print(&want, &v->type);
        if (!t)
            add(&bad, "missing: %s %s", v->name, mx_str_text(&want));
        else if (!same_shape(t, &v->type))
            add(&bad, "shape: %s is %s, expected %s", t->name,
                mx_st_describe(t, found, sizeof found), mx_str_text(&want));
        else
            jobs[i] = (mx_st_job){.tensor = t, .count = t->n, .to = mx_st_dtype_of(v->type.dtype)};
        mx_str_fini(&want);
        used += t != NULL;
    }
    for (int64_t i = 0; i < dir->n_tensors; i++) {
        const mx_st_tensor *t = dir->tensors[i];
        bool known = is_ignorable(t->name, m->summary.tied);
        for (int k = 0; k < mx_session_count(s) && !known; k++)
            known = jobs[k].tensor == t;
        /* A tensor whose weight exists but is misshapen has been named already. */
        if (!known && !mx_session_find(s, t->name))
            add(&bad, "extra: %s", t->name);
    }
    return report(&bad, dir->path);
}

/* One weight at a time through a host buffer: bounded memory whatever the device. */
static mx_status load_one(mx_session *s, mx_var *v, mx_st_job *job, bool allow_nonfinite)
{
    MX_TRY(mx_alloc(&job->dst, mx_type_bytes(&v->type), v->name));
    mx_status st = mx_st_load(job, 1, mx_session_threads(s));
    if (!st && !allow_nonfinite)
        st = mx_st_check_finite(job, 1);
    if (!st)
        st = mx_var_write(s, v, job->dst);
    mx_free(job->dst);
    job->dst = NULL;
    return st;
}

mx_status mx_weights_load(mx_session *s, const mx_model_spec *m, mx_hf_dir *dir, mx_load_options o)
{
    mx_arena scratch = {0};
    mx_st_job *jobs = MX_NEW_N(&scratch, mx_st_job, mx_session_count(s));
    mx_status st = match(s, m, dir, jobs);
    for (int i = 0; i < mx_session_count(s) && !st; i++)
        if (jobs[i].tensor)
            st = mx_status_wrap(load_one(s, mx_session_var(s, i), &jobs[i], o.allow_nonfinite), "%s",
                                dir->path);
    mx_arena_fini(&scratch);
    return st ? st : mx_session_refresh_copies(s);
}

/* --- saving --- */

typedef struct {
    mx_session *session;
    mx_dtype dtype;
    const mx_var *held; /* whose bytes `host` holds */
    void *host;
} saver;

/* The writer asks for a tensor's bytes in order, so one converted tensor is held at a time. */
static mx_status fetch(void *ctx, const mx_st_source *src, uint64_t at, void *dst, size_t n)
{
    saver *sv = ctx;
    const mx_var *v = src->user;
    if (sv->held != v || at == 0) {
        mx_free(sv->host);
        sv->host = NULL;
        sv->held = NULL;
        void *raw = NULL;
        mx_type out = v->type;
        out.dtype = sv->dtype;
        MX_TRY(mx_alloc(&raw, mx_type_bytes(&v->type), v->name));
        mx_status st = mx_var_read(sv->session, v, raw);
        if (!st)
            st = mx_alloc(&sv->host, mx_type_bytes(&out), v->name);
        if (!st) {
            mx_tensor a = {raw, v->type}, b = {sv->host, out};
            int64_t total = mx_type_count(&out);
            for (int64_t i = 0; i < total; i += 4096) {
                float run[4096];
                int64_t k = total - i < 4096 ? total - i : 4096;
                mx_load_run_f32(&a, i, k, run);
                mx_store_run_f32(&b, i, k, run);
            }
            sv->held = v;
        }
        mx_free(raw);
        MX_TRY(st);
    }
    memcpy(dst, (const char *)sv->host + at, n);
    return MX_OK;
}

static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json", "vocab.json", "merges.txt"};
enum { N_TOKENIZER_FILES = sizeof tokenizer_files / sizeof *tokenizer_files };

char *mx_weights_config(const mx_model_spec *m, mx_dtype dtype)
{
    json_t *j = json_deep_copy(m->json);
    const char *key = json_object_get(j, "torch_dtype") ? "torch_dtype" : "dtype";
    json_object_set_new(j, key, json_string(mx_dtype_name(dtype)));
    json_object_del(j, "quantization_config");
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

int mx_weights_extras(const char *config, const char *like, mx_arena *a, mx_hf_extra *out)
{
    _Static_assert(1 + N_TOKENIZER_FILES <= MX_WEIGHTS_MAX_EXTRAS, "room for every file");
    int n = 0;
    out[n++] = (mx_hf_extra){.name = "config.json", .data = config, .n_bytes = strlen(config)};
    for (int i = 0; like && i < N_TOKENIZER_FILES; i++) {
        const char *path = mx_arena_printf(a, "%s/%s", like, tokenizer_files[i]);
        if (access(path, R_OK) == 0)
            out[n++] = (mx_hf_extra){.name = tokenizer_files[i], .from = path};
    }
    return n;
}

mx_status mx_weights_save(mx_session *s, const mx_model_spec *m, const char *dir, mx_dtype dtype,
                          const char *like)
{
    mx_arena scratch = {0};
    mx_st_source *src = MX_NEW_N(&scratch, mx_st_source, mx_session_count(s));
    mx_hf_extra extra[MX_WEIGHTS_MAX_EXTRAS];
    saver sv = {.session = s, .dtype = dtype};
    int64_t n = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT)
            continue;
        src[n] = (mx_st_source){.name = v->name, .dtype = mx_st_dtype_of(dtype),
                                .ndim = v->type.ndim, .user = v};
        for (int k = 0; k < v->type.ndim; k++)
            src[n].dim[k] = v->type.dim[k];
        n++;
    }
    char *config = mx_weights_config(m, dtype);
    int n_extra = mx_weights_extras(config, like, &scratch, extra);
    mx_hf_save_opts opts = {.writer = {.fetch = fetch, .fetch_ctx = &sv}};
    mx_status st = mx_hf_save(dir, src, n, extra, n_extra, &opts);
    mx_free(sv.host);
    mx_free(config);
    mx_arena_fini(&scratch);
    return st;
}
