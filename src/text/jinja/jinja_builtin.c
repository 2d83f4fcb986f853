/* jinja_builtin.c - arguments by name, the global functions, the tests, and where filters are
 * found. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <time.h>

/* --- arguments --- */
static bool param_name(const char *params, int i, const char **name, size_t *n)
{
    for (; params && *params; i--) {
        *n = strcspn(params, " ");
        *name = params;
        if (i == 0)
            return true;
        params += *n;
        params += *params == ' ';
    }
    return false;
}

const mx_jv *mx_jarg(const mx_jbuiltin *fn, const mx_jargs *a, int i)
{
    const char *name;
    size_t n;
    if (i < a->n)
        return &a->v[i];
    if (!param_name(fn->params, i, &name, &n))
        return NULL;
    for (int k = 0; k < a->n_kw; k++)
        if (strlen(a->kw_name[k]) == n && memcmp(a->kw_name[k], name, n) == 0)
            return &a->kw[k];
    return NULL;
}

mx_status mx_jargs_check(mx_jctx *c, const char *what, const mx_jbuiltin *fn, const mx_jargs *a)
{
    const char *name;
    size_t n;
    int count = 0;
    if (a->caller.kind == MX_JV_MACRO)
        return mx_jerror(c, "%s%s cannot be used with {%% call %%}", what, fn->name);
    if (!fn->params)
        return MX_OK;
    while (param_name(fn->params, count, &name, &n))
        count++;
    if (a->n > count)
        return mx_jerror(c, "%s%s takes at most %d arguments, %d were given", what, fn->name, count,
                         a->n);
    for (int k = 0; k < a->n_kw; k++) {
        bool known = false;
        for (int i = 0; i < count; i++) {
            param_name(fn->params, i, &name, &n);
            known |= strlen(a->kw_name[k]) == n && memcmp(a->kw_name[k], name, n) == 0;
        }
        if (!known)
            return mx_jerror(c, "%s%s has no argument '%.80s'; it has: %s", what, fn->name,
                             a->kw_name[k], *fn->params ? fn->params : "none");
    }
    return MX_OK;
}

mx_jargs mx_jargs_rest(const mx_jargs *a, int skip)
{
    mx_jargs rest = *a;
    rest.v = a->n > skip ? a->v + skip : NULL;
    rest.n = a->n > skip ? a->n - skip : 0;
    return rest;
}

/* --- functions --- */
static mx_status f_range(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    enum { MAX = 100000 }; /* the sandbox's limit */
    int64_t v[3] = {0, 0, 1};
    (void)self;
    if (a->n < 1)
        return mx_jerror(c, "range needs 1 to 3 integers");
    for (int i = 0; i < a->n; i++)
        if (!mx_jv_integer(a->v[i], &v[i]))
            return mx_jerror(c, "range needs integers, not %s", mx_jv_type(a->v[i]));
    int64_t start = a->n > 1 ? v[0] : 0, stop = a->n > 1 ? v[1] : v[0], step = v[2];
    if (step == 0)
        return mx_jerror(c, "range: the step must not be zero");
    double n = ((double)stop - (double)start) / (double)step;
    if (n > MAX)
        return mx_jerror(c, "range of %.0f numbers is too big; the limit is %d", n, MAX);
    *out = mx_jv_list(c, MX_JV_LIST, n > 0 ? (size_t)n + 1 : 0);
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        mx_jv_push(c, out->list, mx_jv_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    out->list->printed =
        step == 1
            ? mx_arena_printf(&c->arena, "range(%lld, %lld)", (long long)start, (long long)stop)
            : mx_arena_printf(&c->arena, "range(%lld, %lld, %lld)", (long long)start,
                              (long long)stop, (long long)step);
    return mx_jcharge(c, out->list->n);
}

static mx_status fill_dict(mx_jctx *c, const mx_jargs *a, mx_jdict *d)
{
    if (a->n > 1)
        return mx_jerror(c, "dict and namespace take at most one positional argument");
    if (a->n && a->v[0].kind == MX_JV_DICT) {
        for (size_t i = 0; i < a->v[0].dict->n; i++)
            MX_TRY(mx_jdict_set(c, d, a->v[0].dict->key[i], a->v[0].dict->val[i]));
    } else if (a->n) {
        mx_jlist *pairs, *pair;
        MX_TRY(mx_jv_items(c, a->v[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            MX_TRY(mx_jv_items(c, pairs->v[i], &pair));
            if (pair->n != 2)
                return mx_jerror(c, "dict needs pairs; item %zu has %zu parts", i, pair->n);
            MX_TRY(mx_jdict_set(c, d, pair->v[0], pair->v[1]));
        }
    }
    for (int i = 0; i < a->n_kw; i++) {
        mx_jv key = mx_jv_part(c, a->kw_name[i], strlen(a->kw_name[i]));
        MX_TRY(mx_jdict_set(c, d, key, a->kw[i]));
    }
    return MX_OK;
}

static mx_status f_dict(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    (void)self;
    *out = mx_jv_dict(c);
    return fill_dict(c, a, out->dict);
}

static mx_status f_namespace(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    MX_TRY(f_dict(c, self, a, out));
    out->kind = MX_JV_NAMESPACE;
    return MX_OK;
}

static mx_status f_raise(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    (void)self;
    mx_jv text = mx_jv_part(c, "", 0);
    if (a->n)
        MX_TRY(mx_jv_str(c, a->v[0], &text));
    *out = text;
    return mx_jerror(c, "the template refuses this conversation: %.*s",
                     (int)(text.s->n > 400 ? 400 : text.s->n), text.s->p);
}

static mx_status f_strftime(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    (void)self;
    if (a->n != 1 || a->v[0].kind != MX_JV_STRING || a->v[0].s->n > 200)
        return mx_jerror(c, "strftime_now needs one format string of at most 200 bytes");
    time_t now = (time_t)c->now;
    struct tm tm;
    char form[208] = {0}, text[2048];
    memcpy(form, a->v[0].s->p, a->v[0].s->n);
    localtime_r(&now, &tm);
    size_t n = strftime(text, sizeof text, form, &tm);
    mx_jspend(c, 64);
    *out = mx_jv_text(&c->arena, text, n);
    return MX_OK;
}

const mx_jbuiltin *mx_jfunction_find(const char *name)
{
    static const mx_jbuiltin table[] = {
        {"range", f_range, "start stop step"},  {"dict", f_dict, NULL},
        {"namespace", f_namespace, NULL},       {"raise_exception", f_raise, "message"},
        {"strftime_now", f_strftime, "format"}, {0},
    };
    for (const mx_jbuiltin *b = table; b->name; b++)
        if (strcmp(b->name, name) == 0)
            return b;
    return NULL;
}

/* --- tests: each answers a bool --- */
#define TEST(fn) static mx_status fn(mx_jctx *c, mx_jv v, const mx_jargs *a, mx_jv *out)
#define ANSWER(expr)                                                                               \
    do {                                                                                           \
        (void)c, (void)a, (void)v;                                                                 \
        *out = mx_jv_bool(expr);                                                                   \
        return MX_OK;                                                                              \
    } while (0)

TEST(t_defined)
{
    ANSWER(v.kind != MX_JV_UNDEFINED);
}
TEST(t_undefined)
{
    ANSWER(v.kind == MX_JV_UNDEFINED);
}
TEST(t_none)
{
    ANSWER(v.kind == MX_JV_NONE);
}
TEST(t_boolean)
{
    ANSWER(v.kind == MX_JV_BOOL);
}
TEST(t_true)
{
    ANSWER(v.kind == MX_JV_BOOL && v.b);
}
TEST(t_false)
{
    ANSWER(v.kind == MX_JV_BOOL && !v.b);
}
TEST(t_integer)
{
    ANSWER(v.kind == MX_JV_INT);
}
TEST(t_float)
{
    ANSWER(v.kind == MX_JV_FLOAT);
}
TEST(t_number)
{
    ANSWER(v.kind == MX_JV_INT || v.kind == MX_JV_FLOAT || v.kind == MX_JV_BOOL);
}
TEST(t_string)
{
    ANSWER(v.kind == MX_JV_STRING);
}
TEST(t_mapping)
{
    ANSWER(v.kind == MX_JV_DICT);
}
TEST(t_callable)
{
    ANSWER(v.kind == MX_JV_MACRO || v.kind == MX_JV_FUNCTION || v.kind == MX_JV_METHOD ||
           v.kind == MX_JV_LOOP || v.kind == MX_JV_UNDEFINED);
}
/* An undefined value has every method in Jinja: it can be iterated (over nothing) and has a length.
 */
TEST(t_sequence)
{
    ANSWER(v.kind == MX_JV_STRING || v.kind == MX_JV_LIST || v.kind == MX_JV_TUPLE ||
           v.kind == MX_JV_DICT || v.kind == MX_JV_UNDEFINED);
}
TEST(t_iterable)
{
    ANSWER(v.kind == MX_JV_STRING || v.kind == MX_JV_LIST || v.kind == MX_JV_TUPLE ||
           v.kind == MX_JV_DICT || v.kind == MX_JV_UNDEFINED || v.kind == MX_JV_GENERATOR ||
           v.kind == MX_JV_LOOP);
}

static mx_status needs_argument(mx_jctx *c)
{
    return mx_jerror(c, "this test needs an argument");
}

static mx_status compare_test(mx_jctx *c, int op, mx_jv v, const mx_jargs *a, mx_jv *out)
{
    bool holds;
    if (a->n < 1)
        return needs_argument(c);
    MX_TRY(mx_jcompare(c, op, v, a->v[0], &holds));
    ANSWER(holds);
}

TEST(t_eq)
{
    return compare_test(c, MX_OP_EQ, v, a, out);
}
TEST(t_ne)
{
    return compare_test(c, MX_OP_NE, v, a, out);
}
TEST(t_lt)
{
    return compare_test(c, '<', v, a, out);
}
TEST(t_le)
{
    return compare_test(c, MX_OP_LE, v, a, out);
}
TEST(t_gt)
{
    return compare_test(c, '>', v, a, out);
}
TEST(t_ge)
{
    return compare_test(c, MX_OP_GE, v, a, out);
}
TEST(t_in)
{
    return compare_test(c, MX_OP_IN, v, a, out);
}

TEST(t_sameas)
{
    bool same = false;
    if (a->n < 1)
        return needs_argument(c);
    if (v.kind == a->v[0].kind &&
        (v.kind == MX_JV_LIST || v.kind == MX_JV_TUPLE || v.kind == MX_JV_DICT))
        ANSWER(v.list == a->v[0].list);
    if (v.kind == a->v[0].kind)
        MX_TRY(mx_jv_equal(c, v, a->v[0], 0, &same));
    ANSWER(same);
}

static mx_status modulo(mx_jctx *c, mx_jv v, mx_jv by, mx_jv *out)
{
    return mx_jbinary(c, '%', v, by, out);
}

TEST(t_odd)
{
    mx_jv rest;
    MX_TRY(modulo(c, v, mx_jv_int(2), &rest));
    ANSWER(rest.kind == MX_JV_INT ? rest.i == 1 : rest.kind == MX_JV_FLOAT && rest.f == 1);
}

TEST(t_even)
{
    mx_jv rest;
    MX_TRY(modulo(c, v, mx_jv_int(2), &rest));
    ANSWER(!mx_jv_truth(rest));
}

TEST(t_divisibleby)
{
    mx_jv rest;
    if (a->n < 1)
        return needs_argument(c);
    MX_TRY(modulo(c, v, a->v[0], &rest));
    ANSWER(!mx_jv_truth(rest));
}

/* True when the text has letters and mapping their case changes nothing. */
static mx_status case_test(mx_jctx *c, mx_jv v, int how, mx_jv *out)
{
    mx_jv s;
    bool same, cased;
    MX_TRY(mx_jv_str(c, v, &s));
    MX_TRY(mx_jcharge(c, 2 * s.s->n));
    MX_TRY(mx_jv_equal(c, mx_jtext_case(c, s.s, how), s, 0, &same));
    MX_TRY(mx_jv_equal(c, mx_jtext_case(c, s.s, MX_CASE_SWAP), s, 0, &cased));
    *out = mx_jv_bool(same && !cased);
    return MX_OK;
}

TEST(t_lower)
{
    (void)a;
    return case_test(c, v, MX_CASE_LOWER, out);
}
TEST(t_upper)
{
    (void)a;
    return case_test(c, v, MX_CASE_UPPER, out);
}

static const char *c_string(mx_jctx *c, mx_jv v)
{
    if (v.kind != MX_JV_STRING)
        return "";
    mx_jspend(c, 1 + v.s->n / 16);
    char *s = mx_arena_alloc(&c->arena, v.s->n + 1);
    return memcpy(s, v.s->p, v.s->n);
}

TEST(t_filter)
{
    ANSWER(mx_jfilter_find(c_string(c, v)) != NULL);
}
TEST(t_test)
{
    ANSWER(mx_jtest_find(c_string(c, v)) != NULL);
}

const mx_jbuiltin *mx_jtest_find(const char *name)
{
    static const mx_jbuiltin table[] = {
        {"defined", t_defined, ""},
        {"undefined", t_undefined, ""},
        {"none", t_none, ""},
        {"boolean", t_boolean, ""},
        {"true", t_true, ""},
        {"false", t_false, ""},
        {"integer", t_integer, ""},
        {"float", t_float, ""},
        {"number", t_number, ""},
        {"string", t_string, ""},
        {"mapping", t_mapping, ""},
        {"callable", t_callable, ""},
        {"sequence", t_sequence, ""},
        {"iterable", t_iterable, ""},
        {"sameas", t_sameas, "other"},
        {"eq", t_eq, "b"},
        {"equalto", t_eq, "b"},
        {"==", t_eq, "b"},
        {"ne", t_ne, "b"},
        {"!=", t_ne, "b"},
        {"lt", t_lt, "b"},
        {"lessthan", t_lt, "b"},
        {"<", t_lt, "b"},
        {"le", t_le, "b"},
        {"<=", t_le, "b"},
        {"gt", t_gt, "b"},
        {"greaterthan", t_gt, "b"},
        {">", t_gt, "b"},
        {"ge", t_ge, "b"},
        {">=", t_ge, "b"},
        {"in", t_in, "seq"},
        {"odd", t_odd, ""},
        {"even", t_even, ""},
        {"divisibleby", t_divisibleby, "num"},
        {"lower", t_lower, ""},
        {"upper", t_upper, ""},
        {"filter", t_filter, ""},
        {"test", t_test, ""},
        {0},
    };
    for (const mx_jbuiltin *b = table; b->name; b++)
        if (strcmp(b->name, name) == 0)
            return b;
    return NULL;
}

const mx_jbuiltin *mx_jfilter_find(const char *name)
{
    const mx_jbuiltin *tables[] = {mx_jfilters_text, mx_jfilters_list};
    for (int i = 0; i < 2; i++)
        for (const mx_jbuiltin *b = tables[i]; b->name; b++)
            if (strcmp(b->name, name) == 0)
                return b;
    return NULL;
}
