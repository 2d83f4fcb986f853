/* config_fit.c - whether the keys that say what a model is fit its family.
 *
 * A key of the model's shape that the family does not read would be ignored in silence: a decoder
 * without the norm or the window that was asked for. So each such key must be a field of the family
 * (then it was read), or agree with what the family always is (mx_model.fixed_keys), or have its
 * default.
 */
#include "models/from_config.h"

#include <stdio.h>
#include <string.h>

/* One pair of "key=value,key=value". */
typedef struct {
    char key[64], value[64];
} pair;

static bool next_pair(const char **p, pair *out)
{
    if (!*p || !**p)
        return false;
    size_t k = strcspn(*p, "="), n = strcspn(*p, ",");
    MX_ASSERT(k < n && k < sizeof out->key && n - k < sizeof out->value, "`%s`", *p);
    snprintf(out->key, sizeof out->key, "%.*s", (int)k, *p);
    snprintf(out->value, sizeof out->value, "%.*s", (int)(n - k - 1), *p + k + 1);
    *p += n + ((*p)[n] == ',');
    return true;
}

bool mx_model_keys_agree(const mx_config *cfg, const char *pairs)
{
    pair a;
    while (next_pair(&pairs, &a))
        if (!mx_config_equals(cfg, a.key, a.value))
            return false;
    return true;
}

/* What a value stands for: itself, another key's, or the quotient of two keys. */
static void resolve(const mx_config *cfg, const char *value, char *out, size_t cap)
{
    char first[64];
    const char *slash = strchr(value, '/');
    snprintf(first, sizeof first, "%.*s", (int)strcspn(value, "/"), value);
    if (!mx_config_has(cfg, first)) {
        snprintf(out, cap, "%s", value);
        return;
    }
    int64_t v = mx_config_int(cfg, first) / (slash ? mx_config_int(cfg, slash + 1) : 1);
    snprintf(out, cap, "%lld", (long long)v);
}

static void check_fixed(const mx_config *cfg, const mx_model *m, mx_problems *p)
{
    pair a;
    for (const char *rest = m->fixed_keys; next_pair(&rest, &a);) {
        char value[64];
        if (strcmp(a.value, "*") == 0)
            continue;
        resolve(cfg, a.value, value, sizeof value);
        if (mx_config_equals(cfg, a.key, value))
            continue;
        if (mx_config_is_set(cfg, a.key))
            mx_problem_add(p, "%s: `%s` is always %s in the family %s; leave it out",
                           mx_config_where(cfg, a.key), a.key, value, m->name);
        else
            mx_config_derive(cfg, a.key, value, m->name);
    }
}

static bool has_field(const mx_model *m, const char *key)
{
    for (const mx_cfg_field *f = m->fields; f->key; f++)
        if ((f->maxtext && strcmp(f->maxtext, key) == 0) || (f->run && strcmp(f->run, key) == 0))
            return true;
    pair a;
    for (const char *rest = m->fixed_keys; next_pair(&rest, &a);)
        if (strcmp(a.key, key) == 0)
            return true;
    return false;
}

static void report_unread(const mx_config *cfg, const char *key, const mx_model *family,
                          mx_problems *p)
{
    enum { SHOWN = 6 };
    mx_str value = {0}, others = {0};
    int n = 0;
    mx_config_print(cfg, key, &value);
    for (int i = 0; i < mx_model_count; i++)
        if (mx_model_table[i] != family && has_field(mx_model_table[i], key) && n++ < SHOWN)
            mx_str_addf(&others, "%s%s", n > 1 ? ", " : "; it is part of ",
                        mx_model_table[i]->name);
    if (n > SHOWN)
        mx_str_add(&others, " and others");
    mx_problem_add(p, "%s: `%s` is %s, but nothing of this model (family %s) depends on it%s",
                   mx_config_where(cfg, key), key, mx_str_text(&value), family->name,
                   mx_str_text(&others));
    mx_str_fini(&value);
    mx_str_fini(&others);
}

/* Whether the family leaves the key open and the model's file, which says how the family is used
 * elsewhere, is what gives it. */
static bool is_left_open(const mx_config *cfg, const char *key, const mx_model *m)
{
    pair a;
    for (const char *rest = m ? m->fixed_keys : NULL; next_pair(&rest, &a);)
        if (strcmp(a.key, key) == 0)
            return strcmp(a.value, "*") == 0 && !mx_config_is_argument(cfg, key);
    return false;
}

static void check_images(const mx_config *cfg, const mx_model *family, mx_problems *p)
{
    if (mx_config_bool(cfg, "use_multimodal") && !family->images)
        mx_problem_add(p,
                       "%s: `use_multimodal` is true, but %s is a family without images: name a "
                       "model whose vision_encoder_block is built (gemma3, gemma4, llama4, "
                       "qwen3_vl); use_multimodal=false leaves images out",
                       mx_config_where(cfg, "use_multimodal"), family->name);
}

mx_status mx_model_check_keys(const mx_config *cfg, const mx_model *family)
{
    mx_problems p = {0};
    mx_arena a = {0};
    const char **names = NULL;
    check_images(cfg, family, &p);
    check_fixed(cfg, family, &p);
    if (family->text)
        check_fixed(cfg, family->text, &p);
    int n = mx_config_unasked(cfg, MX_KEY_SHAPE, &a, &names);
    for (int i = 0; i < n; i++)
        if (!is_left_open(cfg, names[i], family) && !is_left_open(cfg, names[i], family->text))
            report_unread(cfg, names[i], family, &p);
    mx_status st = p.n ? mx_fail(MX_USAGE, "keys contradict the model:%s",
                                 mx_str_text(&p.text))
                       : MX_OK;
    mx_str_fini(&p.text);
    mx_arena_fini(&a);
    return st;
}
