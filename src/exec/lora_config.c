/* lora_config.c - see lora_config.h. */
#include "exec/lora_config.h"

#include "store/adapter.h"
#include <string.h>

static const char *joined(const mx_config *c, const char *key, mx_arena *a)
{
    const char *const *items = NULL, *text = "";
    int n = mx_config_list(c, key, &items);
    for (int i = 0; i < n; i++)
        text = mx_arena_printf(a, "%s%s%s", text, i ? "," : "", items[i]);
    return text;
}

static mx_status from_keys(const mx_config *c, mx_arena *a, mx_lora *l)
{
    const char *targets = mx_config_text(c, "lora.lora_module_path");
    const char *parameters = joined(c, "target_parameters", a);
    if (*parameters && !*targets)
        targets = parameters; /* no module is called so: as in PEFT, these and no others */
    *l = (mx_lora){.targets = strcmp(targets, "all-linear") == 0 ? "" : targets,
                   .parameters = parameters,
                   .rank = mx_config_int(c, "lora.lora_rank"),
                   .alpha = mx_config_float(c, "lora.lora_alpha"),
                   .rslora = mx_config_bool(c, "use_rslora"),
                   .dora = mx_config_bool(c, "use_dora"),
                   .dropout = mx_config_float(c, "lora.lora_dropout"),
                   .save = joined(c, "modules_to_save", a)};
    if (l->rank < 1 || !(l->alpha > 0)) { /* 0 in files of MaxText, where adapters are off */
        const char *key = l->rank < 1 ? "lora.lora_rank" : "lora.lora_alpha";
        return mx_fail(MX_USAGE, "%s: `%s` is 0, but adapters are on; give it a value, 16 say",
                       mx_config_where(c, key), key);
    }
    if (l->dropout >= 1)
        return mx_fail(MX_USAGE, "%s: lora_dropout=1 would leave nothing of the input",
                       mx_config_where(c, "lora.lora_dropout"));
    if (strpbrk(targets, "()|\\[]^$+?"))
        return mx_fail(MX_USAGE,
                       "%s: lora_module_path=%s looks like a regular expression; give last parts "
                       "of names (q_proj,v_proj) or patterns of whole names with * "
                       "(model.layers.1?.mlp.* is not one of them: only * stands for anything)",
                       mx_config_where(c, "lora.lora_module_path"), targets);
    return MX_OK;
}

/* An adapter that is trained further keeps what it is; only the dropout may be another. */
static mx_status from_files(const mx_config *c, const char *path, mx_arena *a, mx_lora *l)
{
    mx_adapter from = {0};
    MX_TRY(mx_adapter_open(&from, path));
    *l = from.lora;
    mx_lora_rule *only = MX_NEW_N(a, mx_lora_rule, l->n_only),
                 *rules = MX_NEW_N(a, mx_lora_rule, l->n_rules + 1);
    for (int i = 0; i < l->n_only; i++) {
        only[i] = l->only[i];
        only[i].module = mx_arena_strdup(a, l->only[i].module);
    }
    for (int i = 0; i < l->n_rules; i++) {
        rules[i] = l->rules[i];
        rules[i].module = mx_arena_strdup(a, l->rules[i].module);
    }
    l->only = only;
    l->rules = rules;
    l->save = mx_arena_strdup(a, l->save);
    l->targets = mx_arena_strdup(a, l->targets);
    l->parameters = mx_arena_strdup(a, l->parameters);
    if (mx_config_is_users(c, "lora.lora_dropout"))
        l->dropout = mx_config_float(c, "lora.lora_dropout");
    mx_adapter_close(&from);
    return MX_OK;
}

static mx_status refuse_quantized(const mx_config *c)
{
    const char *key = "lora.lora_weight_qtype", *qtype = mx_config_text(c, key);
    if (!*qtype)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "%s: lora_weight_qtype=%s is how the weights beside adapters are stored; "
                   "set lora.enable_lora=true, or leave it out", mx_config_where(c, key), qtype);
}

mx_status mx_lora_from_config(const mx_config *c, mx_arena *a, const mx_lora **out)
{
    const char *path = mx_config_text(c, "lora.lora_restore_path");
    *out = NULL;
    if (!*path && !mx_config_bool(c, "lora.enable_lora"))
        return refuse_quantized(c);
    if (mx_config_is_users(c, "trainable_parameters_mask"))
        return mx_fail(MX_USAGE,
                       "%s: with adapters, weights that are trained whole are named by "
                       "modules_to_save; leave trainable_parameters_mask out",
                       mx_config_where(c, "trainable_parameters_mask"));
    mx_lora *l = MX_NEW(a, mx_lora);
    MX_TRY(*path ? from_files(c, path, a, l) : from_keys(c, a, l));
    *out = l;
    return MX_OK;
}

mx_status mx_frozen_quant_from_config(const mx_config *c, const mx_lora *l, mx_arena *a,
                                      const mx_frozen_quant **out)
{
    static const struct {
        const char *name;
        mx_dtype dtype;
    } known[] = {{"int8", MX_I8}, {"fp8", MX_F8_E4M3}, {"nf4", MX_U8}};
    const char *qtype = mx_config_text(c, "lora.lora_weight_qtype");
    *out = NULL;
    if (!l || !*qtype)
        return MX_OK;
    if (*mx_config_text(c, "quantization") || *mx_config_text(c, "quant_cfg_path"))
        return mx_fail(MX_USAGE,
                       "%s: quantization= is for matmuls of weights that are stored in full; "
                       "with lora_weight_qtype=%s leave it out",
                       mx_config_where(c, "quantization"), qtype);
    mx_frozen_quant *quant = MX_NEW(a, mx_frozen_quant);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(qtype, known[i].name) == 0)
            quant->dtype = known[i].dtype;
    quant->nested = mx_config_bool(c, "bnb_4bit_use_double_quant");
    quant->keep = l->save;
    *out = quant;
    return MX_OK;
}
