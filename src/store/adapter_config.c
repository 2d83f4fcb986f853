/* adapter_config.c - adapter_config.json for the adapters of a session. */
#include "store/adapter_names.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    json_t *ends, *whole, *ranks;
    bool ambiguous, stacked;
} targets;

/* A module's name; that of experts once for each. */
static void add_whole(json_t *to, const mx_adapter_parts *p)
{
    const char *star = strchr(p->module, '*');
    for (int64_t e = 0; e < (star ? p->experts : 1); e++)
        json_array_append_new(to, star ? json_sprintf("%.*s%lld%s", (int)(star - p->module),
                                                      p->module, (long long)e, star + 1)
                                       : json_string(p->module));
}

/* The last parts of the modules' names, each once: what PEFT calls target_modules. Names that have
 * such an ending without an adapter make it the whole names. */
static targets targets_of(mx_session *s, const mx_lora *l)
{
    targets t = {.ends = json_array(), .whole = json_array(), .ranks = json_object()};
    mx_str seen = {0};
    mx_adapter_parts p;
    for (int i = 0; i < mx_session_count(s); i++) {
        if (!mx_adapter_parts_of(s, i, &p))
            continue;
        const char *dot = strrchr(p.module, '.'), *end = dot ? dot + 1 : p.module;
        if (p.rank != l->rank)
            json_object_set_new(t.ranks, p.module, json_integer(p.rank));
        t.stacked |= p.stacked;
        if (p.stacked)
            continue;
        add_whole(t.whole, &p);
        if (!mx_lora_names(mx_str_text(&seen), end)) {
            json_array_append_new(t.ends, json_string(end));
            mx_str_addf(&seen, "%s%s", seen.len ? "," : "", end);
        }
    }
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        bool has = mx_adapter_parts_of(s, i, &p) && !p.stacked;
        if (has || v->attr.kind != MX_VAR_WEIGHT || v->attr.adapter ||
            !mx_ends_with(v->name, ".weight"))
            continue;
        snprintf(p.module, sizeof p.module, "%.*s", (int)(strlen(v->name) - strlen(".weight")),
                 v->name);
        t.ambiguous |= mx_lora_names(mx_str_text(&seen), p.module);
    }
    mx_str_fini(&seen);
    return t;
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
    json_t *c = json_object(), *alphas = json_object();
    targets t = targets_of(s, l);
    for (int i = 0; i < l->n_rules; i++)
        if (l->rules[i].alpha > 0)
            json_object_set_new(alphas, l->rules[i].module, json_real(l->rules[i].alpha));
    json_object_set_new(c, "peft_type", json_string("LORA"));
    const char *task = mx_session_find(s, "score.weight") ? "SEQ_CLS" : "CAUSAL_LM";
    json_object_set_new(c, "task_type", json_string(task));
    json_object_set_new(c, "base_model_name_or_path", json_string(base ? base : ""));
    json_object_set_new(c, "r", json_integer(l->rank));
    bool whole = l->alpha == floor(l->alpha);
    json_object_set_new(c, "lora_alpha",
                        whole ? json_integer((json_int_t)l->alpha) : json_real(l->alpha));
    json_object_set_new(c, "lora_dropout", json_real(l->dropout));
    json_object_set_new(c, "use_rslora", json_boolean(l->rslora));
    json_object_set_new(c, "use_dora", json_boolean(l->dora));
    json_object_set(c, "target_modules", t.ambiguous ? t.whole : t.ends);
    json_object_set_new(c, "target_parameters", t.stacked ? list_of(l->parameters) : json_null());
    json_object_set_new(c, "modules_to_save", *l->save ? list_of(l->save) : json_null());
    if (mx_adapter_saves_tied(s))
        json_object_set_new(c, "ensure_weight_tying", json_true());
    json_object_set_new(c, "rank_pattern", t.ranks);
    json_object_set_new(c, "alpha_pattern", alphas);
    json_object_set_new(c, "bias", json_string("none"));
    json_object_set_new(c, "fan_in_fan_out", json_false());
    json_object_set_new(c, "inference_mode", json_true());
    json_object_set_new(c, "init_lora_weights", json_true());
    char *text = json_dumps(c, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(t.ends);
    json_decref(t.whole);
    json_decref(c);
    return text;
}
