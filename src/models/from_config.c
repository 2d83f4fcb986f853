/* from_config.c - see from_config.h. */
#include "models/from_config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Doubling goes round: heads and MLP first, then width, then layers, so that three doublings make
 * about eight times the parameters and keep the shape. */
mx_scale_shares mx_scale_split(int64_t scale)
{
    int log2 = 0;
    while (scale >> (log2 + 1))
        log2++;
    int q = log2 / 3, r = log2 % 3;
    return (mx_scale_shares){
        .width = q + (r > 1), .heads = q + (r > 0), .mlp = q + (r > 0), .layers = q};
}

/* ---- the family ---- */

static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) {
        size_t k = strcspn(p, ",");
        if (k == n && memcmp(p, name, n) == 0)
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

/* The first of the table that the keys name; a family with images only where they ask for them. */
static const mx_model *choose(const mx_config *cfg, const char *block, bool images)
{
    for (int i = 0; i < mx_model_count; i++) {
        const mx_model *m = mx_model_table[i];
        if ((m->images != NULL) == images && listed(m->decoder_block, block) &&
            mx_model_keys_agree(cfg, m->decoder_keys))
            return m;
    }
    return NULL;
}

static mx_status find_family(const mx_config *cfg, const mx_model **out)
{
    const char *block = mx_config_text(cfg, "decoder_block");
    *out = choose(cfg, block, true);
    *out = *out ? *out : choose(cfg, block, false);
    if (*out)
        return MX_OK;
    mx_str known = {0}, keys = {0};
    for (int i = 0; i < mx_model_count; i++) {
        const mx_model *m = mx_model_table[i];
        if (m->decoder_block && !strstr(mx_str_text(&known), m->decoder_block))
            mx_str_addf(&known, "%s%s", known.len ? "," : "", m->decoder_block);
        if (m->decoder_keys && listed(m->decoder_block, block))
            mx_str_addf(&keys, "%s%s", keys.len ? ", or " : "", m->decoder_keys);
    }
    const char *where = mx_config_where(cfg, "decoder_block");
    mx_status st =
        keys.len ? mx_fail(MX_USAGE, "%s: decoder_block `%s` is not supported without %s",
                           where, block, mx_str_text(&keys))
                 : mx_fail(MX_USAGE, "%s: decoder_block `%s` is not supported; supported: %s",
                           where, block, mx_str_text(&known));
    mx_str_fini(&known);
    mx_str_fini(&keys);
    return st;
}

/* ---- values ---- */

static int64_t scaled(const mx_config *cfg, const char *key)
{
    static const struct {
        const char *key;
        size_t share;
    } rows[] = {
        {"base_emb_dim", offsetof(mx_scale_shares, width)},
        {"base_num_query_heads", offsetof(mx_scale_shares, heads)},
        {"base_num_kv_heads", offsetof(mx_scale_shares, heads)},
        {"base_mlp_dim", offsetof(mx_scale_shares, mlp)},
        {"base_moe_mlp_dim", offsetof(mx_scale_shares, mlp)},
        {"base_num_decoder_layers", offsetof(mx_scale_shares, layers)},
    };
    int64_t v = mx_config_int(cfg, key);
    mx_scale_shares shares = mx_scale_split(mx_config_int(cfg, "global_parameter_scale"));
    for (size_t i = 0; v > 0 && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].key, key) == 0)
            v <<= *(const int *)((const char *)&shares + rows[i].share);
    bool pairs = strcmp(mx_config_text(cfg, "decoder_block"), "gemma2") == 0;
    return pairs && strcmp(key, "base_num_decoder_layers") == 0 ? 2 * v : v;
}

/* The integer of a key whose unset state is -1 (or the schema's default), with what stands for it.
 */
static int64_t whole(const mx_config *cfg, const char *key)
{
    static const char *const bases[] = {"local_rope_max_timescale", "global_rope_max_timescale"};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (strcmp(key, bases[i]) == 0 && mx_config_int(cfg, key) < 0)
            return mx_config_int(cfg, "rope_max_timescale");
    bool positions =
        strcmp(key, "max_position_embeddings") == 0 || strcmp(key, "trainable_position_size") == 0;
    if (positions && (!mx_config_is_set(cfg, key) || mx_config_int(cfg, key) < 0))
        return mx_config_int(cfg, "max_target_length");
    if (strcmp(key, "base_moe_mlp_dim") == 0 && mx_config_int(cfg, key) < 0)
        return scaled(cfg, "base_mlp_dim");
    return scaled(cfg, key);
}

/* The value of a key as the field's kind; NULL when the key is unset (a negative number). */
static json_t *value_of(const mx_config *cfg, const char *key, mx_cfg_kind kind)
{
    const int64_t *ints = NULL;
    switch (mx_config_type(cfg, key)) {
    case MX_KEY_BOOL:
        return json_boolean(mx_config_bool(cfg, key));
    case MX_KEY_INT: {
        int64_t v = whole(cfg, key);
        return v < 0 ? NULL : kind == MX_CFG_REAL ? json_real((double)v) : json_integer(v);
    }
    case MX_KEY_FLOAT:
        return mx_config_float(cfg, key) < 0 ? NULL : json_real(mx_config_float(cfg, key));
    case MX_KEY_STRING:
    case MX_KEY_ENUM:
        return json_string(mx_config_text(cfg, key));
    case MX_KEY_INTS: {
        json_t *list = json_array();
        int n = mx_config_ints(cfg, key, &ints);
        if (kind == MX_CFG_WHOLE) { /* height and width: a square */
            json_decref(list);
            return n ? json_integer(ints[0]) : NULL;
        }
        for (int i = 0; i < n; i++)
            json_array_append_new(list, json_integer(ints[i]));
        return list;
    }
    default:
        return NULL;
    }
}

/* ---- what is not one to one ---- */

static json_t *activation(const mx_config *cfg)
{
    const char *const *acts = NULL;
    int n = mx_config_list(cfg, "mlp_activations", &acts);
    if (n < 1)
        return NULL;
    /* GPT-OSS: x sigmoid(1.702 x), a silu to its config.json */
    if (strcmp(acts[0], "sigmoid") == 0)
        return json_string("silu");
    return json_string(strcmp(acts[0], "gelu") == 0 ? "gelu_pytorch_tanh" : acts[0]);
}

/* A number of rotary scaling by the last part of its config.json key; NULL when the type has none.
 */
static json_t *rope_value(const mx_config *cfg, const char *part)
{
    const char *type = mx_config_text(cfg, "rope_type");
    bool llama3 = strcmp(type, "llama3.1") == 0 && mx_config_bool(cfg, "rope_use_scale");
    bool yarn = strcmp(type, "yarn") == 0;
    double linear = mx_config_float(cfg, "rope_linear_scaling_factor");
    bool set = mx_config_is_set(cfg, "rope_factor");
    if (strcmp(part, "rope_type") == 0)
        return json_string(llama3 ? "llama3" : yarn ? "yarn" : linear != 1 ? "linear" : "default");
    if (strcmp(part, "partial_rotary_factor") == 0)
        return json_real(mx_config_float(cfg, "partial_rotary_factor"));
    if (strcmp(part, "factor") == 0 && !llama3 && !yarn)
        return linear != 1 ? json_real(linear) : NULL;
    if (!llama3 && !yarn)
        return NULL;
    if (strcmp(part, "factor") == 0) /* 8 is Llama 3.1's own; the schema's default is YaRN's */
        return json_real(llama3 && !set ? 8 : mx_config_float(cfg, "rope_factor"));
    if (strcmp(part, "original_max_position_embeddings") == 0)
        return json_integer(llama3 && !mx_config_is_set(cfg, part) ? 8192
                                                                   : mx_config_int(cfg, part));
    if (llama3 && strcmp(part, "low_freq_factor") == 0)
        return json_real(1);
    if (llama3 && strcmp(part, "high_freq_factor") == 0)
        return json_real(4);
    if (!yarn)
        return NULL;
    /* Two equal mscales say that the tables are not scaled; without them they are. */
    if (mx_starts_with(part, "mscale") && mx_config_bool(cfg, "rope_attention_scaling"))
        return NULL;
    if (strcmp(part, "beta_fast") == 0 || strcmp(part, "beta_slow") == 0 ||
        strcmp(part, "mscale") == 0)
        return json_real(mx_config_float(cfg, part));
    if (strcmp(part, "mscale_all_dim") == 0)
        return json_real(mx_config_float(cfg, "mscale"));
    return strcmp(part, "truncate") == 0 ? json_boolean(mx_config_bool(cfg, "rope_truncate"))
                                         : NULL;
}

/* Layers in cycles: every inhomogeneous_layer_cycle_interval-th is of the family's second type. */
static json_t *layer_types(const mx_config *cfg, const mx_cfg_field *f)
{
    int64_t every = mx_config_int(cfg, "inhomogeneous_layer_cycle_interval");
    size_t first = strcspn(f->text, ",");
    if (every < 2 || !f->text[first])
        return NULL;
    json_t *list = json_array();
    for (int64_t l = 1; l <= scaled(cfg, "base_num_decoder_layers"); l++)
        json_array_append_new(list, l % every ? json_stringn(f->text, first)
                                              : json_string(f->text + first + 1));
    return list;
}

static bool has_groups(const mx_config *cfg)
{
    return mx_config_int(cfg, "n_routing_groups") > 0;
}

static json_t *derived(const mx_config *cfg, const mx_cfg_field *f, const char *path)
{
    const char *dot = strrchr(path, '.'), *part = dot ? dot + 1 : path;
    if (f->kind == MX_CFG_ACT)
        return activation(cfg);
    if (f->kind == MX_CFG_LAYER_TYPES)
        return layer_types(cfg, f);
    if (mx_starts_with(path, "rope_") || strcmp(part, "partial_rotary_factor") == 0)
        return rope_value(cfg, part);
    if (strcmp(path, "vision_config.vision_output_dim") == 0)
        return json_integer(mx_config_int(cfg, "projector_output_dim_for_vit"));
    if (strcmp(path, "vision_config.vision_use_head") == 0)
        return json_false();
    if (strcmp(path, "vision_config.head_dim") == 0)
        return json_integer(mx_config_int(cfg, "hidden_size_for_vit") /
                            mx_config_int(cfg, "num_attention_heads_for_vit"));
    if (strcmp(part, "enable_moe_block") == 0)
        return json_boolean(mx_config_int(cfg, "num_experts") > 1);
    if (strcmp(part, "output_router_logits") == 0)
        return json_boolean(mx_config_float(cfg, "load_balance_loss_weight") > 0);
    if (strcmp(part, "shared_expert_intermediate_size") == 0)
        return json_integer(mx_config_int(cfg, "shared_experts") * whole(cfg, "base_moe_mlp_dim"));
    if (strcmp(part, "n_group") == 0)
        return json_integer(has_groups(cfg) ? mx_config_int(cfg, "n_routing_groups") : 1);
    if (strcmp(part, "topk_group") == 0)
        return json_integer(has_groups(cfg) ? mx_config_int(cfg, "topk_routing_group") : 1);
    if (strcmp(part, "topk_method") == 0)
        return json_string(has_groups(cfg) ? "group_limited_greedy" : "greedy");
    if (strcmp(part, "attention_bias") == 0 || strcmp(part, "mlp_bias") == 0)
        return json_boolean(mx_config_bool(cfg, part));
    /* Gemma 2 and 3 of 27B scale queries by width / heads, the smaller ones by the head's size. */
    if (strcmp(part, "query_pre_attn_scalar") == 0) {
        int64_t head = mx_config_int(cfg, "head_dim"), heads = scaled(cfg, "base_num_query_heads");
        return json_integer(head == 128 ? scaled(cfg, "base_emb_dim") / heads : head);
    }
    return NULL;
}

/* What the keys say of the field that config.json has at `path`; NULL: nothing. */
static json_t *value_for(const mx_config *cfg, const mx_cfg_field *f, const char *path)
{
    return f->maxtext ? value_of(cfg, f->maxtext, f->kind) : derived(cfg, f, path);
}

/* Puts a value at "a.b.c"; takes it. */
static void put(json_t *json, const char *path, json_t *value)
{
    char part[128];
    const char *dot;
    while ((dot = strchr(path, '.'))) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        json_t *inner = json_object_get(json, part);
        if (!inner) {
            inner = json_object();
            json_object_set_new(json, part, inner);
        }
        json = inner;
        path = dot + 1;
    }
    json_object_set_new(json, path, value);
}

/* The first name of a list that commas divide. */
static json_t *first_name(const char *names)
{
    return json_stringn(names, strcspn(names, ","));
}

static void put_fields(json_t *json, const mx_cfg_field *f, const mx_config *cfg)
{
    for (; f->key; f++) {
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(f->key, "|"), f->key);
        json_t *v = f->own ? NULL : value_for(cfg, f, path);
        if (v)
            put(json, path, v);
    }
}

mx_status mx_model_config_json(const mx_config *cfg, json_t **out)
{
    const mx_model *family = NULL;
    *out = NULL;
    MX_TRY(find_family(cfg, &family));
    json_t *json = json_object();
    json_object_set_new(json, "model_type", first_name(family->model_types));
    json_object_set_new(json, "architectures", json_pack("[o]", first_name(family->architecture)));
    json_object_set_new(json, "torch_dtype", json_string(mx_config_text(cfg, "weight_dtype")));
    if (family->text) {
        static const char tied[] = "tie_word_embeddings";
        json_t *text = json_object();
        if (family->text->model_types)
            json_object_set_new(text, "model_type", first_name(family->text->model_types));
        put_fields(text, family->text->fields, cfg);
        if (json_object_get(text, tied)) /* it is of the whole */
            json_object_set(json, tied, json_object_get(text, tied));
        json_object_set_new(json, "text_config", text);
    }
    put_fields(json, family->fields, cfg);
    *out = json;
    return MX_OK;
}

mx_status mx_model_from_config(mx_model_spec *m, const mx_config *cfg)
{
    json_t *json = NULL;
    *m = (mx_model_spec){0};
    MX_TRY(mx_model_config_json(cfg, &json));
    mx_status st = mx_model_from_json(m, json, mx_config_where(cfg, "decoder_block"));
    json_decref(json);
    if (!st)
        st = mx_model_check_keys(cfg, m->family);
    if (st)
        mx_model_spec_fini(m);
    return st;
}

/* The keys that were given for the run into the document; the language part of a model with images
 * has its own object in it. */
static bool put_run_keys(json_t *json, const mx_cfg_field *f, const mx_config *cfg)
{
    bool any = false;
    for (; f->key; f++) {
        if (!f->run || !mx_config_is_set(cfg, f->run))
            continue;
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(f->key, "|"), f->key);
        json_t *v = value_for(cfg, f, path);
        put(json, path, v ? v : json_null());
        any = true;
    }
    return any;
}

/* The value at "a.b.c"; NULL when there is none. */
static const json_t *get(const json_t *json, const char *path)
{
    char part[128];
    const char *dot;
    for (; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        json = json_object_get(json, part);
    }
    return json_object_get(json, path);
}

/* Numbers alike whether they are written 1 or 1.0. */
static bool same(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

/* A checkpoint is what it is: a key of the user's that says otherwise would be ignored. Of a
 * model's file, which may be about a model of the same shape, the width and the depth. */
static void check_fields(const json_t *json, const mx_cfg_field *f, const mx_config *cfg,
                         const char *where, mx_problems *p)
{
    for (; f->key; f++) {
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(f->key, "|"), f->key);
        const json_t *has = get(json, path);
        if (!f->maxtext || !has || f->run || !mx_config_is_set(cfg, f->maxtext))
            continue;
        bool size = strcmp(f->maxtext, "base_emb_dim") == 0 ||
                    strcmp(f->maxtext, "base_num_decoder_layers") == 0;
        json_t *says = size || mx_config_is_users(cfg, f->maxtext)
                           ? value_of(cfg, f->maxtext, f->kind)
                           : NULL;
        if (says && !same(says, has)) {
            mx_str value = {0};
            char *text = json_dumps(has, JSON_ENCODE_ANY | JSON_COMPACT);
            mx_config_print(cfg, f->maxtext, &value);
            mx_problem_add(p, "%s: `%s` is %s, but %s has \"%s\" %s; leave it out",
                           mx_config_where(cfg, f->maxtext), f->maxtext, mx_str_text(&value), where,
                           path, text ? text : "?");
            mx_str_fini(&value);
            mx_free(text);
        }
        json_decref(says);
    }
}

static mx_status check_checkpoint(const mx_model *family, const json_t *json, const mx_config *cfg,
                                  const char *where)
{
    mx_problems p = {0};
    const json_t *inner = json_object_get(json, "text_config");
    check_fields(json, family->fields, cfg, where, &p);
    if (family->text)
        check_fields(inner ? inner : json, family->text->fields, cfg, where, &p);
    mx_status st = p.n ? mx_fail(MX_USAGE, "keys contradict the checkpoint:%s",
                                 mx_str_text(&p.text))
                       : MX_OK;
    mx_str_fini(&p.text);
    return st;
}

mx_status mx_model_from_checkpoint(mx_model_spec *m, const mx_config *cfg, const json_t *json,
                                   const char *where)
{
    MX_TRY(mx_model_from_json(m, json, where));
    mx_status fits = check_checkpoint(m->family, json, cfg, where);
    if (fits) {
        mx_model_spec_fini(m);
        return fits;
    }
    json_t *changed = json_deep_copy(json), *inner = json_object_get(changed, "text_config");
    const mx_model *text = m->family->text;
    bool any = put_run_keys(changed, m->family->fields, cfg);
    if (text)
        any |= put_run_keys(inner ? inner : changed, text->fields, cfg);
    mx_status st = MX_OK;
    if (any) {
        mx_model_spec_fini(m);
        st = mx_model_from_json(m, changed, where);
    }
    json_decref(changed);
    return st;
}
