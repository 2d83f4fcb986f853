/* jinja_dict.c - dicts in insertion order, and values from JSON.
 *
 * Keys are hashed once and searched linearly by hash: the dicts of a conversation have few keys,
 * and every lookup in a large one is charged for its length.
 */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

static uint32_t hash_bytes(const char *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 16777619u;
    return h;
}

/* Equal keys have equal hashes: 1, 1.0 and True are one key, as in Python. */
static mx_status hash_key(mx_jctx *c, mx_jv key, uint32_t *h)
{
    double x;
    if (key.kind == MX_JV_STRING) {
        *h = hash_bytes(key.s->p, key.s->n);
        return mx_jcharge(c, key.s->n / 8);
    }
    if (mx_jv_number(key, &x)) {
        *h = x == floor(x) && fabs(x) < 1e18 ? (uint32_t)(int64_t)x * 2654435761u
                                             : hash_bytes((const char *)&x, sizeof x);
        return MX_OK;
    }
    *h = (uint32_t)key.kind;
    if (key.kind == MX_JV_TUPLE)
        for (size_t i = 0; i < key.list->n; i++) {
            uint32_t part = 0;
            if (key.list->v[i].kind == MX_JV_TUPLE)
                return mx_jerror(c, "tuples of tuples are not supported as keys");
            MX_TRY(hash_key(c, key.list->v[i], &part));
            *h = *h * 31 + part;
        }
    if (key.kind == MX_JV_LIST || key.kind == MX_JV_DICT)
        return mx_jerror(c, "unhashable type: '%s' cannot be a key", mx_jv_type(key));
    return MX_OK;
}

static mx_status find(mx_jctx *c, const mx_jdict *d, mx_jv key, uint32_t h, size_t *at)
{
    MX_TRY(mx_jcharge(c, 1 + d->n / 8));
    for (*at = 0; *at < d->n; ++*at) {
        if (d->hash[*at] != h)
            continue;
        bool same;
        MX_TRY(mx_jv_equal(c, d->key[*at], key, 0, &same));
        if (same)
            return MX_OK;
    }
    return MX_OK;
}

mx_status mx_jdict_get(mx_jctx *c, const mx_jdict *d, mx_jv key, mx_jv *v, bool *found)
{
    uint32_t h;
    size_t at;
    MX_TRY(hash_key(c, key, &h));
    MX_TRY(find(c, d, key, h, &at));
    *found = at < d->n;
    if (*found)
        *v = d->val[at];
    return MX_OK;
}

static void *grown(mx_jctx *c, const void *old, size_t size, size_t n, size_t cap)
{
    void *p = mx_arena_alloc(&c->arena, size * cap);
    if (n)
        memcpy(p, old, size * n);
    return p;
}

static void append(mx_jctx *c, mx_jdict *d, mx_jv key, uint32_t h, mx_jv v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        d->key = grown(c, d->key, sizeof *d->key, d->n, cap);
        d->val = grown(c, d->val, sizeof *d->val, d->n, cap);
        d->hash = grown(c, d->hash, sizeof *d->hash, d->n, cap);
        d->cap = cap;
    }
    d->key[d->n] = key;
    d->val[d->n] = v;
    d->hash[d->n++] = h;
}

mx_status mx_jdict_set(mx_jctx *c, mx_jdict *d, mx_jv key, mx_jv v)
{
    uint32_t h;
    size_t at;
    MX_TRY(hash_key(c, key, &h));
    MX_TRY(find(c, d, key, h, &at));
    if (at < d->n)
        d->val[at] = v;
    else
        append(c, d, key, h, v);
    return MX_OK;
}

mx_jv mx_jv_dict(mx_jctx *c)
{
    return (mx_jv){MX_JV_DICT, {.dict = MX_NEW(&c->arena, mx_jdict)}};
}

static mx_status from_object(mx_jctx *c, const json_t *j, int depth, mx_jv *out)
{
    *out = mx_jv_dict(c);
    const char *name;
    json_t *item;
    /* jansson's keys are unique, so no search is needed while filling */
    json_object_foreach((json_t *)j, name, item)
    {
        mx_jv v, key = mx_jv_part(c, name, strlen(name));
        MX_TRY(mx_jv_from_json(c, item, depth + 1, &v));
        append(c, out->dict, key, hash_bytes(name, key.s->n), v);
    }
    return MX_OK;
}

mx_status mx_jv_from_json(mx_jctx *c, const json_t *j, int depth, mx_jv *out)
{
    if (depth > c->limits.depth / 2)
        return mx_jerror(c, "the messages or variables are nested more than %d deep",
                         c->limits.depth / 2);
    MX_TRY(mx_jreserve(c, 0));
    *out = MX_JV_NULL;
    switch (j ? json_typeof(j) : JSON_NULL) {
    case JSON_OBJECT:
        return from_object(c, j, depth, out);
    case JSON_ARRAY:
        *out = mx_jv_list(c, MX_JV_LIST, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j); i++) {
            mx_jv v;
            MX_TRY(mx_jv_from_json(c, json_array_get(j, i), depth + 1, &v));
            mx_jv_push(c, out->list, v);
        }
        return MX_OK;
    case JSON_STRING:
        c->allowed += c->per_byte * (int64_t)json_string_length(j);
        c->steps += c->per_byte * (int64_t)json_string_length(j);
        *out = mx_jv_part(c, json_string_value(j), json_string_length(j));
        return MX_OK;
    case JSON_INTEGER:
        *out = mx_jv_int(json_integer_value(j));
        return MX_OK;
    case JSON_REAL:
        *out = mx_jv_float(json_real_value(j));
        return MX_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = mx_jv_bool(json_is_true(j));
        return MX_OK;
    case JSON_NULL:
        break;
    }
    return MX_OK;
}
