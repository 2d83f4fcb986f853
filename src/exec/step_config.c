/* step_config.c - from configuration keys to what models, steps and passes take.
 *
 * Named remat policies are the table keys/remat_policies.h; remat_policy=custom is described by the
 * keys of single tensors. On a device whose memory is the host's, offload means keep.
 */
#include "exec/step_config.h"
#include "exec/quant_config.h"

#include "models/from_config.h"
#include "store/hf_dir.h"
#include "store/quant_hints.h"
#include "exec/lora_config.h"
#include "exec/model_ref.h"
#include "keys/keys.h"
#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

mx_status mx_model_open(mx_model_spec *m, const mx_config *cfg, const char *path)
{
    *m = (mx_model_spec){0};
    if (!path || !*path)
        return mx_model_from_config(m, cfg);
    mx_arena a = {0};
    mx_hf_dir dir = {0};
    mx_status st = mx_model_place(path, MX_FETCH_CONFIG, cfg, &a, &path);
    if (!st && !is_folder(path))
        st = mx_fail(MX_INPUT,
                     "%s: no such folder; give a Hugging Face directory, org/name of the hub, or "
                     "model_name=NAME for a model of configs/models (`maxc help models`)",
                     path);
    if (!st)
        st = mx_hf_dir_open(&dir, path, MX_HF_CONFIG_ONLY);
    const char *where = mx_arena_printf(&a, "%s/config.json", path);
    mx_quant_hints stored; /* a plan reads no weights, and promises a run that does */
    if (!st)
        st = mx_quant_hints_read(&stored, dir.config, where);
    if (!st)
        st = mx_model_from_checkpoint(m, cfg, dir.config, where);
    mx_hf_dir_close(&dir);
    mx_arena_fini(&a);
    return st;
}

static const char *joined(const mx_config *cfg, const char *key, mx_arena *a)
{
    const char *const *items = NULL;
    int n = mx_config_list(cfg, key, &items);
    const char *text = "";
    for (int i = 0; i < n; i++)
        text = mx_arena_printf(a, "%s%s%s", text, i ? "," : "", items[i]);
    return text;
}

static bool is_place(const mx_key *k)
{
    return k->section == MX_SECTION_MEMORY && k->accept && mx_ends_with(k->accept, MX_PLACES) &&
           mx_key_state_of(k) == MX_KEY_IS_DONE;
}

/* A place that is given to a named policy has no effect; left unread, it is listed as such. */
static bool goes_with_custom_alone(const mx_config *cfg, const mx_key *k)
{
    mx_str value = {0};
    mx_config_print(cfg, k->name, &value); /* as it is written, maybe in quotes */
    bool kept = strstr(mx_str_text(&value), "device") != NULL;
    mx_str_fini(&value);
    return kept && strcmp(k->fallback, "device") != 0;
}

static mx_status add_tensor(const mx_config *cfg, const mx_key *k, mx_arena *a, bool custom,
                            mx_remat *out)
{
    if (!custom && goes_with_custom_alone(cfg, k))
        return MX_OK;
    const char *value = mx_config_text(cfg, k->name);
    const char **list = strcmp(value, "offload") == 0 ? &out->offload : &out->save;
    if (!custom && list == &out->offload)
        return mx_fail(MX_USAGE,
                       "%s: %s=offload goes with remat_policy=custom; remat_policy=%s decides by "
                       "itself what is kept where",
                       mx_config_where(cfg, k->name), k->name, mx_config_text(cfg, "remat_policy"));
    if (strcmp(value, "remat") != 0)
        *list = mx_arena_printf(a, "%s%s%s", *list, **list ? "," : "", k->name);
    return MX_OK;
}

/* The tensors that remat_policy=custom keeps: keys of the memory section whose value is `device` or
 * `offload`. */
static mx_status custom_tensors(const mx_config *cfg, mx_arena *a, bool custom, mx_remat *out)
{
    out->save = out->offload = "";
    for (const mx_key *const *t = mx_key_tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (is_place(k))
                MX_TRY(add_tensor(cfg, k, a, custom, out));
    return MX_OK;
}

static mx_status remat_of(const mx_config *cfg, mx_arena *a, mx_remat *out)
{
    const char *policy = mx_config_text(cfg, "remat_policy");
    bool custom = strcmp(policy, "custom") == 0;
    mx_remat named = {.policy = "custom"};
    MX_TRY(custom_tensors(cfg, a, custom, &named));
    bool known = custom || mx_remat_find(policy, &named);
    MX_ASSERT(known, "remat_policy=%s", policy);
    *out = named;
    return MX_OK;
}

/* What needs all gradients of a step before the first update. */
static mx_status check_in_backward(const mx_config *cfg, const mx_optimizer *o)
{
    const char *why = !o->in_backward   ? NULL
                      : o->clip > 0     ? "the global norm is known at the end of the backward "
                                          "pass; add gradient_clipping_threshold=0"
                      : o->skips_spikes ? "whether a step is a spike is known at its end; add "
                                          "skip_step_on_spikes=false"
                      : mx_config_int(cfg, "gradient_accumulation_steps") > 1
                          ? "gradients of several microbatches are summed before the update; add "
                            "gradient_accumulation_steps=1"
                          : NULL;
    return why ? mx_fail(MX_USAGE, "%s: %s", mx_config_where(cfg, "optimizer_in_backward"), why)
               : MX_OK;
}

static mx_status optimizer_of(const mx_config *cfg, const mx_model_spec *m, mx_arena *a,
                              mx_optimizer *out)
{
    const char *type = mx_config_text(cfg, "opt_type"), *mask = joined(cfg, "adamw_mask", a);
    *out = (mx_optimizer){
        .b1 = mx_config_float(cfg, "adam_b1"),
        .b2 = mx_config_float(cfg, "adam_b2"),
        .eps = mx_config_float(cfg, "adam_eps"),
        .eps_root = mx_config_float(cfg, "adam_eps_root"),
        .weight_decay = mx_config_float(cfg, "adam_weight_decay"),
        .clip = mx_config_float(cfg, "gradient_clipping_threshold"),
        .no_decay = *mask ? mask : m->family->no_decay,
        .on_host = mx_config_bool(cfg, "optimizer_memory_host_offload"),
        .in_backward = mx_config_bool(cfg, "optimizer_in_backward"),
        .skips_spikes = mx_config_bool(cfg, "skip_step_on_spikes"),
    };
    MX_TRY(check_in_backward(cfg, out));
    out->rule = mx_optimizer_rule_find(type);
    MX_ASSERT(out->rule, "opt_type=%s", type);
    if (out->rule->configure)
        out->own = out->rule->configure(cfg, a);
    const struct {
        const char *key;
        mx_dtype *to;
    } moments[] = {{"mu_dtype", &out->mu_dtype}, {"nu_dtype", &out->nu_dtype}};
    for (int i = 0; i < 2; i++) {
        const char *name = mx_config_text(cfg, moments[i].key);
        bool known =
            mx_dtype_parse(*name ? name : mx_config_text(cfg, "weight_dtype"), moments[i].to);
        MX_ASSERT(known, "%s=%s", moments[i].key, name);
    }
    return MX_OK;
}

/* What weights and their gradients are kept in. */
static mx_status storage_of(const mx_config *cfg, mx_step_options *o)
{
    bool weights = strcmp(mx_config_text(cfg, "weight_dtype"), "bfloat16") == 0;
    bool grads = strcmp(mx_config_text(cfg, "grad_dtype"), "bfloat16") == 0;
    const char *key = weights ? "weight_dtype" : "grad_dtype";
    if ((weights || grads) && o->compile.compute != MX_BF16)
        return mx_fail(MX_USAGE, "%s: %s=bfloat16 goes with dtype=bfloat16, not with %s",
                       mx_config_where(cfg, key), key, mx_dtype_name(o->compile.compute));
    if (weights && !o->optimizer.rule->rounds)
        return mx_fail(MX_USAGE,
                       "%s: bfloat16 weights need stochastic rounding, which opt_type=%s does not "
                       "do; "
                       "use adamw or weight_dtype=float32",
                       mx_config_where(cfg, key), mx_config_text(cfg, "opt_type"));
    if (weights && o->shape.qk_clip > 0)
        return mx_fail(MX_USAGE,
                       "%s: use_qk_clip rescales weights by less than bfloat16 can tell; use "
                       "weight_dtype=float32",
                       mx_config_where(cfg, "use_qk_clip"));
    o->compile.narrow_weights = weights;
    o->compile.narrow_grads = grads;
    return MX_OK;
}

/* Images: as many as the tokens of a row can stand for. A picture in pieces is as many as it may
 * have. */
static int64_t images_per_row(const mx_config *cfg, const mx_model_spec *m)
{
    mx_image_spec s;
    m->family->images(m->config, &s);
    int64_t fit = mx_config_int(cfg, "max_target_length") / s.tokens;
    int64_t most = mx_config_int(cfg, "max_num_images_per_example");
    if (!s.size && most > 0)
        most *= s.max_pixels / (s.side * s.side * s.patch * s.patch);
    int64_t documents = mx_config_int(cfg, "max_segments_per_seq");
    if (!mx_config_bool(cfg, "packing"))
        documents = 1;
    bool bounded = most > 0 && documents > 0 && most * documents < fit;
    return bounded ? most * documents : fit;
}

static mx_status configure_images(mx_step_options *o, const mx_config *cfg, const mx_model_spec *m)
{
    if (!mx_config_bool(cfg, "use_multimodal"))
        return MX_OK;
    if (!m->family->images && mx_config_is_users(cfg, "use_multimodal"))
        return mx_fail(MX_USAGE,
                       "%s: use_multimodal is set, but %s is a family without images; load a "
                       "checkpoint that has its vision part (load_parameters_path), or name a "
                       "model whose vision_encoder_block is built: gemma3, gemma4, llama4, "
                       "qwen3_vl",
                       mx_config_where(cfg, "use_multimodal"), m->family->name);
    if (!m->family->images)
        return MX_OK; /* a model of configs/models whose image encoder is not built */
    if (mx_config_bool(cfg, "enable_rampup_batch_size"))
        return mx_fail(MX_USAGE, "%s: batches that grow are not built for use_multimodal",
                       mx_config_where(cfg, "enable_rampup_batch_size"));
    mx_image_spec s;
    m->family->images(m->config, &s);
    o->shape.places = s.places;
    o->shape.images_per_row = images_per_row(cfg, m);
    if (!o->shape.images_per_row)
        return mx_fail(MX_USAGE, "%s: max_target_length=%lld has no room for an image",
                       mx_config_where(cfg, "max_target_length"), (long long)o->shape.seq);
    if (mx_config_bool(cfg, "freeze_vision_encoder_params"))
        o->frozen = m->family->tower;
    return MX_OK;
}

mx_status mx_compute_dtype(const mx_config *cfg, const char *unset, mx_dtype *out)
{
    const char *name = mx_config_text(cfg, "dtype");
    if (unset && !mx_config_is_set(cfg, "dtype"))
        name = unset;
    if (mx_dtype_parse(name, out) && (*out == MX_F32 || *out == MX_BF16))
        return MX_OK;
    return mx_fail(MX_USAGE, "%s: dtype=%s cannot be computed in; use bfloat16 or float32",
                   mx_config_where(cfg, "dtype"), name);
}

static mx_status read_rate(const mx_config *cfg, const char *key, double *out)
{
    *out = mx_config_float(cfg, key);
    if (*out >= 1)
        return mx_fail(MX_USAGE, "%s: %s=1 would leave nothing", mx_config_where(cfg, key), key);
    return MX_OK;
}

mx_status mx_step_configure(mx_step_options *o, const mx_config *cfg, const mx_model_spec *m,
                            mx_step_kind kind, int64_t batch, mx_arena *a)
{
    *o = (mx_step_options){.kind = kind};
    o->shape = (mx_model_shape){.batch = batch,
                                .seq = mx_config_int(cfg, "max_target_length"),
                                .packed = mx_config_bool(cfg, "packing")};
    if (mx_config_bool(cfg, "use_qk_clip"))
        o->shape.qk_clip = mx_config_float(cfg, "qk_clip_threshold");
    o->z_loss = mx_config_float(cfg, "z_loss_multiplier");
    MX_TRY(read_rate(cfg, "dropout_rate", &o->dropout));
    MX_TRY(read_rate(cfg, "attention_dropout", &o->attention_dropout));
    o->trainable = joined(cfg, "trainable_parameters_mask", a);
    MX_TRY(configure_images(o, cfg, m));
    MX_TRY(mx_lora_from_config(cfg, a, &o->lora));
    MX_TRY(mx_frozen_quant_from_config(cfg, o->lora, a, &o->compile.frozen_quant));
    o->compile.narrow_frozen = o->lora != NULL;
    o->compile.n_threads = (int)mx_config_int(cfg, "num_threads");
    const char *dump = mx_config_text(cfg, "dump_ir");
    o->compile.dump_ir = *dump ? dump : NULL;
    MX_TRY(mx_compute_dtype(cfg, NULL, &o->compile.compute));
    MX_TRY(remat_of(cfg, a, &o->compile.remat));
    o->compile.mlp_tiles = mx_config_int(cfg, "num_mlp_tiling");
    o->compile.offload_layers = mx_config_int(cfg, "cpu_offloading_num_layers");
    MX_TRY(optimizer_of(cfg, m, a, &o->optimizer));
    MX_TRY(mx_quant_configure(&o->compile.quantization, cfg, a));
    return storage_of(cfg, o);
}
