/* adapter.c - see adapter.h. Which modules have adapters, and of which rank, is taken from the
 * tensors themselves: target_modules may be a list, a pattern or a regular expression, and all of
 * them say the same about a file that is there. */
#include "store/adapter.h"

#include "base/file.h"
#include "ops/load.h"
#include "store/quant_encode.h"
#include "store/staged_load.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LISTED = 20 };
static const char A_END[] = ".lora_A.weight", B_END[] = ".lora_B.weight",
                  M_END[] = ".lora_magnitude_vector", TABLE_A_END[] = ".lora_embedding_A",
                  TABLE_B_END[] = ".lora_embedding_B", BASE_END[] = ".base_layer.weight";

/* The end of a name that begins a module's adapter; NULL: it is another tensor. */
static const char *a_end(const char *name)
{
    return mx_ends_with(name, A_END) ? A_END : mx_ends_with(name, TABLE_A_END) ? TABLE_A_END : NULL;
}

bool mx_adapter_in_dir(const char *path)
{
    char file[4096];
    snprintf(file, sizeof file, "%.4000s/adapter_config.json", path);
    return access(file, R_OK) == 0;
}

/* --- reading --- */

static mx_status refuse(const json_t *c, const char *path)
{
    static const struct {
        const char *key, *fine;
    } texts[] = {{"peft_type", "LORA"}, {"bias", "none"}};
    static const char *const flags[] = {"use_qalora", "use_bdlora", "lora_bias"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *is = json_string_value(json_object_get(c, texts[i].key));
        if (is && strcmp(is, texts[i].fine) != 0)
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s is \"%s\"; expected \"%s\"", path,
                           texts[i].key, is, texts[i].fine);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (json_is_true(json_object_get(c, flags[i])))
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s is not supported", path, flags[i]);
    return MX_OK;
}

/* {"pattern": number}: as rules, whose other number is left open. */
static int add_rules(mx_adapter *a, const json_t *map, mx_lora_rule *out)
{
    int n = 0;
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)map, name, v)
        out[n++] = (mx_lora_rule){.module = mx_arena_strdup(&a->arena, name),
                                  .alpha = json_number_value(v)};
    return n;
}

static const char *joined(mx_arena *a, const json_t *list)
{
    const char *text = json_is_string(list) ? json_string_value(list) : "";
    size_t i;
    json_t *v;
    json_array_foreach (list, i, v)
        if (json_is_string(v))
            text = mx_arena_printf(a, "%s%s%s", text, i ? "," : "", json_string_value(v));
    return mx_arena_strdup(a, text);
}

static mx_status read_config(mx_adapter *a, const json_t *c, const char *path)
{
    mx_lora *l = &a->lora;
    MX_TRY(refuse(c, path));
    json_t *alpha = json_object_get(c, "lora_alpha"), *more = json_object_get(c, "alpha_pattern");
    l->rank = json_integer_value(json_object_get(c, "r"));
    l->alpha = json_is_number(alpha) ? json_number_value(alpha) : 8; /* PEFT's defaults */
    l->rank = l->rank > 0 ? l->rank : 8;
    l->rslora = json_is_true(json_object_get(c, "use_rslora"));
    l->dora = json_is_true(json_object_get(c, "use_dora"));
    l->dropout = json_number_value(json_object_get(c, "lora_dropout"));
    l->save = joined(&a->arena, json_object_get(c, "modules_to_save"));
    l->targets = joined(&a->arena, json_object_get(c, "target_modules"));
    mx_lora_rule *rules = MX_NEW_N(&a->arena, mx_lora_rule, json_object_size(more) + 1);
    l->n_rules = add_rules(a, more, rules);
    l->rules = rules;
    const char *base = json_string_value(json_object_get(c, "base_model_name_or_path"));
    a->base = mx_arena_strdup(&a->arena, base ? base : "");
    if (!(l->alpha > 0) || l->dropout < 0 || l->dropout >= 1)
        return mx_fail(MX_INPUT, "%s/adapter_config.json: lora_alpha is %g and lora_dropout %g; "
                       "expected more than 0, and 0 to 1", path, l->alpha, l->dropout);
    return MX_OK;
}

/* One rule for each module that has an A. */
static mx_status find_modules(mx_adapter *a)
{
    size_t prefix = strlen(MX_LORA_PREFIX);
    mx_lora_rule *only = MX_NEW_N(&a->arena, mx_lora_rule, a->dir.n_tensors + 1);
    int n = 0;
    for (int64_t i = 0; i < a->dir.n_tensors; i++) {
        const mx_st_tensor *t = a->dir.tensors[i];
        if (!mx_starts_with(t->name, MX_LORA_PREFIX))
            return mx_fail(MX_INPUT, "%s: the tensor %.200s is not called as PEFT calls it; "
                           "expected " MX_LORA_PREFIX "...", a->dir.path, t->name);
        const char *end = a_end(t->name);
        if (!end)
            continue;
        if (t->ndim != 2 || t->dim[0] < 1)
            return mx_fail(MX_INPUT, "%s: %.200s has %d dims; expected (rank, in)", a->dir.path,
                           t->name, t->ndim);
        int len = (int)(strlen(t->name) - prefix - strlen(end));
        only[n++] = (mx_lora_rule){
            .module = mx_arena_printf(&a->arena, "%.*s", len, t->name + prefix), .rank = t->dim[0]};
    }
    a->lora.only = only;
    a->lora.n_only = n;
    if (!n)
        return mx_fail(MX_INPUT, "%s: adapter_model.safetensors has no lora_A: nothing is adapted",
                       a->dir.path);
    return MX_OK;
}

mx_status mx_adapter_open(mx_adapter *a, const char *path)
{
    json_t *config = NULL;
    mx_status st;
    *a = (mx_adapter){0};
    if (!mx_adapter_in_dir(path))
        return mx_fail(MX_INPUT, "%s: no adapter: there is no adapter_config.json", path);
    MX_TRY_OUT(st, mx_hf_dir_open_set(&a->dir, path, "adapter_model"));
    MX_TRY_OUT(st, mx_hf_dir_json(&a->dir, "adapter_config.json", true, &config));
    MX_TRY_OUT(st, read_config(a, config, path));
    st = find_modules(a);
out:
    json_decref(config);
    if (st)
        mx_adapter_close(a);
    return st;
}

void mx_adapter_close(mx_adapter *a)
{
    mx_hf_dir_close(&a->dir);
    mx_arena_fini(&a->arena);
    *a = (mx_adapter){0};
}

/* --- into a session --- */

const char *mx_adapter_tensor_name(mx_arena *a, const mx_var *v)
{
    return v->attr.adapter ? v->name : mx_arena_printf(a, MX_LORA_PREFIX "%s", v->name);
}

static bool is_trained(const mx_var *v)
{
    return v->attr.kind == MX_VAR_WEIGHT && (v->attr.adapter || !v->attr.frozen);
}

typedef struct {
    mx_str text;
    int n;
} list;

static void add(list *l, const char *what, const char *name, const char *more)
{
    if (l->n++ < MAX_LISTED)
        mx_str_addf(&l->text, "\n  %s: %.200s%s%s", what, name, *more ? " " : "", more);
}

/* What is wrong with a variable's tensor, into the list; else it is loaded. */
static bool match(const mx_var *v, const mx_st_tensor *t, const char *name, list *bad)
{
    mx_str want = {0};
    char have[128];
    const mx_type *whole = mx_var_whole(v);
    bool same = t && t->ndim == whole->ndim;
    for (int i = 0; same && i < t->ndim; i++)
        same = t->dim[i] == whole->dim[i];
    mx_type_print(&want, whole);
    if (!t)
        add(bad, "missing", name, mx_str_text(&want));
    else if (!same)
        add(bad, mx_st_describe(t, have, sizeof have), name, mx_str_text(&want));
    mx_str_fini(&want);
    return same;
}

static mx_status report(list *bad, const mx_hf_dir *dir, int64_t n_good)
{
    mx_status st = MX_OK;
    if (bad->n)
        st = mx_fail(MX_INPUT, "the adapter %s is for another model%s: %d tensors do not fit:%s%s",
                     dir->path, n_good ? "" : ", nothing of it fits this one", bad->n,
                     mx_str_text(&bad->text), bad->n > MAX_LISTED ? "\n  ..." : "");
    mx_str_fini(&bad->text);
    return st;
}

/* PEFT writes an embedding that has an adapter along, as it is in the model. */
static bool is_base(mx_session *s, const mx_st_tensor *t)
{
    char name[600];
    size_t prefix = strlen(MX_LORA_PREFIX);
    if (!mx_starts_with(t->name, MX_LORA_PREFIX) || !mx_ends_with(t->name, BASE_END))
        return false;
    snprintf(name, sizeof name, "%.*s.weight",
             (int)(strlen(t->name) - prefix - strlen(BASE_END)), t->name + prefix);
    const mx_var *w = mx_session_find(s, name);
    return w && t->ndim == 2 && t->dim[0] == w->type.dim[0] && t->dim[1] == w->type.dim[1];
}

mx_status mx_adapter_load(mx_session *s, mx_hf_dir *dir)
{
    mx_arena scratch = {0};
    list bad = {0};
    int64_t n = 0, used = 0;
    mx_staged_load *loads = MX_NEW_N(&scratch, mx_staged_load, mx_session_count(s));
    mx_quant_tensor *from = MX_NEW_N(&scratch, mx_quant_tensor, mx_session_count(s));
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (!is_trained(v))
            continue;
        const char *name = mx_adapter_tensor_name(&scratch, v);
        const mx_st_tensor *t = mx_hf_dir_find(dir, name);
        used += t != NULL;
        if (!match(v, t, name, &bad))
            continue;
        from[n] = (mx_quant_tensor){.name = t->name, .kind = MX_QUANT_PLAIN, .n = t->n, .data = t};
        loads[n] = (mx_staged_load){v, &from[n], {0}};
        n++;
    }
    for (int64_t i = 0; i < dir->n_tensors && used < dir->n_tensors; i++) {
        const char *name = dir->tensors[i]->name, *own = name + strlen(MX_LORA_PREFIX);
        if (is_base(s, dir->tensors[i]))
            continue;
        if (!mx_starts_with(name, MX_LORA_PREFIX) ||
            (!mx_session_find(s, name) && !mx_session_find(s, own)))
            add(&bad, "not in the model", name, "");
    }
    mx_status st = report(&bad, dir, n);
    if (!st)
        st = mx_staged_load_all(s, loads, n);
    if (!st)
        st = mx_session_refresh_copies(s);
    mx_arena_fini(&scratch);
    return st;
}

/* --- arithmetic on the host: DoRA's first lengths, merging --- */

/* The variables of one module; b, m NULL: none. */
typedef struct {
    char module[512];
    mx_var *w, *a, *b, *m;
    bool table; /* of an embedding: W (vocab, dim), A (r, vocab), B (dim, r) */
} parts;

static mx_var *find(mx_session *s, const char *prefix, const char *module, const char *end)
{
    char name[600];
    snprintf(name, sizeof name, "%s%s%s", prefix, module, end);
    return mx_session_find(s, name);
}

/* Does variable i begin a module's adapter? */
static bool parts_of(mx_session *s, int i, parts *p)
{
    mx_var *v = mx_session_var(s, i);
    const char *end = v->attr.adapter ? a_end(v->name) : NULL;
    if (!end)
        return false;
    size_t prefix = strlen(MX_LORA_PREFIX), n = strlen(v->name) - strlen(end) - prefix;
    p->table = end == TABLE_A_END;
    snprintf(p->module, sizeof p->module, "%.*s", (int)n, v->name + prefix);
    p->a = v;
    p->w = find(s, "", p->module, ".weight");
    p->b = find(s, MX_LORA_PREFIX, p->module, p->table ? TABLE_B_END : B_END);
    p->m = find(s, MX_LORA_PREFIX, p->module, M_END);
    MX_ASSERT(p->w && p->b, "the adapter of %s", p->module);
    return true;
}

static mx_status read_floats(mx_session *s, mx_var *v, mx_arena *a, float **out)
{
    int64_t n = mx_type_count(&v->type);
    if (v->attr.quantized) {
        *out = MX_NEW_N(a, float, v->type.dtype == MX_U8 ? 2 * n : n);
        return mx_codes_read(s, v, *out);
    }
    mx_tensor t = {MX_NEW_N(a, char, (int64_t)mx_type_bytes(&v->type)), v->type};
    MX_TRY(mx_var_read(s, v, t.data));
    *out = MX_NEW_N(a, float, n);
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = (float)mx_load_f64(&t, i);
    return MX_OK;
}

static mx_status write_floats(mx_session *s, mx_var *v, mx_arena *a, const float *x)
{
    mx_tensor t = {MX_NEW_N(a, char, (int64_t)mx_type_bytes(&v->type)), v->type};
    for (int64_t i = 0; i < mx_type_count(&v->type); i++)
        mx_store_f64(&t, i, x[i]);
    return mx_var_write(s, v, t.data);
}

/* W (out, in) as rows, whatever the order in memory: index of row o, column i. */
static int64_t at(const parts *p, int64_t o, int64_t i)
{
    const mx_var *w = p->w;
    int64_t cols = w->type.dim[1] * (w->attr.quantized && w->type.dtype == MX_U8 ? 2 : 1);
    return w->attr.in_out || p->table ? i * cols + o : o * cols + i;
}

static mx_status begin_lengths(mx_session *s, const parts *p, mx_arena *scratch)
{
    float *w;
    int64_t out = p->m->type.dim[0], in = p->a->type.dim[1];
    MX_TRY(read_floats(s, p->w, scratch, &w));
    float *m = MX_NEW_N(scratch, float, out);
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++)
            sum += (double)w[at(p, o, i)] * w[at(p, o, i)];
        m[o] = (float)sqrt(sum);
    }
    return write_floats(s, p->m, scratch, m);
}

mx_status mx_adapter_begin(mx_session *s)
{
    parts p;
    mx_status st = MX_OK;
    for (int i = 0; i < mx_session_count(s) && !st; i++) {
        mx_arena scratch = {0};
        if (parts_of(s, i, &p) && p.m && !p.m->written)
            st = begin_lengths(s, &p, &scratch);
        mx_arena_fini(&scratch);
    }
    return st;
}

static mx_status merge_one(mx_session *s, const parts *p, double scale, mx_arena *scratch)
{
    float *w, *a, *b, *m = NULL;
    int64_t r = p->a->type.dim[0], in = p->a->type.dim[1], out = p->b->type.dim[0];
    MX_TRY(read_floats(s, p->w, scratch, &w));
    MX_TRY(read_floats(s, p->a, scratch, &a));
    MX_TRY(read_floats(s, p->b, scratch, &b));
    if (p->m)
        MX_TRY(read_floats(s, p->m, scratch, &m));
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < out; o++) {
        double squares = 0;
        for (int64_t i = 0; i < in; i++) {
            double more = 0;
            for (int64_t k = 0; k < r; k++)
                more += (double)b[o * r + k] * a[k * in + i];
            float sum = (float)(w[at(p, o, i)] + scale * more);
            w[at(p, o, i)] = sum;
            squares += (double)sum * sum;
        }
        for (int64_t i = 0; m && i < in; i++)
            w[at(p, o, i)] *= (float)(m[o] / sqrt(squares));
    }
    MX_TRY(write_floats(s, p->w, scratch, w));
    memset(b, 0, sizeof *b * (size_t)(out * r));
    return write_floats(s, p->b, scratch, b);
}

mx_status mx_adapter_merge(mx_session *s, const mx_lora *l)
{
    parts p;
    mx_status st = MX_OK;
    for (int i = 0; i < mx_session_count(s) && !st; i++) {
        mx_arena scratch = {0};
        if (parts_of(s, i, &p))
            st = merge_one(s, &p, mx_lora_scale(l, p.module), &scratch);
        mx_arena_fini(&scratch);
    }
    return st;
}

/* --- writing --- */

/* The last parts of the modules' names, each once: what PEFT calls target_modules. Names that have
 * such an ending without an adapter make it the whole names. */
static json_t *targets_of(mx_session *s, json_t *ranks, const mx_lora *l)
{
    json_t *ends = json_array(), *whole = json_array();
    mx_str seen = {0};
    parts p;
    bool ambiguous = false;
    for (int i = 0; i < mx_session_count(s); i++) {
        if (!parts_of(s, i, &p))
            continue;
        const char *dot = strrchr(p.module, '.'), *end = dot ? dot + 1 : p.module;
        json_array_append_new(whole, json_string(p.module));
        if (p.a->type.dim[0] != l->rank)
            json_object_set_new(ranks, p.module, json_integer(p.a->type.dim[0]));
        if (!mx_lora_names(mx_str_text(&seen), end)) {
            json_array_append_new(ends, json_string(end));
            mx_str_addf(&seen, "%s%s", seen.len ? "," : "", end);
        }
    }
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        size_t n = strlen(v->name);
        if (v->attr.kind != MX_VAR_WEIGHT || v->attr.adapter || !mx_ends_with(v->name, ".weight"))
            continue;
        snprintf(p.module, sizeof p.module, "%.*s", (int)(n - strlen(".weight")), v->name);
        ambiguous |= mx_lora_names(mx_str_text(&seen), p.module) &&
                     !find(s, MX_LORA_PREFIX, p.module, A_END) &&
                     !find(s, MX_LORA_PREFIX, p.module, TABLE_A_END);
    }
    mx_str_fini(&seen);
    json_decref(ambiguous ? ends : whole);
    return ambiguous ? whole : ends;
}

static json_t *list_of(const char *text)
{
    json_t *out = json_array();
    for (const char *p = text; *p;) {
        size_t k = strcspn(p, ", ");
        if (k)
            json_array_append_new(out, json_stringn(p, k));
        p += k + strspn(p + k, ", ");
    }
    return out;
}

char *mx_adapter_config(mx_session *s, const mx_lora *l, const char *base)
{
    json_t *c = json_object(), *ranks = json_object(), *alphas = json_object();
    json_t *targets = targets_of(s, ranks, l);
    for (int i = 0; i < l->n_rules; i++)
        if (l->rules[i].alpha > 0)
            json_object_set_new(alphas, l->rules[i].module, json_real(l->rules[i].alpha));
    json_object_set_new(c, "peft_type", json_string("LORA"));
    json_object_set_new(c, "task_type", json_string("CAUSAL_LM"));
    json_object_set_new(c, "base_model_name_or_path", json_string(base ? base : ""));
    json_object_set_new(c, "r", json_integer(l->rank));
    bool whole = l->alpha == floor(l->alpha);
    json_object_set_new(c, "lora_alpha",
                        whole ? json_integer((json_int_t)l->alpha) : json_real(l->alpha));
    json_object_set_new(c, "lora_dropout", json_real(l->dropout));
    json_object_set_new(c, "use_rslora", json_boolean(l->rslora));
    json_object_set_new(c, "use_dora", json_boolean(l->dora));
    json_object_set_new(c, "target_modules", targets);
    json_object_set_new(c, "modules_to_save", *l->save ? list_of(l->save) : json_null());
    json_object_set_new(c, "rank_pattern", ranks);
    json_object_set_new(c, "alpha_pattern", alphas);
    json_object_set_new(c, "bias", json_string("none"));
    json_object_set_new(c, "fan_in_fan_out", json_false());
    json_object_set_new(c, "inference_mode", json_true());
    json_object_set_new(c, "init_lora_weights", json_true());
    char *text = json_dumps(c, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(c);
    return text;
}
