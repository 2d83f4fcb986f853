/* jinja_eval.c - expressions: names, attributes, items, slices, calls, conditions.
 *
 * Looking things up follows the sandbox transformers uses: x.name asks for a method first and then
 * for a key, x['name'] the other way round; what is not there is undefined, and only using an
 * undefined value (taking an attribute of it, calling it, adding it) is an error. Methods that
 * change a list or dict are refused.
 */
#include "text/jinja/jinja.h"

#include <string.h>

mx_status mx_jerror(const mx_jctx *c, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mx_fail(MX_INPUT, "chat template line %d: %s", c->line, text);
}

mx_status mx_jcharge(mx_jctx *c, size_t n)
{
    if (n > (size_t)c->steps) {
        c->steps = 0;
        return mx_jerror(c,
                         "the template did more than %lld steps of work, which is the limit for "
                         "this conversation, and was stopped",
                         (long long)c->allowed);
    }
    c->steps -= (int64_t)n;
    return MX_OK;
}

void mx_jspend(mx_jctx *c, size_t n)
{
    c->steps -= n < (size_t)c->steps ? (int64_t)n : c->steps;
}

mx_status mx_jstep(mx_jctx *c)
{
    MX_TRY(mx_jcharge(c, 1));
    return mx_jreserve(c, 0);
}

mx_status mx_jreserve(mx_jctx *c, size_t n)
{
    if (n > c->limits.memory_bytes || c->arena.used_bytes > c->limits.memory_bytes - n)
        return mx_jerror(c, "the template needs more than %zu bytes of memory and was stopped",
                         c->limits.memory_bytes);
    return MX_OK;
}

static mx_status is_undefined(const mx_jctx *c, mx_jv v, const char *doing)
{
    return mx_jerror(c, "'%.80s' is undefined: %s", v.hint ? v.hint : "a value", doing);
}

/* --- names, attributes, items --- */
static mx_jv lookup(mx_jctx *c, const char *name)
{
    for (const mx_jframe *f = c->frame; f; f = f->parent) {
        for (int i = 0; i < f->n; i++)
            if (f->v[i].name == name)
                return f->v[i].value;
        mx_jspend(c, (size_t)f->n / 8);
    }
    const mx_jbuiltin *fn = mx_jfunction_find(name);
    return fn ? (mx_jv){MX_JV_FUNCTION, {.fn = fn}} : mx_jv_undefined(name);
}

static bool bound_method(mx_jctx *c, mx_jv of, const char *name, mx_jv *out)
{
    const mx_jbuiltin *fn = mx_jmethod_find(of, name);
    if (!fn)
        return false;
    mx_jmethod *m = MX_NEW(&c->arena, mx_jmethod);
    m->self = of;
    m->fn = fn;
    *out = (mx_jv){MX_JV_METHOD, {.method = m}};
    return true;
}

static mx_status by_key(mx_jctx *c, mx_jv of, mx_jv key, mx_jv *out, bool *found)
{
    int64_t i, n;
    *found = false;
    if (of.kind == MX_JV_DICT)
        return mx_jdict_get(c, of.dict, key, out, found);
    bool sequence = of.kind == MX_JV_LIST || of.kind == MX_JV_TUPLE || of.kind == MX_JV_STRING;
    if (!sequence || !mx_jv_integer(key, &i))
        return MX_OK;
    MX_TRY(mx_jv_length(c, of, &n));
    i += i < 0 ? n : 0;
    *found = i >= 0 && i < n;
    if (*found && of.kind == MX_JV_STRING)
        return mx_jtext_slice(c, of, i, 1, 1, out);
    if (*found)
        *out = of.list->v[i];
    return MX_OK;
}

static mx_status plain_attr(mx_jctx *c, mx_jv of, const char *name, mx_jv *out, bool *found)
{
    *found = true;
    if (of.kind == MX_JV_LOOP)
        return mx_jloop_attr(c, of.loop, name, out);
    if (of.kind == MX_JV_NAMESPACE)
        return mx_jdict_get(c, of.dict, mx_jv_part(c, name, strlen(name)), out, found);
    if (of.kind == MX_JV_TUPLE && of.list->grouped && strcmp(name, "grouper") == 0)
        *out = of.list->v[0];
    else if (of.kind == MX_JV_TUPLE && of.list->grouped && strcmp(name, "list") == 0)
        *out = of.list->v[1];
    else if (of.kind == MX_JV_MACRO && strcmp(name, "name") == 0)
        *out = mx_jv_part(c, of.macro->node->name, strlen(of.macro->node->name));
    else
        *found = bound_method(c, of, name, out);
    return MX_OK;
}

mx_status mx_jattr(mx_jctx *c, mx_jv of, const char *name, mx_jv *out)
{
    bool found;
    if (of.kind == MX_JV_UNDEFINED)
        return is_undefined(c, of, mx_arena_printf(&c->arena, "it has no attribute '%s'", name));
    MX_TRY(plain_attr(c, of, name, out, &found));
    if (!found)
        MX_TRY(by_key(c, of, mx_jv_part(c, name, strlen(name)), out, &found));
    if (!found)
        *out = mx_jv_undefined(name);
    return MX_OK;
}

mx_status mx_jitem(mx_jctx *c, mx_jv of, mx_jv key, mx_jv *out)
{
    bool found;
    if (of.kind == MX_JV_UNDEFINED)
        return is_undefined(c, of, "it has no items");
    bool unhashable = key.kind == MX_JV_LIST || key.kind == MX_JV_DICT;
    found = false;
    if (!unhashable)
        MX_TRY(by_key(c, of, key, out, &found));
    if (found)
        return MX_OK;
    char *name = NULL;
    if (key.kind == MX_JV_STRING) {
        MX_TRY(mx_jreserve(c, key.s->n));
        MX_TRY(mx_jcharge(c, key.s->n / 16));
        name = mx_arena_alloc(&c->arena, key.s->n + 1);
        memcpy(name, key.s->p, key.s->n);
        MX_TRY(plain_attr(c, of, name, out, &found));
    }
    if (!found)
        *out = mx_jv_undefined(name);
    return MX_OK;
}

/* --- slices --- */
static mx_status slice_part(mx_jctx *c, const mx_jnode *n, int64_t absent, int64_t *out,
                            bool *given)
{
    mx_jv v = MX_JV_NULL;
    if (n)
        MX_TRY(mx_jeval(c, n, &v));
    *out = absent;
    *given = v.kind != MX_JV_NONE;
    if (*given && !mx_jv_integer(v, out))
        return mx_jerror(c, "slice indices must be integers or None, not %s", mx_jv_type(v));
    return MX_OK;
}

static int64_t clip(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static mx_status eval_slice(mx_jctx *c, mx_jv of, const mx_jnode *n, mx_jv *out)
{
    int64_t start, stop, step, len;
    bool has_start, has_stop, has_step;
    MX_TRY(slice_part(c, n->items.v[0], 0, &start, &has_start));
    MX_TRY(slice_part(c, n->items.v[1], 0, &stop, &has_stop));
    MX_TRY(slice_part(c, n->items.v[2], 1, &step, &has_step));
    if (of.kind == MX_JV_UNDEFINED)
        return is_undefined(c, of, "it cannot be sliced");
    if (of.kind != MX_JV_STRING && of.kind != MX_JV_LIST && of.kind != MX_JV_TUPLE)
        return mx_jerror(c, "'%s' object cannot be sliced", mx_jv_type(of));
    if (step == 0)
        return mx_jerror(c, "slice step cannot be zero");
    MX_TRY(mx_jv_length(c, of, &len));
    bool up = step > 0;
    start = !has_start ? (up ? 0 : len - 1) : clip(start, len, up ? 0 : -1, up ? len : len - 1);
    stop = !has_stop ? (up ? len : -1) : clip(stop, len, up ? 0 : -1, up ? len : len - 1);
    uint64_t stride = up ? (uint64_t)step : -(uint64_t)step;
    uint64_t span = up ? (uint64_t)(stop > start ? stop - start : 0)
                       : (uint64_t)(start > stop ? start - stop : 0);
    int64_t count = span ? (int64_t)((span - 1) / stride + 1) : 0;
    if (of.kind == MX_JV_STRING)
        return mx_jtext_slice(c, of, start, step, count, out);
    MX_TRY(mx_jcharge(c, (size_t)count));
    *out = mx_jv_list(c, of.kind, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        mx_jv_push(c, out->list, of.list->v[start + i * step]);
    return MX_OK;
}

/* --- calls --- */
static mx_status star_arguments(mx_jctx *c, const mx_jnode *n, mx_jlist *args)
{
    mx_jv v;
    mx_jlist *more;
    MX_TRY(mx_jeval(c, n, &v));
    MX_TRY(mx_jv_items(c, v, &more));
    for (size_t i = 0; i < more->n; i++)
        mx_jv_push(c, args, more->v[i]);
    return MX_OK;
}

static mx_status keyword_arguments(mx_jctx *c, const mx_jnode *n, mx_jargs *a)
{
    mx_jv extra = mx_jv_dict(c);
    if (n->star_star) {
        MX_TRY(mx_jeval(c, n->star_star, &extra));
        if (extra.kind != MX_JV_DICT)
            return mx_jerror(c, "** needs a dict, not %s", mx_jv_type(extra));
    }
    size_t total = (size_t)n->kw.n + extra.dict->n;
    if (!total)
        return MX_OK;
    const char **name = MX_NEW_N(&c->arena, const char *, total);
    mx_jv *v = MX_NEW_N(&c->arena, mx_jv, total);
    for (int i = 0; i < n->kw.n; i++) {
        name[i] = n->kw_name[i];
        MX_TRY(mx_jeval(c, n->kw.v[i], &v[i]));
    }
    for (size_t i = 0; i < extra.dict->n; i++) {
        if (extra.dict->key[i].kind != MX_JV_STRING)
            return mx_jerror(c, "the keys of **dict must be strings");
        const mx_jtext *key = extra.dict->key[i].s;
        MX_TRY(mx_jstep(c));
        MX_TRY(mx_jcharge(c, key->n / 16 + (size_t)c->t->n_names));
        char *copy = mx_arena_alloc(&c->arena, key->n + 1);
        memcpy(copy, key->p, key->n);
        const char *known = mx_jinja_interned(c->t, copy);
        name[(size_t)n->kw.n + i] = known ? known : copy;
        v[(size_t)n->kw.n + i] = extra.dict->val[i];
    }
    a->kw_name = name;
    a->kw = v;
    a->n_kw = (int)total;
    return MX_OK;
}

static mx_status arguments(mx_jctx *c, const mx_jnode *n, mx_jargs *a)
{
    *a = (mx_jargs){0};
    if (n->items.n || n->star) {
        mx_jv list = mx_jv_list(c, MX_JV_LIST, (size_t)n->items.n);
        for (int i = 0; i < n->items.n; i++) {
            mx_jv v;
            MX_TRY(mx_jeval(c, n->items.v[i], &v));
            mx_jv_push(c, list.list, v);
        }
        if (n->star)
            MX_TRY(star_arguments(c, n->star, list.list));
        a->v = list.list->v;
        a->n = (int)list.list->n;
    }
    return n->kw.n || n->star_star ? keyword_arguments(c, n, a) : MX_OK;
}

static mx_status jcall(mx_jctx *c, mx_jv f, const mx_jargs *a, mx_jv *out)
{
    mx_jlist *items;
    switch (f.kind) {
    case MX_JV_FUNCTION:
        MX_TRY(mx_jargs_check(c, "", f.fn, a));
        return f.fn->run(c, f, a, out);
    case MX_JV_METHOD:
        MX_TRY(mx_jargs_check(c, "method ", f.method->fn, a));
        return f.method->fn->run(c, f.method->self, a, out);
    case MX_JV_MACRO:
        return mx_jmacro_call(c, f.macro, a, out);
    case MX_JV_LOOP:
        if (!f.loop->node->recursive || a->n != 1)
            return mx_jerror(
                c, "loop(...) works in {%% for ... recursive %%} only, with one argument");
        MX_TRY(mx_jv_items(c, a->v[0], &items));
        return mx_jmacro_call(c, &(mx_jmacro){f.loop->node, f.loop->outer},
                              &(mx_jargs){.v = a->v, .n = 1, .n_kw = (int)f.loop->depth0 + 1}, out);
    case MX_JV_UNDEFINED:
        return is_undefined(c, f, "it cannot be called");
    default:
        return mx_jerror(c, "'%s' object is not callable", mx_jv_type(f));
    }
}

mx_status mx_jcall_node(mx_jctx *c, const mx_jnode *n, mx_jv caller, mx_jv *out)
{
    mx_jv f;
    mx_jargs a;
    MX_TRY(mx_jeval(c, n->a, &f));
    MX_TRY(arguments(c, n, &a));
    a.caller = caller;
    c->line = n->line;
    return jcall(c, f, &a, out);
}

mx_status mx_jfilter_node(mx_jctx *c, const mx_jnode *n, mx_jv in, mx_jv *out)
{
    mx_jargs a;
    if (n->kind != MX_J_FILTER || !n->fn)
        return mx_jerror(c, "no filter named '%.80s'", n->name ? n->name : "is");
    MX_TRY(arguments(c, n, &a));
    MX_TRY(mx_jargs_check(c, "filter ", n->fn, &a));
    return n->fn->run(c, in, &a, out);
}

static mx_status eval_test(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jargs a;
    mx_jv v;
    MX_TRY(mx_jeval(c, n->a, &v));
    MX_TRY(arguments(c, n, &a));
    if (!n->fn)
        return mx_jerror(c, "no test named '%.80s'", n->name);
    MX_TRY(mx_jargs_check(c, "test ", n->fn, &a));
    MX_TRY(n->fn->run(c, v, &a, out));
    out->b ^= n->op;
    return MX_OK;
}

/* --- the rest --- */
static mx_status eval_items(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv v, k;
    if (n->kind != MX_J_DICT) {
        *out = mx_jv_list(c, n->kind == MX_J_LIST ? MX_JV_LIST : MX_JV_TUPLE, (size_t)n->items.n);
        for (int i = 0; i < n->items.n; i++) {
            MX_TRY(mx_jeval(c, n->items.v[i], &v));
            mx_jv_push(c, out->list, v);
        }
        return MX_OK;
    }
    *out = mx_jv_dict(c);
    for (int i = 0; i < n->items.n; i += 2) {
        MX_TRY(mx_jeval(c, n->items.v[i], &k));
        MX_TRY(mx_jeval(c, n->items.v[i + 1], &v));
        MX_TRY(mx_jdict_set(c, out->dict, k, v));
    }
    return MX_OK;
}

static mx_status eval_concat(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_str text = {0};
    mx_status st = MX_OK;
    for (int i = 0; !st && i < n->items.n; i++) {
        mx_jv v;
        st = mx_jeval(c, n->items.v[i], &v);
        if (!st)
            st = mx_jv_print(c, v, &text);
        if (!st)
            st = mx_jreserve(c, text.len);
    }
    *out = mx_jv_take(c, &text);
    return st;
}

static mx_status eval_compare(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv left, right;
    bool holds = true;
    MX_TRY(mx_jeval(c, n->items.v[0], &left));
    for (int i = 1; holds && i < n->items.n; i++) {
        MX_TRY(mx_jeval(c, n->items.v[i], &right));
        MX_TRY(mx_jcompare(c, n->ops[i], left, right, &holds));
        left = right;
    }
    *out = mx_jv_bool(holds);
    return MX_OK;
}

static mx_status eval_logic(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv v;
    if (n->kind == MX_J_COND) {
        MX_TRY(mx_jeval(c, n->b, &v));
        if (mx_jv_truth(v))
            return mx_jeval(c, n->a, out);
        *out = mx_jv_undefined("the missing else of an inline if");
        return n->c ? mx_jeval(c, n->c, out) : MX_OK;
    }
    MX_TRY(mx_jeval(c, n->a, out));
    if (n->kind == MX_J_NOT)
        *out = mx_jv_bool(!mx_jv_truth(*out));
    else if (mx_jv_truth(*out) == (n->kind == MX_J_AND))
        return mx_jeval(c, n->b, out);
    return MX_OK;
}

static mx_status eval_sign(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv v;
    int64_t i;
    MX_TRY(mx_jeval(c, n->a, &v));
    if (v.kind == MX_JV_FLOAT)
        *out = mx_jv_float(n->kind == MX_J_NEG ? -v.f : v.f);
    else if (mx_jv_integer(v, &i) && i != INT64_MIN)
        *out = mx_jv_int(n->kind == MX_J_NEG ? -i : i);
    else
        return mx_jerror(c, "the sign of '%s' cannot be changed", mx_jv_type(v));
    return MX_OK;
}

static mx_status eval_access(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv of, key;
    MX_TRY(mx_jeval(c, n->a, &of));
    c->line = n->line;
    if (n->kind == MX_J_GETATTR)
        return mx_jattr(c, of, n->name, out);
    if (n->b->kind == MX_J_SLICE)
        return eval_slice(c, of, n->b, out);
    MX_TRY(mx_jeval(c, n->b, &key));
    return mx_jitem(c, of, key, out);
}

static mx_status eval_binary(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv a, b;
    MX_TRY(mx_jeval(c, n->a, &a));
    MX_TRY(mx_jeval(c, n->b, &b));
    c->line = n->line;
    return mx_jbinary(c, n->op, a, b, out);
}

static mx_status dispatch(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    mx_jv v;
    switch (n->kind) {
    case MX_J_CONST:
        *out = n->value;
        return MX_OK;
    case MX_J_NAME:
        *out = lookup(c, n->name);
        return MX_OK;
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_DICT:
        return eval_items(c, n, out);
    case MX_J_GETATTR:
    case MX_J_GETITEM:
        return eval_access(c, n, out);
    case MX_J_CALL:
        return mx_jcall_node(c, n, mx_jv_undefined(NULL), out);
    case MX_J_FILTER:
        MX_TRY(mx_jeval(c, n->a, &v));
        c->line = n->line;
        return mx_jfilter_node(c, n, v, out);
    case MX_J_TEST:
        return eval_test(c, n, out);
    case MX_J_NEG:
    case MX_J_POS:
        return eval_sign(c, n, out);
    case MX_J_NOT:
    case MX_J_AND:
    case MX_J_OR:
    case MX_J_COND:
        return eval_logic(c, n, out);
    case MX_J_BINARY:
        return eval_binary(c, n, out);
    case MX_J_CONCAT:
        return eval_concat(c, n, out);
    case MX_J_COMPARE:
        return eval_compare(c, n, out);
    default:
        return mx_jerror(c, "a slice stands where a value is needed");
    }
}

mx_status mx_jeval(mx_jctx *c, const mx_jnode *n, mx_jv *out)
{
    if (++c->depth > c->limits.depth)
        return mx_jerror(c, "nested more than %d deep; a macro may be calling itself",
                         c->limits.depth);
    MX_TRY(mx_jstep(c));
    MX_TRY(dispatch(c, n, out));
    c->depth--;
    return MX_OK;
}
