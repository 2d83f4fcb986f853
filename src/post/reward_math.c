/* reward_math.c - reward=math: is the answer mathematically the record's, both in LaTeX or plain?
 *
 * What counts is the last \boxed{...}, else what <answer> holds, else the whole answer; of "x = 5"
 * what follows the sign. Marks that only typeset (\left, \text, spaces, $) are left out. Texts that
 * are then the same are equal; lists, pairs and intervals are where their elements are; others are
 * evaluated, their variables at three points, and are equal where the values agree to 1e-6. So
 * \frac{1}{2}, 0.5 and 2^{-1} are one answer, and so are (x+1)^2 and x^2+2x+1.
 *
 *     sum     = product {(+ | -) product}
 *     product = power {[* | / | \cdot | \times | \div] power}
 *     power   = {+ | -} atom [^ power]
 *     atom    = number | letter | \pi | (sum) | {sum} | |sum| | \frac sum sum | \sqrt [sum] sum
 *             | \sin, \cos, \tan, \ln, \log, \exp of a power
 * Equations, matrices and units are not understood: what cannot be evaluated is equal to the same
 * text only.
 */
#include "base/str.h"
#include "post/reward.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 512, DEEPEST = 40, POINTS = 3 };

/* --- the text that counts --- */

/* Where the bracket that `open` opens is closed; NULL: nowhere. */
static const char *closing(const char *p, const char *end, char open, char close)
{
    int depth = 0;
    for (; p < end; p++) {
        depth += *p == open;
        depth -= *p == close;
        if (!depth)
            return p;
    }
    return NULL;
}

static void unboxed(const char **text, size_t *n)
{
    static const char box[] = "\\boxed{";
    const char *end = *text + *n, *found = NULL, *close = NULL;
    for (const char *p = *text; p + strlen(box) <= end; p++)
        if (memcmp(p, box, strlen(box)) == 0)
            found = p + strlen(box) - 1;
    if (found && (close = closing(found, end, '{', '}'))) {
        *text = found + 1;
        *n = (size_t)(close - found - 1);
    }
}

/* The length of a mark at p that only typesets; 0: it is none. */
static size_t typesetting(const char *p)
{
    static const char *const marks[] = {"\\left", "\\right", "\\,", "\\!", "\\;", "\\:", "\\ ",
                                        "\\$", "\\%", "\\displaystyle", "\\text", "\\mathrm",
                                        "\\mathbf", "^\\circ", "^{\\circ}", "{,}", "$", "%"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (mx_starts_with(p, marks[i]))
            return strlen(marks[i]);
    return isspace((unsigned char)*p) ? 1 : 0;
}

/* Plain text of at most LONGEST bytes; false: it is longer. */
static bool tidy(const char *text, size_t n, char *out)
{
    char raw[LONGEST + 1];
    size_t k = 0;
    if (n > LONGEST)
        return false;
    memcpy(raw, text, n);
    raw[n] = 0;
    for (const char *p = raw; *p;) {
        size_t skip = typesetting(p);
        bool thousands = *p == ',' && p > raw && isdigit((unsigned char)p[-1]) &&
                         strspn(p + 1, "0123456789") == 3 && !strpbrk(raw, "([{");
        if (!skip && !thousands)
            out[k++] = *p;
        p += skip ? skip : 1;
    }
    while (k && out[k - 1] == '.')
        k--;
    out[k] = 0;
    char *equals = strrchr(out, '='); /* "x=5": one name before it */
    if (equals && equals == out + 1 && isalpha((unsigned char)*out))
        memmove(out, equals + 1, strlen(equals));
    return true;
}

/* --- its value --- */

typedef struct {
    const char *p;
    int depth, point;
    bool bad;
} reader;

static double sum(reader *r);

static bool take(reader *r, const char *text)
{
    if (!mx_starts_with(r->p, text))
        return false;
    r->p += strlen(text);
    return true;
}

static double fail(reader *r)
{
    r->bad = true;
    return NAN;
}

/* A variable at one of the points: any numbers that no identity is made for. */
static double variable(char name, int point)
{
    return 0.5 + fmod(0.754877666 * (double)name + 0.569840296 * (double)(point + 1), 1.0);
}

static double bracketed(reader *r, const char *close)
{
    double x = sum(r);
    return take(r, close) ? x : fail(r);
}

/* What \frac, \sqrt take: {sum}, or one digit or letter. */
static double argument(reader *r)
{
    if (take(r, "{"))
        return bracketed(r, "}");
    if (isdigit((unsigned char)*r->p))
        return *r->p++ - '0';
    if (isalpha((unsigned char)*r->p))
        return variable(*r->p++, r->point);
    return fail(r);
}

static double power(reader *r);

static double function(reader *r)
{
    static const struct {
        const char *name;
        double (*of)(double);
    } known[] = {{"\\sin", sin}, {"\\cos", cos}, {"\\tan", tan},
                 {"\\ln", log},  {"\\log", log10}, {"\\exp", exp}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (take(r, known[i].name))
            return known[i].of(power(r));
    if (take(r, "\\frac") || take(r, "\\dfrac") || take(r, "\\tfrac")) {
        double above = argument(r);
        return above / argument(r);
    }
    if (take(r, "\\sqrt")) {
        double root = take(r, "[") ? bracketed(r, "]") : 2;
        return pow(argument(r), 1 / root);
    }
    return take(r, "\\pi") ? acos(-1) : fail(r);
}

static double atom(reader *r)
{
    if (isdigit((unsigned char)*r->p) || (*r->p == '.' && isdigit((unsigned char)r->p[1]))) {
        char digits[64];
        size_t n = strspn(r->p, "0123456789.");
        if (n >= sizeof digits)
            return fail(r);
        memcpy(digits, r->p, n);
        digits[n] = 0;
        r->p += n;
        return strtod(digits, NULL);
    }
    if (take(r, "("))
        return bracketed(r, ")");
    if (take(r, "{"))
        return bracketed(r, "}");
    if (take(r, "|"))
        return fabs(bracketed(r, "|"));
    if (*r->p == '\\')
        return function(r);
    return isalpha((unsigned char)*r->p) ? variable(*r->p++, r->point) : fail(r);
}

static double power(reader *r)
{
    double sign = 1;
    if (++r->depth > DEEPEST)
        return fail(r);
    while (*r->p == '-' || *r->p == '+')
        sign = *r->p++ == '-' ? -sign : sign;
    double x = atom(r);
    if (take(r, "^"))
        x = pow(x, power(r));
    r->depth--;
    return sign * x;
}

static double product(reader *r)
{
    double x = power(r);
    while (!r->bad && *r->p && !strchr("+-)}]|,=", *r->p)) {
        bool divides = take(r, "/") || take(r, "\\div");
        bool sign = divides || take(r, "*") || take(r, "\\cdot") || take(r, "\\times");
        (void)sign; /* without one they are multiplied too: 2x */
        double y = power(r);
        x = divides ? x / y : x * y;
    }
    return x;
}

static double sum(reader *r)
{
    double x = 0;
    if (++r->depth > DEEPEST)
        return fail(r);
    do
        x += product(r);
    while (!r->bad && (*r->p == '+' || *r->p == '-'));
    r->depth--;
    return x;
}

/* --- equal? --- */

static bool same_value(const char *a, const char *b)
{
    for (int point = 0; point < POINTS; point++) {
        reader x = {.p = a, .point = point}, y = {.p = b, .point = point};
        double v = sum(&x), w = sum(&y);
        if (x.bad || y.bad || *x.p || *y.p || !isfinite(v) || !isfinite(w) ||
            fabs(v - w) > 1e-6 * fmax(1, fabs(w)))
            return false;
    }
    return true;
}

/* The length of the first element of a list: to a comma outside of brackets, or all. */
static size_t element(const char *p)
{
    int depth = 0;
    size_t n = 0;
    for (; p[n] && !(p[n] == ',' && depth == 0); n++)
        depth += strchr("([{", p[n]) ? 1 : strchr(")]}", p[n]) ? -1 : 0;
    return n;
}

static bool same_list(char *a, char *b)
{
    for (;;) {
        size_t n = element(a), k = element(b);
        bool more = a[n] == ',';
        if (more != (b[k] == ','))
            return false;
        a[n] = b[k] = 0;
        if (strcmp(a, b) != 0 && !same_value(a, b))
            return false;
        if (!more)
            return true;
        a += n + 1;
        b += k + 1;
    }
}

static bool equal(char *a, char *b)
{
    size_t n = strlen(a), k = strlen(b);
    if (!n || !k)
        return false;
    if (strcmp(a, b) == 0)
        return true;
    bool pair = n > 2 && k > 2 && strchr("([", *a) && strchr(")]", a[n - 1]) && *a == *b &&
                a[n - 1] == b[k - 1];
    if (pair && element(a + 1) < n - 2) { /* (1, 2]: brackets alike, elements one by one */
        a[n - 1] = b[k - 1] = 0;
        return same_list(a + 1, b + 1);
    }
    return same_list(a, b);
}

static double math(mx_reward_context *c, const mx_reward_input *j)
{
    char buf[64], is[LONGEST + 1], want[LONGEST + 1];
    const char *wanted = mx_reference_answer(j->record, buf, sizeof buf), *text;
    (void)c;
    if (!wanted)
        return NAN;
    size_t n, k = strlen(wanted);
    mx_extracted_answer(j, &text, &n);
    unboxed(&text, &n);
    unboxed(&wanted, &k);
    return tidy(wanted, k, want) && tidy(text, n, is) && equal(is, want);
}

const mx_reward mx_reward_math = {
    .name = "math",
    .doc = "1 where the answer (the last \\boxed{}, else as for exact) is equal as mathematics",
    .score = math,
};
