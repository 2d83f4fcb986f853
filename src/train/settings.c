/* settings.c - from keys to step options. */
#include "train/settings.h"

#include <string.h>

static bool is(const mx_config *c, const char *key, const char *value)
{
    return strcmp(mx_config_text(c, key), value) == 0;
}

const char *mx_settings_device(const mx_config *c)
{
    return is(c, "device", "auto") ? "cpu" : mx_config_text(c, "device");
}

static mx_status not_yet(const mx_config *c, const char *key, const char *instead)
{
    mx_str value = {0};
    mx_config_print(c, key, &value);
    mx_status st = mx_fail(MX_USAGE, "%s: %s=%s is not in this version; %s", mx_config_where(c, key),
                           key, mx_str_text(&value), instead);
    mx_str_fini(&value);
    return st;
}

/* Keys that are understood but name something this build cannot do: all of them at once. */
static mx_status refuse(const mx_config *c)
{
    static const char *const parallel[] = {
        "ici_tensor_parallelism", "ici_context_parallelism", "ici_expert_parallelism",
        "ici_pipeline_parallelism", "ici_sequence_parallelism"};
    mx_status all = MX_OK;
    if (*mx_config_text(c, "quantization"))
        all = mx_status_join(all, not_yet(c, "quantization", "leave it empty"));
    if (is(c, "dtype", "float16"))
        all = mx_status_join(all, not_yet(c, "dtype", "use bfloat16 or float32"));
    for (size_t i = 0; i < sizeof parallel / sizeof *parallel; i++)
        if (mx_config_int(c, parallel[i]) > 1)
            all = mx_status_join(all, not_yet(c, parallel[i], "this version runs on one device"));
    return all;
}

typedef struct {
    const char *name; /* of the policy */
    const char *save; /* tensors kept, as nn/ names them; NULL: a policy of the pass itself */
} named_policy;

/* MaxText's named policies by what they keep. Offloading variants are not here: see refuse. */
static const named_policy policies[] = {
    {"none", NULL},
    {"full", NULL},
    {"minimal", NULL},
    {"minimal_with_context", "query_proj,key_proj,value_proj,out_proj,mlpwi_0,mlpwi_1,mlpwo,context"},
    {"save_dot_except_mlp", "query_proj,key_proj,value_proj,out_proj"},
    {"save_dot_except_mlpwi", "query_proj,key_proj,value_proj,out_proj,mlpwo"},
    {"save_dot_with_context_except_mlp", "query_proj,key_proj,value_proj,out_proj,context"},
    {"save_qkv_proj", "query_proj,key_proj,value_proj"},
    {"save_out_proj", "out_proj"},
};

/* remat_policy=custom: the tensors whose own key says `device`. */
static const char *custom_list(const mx_config *c, mx_arena *a)
{
    static const char *const tensor[] = {"context", "mlpwi_0", "mlpwi_1", "mlpwo", "query_proj",
                                         "key_proj", "value_proj", "out_proj", "moe_mlpwi_0",
                                         "moe_mlpwi_1", "moe_mlpwo"};
    char *list = mx_arena_strdup(a, "");
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++)
        if (is(c, tensor[i], "device"))
            list = mx_arena_printf(a, "%s%s%s", list, *list ? "," : "", tensor[i]);
    return list;
}

static mx_status remat_of(const mx_config *c, mx_arena *a, mx_remat *r)
{
    const char *name = mx_config_text(c, "remat_policy");
    if (strcmp(name, "custom") == 0) {
        *r = (mx_remat){"custom", custom_list(c, a)};
        return MX_OK;
    }
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(name, policies[i].name) == 0) {
            *r = policies[i].save ? (mx_remat){"custom", policies[i].save} : (mx_remat){name, NULL};
            return MX_OK;
        }
    return not_yet(c, "remat_policy", "use none, full, minimal, a save_ policy or custom");
}

static const char *joined(const mx_config *c, const char *key, mx_arena *a)
{
    const char *const *item;
    int n = mx_config_list(c, key, &item);
    char *list = mx_arena_strdup(a, "");
    for (int i = 0; i < n; i++)
        list = mx_arena_printf(a, "%s%s%s", list, *list ? "," : "", item[i]);
    return list;
}

static mx_status optimizer_of(const mx_config *c, const mx_model_spec *m, mx_arena *a,
                              mx_optimizer *o)
{
    const char *no_decay = joined(c, "adamw_mask", a);
    *o = (mx_optimizer){.kind = is(c, "opt_type", "sgd") ? MX_SGD : MX_ADAMW,
                        .b1 = mx_config_float(c, "adam_b1"), .b2 = mx_config_float(c, "adam_b2"),
                        .eps = mx_config_float(c, "adam_eps"),
                        .eps_root = mx_config_float(c, "adam_eps_root"),
                        .weight_decay = mx_config_float(c, "adam_weight_decay"),
                        .clip = mx_config_float(c, "gradient_clipping_threshold"),
                        .no_decay = *no_decay ? no_decay : m->family->no_decay};
    if (is(c, "opt_type", "muon"))
        return not_yet(c, "opt_type", "use adamw, adam_pax or sgd");
    if (is(c, "mu_dtype", "bfloat16") || is(c, "nu_dtype", "bfloat16"))
        o->moment_dtype = MX_BF16;
    return MX_OK;
}

mx_status mx_settings_step(const mx_config *c, const mx_model_spec *m, mx_arena *a,
                           mx_step_options *o)
{
    MX_TRY(refuse(c));
    *o = (mx_step_options){.kind = MX_STEP_TRAIN, .z_loss = mx_config_float(c, "z_loss_multiplier"),
                           .trainable = joined(c, "trainable_parameters_mask", a)};
    o->shape = (mx_model_shape){.seq = mx_config_int(c, "max_target_length"),
                                .packed = mx_config_bool(c, "packing")};
    mx_dtype_parse(mx_config_text(c, "dtype"), &o->compile.compute);
    o->compile.dump_ir = mx_config_text(c, "dump_ir");
    MX_TRY(remat_of(c, a, &o->compile.remat));
    return optimizer_of(c, m, a, &o->optimizer);
}
