/* classes.c - see classes.h. */
#include "models/classes.h"

#include "base/str.h"
#include "ops.h"
#include <string.h>

static const char SCORES[] = "ForSequenceClassification";

static const char *architecture(const json_t *config)
{
    return json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
}

int64_t mx_classes_of(const json_t *config)
{
    const char *name = architecture(config);
    const json_t *n = json_object_get(config, "num_labels"), *names = json_object_get(config,
                                                                                     "id2label");
    if (!name || !mx_ends_with(name, SCORES))
        return 0;
    if (json_is_integer(n) && json_integer_value(n) > 0)
        return json_integer_value(n);
    return json_is_object(names) ? (int64_t)json_object_size(names) : 2;
}

mx_status mx_classes_make_reward(mx_model_spec *m)
{
    const char *name = architecture(m->json), *tail = name ? strstr(name, "For") : NULL;
    const json_t *pad = json_object_get(m->json, "pad_token_id");
    json_t *eos = json_object_get(m->json, "eos_token_id");
    int64_t classes = mx_classes_of(m->json);
    char full[256];
    if (classes > 1)
        return mx_fail(MX_INPUT, "the model gives %lld scores; a reward model gives one",
                       (long long)classes);
    if (m->family->images || !tail)
        return mx_fail(MX_USAGE,
                       "a reward model cannot be made of this model: expected a language model "
                       "whose config.json names its architecture");
    snprintf(full, sizeof full, "%.*s%s", (int)(tail - name), name, SCORES);
    json_object_set_new(m->json, "architectures", json_pack("[s]", full));
    json_object_set_new(m->json, "num_labels", json_integer(1));
    json_object_del(m->json, "id2label");
    json_object_del(m->json, "label2id");
    /* transformers finds the last token by the padding after it */
    if (!json_is_integer(pad) && eos)
        json_object_set(m->json, "pad_token_id", json_is_array(eos) ? json_array_get(eos, 0) : eos);
    return MX_OK;
}

void mx_classes_head(mx_graph *g, const mx_model_spec *m, const mx_build *b, mx_head *h)
{
    int64_t classes = mx_classes_of(m->json), d = h->hidden->type.dim[h->hidden->type.ndim - 1];
    if (!classes)
        return;
    if (!m->summary.tied)
        mx_freeze(h->weight); /* nothing reads it: it is in no program */
    h->weight = mx_param(g, MX_SCORE_WEIGHT, MX_SHAPE(classes, d), ",embed",
                         MX_NORMAL(b->init_scale));
    h->scale = h->softcap = 0;
}
