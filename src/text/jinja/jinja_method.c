/* jinja_method.c - methods of dicts and lists, as Python has them, without those that change; and
 * where a method is found. */
#include "text/jinja/jinja.h"

#include <string.h>

#define METHOD(fn) static mx_status fn(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)

static mx_status dict_part(mx_jctx *c, const mx_jdict *d, char what, mx_jv *out)
{
    MX_TRY(mx_jreserve(c, d->n * sizeof(mx_jv)));
    *out = mx_jv_list(c, MX_JV_LIST, d->n);
    for (size_t i = 0; i < d->n; i++) {
        MX_TRY(mx_jstep(c));
        mx_jv_push(c, out->list,
                   what == 'k'   ? d->key[i]
                   : what == 'v' ? d->val[i]
                                 : mx_jv_pair(c, d->key[i], d->val[i]));
    }
    return MX_OK;
}

#define DICT_PART(fn, what)                                                                        \
    METHOD(fn)                                                                                     \
    {                                                                                              \
        (void)a;                                                                                   \
        return dict_part(c, self.dict, what, out);                                                 \
    }
DICT_PART(d_items, 'i')
DICT_PART(d_keys, 'k')
DICT_PART(d_values, 'v')

METHOD(d_get)
{
    bool found;
    if (a->n < 1)
        return mx_jerror(c, "get needs a key");
    MX_TRY(mx_jdict_get(c, self.dict, a->v[0], out, &found));
    if (!found)
        *out = a->n > 1 ? a->v[1] : MX_JV_NULL;
    return MX_OK;
}

METHOD(d_copy)
{
    (void)a;
    return mx_jfunction_find("dict")->run(c, self, &(mx_jargs){.v = &self, .n = 1}, out);
}

METHOD(l_index)
{
    bool same = false;
    if (a->n < 1)
        return mx_jerror(c, "index needs a value");
    for (size_t i = 0; i < self.list->n; i++) {
        MX_TRY(mx_jv_equal(c, self.list->v[i], a->v[0], 0, &same));
        *out = mx_jv_int((int64_t)i);
        if (same)
            return MX_OK;
    }
    return mx_jerror(c, "index: the value is not in the list");
}

METHOD(l_count)
{
    int64_t n = 0;
    bool same;
    if (a->n < 1)
        return mx_jerror(c, "count needs a value");
    for (size_t i = 0; i < self.list->n; i++) {
        MX_TRY(mx_jv_equal(c, self.list->v[i], a->v[0], 0, &same));
        n += same;
    }
    *out = mx_jv_int(n);
    return MX_OK;
}

METHOD(refused)
{
    (void)a, (void)out;
    return mx_jerror(
        c,
        "methods that change a %s (append, update, pop, ...) are refused, as transformers "
        "does; build a new one with +",
        mx_jv_type(self));
}

static const mx_jbuiltin dict_methods[] = {
    {"items", d_items, ""},
    {"keys", d_keys, ""},
    {"values", d_values, ""},
    {"get", d_get, "key default"},
    {"copy", d_copy, ""},
    {"update", refused, NULL},
    {"pop", refused, NULL},
    {"popitem", refused, NULL},
    {"setdefault", refused, NULL},
    {"clear", refused, NULL},
    {0},
};
static const mx_jbuiltin list_methods[] = {
    {"index", l_index, "value"},
    {"count", l_count, "value"},
    {"append", refused, NULL},
    {"extend", refused, NULL},
    {"insert", refused, NULL},
    {"pop", refused, NULL},
    {"remove", refused, NULL},
    {"clear", refused, NULL},
    {"sort", refused, NULL},
    {"reverse", refused, NULL},
    {0},
};

const mx_jbuiltin *mx_jmethod_find(mx_jv of, const char *name)
{
    const mx_jbuiltin *table = of.kind == MX_JV_STRING ? mx_jstring_methods
                               : of.kind == MX_JV_DICT ? dict_methods
                               : of.kind == MX_JV_LIST || of.kind == MX_JV_TUPLE ? list_methods
                                                                                 : NULL;
    for (; table && table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}
