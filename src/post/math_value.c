/* math_value.c - see math_value.h. Numbers are complex: i is the imaginary unit, e Euler's number,
 * and \sqrt{x^2} is not x, since variables are negative at some points.
 *
 *     sum     = product {(+ | -) product}
 *     product = power {[* | / | : | \cdot | \times | \div] power}
 *     power   = {+ | -} atom {! | ^\circ} [^ power]
 *     atom    = number [\frac digits digits] | letter [_ index] | greek letter | \pi | \infty
 *             | (sum) | {sum} | {sum \over sum} | {sum \choose sum} | |sum| | \frac sum sum
 *             | \binom sum sum | \sqrt [sum] sum | \lfloor sum \rfloor | \lceil sum \rceil
 *             | function [^ power] argument | \log [_ atom] argument
 *     argument = (sum) | the factors that follow without a sign
 */
#include "post/math_value.h"

#include "base/str.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 40 };

typedef struct {
    const char *p;
    int depth, point;
    bool bad, angle; /* angle: in the argument of a sine, where degrees count */
} reader;

static double complex sum(reader *r);
static double complex power(reader *r);

static bool take(reader *r, const char *text)
{
    if (!mx_starts_with(r->p, text))
        return false;
    r->p += strlen(text);
    return true;
}

/* A command and the space that ends its name: no letter follows, so that \sin is not \sinh. */
static bool command(reader *r, const char *name)
{
    size_t n = strlen(name);
    if (!mx_starts_with(r->p, name) || isalpha((unsigned char)r->p[n]))
        return false;
    r->p += n + (r->p[n] == ' ');
    return true;
}

static double complex fail(reader *r)
{
    r->bad = true;
    return NAN;
}

/* --- letters --- */

/* A variable at one of the points: any numbers between -2 and 2 that no identity is made for. */
static double variable(const char *name, size_t n, int point)
{
    double key = 0;
    for (size_t i = 0; i < n; i++)
        if (isalnum((unsigned char)name[i]))
            key = fmod(key * 131 + (double)name[i], 1e6);
    return 4 * fmod(0.754877666 * key + 0.569840296 * (double)(point + 1), 1.0) - 2;
}

/* A name of n bytes at r->p, with its index: x_1, \alpha_{n}. */
static double complex named(reader *r, size_t n)
{
    const char *from = r->p;
    r->p += n;
    if (*r->p == '_' && isalnum((unsigned char)r->p[1]))
        r->p += 2;
    else if (mx_starts_with(r->p, "_{") && strchr(r->p, '}'))
        r->p = strchr(r->p, '}') + 1;
    return variable(from, (size_t)(r->p - from), r->point);
}

static double complex letter(reader *r)
{
    if (r->p[1] != '_' && (take(r, "e") || take(r, "i")))
        return r->p[-1] == 'e' ? exp(1) : I;
    return named(r, 1);
}

static double complex greek(reader *r)
{
    static const char *const letters[] = {
        "\\alpha", "\\beta", "\\gamma", "\\delta", "\\epsilon", "\\varepsilon", "\\zeta", "\\eta",
        "\\theta", "\\kappa", "\\lambda", "\\mu", "\\nu", "\\xi", "\\rho", "\\sigma", "\\tau",
        "\\phi", "\\varphi", "\\chi", "\\psi", "\\omega", "\\Delta", "\\Omega", "\\Phi"};
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        size_t n = strlen(letters[i]);
        if (mx_starts_with(r->p, letters[i]) && !isalpha((unsigned char)r->p[n]))
            return named(r, n);
    }
    return fail(r);
}

/* --- functions --- */

static double complex quotient(double complex a, double complex b)
{
    if (b == 0)
        return NAN;
    return cimag(a) == 0 && cimag(b) == 0 ? creal(a) / creal(b) : a / b;
}

static double complex raised(double complex x, double complex y)
{
    bool real = cimag(x) == 0 && cimag(y) == 0;
    return real && (creal(x) >= 0 || creal(y) == floor(creal(y))) ? pow(creal(x), creal(y)) :
           cpow(x, y);
}

static double complex secant(double complex x)
{
    return 1 / ccos(x);
}

static double complex cosecant(double complex x)
{
    return 1 / csin(x);
}

static double complex cotangent(double complex x)
{
    return 1 / ctan(x);
}

typedef double complex (*function)(double complex);

static const struct {
    const char *name;
    function of, inverse;
    bool angle;
} functions[] = {{"\\sin", csin, casin, true},     {"\\cos", ccos, cacos, true},
                 {"\\tan", ctan, catan, true},     {"\\sec", secant, NULL, true},
                 {"\\csc", cosecant, NULL, true},  {"\\cot", cotangent, NULL, true},
                 {"\\sinh", csinh, casinh, false}, {"\\cosh", ccosh, cacosh, false},
                 {"\\tanh", ctanh, catanh, false}, {"\\arcsin", casin, NULL, false},
                 {"\\arccos", cacos, NULL, false}, {"\\arctan", catan, NULL, false},
                 {"\\ln", clog, NULL, false},      {"\\exp", cexp, NULL, false}};

/* What a function is of: a bracket, or the factors that follow without a sign: \sin 2x. */
static double complex argument(reader *r)
{
    if (*r->p == '(' || *r->p == '{' || *r->p == '-')
        return power(r);
    double complex x = power(r);
    while (!r->bad && (isalnum((unsigned char)*r->p) || mx_starts_with(r->p, "\\pi")))
        x *= power(r);
    return x;
}

static double complex apply(reader *r, size_t i)
{
    double complex exponent = 1;
    function of = functions[i].of;
    if (functions[i].inverse && (take(r, "^{-1}") || take(r, "^-1")))
        of = functions[i].inverse;
    else if (take(r, "^"))
        exponent = power(r);
    bool before = r->angle;
    r->angle = functions[i].angle;
    double complex y = of(argument(r));
    r->angle = before;
    return raised(y, exponent);
}

/* \log x is the common one. */
static double complex logarithm(reader *r)
{
    double complex base = 10;
    if (take(r, "_")) {
        base = isdigit((unsigned char)*r->p) ? *r->p++ - '0' : power(r);
        take(r, " ");
    }
    return clog(argument(r)) / clog(base);
}

/* n! for whole numbers, else gamma. */
static double complex factorial(double complex x)
{
    return cimag(x) == 0 && creal(x) > -1 ? round(creal(x)) == creal(x) ?
           round(tgamma(creal(x) + 1)) : tgamma(creal(x) + 1) : NAN;
}

static double complex choose(double complex n, double complex k)
{
    return factorial(n) / factorial(k) / factorial(n - k);
}

/* --- expressions --- */

static double complex bracketed(reader *r, const char *close)
{
    double complex x = sum(r);
    return take(r, close) ? x : fail(r);
}

static double complex braced(reader *r)
{
    double complex x = sum(r);
    if (command(r, "\\over"))
        x = quotient(x, sum(r));
    else if (command(r, "\\choose"))
        x = choose(x, sum(r));
    return take(r, "}") ? x : fail(r);
}

/* What \frac, \sqrt take: {sum}, or one digit or letter. */
static double complex operand(reader *r)
{
    if (take(r, "{"))
        return braced(r);
    if (isdigit((unsigned char)*r->p))
        return *r->p++ - '0';
    if (*r->p == '\\')
        return power(r);
    return isalpha((unsigned char)*r->p) ? letter(r) : fail(r);
}

static bool fraction(reader *r)
{
    return command(r, "\\frac") || command(r, "\\dfrac") || command(r, "\\tfrac");
}

static double complex root(reader *r)
{
    double complex n = take(r, "[") ? bracketed(r, "]") : 2, x = operand(r);
    bool real = cimag(n) == 0 && cimag(x) == 0;
    if (real && (creal(x) >= 0 || fmod(creal(n), 2) == 1))
        return copysign(pow(fabs(creal(x)), 1 / creal(n)), creal(x));
    return cpow(x, 1 / n);
}

static double complex from_command(reader *r)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (command(r, functions[i].name))
            return apply(r, i);
    if (command(r, "\\log") || command(r, "\\lg"))
        return logarithm(r);
    bool binomial = command(r, "\\binom") || command(r, "\\dbinom") || command(r, "\\tbinom");
    if (binomial || fraction(r)) {
        double complex above = operand(r), below = operand(r);
        return binomial ? choose(above, below) : quotient(above, below);
    }
    if (command(r, "\\sqrt"))
        return root(r);
    if (command(r, "\\lfloor"))
        return floor(creal(bracketed(r, "\\rfloor")));
    if (command(r, "\\lceil"))
        return ceil(creal(bracketed(r, "\\rceil")));
    if (command(r, "\\infty"))
        return INFINITY;
    return command(r, "\\pi") ? acos(-1) : greek(r);
}

/* {12}, or one digit. */
static bool whole(reader *r, double *x)
{
    bool brace = take(r, "{");
    size_t n = strspn(r->p, "0123456789");
    if (!n || n > 15)
        return false;
    *x = brace ? (double)strtoll(r->p, NULL, 10) : *r->p - '0';
    r->p += brace ? n : 1;
    return !brace || take(r, "}");
}

/* What follows a whole number in a mixed one, 3\frac{1}{2}; 0: nothing does. */
static double mixed(reader *r)
{
    reader ahead = *r;
    double above, below;
    if (!fraction(&ahead) || !whole(&ahead, &above) || !whole(&ahead, &below) || below == 0)
        return 0;
    *r = ahead;
    return above / below;
}

static double complex number(reader *r)
{
    char digits[64];
    size_t n = strspn(r->p, "0123456789."), k = n;
    if (r->p[n] == 'e' || r->p[n] == 'E') { /* 1.2e3, 1e-3 */
        size_t sign = r->p[n + 1] == '-' || r->p[n + 1] == '+';
        size_t more = strspn(r->p + n + 1 + sign, "0123456789");
        k = more ? n + 1 + sign + more : n;
    }
    if (k >= sizeof digits)
        return fail(r);
    memcpy(digits, r->p, k);
    digits[k] = 0;
    r->p += k;
    double x = strtod(digits, NULL);
    return k == n && !strchr(digits, '.') ? x + mixed(r) : x;
}

static double complex atom(reader *r)
{
    if (isdigit((unsigned char)*r->p) || (*r->p == '.' && isdigit((unsigned char)r->p[1])))
        return number(r);
    if (take(r, "("))
        return bracketed(r, ")");
    if (take(r, "{"))
        return braced(r);
    if (take(r, "|"))
        return cabs(bracketed(r, "|"));
    if (*r->p == '\\')
        return from_command(r);
    return isalpha((unsigned char)*r->p) ? letter(r) : fail(r);
}

static double complex power(reader *r)
{
    double sign = 1;
    if (++r->depth > DEEPEST)
        return fail(r);
    while (*r->p == '-' || *r->p == '+')
        sign = *r->p++ == '-' ? -sign : sign;
    double complex x = atom(r);
    for (bool more = true; more && !r->bad;) {
        bool degrees = take(r, "^\\circ") || take(r, "^{\\circ}");
        if (degrees && r->angle)
            x *= acos(-1) / 180;
        more = degrees || take(r, "!");
        if (more && !degrees)
            x = factorial(x);
    }
    if (take(r, "^"))
        x = raised(x, power(r));
    r->depth--;
    if (sign < 0)
        x = cimag(x) == 0 ? -creal(x) : -x; /* an imaginary part of -0 has other roots */
    return x;
}

static bool ends_product(const reader *r)
{
    return !*r->p || strchr("+-)}]|,=<>", *r->p) || mx_starts_with(r->p, "\\over") ||
           mx_starts_with(r->p, "\\choose") || mx_starts_with(r->p, "\\rfloor") ||
           mx_starts_with(r->p, "\\rceil");
}

static double complex product(reader *r)
{
    double complex x = power(r);
    while (!r->bad && !ends_product(r)) {
        bool divides = take(r, "/") || command(r, "\\div") || take(r, ":");
        bool sign = divides || take(r, "*") || command(r, "\\cdot") || command(r, "\\times");
        (void)sign; /* without one they are multiplied too: 2x */
        double complex y = power(r);
        x = divides ? quotient(x, y) : x * y;
    }
    return x;
}

static double complex sum(reader *r)
{
    if (++r->depth > DEEPEST)
        return fail(r);
    double complex x = product(r); /* not from 0: infinite values keep no NaN beside them */
    while (!r->bad && (*r->p == '+' || *r->p == '-'))
        x += product(r);
    r->depth--;
    return x;
}

bool mx_math_value(const char *text, int point, double complex *out)
{
    reader r = {.p = text, .point = point};
    *out = sum(&r);
    bool finite = isfinite(creal(*out)) && isfinite(cimag(*out));
    return !r.bad && !*r.p && (finite || (isinf(creal(*out)) && strstr(text, "\\infty")));
}

bool mx_math_same(double complex a, double complex b)
{
    if (isinf(creal(a)) || isinf(creal(b)))
        return creal(a) == creal(b);
    return cabs(a - b) <= 1e-6 + 1e-11 * cabs(b);
}
