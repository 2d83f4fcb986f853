/* axis_rules.c - the list of rules: MaxText's defaults (base.yml) and what a user sets. See
 * axis_rules.h. */
#include "compile/mesh/axis_rules.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *axes;
} defaults[] = {
    {"circular_repeats", ""},
    {"activation_embed_and_logits_batch", "data stage fsdp fsdp_transpose expert"},
    {"activation_embed_and_logits_batch_sequence",
     "data stage fsdp fsdp_transpose context context_usp_ulysses expert"},
    {"activation_vocab", "tensor sequence"},
    {"activation_vocab", "tensor"},
    {"activation_vocab", "sequence"},
    {"vocab", "tensor sequence autoregressive"},
    {"embed_vocab", "fsdp fsdp_transpose context context_usp_ulysses expert"},
    {"activation_batch_attn", "data fsdp fsdp_transpose expert"},
    {"activation_input_length_attn", "sequence context"},
    {"activation_heads", "tensor sequence autoregressive"},
    {"activation_kv_heads", "tensor sequence"},
    {"activation_length_attn", "context context_usp_ulysses"},
    {"activation_q_length", "context context_usp_ulysses"},
    {"activation_kv_length", ""},
    {"activation_embed_attn", "tensor"},
    {"activation_kv", "tensor sequence"},
    {"activation_kv_batch", "data fsdp fsdp_transpose expert"},
    {"activation_kv_head_dim", "tensor sequence"},
    {"heads", "tensor sequence autoregressive"},
    {"q_heads", "tensor sequence autoregressive"},
    {"kv_heads", "tensor sequence autoregressive"},
    {"qkv", ""},
    {"kv", ""},
    {"kv_head_dim", ""},
    {"q_lora", "fsdp fsdp_transpose context context_usp_ulysses expert"},
    {"q_lora", "fsdp context context_usp_ulysses expert"},
    {"q_lora_up_proj", ""},
    {"kv_lora", "fsdp fsdp_transpose context context_usp_ulysses expert"},
    {"kv_lora", "fsdp context context_usp_ulysses expert"},
    {"kv_lora_up_proj", ""},
    {"activation_batch_moe", "data fsdp fsdp_transpose expert"},
    {"activation_length_moe", "context context_usp_ulysses"},
    {"activation_norm_length_moe", "sequence context context_usp_ulysses"},
    {"activation_embed_moe", "tensor"},
    {"activation_mlp_moe", "tensor sequence"},
    {"activation_exp", "expert"},
    {"exp", "expert"},
    {"mlp_moe", "fsdp_transpose tensor sequence autoregressive"},
    {"embed_moe", "fsdp fsdp_transpose context context_usp_ulysses"},
    {"embed_moe", "fsdp context context_usp_ulysses"},
    {"activation_mlp", "tensor sequence"},
    {"activation_batch", "data fsdp fsdp_transpose expert"},
    {"activation_length", "context context_usp_ulysses"},
    {"activation_norm_length", "sequence context context_usp_ulysses"},
    {"activation_embed", "tensor"},
    {"activation_stage", "stage"},
    {"mlp", "fsdp_transpose tensor sequence autoregressive"},
    {"gdn_head", "fsdp_transpose tensor sequence autoregressive"},
    {"embed", "fsdp fsdp_transpose context context_usp_ulysses expert"},
    {"embed", "fsdp context context_usp_ulysses expert"},
    {"norm", "tensor"},
    {"layers", "stage"},
    {"diloco", "diloco"},
    {"engram_dim", "tensor"},
    {"dense_layers", ""},
    {"moe_layers", ""},
    {"local_layers", ""},
    {"mhc", ""},
    {"prefill_activation_length", "context context_usp_ulysses"},
    {"prefill_activation_norm_length", "sequence context context_usp_ulysses"},
    {"activation_prefill_kv_batch", "data fsdp fsdp_transpose expert"},
    {"decode_batch", "data fsdp fsdp_transpose expert"},
    {"decode_length", ""},
    {"cache_heads", "autoregressive tensor sequence"},
    {"paged_kv_heads", "tensor"},
    {"cache_batch_prefill", ""},
    {"cache_batch", ""},
    {"cache_heads_none", ""},
    {"cache_kv", ""},
    {"cache_sequence", ""},
    {"num_pages", ""},
    {"tokens_per_page", ""},
    {"paged_kv_head_dim_size", ""},
    {"mlp_no_fsdp", "tensor sequence autoregressive"},
    {"exp_with_fsdp", "fsdp"},
};

/* Names separated by spaces or commas; false when one is no mesh axis. *twice: one occurs again. */
static bool parse_axes(const char *text, mx_axis_set *out, bool *twice)
{
    *out = 0;
    *twice = false;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ,");
        mx_axis a;
        if (n && !mx_axis_parse(p, n, &a))
            return false;
        if (n) {
            *twice |= *out >> a & 1;
            *out |= 1u << a;
        }
        p += n + (p[n] != 0);
    }
    return true;
}

static void insert(mx_axis_rules *r, int at, const char *name, size_t n_name, mx_axis_set axes)
{
    MX_GROW(r->rule, r->n, r->cap);
    memmove(&r->rule[at + 1], &r->rule[at], sizeof *r->rule * (size_t)(r->n - at));
    r->rule[at] = (mx_axis_rule){.axes = axes};
    snprintf(r->rule[at].name, sizeof r->rule[at].name, "%.*s", (int)n_name, name);
    r->n++;
}

void mx_axis_rules_init(mx_axis_rules *r)
{
    *r = (mx_axis_rules){0};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        mx_axis_set axes;
        bool twice, known = parse_axes(defaults[i].axes, &axes, &twice);
        MX_ASSERT(known && !twice, "%s", defaults[i].axes);
        insert(r, r->n, defaults[i].name, strlen(defaults[i].name), axes);
    }
}

void mx_axis_rules_fini(mx_axis_rules *r)
{
    mx_free(r->rule);
    *r = (mx_axis_rules){0};
}

/* Every name that a dim can have has a default, if only that nothing cuts it. */
static mx_status check_name(const char *text, size_t n)
{
    char name[sizeof ((mx_axis_rule *)0)->name];
    const char *nearest = NULL;
    int least = 0;
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        int far = mx_edit_distance(name, defaults[i].name);
        if (far == 0)
            return MX_OK;
        if (!nearest || far < least) {
            nearest = defaults[i].name;
            least = far;
        }
    }
    return mx_fail(MX_USAGE,
                   "the rule `%s` is for `%s`, and no tensor has a dim of that name; did you mean "
                   "`%s`? dump_ir=partition shows the names",
                   text, name, nearest);
}

mx_status mx_axis_rules_set(mx_axis_rules *r, const char *text, bool more)
{
    size_t n = strcspn(text, "=");
    mx_axis_set axes;
    bool twice;
    if (!n || text[n] != '=' || n >= sizeof r->rule->name)
        return mx_fail(MX_USAGE, "the rule `%s` is not NAME=AXES, such as embed=fsdp", text);
    MX_TRY(check_name(text, n));
    if (!parse_axes(text + n + 1, &axes, &twice))
        return mx_fail(
            MX_USAGE,
            "the rule `%s` names an axis that no mesh has; the axes are data, stage, fsdp, "
            "fsdp_transpose, context, tensor, sequence (tensor_sequence), expert",
            text);
    if (twice)
        return mx_fail(MX_USAGE, "the rule `%s` names an axis twice; it cuts a dim once", text);
    int at = r->n, kept = 0;
    for (int i = 0; i < r->n; i++) {
        bool same = strlen(r->rule[i].name) == n && memcmp(r->rule[i].name, text, n) == 0;
        if (same && at == r->n)
            at = kept;
        if (same && more)
            at = kept + 1;
        if (!same || more)
            r->rule[kept++] = r->rule[i];
    }
    at = at > kept ? kept : at;
    r->n = kept;
    insert(r, at, text, n, axes);
    return MX_OK;
}
