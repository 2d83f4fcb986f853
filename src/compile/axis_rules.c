/* axis_rules.c - see axis_rules.h. The defaults are those of MaxText's base.yml. */
#include "compile/axis_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *axes;
} defaults[] = {
    {"circular_repeats", ""},
    {"activation_embed_and_logits_batch", "data stage fsdp fsdp_transpose expert"},
    {"activation_embed_and_logits_batch_sequence", "data stage fsdp fsdp_transpose context context_usp_ulysses expert"},
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

/* Names separated by spaces or commas; false when one is no mesh axis. */
static bool parse_axes(const char *text, mx_axis_set *out)
{
    *out = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ,");
        mx_axis a;
        if (n && !mx_axis_parse(p, n, &a))
            return false;
        if (n)
            *out |= 1u << a;
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
        bool known = parse_axes(defaults[i].axes, &axes);
        MX_ASSERT(known, "%s", defaults[i].axes);
        insert(r, r->n, defaults[i].name, strlen(defaults[i].name), axes);
    }
}

void mx_axis_rules_fini(mx_axis_rules *r)
{
    mx_free(r->rule);
    *r = (mx_axis_rules){0};
}

mx_status mx_axis_rules_set(mx_axis_rules *r, const char *text, bool more)
{
    size_t n = strcspn(text, "=");
    mx_axis_set axes;
    if (!n || text[n] != '=' || n >= sizeof r->rule->name)
        return mx_fail(MX_USAGE, "the rule `%s` is not NAME=AXES, such as embed=fsdp", text);
    if (!parse_axes(text + n + 1, &axes))
        return mx_fail(MX_USAGE,
                       "the rule `%s` names an axis that no mesh has; there are data, stage, fsdp, "
                       "fsdp_transpose, context, tensor, sequence (tensor_sequence), expert",
                       text);
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

/* --- placements --- */

typedef struct {
    const char *name;
    size_t n;
    int64_t unit;
    bool uneven; /* pieces may be rounded up */
} dim_name;

static bool named(const dim_name *d, const char *name)
{
    return strlen(name) == d->n && memcmp(d->name, name, d->n) == 0;
}

/* False when there are not as many names as dims, or a name occurs twice. */
static bool read_names(const char *axes, const mx_type *t, dim_name *out)
{
    const char *p = axes;
    for (int d = 0; d < t->ndim; d++) {
        size_t n = strcspn(p, ",");
        const char *star = memchr(p, '*', n);
        out[d] = (dim_name){.name = p, .n = star ? (size_t)(star - p) : n, .unit = 1};
        if (star)
            out[d].unit = strtoll(star + 1, NULL, 10);
        if (out[d].unit < 1 || t->dim[d] % out[d].unit)
            return false;
        out[d].uneven = named(&out[d], "vocab") || named(&out[d], "activation_vocab");
        for (int e = 0; e < d; e++)
            if (out[d].n && out[e].n == out[d].n && memcmp(out[e].name, out[d].name, out[d].n) == 0)
                return false;
        if (!p[n] && d + 1 < t->ndim)
            return false;
        p += n + (p[n] != 0);
    }
    return !*p;
}

/* The axes of a rule that divide the dim, outermost first. */
static mx_axis_set dividing(const mx_mesh *m, mx_axis_set axes, int dim, int64_t count, bool uneven,
                            mx_axis_report *report)
{
    mx_axis_set kept = 0;
    int64_t pieces = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        int degree = mx_mesh_degree(m, (mx_axis)a);
        if (!(axes >> a & 1) || degree == 1)
            continue;
        if (uneven ? count >= pieces * degree : count % (pieces * degree) == 0) {
            kept |= 1u << a;
            pieces *= degree;
        } else if (report && report->n_dropped < MX_MAX_DROPPED) {
            report->dropped[report->n_dropped++] = (mx_axis_dropped){dim, (mx_axis)a, count};
        }
    }
    return kept;
}

bool mx_axis_rules_place(const mx_axis_rules *r, const mx_mesh *m, const char *axes,
                         const mx_type *t, mx_placement *out, mx_axis_report *report)
{
    dim_name name[MX_MAX_DIMS];
    mx_axis_set used = 0, of[MX_MAX_DIMS] = {0};
    bool done[MX_MAX_DIMS] = {0};
    *out = (mx_placement){0};
    if (!read_names(axes, t, name))
        return false;
    for (int i = 0; i < r->n; i++)
        for (int d = 0; d < t->ndim; d++)
            if (!done[d] && named(&name[d], r->rule[i].name) && !(used & r->rule[i].axes)) {
                done[d] = true;
                of[d] = r->rule[i].axes;
                used |= of[d];
            }
    for (int d = 0; d < t->ndim; d++)
        out->dim[d] = mx_cut_of(t->dim[d], dividing(m, of[d], d, t->dim[d] / name[d].unit,
                                                    name[d].uneven, report));
    return true;
}

void mx_axis_rules_zigzag(const char *axes, const mx_mesh *m, const mx_type *t, mx_placement *p)
{
    static const char end[] = "length";
    dim_name name[MX_MAX_DIMS];
    if (!read_names(axes, t, name))
        return;
    for (int d = 0; d < t->ndim; d++) {
        mx_cut *c = &p->dim[d];
        size_t n = name[d].n, k = sizeof end - 1;
        bool sequence = n >= k && memcmp(name[d].name + n - k, end, k) == 0;
        int64_t pieces = mx_mesh_size(m, mx_cut_axes(c));
        if (sequence && c->n == 1 && c->axes[0] >> MX_AXIS_CONTEXT & 1 &&
            t->dim[d] % (2 * pieces) == 0)
            c->zigzag[0] = true;
    }
}
