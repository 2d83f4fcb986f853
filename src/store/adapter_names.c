/* adapter_names.c - see adapter_names.h. */
#include "store/adapter_names.h"

#include "compile/lora_experts.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char EXPERTS[] = ".experts", INNER[] = ".experts.base_layer",
                  GATE_UP[] = ".experts.gate_up_proj", DOWN[] = ".experts.down_proj";

/* "X.experts.3.up_proj" with a star in place of the number; others as they are. */
static void starred(const char *name, char *out, size_t cap)
{
    static const char middle[] = ".experts.";
    const char *at = strstr(name, middle), *digits = at ? at + strlen(middle) : NULL, *end = digits;
    while (end && isdigit((unsigned char)*end))
        end++;
    if (end > digits && *end == '.')
        snprintf(out, cap, "%.*s*%s", (int)(digits - name), name, end);
    else
        snprintf(out, cap, "%s", name);
}

const char *mx_adapter_module(mx_adapter *a, const char *tensor, const char *end)
{
    char star[600];
    int n = (int)(strlen(tensor) - strlen(MX_LORA_PREFIX) - strlen(end));
    const char *module = mx_arena_printf(&a->arena, "%.*s", n, tensor + strlen(MX_LORA_PREFIX));
    if (mx_ends_with(module, INNER))
        return mx_arena_printf(&a->arena, "%.*s%s", n - (int)strlen(INNER), module, GATE_UP);
    if (!mx_ends_with(module, EXPERTS)) {
        starred(module, star, sizeof star);
        return mx_arena_strdup(&a->arena, star);
    }
    int stem = n - (int)strlen(EXPERTS);
    const char *down = mx_arena_printf(&a->arena, "%.*s%s", stem, module, DOWN);
    bool second = mx_hf_dir_find(&a->dir, mx_arena_printf(&a->arena, MX_LORA_PREFIX "%.*s%s%s",
                                                          stem, module, INNER, end));
    if (second || mx_lora_names(a->lora.parameters, down))
        return down;
    return mx_arena_printf(&a->arena, "%.*s%s", stem, module, GATE_UP);
}

/* FROM, followed by .lora_ in the name, replaced by TO. */
static bool renamed(const char *name, const char *from, const char *to, char *out, size_t cap)
{
    const char *lora = strstr(name, ".lora_");
    size_t n = strlen(from);
    if (!lora || (size_t)(lora - name) < n || memcmp(lora - n, from, n) != 0)
        return false;
    snprintf(out, cap, "%.*s%s%s", (int)(lora - n - name), name, to, lora);
    return true;
}

mx_var *mx_adapter_variable(mx_session *s, const char *tensor)
{
    char name[700];
    if (!mx_starts_with(tensor, MX_LORA_PREFIX))
        return NULL;
    if (renamed(tensor, INNER, GATE_UP, name, sizeof name))
        return mx_session_find(s, name);
    if (renamed(tensor, EXPERTS, DOWN, name, sizeof name)) {
        mx_var *down = mx_session_find(s, name);
        renamed(tensor, EXPERTS, GATE_UP, name, sizeof name);
        return down ? down : mx_session_find(s, name);
    }
    starred(tensor, name, sizeof name);
    mx_var *v = mx_session_find(s, name);
    for (int i = 0; i < mx_session_count(s) && !v; i++) {
        char other[700];
        mx_var *one = mx_session_var(s, i);
        v = strcmp(mx_lora_peft_name(one->name, other, sizeof other), name) == 0 ? one : NULL;
    }
    return v ? v : mx_session_find(s, name + strlen(MX_LORA_PREFIX));
}

const char *mx_adapter_tensor_name(mx_session *s, mx_arena *a, const mx_var *v)
{
    char name[700], other[700];
    if (!v->attr.adapter)
        return mx_arena_printf(a, MX_LORA_PREFIX "%s", v->name);
    if (renamed(v->name, DOWN, EXPERTS, name, sizeof name))
        return mx_arena_strdup(a, name);
    if (!renamed(v->name, GATE_UP, DOWN, other, sizeof other))
        return mx_arena_strdup(a, mx_lora_peft_name(v->name, name, sizeof name));
    renamed(v->name, GATE_UP, mx_session_find(s, other) ? INNER : EXPERTS, name, sizeof name);
    return mx_arena_strdup(a, name);
}

/* --- a weight's adapter --- */

static mx_var *find(mx_session *s, const char *prefix, const char *module, const char *end)
{
    char name[600];
    snprintf(name, sizeof name, "%s%s%s", prefix, module, end);
    return mx_session_find(s, name);
}

/* Of a parameter of stacked experts. */
static bool stacked_parts(mx_session *s, mx_adapter_parts *p)
{
    mx_expert_stack stack;
    if (!mx_expert_stack_of(p->w->name, mx_var_whole(p->w), p->w->attr.in_out, &stack))
        return false;
    snprintf(p->module, sizeof p->module, "%s", stack.module);
    p->a = find(s, MX_LORA_PREFIX, p->module, MX_LORA_A);
    p->b = find(s, MX_LORA_PREFIX, p->module, MX_LORA_B);
    p->stacked = true;
    p->experts = stack.experts;
    p->from = stack.from;
    p->in = stack.in;
    p->out = stack.out;
    p->rank = p->a ? p->a->type.dim[0] / stack.experts : 0;
    return p->a && p->b;
}

bool mx_adapter_parts_of(mx_session *s, int i, mx_adapter_parts *p)
{
    mx_var *v = mx_session_var(s, i);
    *p = (mx_adapter_parts){.w = v};
    if (v->attr.kind != MX_VAR_WEIGHT || v->attr.adapter)
        return false;
    size_t n = strlen(v->name) - (mx_ends_with(v->name, ".weight") ? strlen(".weight") : 0);
    snprintf(p->module, sizeof p->module, "%.*s", (int)n, v->name);
    p->a = find(s, MX_LORA_PREFIX, p->module, MX_LORA_TABLE_A);
    p->table = p->a != NULL;
    p->a = p->a ? p->a : find(s, MX_LORA_PREFIX, p->module, MX_LORA_A);
    if (!p->a || v->type.ndim == 3) {
        bool each = p->a && p->a->type.ndim == 3;
        if (!each)
            return stacked_parts(s, p);
        p->experts = p->a->type.dim[0];
    }
    p->b = find(s, MX_LORA_PREFIX, p->module, p->table ? MX_LORA_TABLE_B : MX_LORA_B);
    p->m = find(s, MX_LORA_PREFIX, p->module, MX_LORA_M);
    MX_ASSERT(p->b, "the adapter of %s", p->module);
    int first = p->experts ? 1 : 0;
    p->rank = p->a->type.dim[first];
    p->in = p->a->type.dim[first + 1];
    p->out = p->b->type.dim[first];
    return true;
}
