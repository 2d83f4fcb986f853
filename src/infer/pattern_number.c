/* pattern_number.c - JSON numbers between two bounds.
 *
 * A number is a sign and a magnitude of n digits before the point and at most 15 - n after it, so
 * that doubles keep every one apart. For each n the digits are followed from the left, with the
 * digits of the bounds beside them: as long as they are equal to those of a bound (the number is
 * "at" it), the next digit is held to the bound's next one; after that any digit may come.
 */
#include "infer/pattern_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 15 };

/* A magnitude as digits before and after the point, with zeros in front and after. */
typedef struct {
    char digit[2 * DIGITS + 1]; /* [0, DIGITS): before the point */
} decimal;

/* One sign's half of a range. */
typedef struct {
    mx_arena *a;
    decimal least, most;
    bool above, below;
    int n; /* digits before the point */
    int n_after;
} span;

static bool to_decimal(double x, decimal *d)
{
    char s[64], want[64];
    snprintf(want, sizeof want, "%.*g", DIGITS, x);
    if (!(x >= 0) || x >= 1e15 || strtod(want, NULL) != x)
        return false;
    /* the shortest of the places after the point that give x back */
    for (int places = 0; places <= DIGITS; places++) {
        int n = snprintf(s, sizeof s, "%.*f", places, x);
        if (strtod(s, NULL) != x)
            continue;
        int before = places ? n - places - 1 : n;
        memset(d->digit, '0', 2 * DIGITS);
        memcpy(d->digit + DIGITS - before, s, (size_t)before);
        if (places)
            memcpy(d->digit + DIGITS, s + before + 1, (size_t)places);
        return true;
    }
    return false;
}

static bool zeros(const char *s, int n)
{
    for (int i = 0; i < n; i++)
        if (s[i] != '0')
            return false;
    return true;
}

static mx_pattern *digit_between(mx_arena *a, int from, int to)
{
    return mx_pattern_chars(a, &(mx_char_range){(uint32_t)from, (uint32_t)to}, 1);
}

/* Whether the number may end before digit i, all later ones being 0. */
static bool may_end(const span *s, int i, bool at_least, bool at_most)
{
    bool low = zeros(s->least.digit + i, 2 * DIGITS - i);
    bool high = zeros(s->most.digit + i, 2 * DIGITS - i);
    return (!at_least || (low && !s->above)) && (!at_most || !high || !s->below);
}

static mx_pattern *digits_from(const span *s, int i, bool at_least, bool at_most);

/* Digit i and those after it. */
static mx_pattern *digit_and_rest(const span *s, int i, bool at_least, bool at_most)
{
    int from = at_least ? s->least.digit[i] : '0', to = at_most ? s->most.digit[i] : '9';
    mx_pattern *all = mx_pattern_never(s->a);
    if (i == DIGITS - s->n && s->n > 1 && from == '0')
        from = '1'; /* no zeros in front */
    while (from <= to) {
        bool low = at_least && from == s->least.digit[i];
        bool high = at_most && from == s->most.digit[i];
        int last = low || high ? from : at_most && to == s->most.digit[i] ? to - 1 : to;
        mx_pattern *p = digit_between(s->a, from, last);
        p = mx_pattern_then(s->a, p, digits_from(s, i + 1, low, high));
        all = mx_pattern_or(s->a, all, p);
        from = last + 1;
    }
    return all;
}

/* What may follow i digits. */
static mx_pattern *digits_from(const span *s, int i, bool at_least, bool at_most)
{
    mx_pattern *end = may_end(s, i, at_least, at_most) ? NULL : mx_pattern_never(s->a);
    if (i == DIGITS + s->n_after)
        return end;
    if (i < DIGITS) {
        if (at_least || at_most)
            return digit_and_rest(s, i, at_least, at_most);
        mx_pattern *rest =
            mx_pattern_repeat(s->a, digit_between(s->a, '0', '9'), DIGITS - i, DIGITS - i);
        return mx_pattern_then(s->a, rest, digits_from(s, DIGITS, false, false));
    }
    mx_pattern *more;
    if (at_least || at_most)
        more = digit_and_rest(s, i, at_least, at_most);
    else
        more = mx_pattern_repeat(s->a, digit_between(s->a, '0', '9'), i == DIGITS,
                                 DIGITS + s->n_after - i);
    if (i == DIGITS)
        more = mx_pattern_then(s->a, mx_pattern_literal(s->a, "."), more);
    else if (!at_least && !at_most)
        return more; /* it may be empty */
    return mx_pattern_or(s->a, end, more);
}

/* Magnitudes of n digits: the bounds are cut to what n digits can be. */
static mx_pattern *of_length(span s, bool whole)
{
    int first = DIGITS - s.n;
    bool at_least = zeros(s.least.digit, first), at_most = zeros(s.most.digit, first);
    if (!at_most) /* the bound has more digits: any number of n is below it */
        memset(s.most.digit, '9', sizeof s.most.digit);
    s.n_after = whole ? 0 : DIGITS - s.n;
    if (!at_least)
        return mx_pattern_never(s.a); /* the least has more digits */
    if (s.n > 1 && s.least.digit[first] == '0')
        at_least = false; /* and here fewer */
    return digit_and_rest(&s, first, at_least, at_most);
}

static mx_pattern *magnitudes(span s, bool whole)
{
    mx_pattern *all = mx_pattern_never(s.a);
    for (s.n = 1; s.n <= DIGITS; s.n++)
        all = mx_pattern_or(s.a, all, of_length(s, whole));
    return all;
}

/* The range's numbers of one sign, as magnitudes from `least` to `most`, both at least 0. */
static mx_status of_sign(mx_arena *a, const mx_number_range *r, mx_pattern **out)
{
    span s = {.a = a, .above = r->above, .below = r->below};
    double least = fmax(r->least, 0) + 0.0, most = fmin(r->most, 999999999999999.0); /* no -0 */
    *out = mx_pattern_never(a);
    if (r->least < 0)
        s.above = false;
    if (r->most > most)
        s.below = false;
    if (r->most < 0 || least > 999999999999999.0 || least > most)
        return MX_OK;
    if (!to_decimal(least, &s.least) || !to_decimal(most, &s.most))
        return mx_fail(MX_USAGE, "a bound has more than %d digits, before and after its point",
                       DIGITS);
    *out = magnitudes(s, r->whole);
    return MX_OK;
}

mx_status mx_pattern_json_number(mx_arena *a, const mx_number_range *r, mx_pattern **out)
{
    mx_number_range below_zero = {-r->most, -r->least, r->below, r->above, r->whole};
    mx_pattern *negative = NULL;
    MX_TRY(of_sign(a, r, out));
    if (r->least >= 0)
        return MX_OK;
    MX_TRY(of_sign(a, &below_zero, &negative));
    negative = mx_pattern_then(a, mx_pattern_literal(a, "-"), negative);
    *out = mx_pattern_or(a, *out, negative);
    return MX_OK;
}
