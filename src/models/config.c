/* config.c - a family and its configuration out of config.json.
 *
 * Both spellings that exist on the hub are read (rope_theta and rope_scaling; transformers 5's
 * rope_parameters); absent keys and nulls take the family's own default; keys that no field names
 * are ignored, as transformers does. Everything wrong is reported together.
 */
#include "models/model.h"

#include <string.h>

/* The value of "a.b|c", or NULL when absent or null. `used` gets the alternative that was found,
 * *null whether one of them is there and null. */
static const json_t *lookup(const json_t *json, const char *keys, char *used, size_t cap,
                            bool *null)
{
    for (const char *p = keys; *p;) {
        size_t len = strcspn(p, "|");
        snprintf(used, cap, "%.*s", (int)len, p);
        const json_t *v = json;
        for (char *part = used; part && v;) {
            char *dot = strchr(part, '.');
            if (dot)
                *dot = 0;
            v = json_object_get(v, part);
            if (dot)
                *dot = '.';
            part = dot ? dot + 1 : NULL;
        }
        if (v && !json_is_null(v))
            return v;
        *null |= v != NULL;
        p += len + (p[len] == '|');
    }
    snprintf(used, cap, "%.*s", (int)strcspn(keys, "|"), keys);
    return NULL;
}

static mx_status wrong(const char *where, const char *key, const char *wanted, const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    mx_status s = mx_fail(MX_INPUT, "%s: \"%s\" is %.60s, expected %s", where, key,
                          text ? text : "?", wanted);
    mx_free(text);
    return s;
}

static bool is_within(const mx_cfg_field *f, double v)
{
    return v >= f->min && v <= f->max;
}

static mx_status outside(const mx_cfg_field *f, const char *what, const char *where,
                         const char *key, const json_t *v)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, "%s from %.15g to %.15g", what, f->min, f->max);
    return wrong(where, key, wanted, v);
}

static mx_status read_layer_types(mx_layer_types *out, const mx_cfg_field *f, const json_t *v,
                                  const char *where, const char *key)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > MX_MAX_LAYERS)
        return wrong(where, key, "a list of layer types, at most 256", v);
    out->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(v, i));
        int index = 1;
        const char *p = f->text;
        size_t len = name ? strlen(name) : 0;
        for (; len && *p; index++) {
            size_t k = strcspn(p, ",");
            if (k == len && memcmp(p, name, len) == 0)
                break;
            p += k + (p[k] == ',');
        }
        if (!len || !*p)
            return mx_fail(MX_INPUT, "%s: \"%s\"[%zu] is %s, expected one of %s", where, key, i,
                           name ? name : "not a string", f->text);
        out->type[i] = (unsigned char)index;
    }
    return MX_OK;
}

static mx_status read_ints(mx_int_list *out, const mx_cfg_field *f, const json_t *v,
                           const char *where, const char *key)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > MX_MAX_LAYERS)
        return wrong(where, key, "a list of at most 256 whole numbers", v);
    out->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v, i);
        if (!json_is_integer(item) || !is_within(f, (double)json_integer_value(item)))
            return outside(f, "a list of whole numbers", where, key, v);
        out->v[i] = json_integer_value(item);
    }
    return MX_OK;
}

/* What `inner` lacks is looked up in `json`, the whole document. */
static mx_status read_field(void *config, const mx_cfg_field *f, const json_t *inner,
                            const json_t *json, const char *where)
{
    char key[128];
    void *p = (char *)config + f->offset;
    bool null = false;
    const json_t *v = inner ? lookup(inner, f->key, key, sizeof key, &null) : NULL;
    if (!v)
        v = lookup(json, f->key, key, sizeof key, &null);
    if (!v && f->required)
        return mx_fail(MX_INPUT, "%s: \"%s\" is missing and this family has no default for it",
                       where, key);
    switch (f->kind) {
    case MX_CFG_WHOLE:
        if (v && (!json_is_integer(v) || !is_within(f, (double)json_integer_value(v))))
            return outside(f, "a whole number", where, key, v);
        *(int64_t *)p = v ? json_integer_value(v) : (int64_t)f->fallback;
        return MX_OK;
    case MX_CFG_REAL:
        if (v && (!json_is_number(v) || !is_within(f, json_number_value(v))))
            return outside(f, "a number", where, key, v);
        *(double *)p = v ? json_number_value(v) : null && f->none ? 0 : f->fallback;
        return MX_OK;
    case MX_CFG_BOOL:
        if (v && !json_is_boolean(v))
            return wrong(where, key, "true or false", v);
        *(bool *)p = v ? json_is_true(v) : f->fallback != 0;
        return MX_OK;
    case MX_CFG_ACT:
        if (v && (!json_is_string(v) || !mx_act_parse(json_string_value(v), p)))
            return wrong(where, key, mx_act_names(), v);
        if (!v)
            *(mx_act *)p = (mx_act)f->fallback;
        return MX_OK;
    case MX_CFG_TEXT:
        if (v && (!json_is_string(v) || json_string_length(v) > 23))
            return wrong(where, key, "a short string", v);
        snprintf(p, 24, "%s", v ? json_string_value(v) : f->text ? f->text : "");
        return MX_OK;
    case MX_CFG_LAYER_TYPES:
        return v ? read_layer_types(p, f, v, where, key) : MX_OK;
    case MX_CFG_WHOLES:
        return v ? read_ints(p, f, v, where, key) : MX_OK;
    }
    return MX_OK;
}

static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; p && *p;) {
        size_t k = strcspn(p, ",");
        if (k == len && memcmp(p, name, len) == 0)
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

static mx_status find_family(const json_t *json, const char *where, const mx_model **out)
{
    const char *type = json_string_value(json_object_get(json, "model_type"));
    const char *arch = json_string_value(
        json_array_get(json_object_get(json, "architectures"), 0));
    for (int i = 0; i < mx_model_count; i++)
        if ((type && listed(mx_model_table[i]->model_types, type)) ||
            (!type && arch && listed(mx_model_table[i]->architecture, arch))) {
            *out = mx_model_table[i];
            return MX_OK;
        }
    mx_str known = {0};
    for (int i = 0; i < mx_model_count; i++)
        mx_str_addf(&known, "%s%s", i ? "," : "", mx_model_table[i]->model_types);
    mx_status s = mx_fail(MX_INPUT, "%s: model_type %s%s%s is not supported; supported: %s", where,
                          type ? type : "(missing)", arch ? ", architecture " : "",
                          arch ? arch : "", mx_str_text(&known));
    mx_str_fini(&known);
    return s;
}

static mx_status read_config(void *config, const mx_model *family, const json_t *inner,
                             const json_t *json, const char *where)
{
    mx_status all = MX_OK;
    if (family->text)
        all = read_config(config, family->text, json_object_get(json, "text_config"), json, where);
    for (const mx_cfg_field *f = family->fields; f->key; f++)
        all = mx_status_join(all, read_field(config, f, inner, json, where));
    if (!all && family->finish)
        all = mx_status_wrap(family->finish(config, inner ? inner : json), "%s", where);
    return all;
}

/* The ids that end an answer: one, or a list; null or -1 where there are none. */
static mx_status check_stop_ids(const json_t *json, const char *where)
{
    const json_t *v = json_object_get(json, "eos_token_id");
    const mx_cfg_field range = {.min = -1, .max = INT32_MAX};
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; v && !json_is_null(v) && i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || !is_within(&range, (double)json_integer_value(id)))
            return outside(&range, "a token's id, or a list of them,", where, "eos_token_id", v);
    }
    return MX_OK;
}

mx_status mx_model_from_json(mx_model_spec *m, const json_t *json, const char *where)
{
    *m = (mx_model_spec){0};
    if (!json_is_object(json))
        return mx_fail(MX_INPUT, "%s: expected a JSON object", where);
    MX_TRY(find_family(json, where, &m->family));
    m->config = mx_arena_alloc(&m->arena, m->family->config_size);
    mx_status all = mx_status_join(check_stop_ids(json, where),
                                   read_config(m->config, m->family, NULL, json, where));
    if (!all) {
        const mx_model *text = m->family->summary ? m->family : m->family->text;
        text->summary(m->config, &m->summary);
    }
    if (all)
        mx_arena_fini(&m->arena);
    else
        m->json = json_deep_copy(json);
    return all;
}

void mx_model_spec_fini(mx_model_spec *m)
{
    json_decref(m->json);
    mx_arena_fini(&m->arena);
    *m = (mx_model_spec){0};
}
