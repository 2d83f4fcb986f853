/* quant_config.c - see quant_config.h.
 *
 * Rules, first match wins:
 *   1. those of the file quant_cfg_path, in its order:
 *        {"PATTERN": "RECIPE",          a recipe of `quantization=`; "" leaves matmuls as they are
 *         "PATTERN": {"forward": "RECIPE", "input_gradient": "RECIPE",
 *                     "weight_gradient": "RECIPE"}}
 *   2. routers and vision encoders stay in high precision
 *   3. quantization= for the weights that quantization_pattern= matches
 * Patterns are shell patterns of weights' names.
 */
#include "exec/quant_config.h"

#include "base/json_tree.h"
#include "store/quant_hints.h"
#include <string.h>

#define STAYS_HIGH "*router*,*.gate.weight,*.gate.bias,*vision*,*visual*"

static mx_status unknown(const char *where, const char *name)
{
    static const struct {
        const char *name, *why;
    } absent[] = {
        {"nf4", "that is a form of stored weights (maxc quantize)"},
        {"intmp", "write the mixture as quant_cfg_path=FILE"},
        {"fp4", "4-bit floats need units that no device here has; use fp8_blockwise"},
        {"te_mxfp8", "blocks of 32 need a Blackwell chip; use fp8_blockwise"},
        {"te_nvfp4", "4-bit floats need a Blackwell chip; use fp8_blockwise"},
        {"te_nvfp4_no_rht", "4-bit floats need a Blackwell chip; use fp8_blockwise"},
        {"nanoo_fp8", "that is AMD's format; use fp8"},
        {"fp8_nanoo", "that is AMD's format; use fp8"},
    };
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strcmp(absent[i].name, name) == 0)
            return mx_fail(MX_USAGE, "%s: quantization=%s is not available: %s", where, name,
                           absent[i].why);
    mx_str list = {0};
    mx_quant_recipe_list(&list);
    mx_status st = mx_fail(MX_USAGE, "%s: `%.60s` is not a recipe for training; use one of %s",
                           where, name, mx_str_text(&list));
    mx_str_fini(&list);
    return st;
}

static mx_status find(const char *where, const char *name, const mx_quant_recipe **out)
{
    *out = *name ? mx_quant_recipe_find(name) : NULL;
    return *name && !*out ? unknown(where, name) : MX_OK;
}

/* The three matmuls from different recipes. What they share (formats, when scales are made) must
 * agree: one tensor is quantized for two of them. */
static mx_status combine(const char *where, const mx_json_node *n, mx_arena *a,
                         const mx_quant_recipe **out)
{
    const char *part[] = {"forward", "input_gradient", "weight_gradient"};
    const mx_quant_recipe *of[3];
    for (const mx_json_node *m = n->first; m; m = m->next)
        if (m->type != MX_JSON_STRING || (strcmp(m->key, part[0]) != 0 &&
                                          strcmp(m->key, part[1]) != 0 &&
                                          strcmp(m->key, part[2]) != 0))
            return mx_fail(MX_INPUT, "%s: `%.60s`: expected forward, input_gradient and "
                           "weight_gradient, each with the name of a recipe or \"\"", where,
                           m->key);
    for (int i = 0; i < 3; i++)
        MX_TRY(find(where, mx_json_get_text(n, part[i], ""), &of[i]));
    if (!of[0])
        return mx_fail(MX_INPUT, "%s: a layer whose forward matmul is not quantized has no "
                       "quantized gradients; name a recipe for `forward`", where);
    mx_quant_recipe *r = MX_NEW(a, mx_quant_recipe);
    *r = *of[0];
    r->dgrad = of[1] ? of[1]->dgrad : MX_GRANULARITY_HIGH;
    r->wgrad = of[2] ? of[2]->wgrad : MX_GRANULARITY_HIGH;
    for (int i = 1; i < 3; i++) {
        if (of[i] && (of[i]->value != r->value || of[i]->delayed != r->delayed ||
                      of[i]->power_of_two != r->power_of_two))
            return mx_fail(MX_INPUT, "%s: %s and %s cannot be mixed in one layer: formats, delayed "
                           "scaling and powers of two must be the same", where, of[0]->name,
                           of[i]->name);
        if (of[i]) {
            r->grad = of[i]->grad;
            r->stochastic = of[i]->stochastic;
        }
    }
    *out = r;
    return MX_OK;
}

static mx_status read_rules(const char *path, mx_arena *a, mx_quant_rule *rule, int most, int *n)
{
    const mx_json_node *doc;
    MX_TRY(mx_json_tree_load(&doc, a, path));
    if (doc->type != MX_JSON_OBJECT || (int)doc->n > most)
        return mx_fail(MX_INPUT, "%s: expected an object of at most %d patterns", path, most);
    for (const mx_json_node *m = doc->first; m; m = m->next) {
        mx_quant_rule *r = &rule[(*n)++];
        r->pattern = m->key;
        const char *where = mx_arena_printf(a, "%s, `%.80s`", path, m->key);
        if (m->type == MX_JSON_STRING)
            MX_TRY(find(where, m->s, &r->recipe));
        else if (m->type == MX_JSON_OBJECT)
            MX_TRY(combine(where, m, a, &r->recipe));
        else
            return mx_fail(MX_INPUT, "%s: expected the name of a recipe, or an object of three",
                           where);
    }
    return MX_OK;
}

mx_status mx_quant_configure(const mx_quantization **out, const mx_config *cfg, mx_arena *a)
{
    enum { MOST = 1000 };
    const char *name = mx_config_text(cfg, "quantization");
    const char *path = mx_config_text(cfg, "quant_cfg_path");
    *out = NULL;
    if (!*name && !*path)
        return MX_OK;
    mx_quantization *q = MX_NEW(a, mx_quantization);
    mx_quant_rule *rule = MX_NEW_N(a, mx_quant_rule, MOST + 2);
    const mx_quant_recipe *recipe;
    MX_TRY(find(mx_config_where(cfg, "quantization"), name, &recipe));
    if (*path)
        MX_TRY(read_rules(path, a, rule, MOST, &q->n_rules));
    rule[q->n_rules++] = (mx_quant_rule){STAYS_HIGH, NULL};
    rule[q->n_rules++] = (mx_quant_rule){mx_config_text(cfg, "quantization_pattern"), recipe};
    q->rule = rule;
    q->report = MX_NEW(a, mx_quant_report);
    *out = q;
    return MX_OK;
}

/* The weights of a module that config.json names, as a shell pattern: a name, or a regular
 * expression after "re:", of which .* and the anchors are understood. */
static void add_pattern(mx_str *all, const char *s)
{
    bool re = s && strncmp(s, "re:", 3) == 0;
    for (s = re ? s + 3 : s; s && *s; s++)
        if (!re || !strchr("^$\\", *s))
            mx_str_addf(all, "%c", re && *s == '.' && s[1] == '*' ? *++s : *s);
    mx_str_add(all, re ? "*" : ".weight");
}

static const json_t *quantization_of(const json_t *config)
{
    const json_t *c = json_object_get(config, "quantization_config");
    return c ? c : json_object_get(json_object_get(config, "text_config"), "quantization_config");
}

/* What config.json leaves alone. */
static const char *ignored_patterns(const json_t *config, mx_arena *a)
{
    const json_t *list = json_object_get(quantization_of(config), "ignore");
    mx_str all = {0};
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        mx_str_add(&all, i ? "," : "");
        add_pattern(&all, json_string_value(v));
    }
    const char *out = mx_arena_strdup(a, mx_str_text(&all));
    mx_str_fini(&all);
    return out;
}

/* Does a group of config.json name this weight and keep 8 bits of it, beside a group of 4? */
static bool is_stored_in_8(const void *config, const char *name)
{
    json_t *groups = json_object_get(quantization_of(config), "config_groups"), *g, *target;
    const char *key;
    size_t i;
    bool found = false, four = false;
    json_object_foreach(groups, key, g) {
        const json_t *w = json_object_get(g, "weights");
        const char *type = json_string_value(json_object_get(w, "type"));
        int64_t bits = json_integer_value(json_object_get(w, "num_bits"));
        four |= bits == 4;
        if (bits != 8 || !type || strcmp(type, "int") != 0)
            continue;
        json_array_foreach(json_object_get(g, "targets"), i, target) {
            mx_str pattern = {0};
            add_pattern(&pattern, json_string_value(target));
            found |= mx_glob_any(mx_str_text(&pattern), name);
            mx_str_fini(&pattern);
        }
    }
    return found && four;
}

mx_status mx_quant_activations(const mx_quantization **out, const json_t *config, mx_arena *a)
{
    static const mx_quant_recipe of[] = {
        {"W8A8", "", MX_I8, .fake_inputs = true},
        {"W8A8", "", MX_I8, .fake_inputs = true, .input_zeros = true},
        {"W8A8", "", MX_F8_E4M3, .fake_inputs = true}};
    mx_quant_hints h;
    *out = NULL;
    MX_TRY(mx_quant_hints_read(&h, config, "config.json"));
    if (!h.input_bits)
        return MX_OK;
    mx_quant_rule *rule = MX_NEW_N(a, mx_quant_rule, 3);
    mx_quantization *q = MX_NEW(a, mx_quantization);
    rule[0] = (mx_quant_rule){ignored_patterns(config, a), NULL};
    rule[1] = (mx_quant_rule){STAYS_HIGH, NULL};
    rule[2] = (mx_quant_rule){"*", &of[h.input_float ? 2 : h.input_zeros]};
    *q = (mx_quantization){rule, 3, NULL};
    *out = q;
    return MX_OK;
}

/* quantize_kvcache= and its two. */
static mx_status configure_cache(mx_weight_quant *out, const mx_config *cfg)
{
    out->cache = MX_F32;
    if (!mx_config_bool(cfg, "quantize_kvcache"))
        return MX_OK;
    const char *dtype = mx_config_text(cfg, "kv_quant_dtype");
    out->cache = strcmp(dtype, "fp8") == 0 ? MX_F8_E4M3 : MX_I8;
    out->cache_by_token = strcmp(mx_config_text(cfg, "kv_quant_axis"), "heads_and_dkv") == 0;
    return MX_OK;
}

mx_status mx_weight_quant_configure(mx_weight_quant *out, const mx_config *cfg,
                                    const json_t *config)
{
    static const struct {
        const char *name;
        mx_dtype dtype;
    } known[] = {{"", MX_F32}, {"int8", MX_I8}, {"fp8", MX_F8_E4M3}, {"int4", MX_U8}};
    const char *name = mx_config_text(cfg, "quantization");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            mx_quant_hints h;
            MX_TRY(mx_quant_hints_read(&h, config, "config.json"));
            *out = (mx_weight_quant){.dtype = known[i].dtype, .group = h.group,
                                     .eight = is_stored_in_8, .config = config};
            return configure_cache(out, cfg);
        }
    return mx_fail(MX_USAGE, "%s: decoding keeps weights as they are, or as quantization=int8, fp8 "
                   "or int4, not as %s", mx_config_where(cfg, "quantization"), name);
}
