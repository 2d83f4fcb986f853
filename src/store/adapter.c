/* adapter.c - see adapter.h. Which modules have adapters, and of which rank, is taken from the
 * tensors themselves: target_modules may be a list, a pattern or a regular expression, and all of
 * them say the same about a file that is there. */
#include "store/adapter.h"

#include "base/file.h"
#include "store/adapter_names.h"
#include "store/staged_load.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_LISTED = 20 };
static const char BASE_END[] = ".base_layer.weight";

/* The end of a name that begins a module's adapter; NULL: it is another tensor. */
static const char *a_end(const char *name)
{
    return mx_ends_with(name, MX_LORA_A)         ? MX_LORA_A
           : mx_ends_with(name, MX_LORA_TABLE_A) ? MX_LORA_TABLE_A
                                                 : NULL;
}

bool mx_adapter_in_dir(const char *path)
{
    char file[4096];
    snprintf(file, sizeof file, "%.4000s/adapter_config.json", path);
    return access(file, R_OK) == 0;
}

/* --- reading --- */

#define MOST_ALPHA 1e6 /* a scale beyond it is no adapter's */

static mx_status refuse(const json_t *c, const char *path)
{
    static const struct {
        const char *key, *fine;
    } texts[] = {{"peft_type", "LORA"}, {"bias", "none"}};
    static const char *const flags[] = {"use_qalora", "use_bdlora", "lora_bias"};
    /* what changes the model beyond its weights */
    static const char *const absent[] = {"layer_replication", "alora_invocation_tokens",
                                         "arrow_config", "monteclora_config", "kasa_config",
                                         "trainable_token_indices"};
    /* for which PEFT takes something off the base weights whenever it loads the adapter */
    static const char *const inits[] = {"pissa", "corda", "olora", "loftq", "lora_ga"};
    const char *init = json_string_value(json_object_get(c, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof inits / sizeof *inits; i++)
        if (strncasecmp(init, inits[i], strlen(inits[i])) == 0)
            return mx_fail(MX_INPUT, "%s/adapter_config.json: init_lora_weights is \"%s\", so the "
                           "adapter is one of other base weights than the model's; save it with "
                           "PEFT's path_initial_model_for_weight_conversion", path, init);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *is = json_string_value(json_object_get(c, texts[i].key));
        if (is && strcmp(is, texts[i].fine) != 0)
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s is \"%s\"; expected \"%s\"", path,
                           texts[i].key, is, texts[i].fine);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (json_is_true(json_object_get(c, flags[i])))
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s is not supported", path, flags[i]);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        const json_t *v = json_object_get(c, absent[i]);
        if (v && !json_is_null(v))
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s is not supported; expected null",
                           path, absent[i]);
    }
    return MX_OK;
}

/* A value of another type than PEFT writes must not pass for the default. */
static mx_status check_types(const json_t *c, const char *path)
{
    static const struct {
        const char *key, *types, *expected; /* i: integer, n: number, b: bool, s: text, a: list */
    } fields[] = {
        {"peft_type", "s", "a text"},          {"bias", "s", "a text"},
        {"r", "i", "an integer"},              {"lora_alpha", "in", "a number"},
        {"lora_dropout", "in", "a number"},    {"use_rslora", "b", "true or false"},
        {"use_dora", "b", "true or false"},    {"fan_in_fan_out", "b", "true or false"},
        {"use_qalora", "b", "true or false"},  {"use_bdlora", "b", "true or false"},
        {"lora_bias", "b", "true or false"},   {"alpha_pattern", "o", "an object"},
        {"rank_pattern", "o", "an object"},    {"target_modules", "sa", "a list of names"},
        {"target_parameters", "sa", "a list of names"},
        {"modules_to_save", "sa", "a list of names"},
        {"base_model_name_or_path", "s", "a text"},
    };
    static const char letter[] = {[JSON_OBJECT] = 'o', [JSON_ARRAY] = 'a', [JSON_STRING] = 's',
                                  [JSON_INTEGER] = 'i', [JSON_REAL] = 'n', [JSON_TRUE] = 'b',
                                  [JSON_FALSE] = 'b', [JSON_NULL] = ' '};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(c, fields[i].key);
        if (v && !json_is_null(v) && !strchr(fields[i].types, letter[json_typeof(v)]))
            return mx_fail(MX_INPUT, "%s/adapter_config.json: %s must be %s", path, fields[i].key,
                           fields[i].expected);
    }
    return MX_OK;
}

/* PEFT's patterns are regular expressions of the ends of names. Those that only say so,
 * ".*\\.gate_up_proj", become that end; NULL: it is another. */
static const char *plain_pattern(mx_arena *a, const char *text)
{
    static const char any[] = ".*\\.";
    char *out = mx_arena_strdup(a, text + (*text == '^')), *to = out;
    const char *from = mx_starts_with(out, any) ? out + strlen(any) : out;
    for (; *from; from++) {
        bool dot = from[0] == '\\' && from[1] == '.';
        if (!dot && strchr("()|\\[]^$+?*{}", *from))
            return NULL;
        from += dot;
        *to++ = *from;
    }
    *to = 0;
    return out;
}

/* {"pattern": number}: as rules, whose other number is left open. */
static mx_status add_rules(mx_adapter *a, const json_t *map, mx_lora_rule *out, const char *path)
{
    int n = 0;
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)map, name, v) {
        const char *module = plain_pattern(&a->arena, name);
        if (!module)
            return mx_fail(MX_INPUT, "%s/adapter_config.json: alpha_pattern has the regular "
                           "expression %.200s; expected ends of names (up_proj, "
                           "model.layers.0.mlp.up_proj)", path, name);
        if (!(json_number_value(v) > 0 && json_number_value(v) <= MOST_ALPHA))
            return mx_fail(MX_INPUT, "%s/adapter_config.json: alpha_pattern has no number from 0 "
                           "to %g for %.200s", path, MOST_ALPHA, name);
        out[n++] = (mx_lora_rule){.module = module, .alpha = json_number_value(v)};
    }
    a->lora.n_rules = n;
    return MX_OK;
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
    MX_TRY(check_types(c, path));
    MX_TRY(refuse(c, path));
    json_t *alpha = json_object_get(c, "lora_alpha"), *more = json_object_get(c, "alpha_pattern");
    l->rank = json_integer_value(json_object_get(c, "r"));
    l->alpha = json_is_number(alpha) ? json_number_value(alpha) : 8; /* PEFT's defaults */
    if (json_is_integer(json_object_get(c, "r")) && l->rank < 1)
        return mx_fail(MX_INPUT, "%s/adapter_config.json: r is %lld; expected 1 or more", path,
                       (long long)l->rank);
    l->rank = l->rank ? l->rank : 8;
    l->rslora = json_is_true(json_object_get(c, "use_rslora"));
    l->dora = json_is_true(json_object_get(c, "use_dora"));
    a->ties = json_is_true(json_object_get(c, "ensure_weight_tying"));
    l->dropout = json_number_value(json_object_get(c, "lora_dropout"));
    l->save = joined(&a->arena, json_object_get(c, "modules_to_save"));
    l->targets = joined(&a->arena, json_object_get(c, "target_modules"));
    mx_lora_rule *rules = MX_NEW_N(&a->arena, mx_lora_rule, json_object_size(more) + 1);
    MX_TRY(add_rules(a, more, rules, path));
    l->rules = rules;
    l->parameters = joined(&a->arena, json_object_get(c, "target_parameters"));
    const char *base = json_string_value(json_object_get(c, "base_model_name_or_path"));
    a->base = mx_arena_strdup(&a->arena, base ? base : "");
    if (!(l->alpha > 0 && l->alpha <= MOST_ALPHA) || l->dropout < 0 || l->dropout >= 1)
        return mx_fail(MX_INPUT, "%s/adapter_config.json: lora_alpha is %g and lora_dropout %g; "
                       "expected more than 0 and at most %g, and 0 to 1", path, l->alpha,
                       l->dropout, MOST_ALPHA);
    return MX_OK;
}

/* One rule for each module that has an A; experts that are modules have one together. */
static mx_status find_modules(mx_adapter *a)
{
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
        const char *module = mx_adapter_module(a, t->name, end);
        if (!strchr(module, '*') || strstr(t->name, ".experts.0."))
            only[n++] = (mx_lora_rule){.module = module, .rank = t->dim[0]};
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

/* A variable's tensor; of experts' modules the stack of theirs. What is wrong with it goes to the
 * list. */
static bool match(const mx_var *v, const mx_hf_dir *dir, mx_arena *scratch, const char *name,
                  mx_quant_tensor *out, list *bad)
{
    const mx_type *whole = mx_var_whole(v);
    const char *star = strchr(name, '*');
    int64_t n = star ? whole->dim[0] : 1;
    mx_quant_tensor *part = MX_NEW_N(scratch, mx_quant_tensor, n);
    const mx_quant_tensor **parts = MX_NEW_N(scratch, const mx_quant_tensor *, n);
    int before = bad->n;
    mx_str want = {0};
    char have[128];
    mx_type_print(&want, whole);
    for (int64_t e = 0; e < n; e++) {
        const char *one = star ? mx_arena_printf(scratch, "%.*s%lld%s", (int)(star - name), name,
                                                 (long long)e, star + 1) : name;
        const mx_st_tensor *t = mx_hf_dir_find(dir, one);
        int skip = star ? 1 : 0;
        bool same = t && t->ndim == whole->ndim - skip;
        for (int i = 0; same && i < t->ndim; i++)
            same = t->dim[i] == whole->dim[i + skip];
        if (!t)
            add(bad, "missing", one, mx_str_text(&want));
        else if (!same)
            add(bad, mx_st_describe(t, have, sizeof have), one, mx_str_text(&want));
        else
            part[e] = (mx_quant_tensor){.name = t->name, .kind = MX_QUANT_PLAIN, .n = t->n,
                                        .data = t};
        parts[e] = &part[e];
    }
    mx_str_fini(&want);
    *out = star ? (mx_quant_tensor){.name = name, .kind = MX_QUANT_STACK, .n = n * part[0].n,
                                    .ndim = whole->ndim, .dim = {n}, .data = part[0].data,
                                    .parts = parts}
                : part[0];
    return bad->n == before;
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

bool mx_adapter_is_tied(mx_session *s, const char *weight)
{
    bool table = mx_ends_with(weight, "embed_tokens.weight") || mx_ends_with(weight, ".wte.weight");
    return table && !mx_session_find(s, "lm_head.weight") && !mx_session_find(s, "score.weight");
}

const mx_var *mx_adapter_saves_tied(mx_session *s)
{
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        if (is_trained(v) && !v->attr.adapter && mx_adapter_is_tied(s, v->name))
            return v;
    }
    return NULL;
}

mx_status mx_adapter_check_tied(mx_session *s, const mx_adapter *a)
{
    if (a->ties || !mx_adapter_saves_tied(s))
        return MX_OK;
    return mx_fail(MX_INPUT,
                   "%s: modules_to_save names the embedding of a model whose head is tied to it. "
                   "PEFT leaves the head as it was then, and maxc trains the two as one; with "
                   "\"ensure_weight_tying\": true in adapter_config.json both do that",
                   a->dir.path);
}

mx_status mx_adapter_load(mx_session *s, mx_hf_dir *dir)
{
    mx_arena scratch = {0};
    list bad = {0};
    int64_t n = 0;
    mx_staged_load *loads = MX_NEW_N(&scratch, mx_staged_load, mx_session_count(s));
    mx_quant_tensor *from = MX_NEW_N(&scratch, mx_quant_tensor, mx_session_count(s));
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (!is_trained(v))
            continue;
        const char *name = mx_adapter_tensor_name(s, &scratch, v);
        if (!mx_hf_dir_find(dir, name) && mx_hf_dir_find(dir, v->name))
            name = v->name; /* as PEFT wrote it before transformers 5 */
        if (!match(v, dir, &scratch, name, &from[n], &bad))
            continue;
        loads[n] = (mx_staged_load){v, &from[n], {0}};
        n++;
    }
    for (int64_t i = 0; i < dir->n_tensors && !mx_session_is_stage(s); i++)
        if (!is_base(s, dir->tensors[i]) && !mx_adapter_variable(s, dir->tensors[i]->name) &&
            !(mx_adapter_saves_tied(s) &&
              strcmp(dir->tensors[i]->name, MX_ADAPTER_TIED_HEAD) == 0))
            add(&bad, "not in the model", dir->tensors[i]->name, "");
    mx_status st = report(&bad, dir, n);
    if (!st)
        st = mx_staged_load_all(s, loads, n);
    if (!st)
        st = mx_session_refresh_copies(s);
    mx_arena_fini(&scratch);
    return st;
}
