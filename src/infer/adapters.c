/* adapters.c - see adapters.h. */
#include "infer/adapters.h"

#include "ops/load.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    mx_session *session;
    int64_t slot, rank;
    const mx_adapter *a;
} place;

static mx_var *find(mx_session *s, const char *module, const char *end)
{
    char name[640];
    snprintf(name, sizeof name, "%s%s", module, end);
    return mx_session_find(s, name);
}

static const mx_st_tensor *tensor_of(const mx_adapter *a, const char *module, const char *end)
{
    char name[640];
    snprintf(name, sizeof name, MX_LORA_PREFIX "%s%s", module, end);
    return mx_hf_dir_find(&a->dir, name);
}

static mx_status check_module(const place *p, const mx_lora_rule *m)
{
    const mx_var *a = find(p->session, m->module, MX_LORA_SLOTS_A);
    const mx_var *b = find(p->session, m->module, MX_LORA_SLOTS_B);
    const mx_st_tensor *ta = tensor_of(p->a, m->module, ".lora_A.weight");
    const mx_st_tensor *tb = tensor_of(p->a, m->module, ".lora_B.weight");
    const char *path = p->a->dir.path;
    if (!a || !b)
        return mx_fail(MX_INPUT,
                       "the adapter %s has the module %.200s, which the model does not have, or "
                       "not as a linear layer of its own; put it into the weights: maxc merge %s "
                       "output=DIR",
                       path, m->module, path);
    if (m->rank > p->rank)
        return mx_fail(MX_USAGE,
                       "the adapter %s has rank %lld, and there is room for %lld; start with "
                       "max_lora_rank=%lld",
                       path, (long long)m->rank, (long long)p->rank, (long long)m->rank);
    if (!ta || !tb || ta->dim[1] != a->type.dim[1] || tb->ndim != 2 ||
        tb->dim[0] != b->type.dim[1] || tb->dim[1] != m->rank)
        return mx_fail(MX_INPUT, "the adapter %s is for another model: %.200s does not fit", path,
                       m->module);
    return MX_OK;
}

static mx_status check(const place *p)
{
    const mx_lora *l = &p->a->lora;
    if (l->dora || *l->save)
        return mx_fail(MX_INPUT,
                       "the adapter %s has %s, which does not run beside others; put it into the "
                       "weights: maxc merge %s output=DIR",
                       p->a->dir.path,
                       l->dora ? "DoRA's lengths" : "modules that are trained whole",
                       p->a->dir.path);
    for (int i = 0; i < l->n_only; i++)
        MX_TRY(check_module(p, &l->only[i]));
    return MX_OK;
}

/* Rows of a slot from floats, in the variable's dtype; x NULL: zeros. */
static mx_status write_rows(const place *p, mx_var *v, int64_t rows, const float *x)
{
    int64_t cols = v->type.dim[1], n = p->rank * cols;
    mx_type t = mx_type_of(v->type.dtype, MX_SHAPE(n));
    void *raw;
    MX_TRY(mx_alloc(&raw, mx_type_bytes(&t), "an adapter"));
    memset(raw, 0, mx_type_bytes(&t));
    mx_tensor to = {raw, t};
    if (x)
        mx_store_run_f32(&to, 0, rows * cols, x);
    mx_status st = mx_var_write_part(p->session, v, p->slot * n, n, raw);
    mx_free(raw);
    return st;
}

static mx_status set_module(const place *p, const mx_lora_rule *m)
{
    mx_var *va = find(p->session, m->module, MX_LORA_SLOTS_A);
    mx_var *vb = find(p->session, m->module, MX_LORA_SLOTS_B);
    int64_t r = m->rank, in = va->type.dim[1], out = vb->type.dim[1];
    float scale = (float)mx_lora_scale(&p->a->lora, m->module, 0);
    float *a = NULL, *b = NULL, *turned = NULL;
    const mx_st_tensor *ta = tensor_of(p->a, m->module, ".lora_A.weight");
    const mx_st_tensor *tb = tensor_of(p->a, m->module, ".lora_B.weight");
    mx_st_scan scan = {0};
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&a, sizeof *a * (size_t)(r * in), "an adapter"));
    MX_TRY_OUT(st, mx_alloc((void **)&b, sizeof *b * (size_t)(r * out), "an adapter"));
    MX_TRY_OUT(st, mx_alloc((void **)&turned, sizeof *b * (size_t)(r * out), "an adapter"));
    MX_TRY_OUT(st, mx_st_read(ta, 0, r * in, MX_ST_F32, a, &scan));
    MX_TRY_OUT(st, mx_st_read(tb, 0, r * out, MX_ST_F32, b, &scan));
    if (scan.n_nan || scan.n_inf)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "the adapter %s has numbers that are not finite in %.200s",
                               p->a->dir.path, m->module));
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < r; i++)
            turned[i * out + o] = scale * b[o * r + i];
    MX_TRY_OUT(st, write_rows(p, va, r, a));
    st = write_rows(p, vb, r, turned);
out:
    mx_free(a);
    mx_free(b);
    mx_free(turned);
    return st;
}

static mx_status clear(const place *p)
{
    for (int i = 0; i < mx_session_count(p->session); i++) {
        mx_var *v = mx_session_var(p->session, i);
        if (mx_ends_with(v->name, MX_LORA_SLOTS_A) || mx_ends_with(v->name, MX_LORA_SLOTS_B))
            MX_TRY(write_rows(p, v, 0, NULL));
    }
    return MX_OK;
}

mx_status mx_adapters_set(mx_session *s, int64_t slot, int64_t rank, const mx_adapter *a)
{
    place p = {s, slot, rank, a};
    if (a)
        MX_TRY(check(&p));
    MX_TRY(clear(&p));
    for (int i = 0; a && i < a->lora.n_only; i++)
        MX_TRY(set_module(&p, &a->lora.only[i]));
    return MX_OK;
}
