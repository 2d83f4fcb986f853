/* jinja_operator.c - arithmetic and comparison, as Python does them.
 *
 * / always gives a float, // and % round towards minus infinity, + joins strings, lists and tuples,
 * * repeats them, % formats a string. Integers have 64 bits; a result beyond that is an error.
 */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

static mx_status overflow(const mx_jctx *c)
{
    return mx_jerror(c, "an integer is out of range; integers have 64 bits here");
}

static mx_status power(mx_jctx *c, int64_t base, int64_t exponent, mx_jv *out)
{
    int64_t r = 1;
    if (exponent < 0) {
        *out = mx_jv_float(pow((double)base, (double)exponent));
        return base ? MX_OK : mx_jerror(c, "0 cannot be raised to a negative power");
    }
    for (bool last = exponent == 0; !last;) {
        if ((exponent & 1) && __builtin_mul_overflow(r, base, &r))
            return overflow(c);
        exponent >>= 1;
        last = exponent == 0;
        if (!last && __builtin_mul_overflow(base, base, &base))
            return overflow(c);
    }
    *out = mx_jv_int(r);
    return MX_OK;
}

static mx_status integers(mx_jctx *c, int op, int64_t a, int64_t b, mx_jv *out)
{
    int64_t r = 0;
    bool bad = false;
    if ((op == '/' || op == '%' || op == MX_OP_FLOORDIV) && b == 0)
        return mx_jerror(c, "division by zero");
    switch (op) {
    case '+':
        bad = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        bad = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        bad = __builtin_mul_overflow(a, b, &r);
        break;
    case '/':
        *out = mx_jv_float((double)a / (double)b);
        return MX_OK;
    case MX_OP_POW:
        return power(c, a, b, out);
    default:
        bad = a == INT64_MIN && b == -1;
        if (!bad) {
            int64_t q = a / b, rest = a % b;
            bool adjust = rest && (rest < 0) != (b < 0);
            r = op == '%' ? rest + (adjust ? b : 0) : q - adjust;
        }
    }
    *out = mx_jv_int(r);
    return bad ? overflow(c) : MX_OK;
}

static mx_status reals(mx_jctx *c, int op, double a, double b, mx_jv *out)
{
    if ((op == '/' || op == '%' || op == MX_OP_FLOORDIV) && b == 0)
        return mx_jerror(c, "division by zero");
    double rest = op == '%' ? fmod(a, b) : 0;
    if (rest != 0 && (rest < 0) != (b < 0))
        rest += b;
    *out = mx_jv_float(op == '+'         ? a + b
                       : op == '-'       ? a - b
                       : op == '*'       ? a * b
                       : op == '/'       ? a / b
                       : op == MX_OP_POW ? pow(a, b)
                       : op == '%'       ? rest
                                         : floor(a / b));
    return MX_OK;
}

static mx_status repeat(mx_jctx *c, mx_jv v, int64_t times, mx_jv *out)
{
    times = times < 0 ? 0 : times;
    size_t n = v.kind == MX_JV_STRING ? v.s->n : v.list->n,
           size = v.kind == MX_JV_STRING ? 1 : sizeof(mx_jv), all;
    if (__builtin_mul_overflow(n * size, (size_t)times, &all))
        all = SIZE_MAX;
    MX_TRY(mx_jreserve(c, all));
    MX_TRY(mx_jcharge(c, all / 16));
    if (v.kind != MX_JV_STRING) {
        *out = mx_jv_list(c, v.kind, n * (size_t)times);
        for (int64_t t = 0; n && t < times; t++)
            for (size_t i = 0; i < n; i++)
                mx_jv_push(c, out->list, v.list->v[i]);
        return MX_OK;
    }
    char *p = mx_arena_alloc(&c->arena, all);
    for (int64_t t = 0; n && t < times; t++)
        memcpy(p + (size_t)t * n, v.s->p, n);
    *out = mx_jv_part(c, p, all);
    return MX_OK;
}

static mx_status join(mx_jctx *c, mx_jv a, mx_jv b, mx_jv *out)
{
    if (a.kind == MX_JV_STRING) {
        size_t n = a.s->n + b.s->n;
        MX_TRY(mx_jreserve(c, n));
        MX_TRY(mx_jcharge(c, n / 16));
        char *p = mx_arena_alloc(&c->arena, n);
        memcpy(p, a.s->p, a.s->n);
        memcpy(p + a.s->n, b.s->p, b.s->n);
        *out = mx_jv_part(c, p, n);
        return MX_OK;
    }
    MX_TRY(mx_jreserve(c, (a.list->n + b.list->n) * sizeof(mx_jv)));
    MX_TRY(mx_jcharge(c, a.list->n + b.list->n));
    *out = mx_jv_list(c, a.kind, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++)
        mx_jv_push(c, out->list, a.list->v[i]);
    for (size_t i = 0; i < b.list->n; i++)
        mx_jv_push(c, out->list, b.list->v[i]);
    return MX_OK;
}

mx_status mx_jbinary(mx_jctx *c, int op, mx_jv a, mx_jv b, mx_jv *out)
{
    int64_t i, j;
    double x, y;
    bool repeatable_a = a.kind == MX_JV_STRING || a.kind == MX_JV_LIST || a.kind == MX_JV_TUPLE;
    bool repeatable_b = b.kind == MX_JV_STRING || b.kind == MX_JV_LIST || b.kind == MX_JV_TUPLE;
    if (mx_jv_integer(a, &i) && mx_jv_integer(b, &j))
        return integers(c, op, i, j, out);
    if (mx_jv_number(a, &x) && mx_jv_number(b, &y))
        return reals(c, op, x, y, out);
    if (op == '%' && a.kind == MX_JV_STRING)
        return mx_jtext_percent(c, a.s, b, out);
    if (op == '*' && repeatable_a && mx_jv_integer(b, &j))
        return repeat(c, a, j, out);
    if (op == '*' && repeatable_b && mx_jv_integer(a, &i))
        return repeat(c, b, i, out);
    if (op == '+' && repeatable_a && a.kind == b.kind)
        return join(c, a, b, out);
    const char *name = op == MX_OP_POW        ? "**"
                       : op == MX_OP_FLOORDIV ? "//"
                                              : (char[2]){(char)op, 0};
    if (a.kind == MX_JV_UNDEFINED || b.kind == MX_JV_UNDEFINED) {
        const char *hint = a.kind == MX_JV_UNDEFINED ? a.hint : b.hint;
        return mx_jerror(c, "'%.80s' is undefined and cannot be used with %s",
                         hint ? hint : "a value", name);
    }
    return mx_jerror(c, "unsupported operand types for %s: '%s' and '%s'%s", name, mx_jv_type(a),
                     mx_jv_type(b), op == '+' ? "; use ~ to join any values as text" : "");
}

mx_status mx_jcompare(mx_jctx *c, int op, mx_jv a, mx_jv b, bool *out)
{
    int order = 0;
    if (op == MX_OP_EQ || op == MX_OP_NE) {
        MX_TRY(mx_jv_equal(c, a, b, 0, out));
        *out ^= op == MX_OP_NE;
        return MX_OK;
    }
    if (op == MX_OP_IN || op == MX_OP_NOTIN) {
        MX_TRY(mx_jv_contains(c, b, a, out));
        *out ^= op == MX_OP_NOTIN;
        return MX_OK;
    }
    MX_TRY(mx_jv_order(c, a, b, 0, &order));
    bool nan = (a.kind == MX_JV_FLOAT && isnan(a.f)) || (b.kind == MX_JV_FLOAT && isnan(b.f));
    *out = !nan && (op == '<'        ? order < 0
                    : op == '>'      ? order > 0
                    : op == MX_OP_LE ? order <= 0
                                     : order >= 0);
    return MX_OK;
}
