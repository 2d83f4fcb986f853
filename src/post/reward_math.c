/* reward_math.c - reward=math: is the answer mathematically the record's, both in LaTeX or plain?
 *
 * What counts is the last \boxed{...}, else what <answer> holds, else the whole answer. Marks that
 * only typeset, units and words after a number are left out. Answers are the same where
 *
 *     their texts are, words in capitals or not
 *     5 and x = 5: the name of what is asked counts for nothing
 *     1, 2 and 2, 1 and \{1, 2\} and x = 1 or x = 2: elements in any order; so for \cup
 *     (1, 2] and (1, \frac{4}{2}]: pairs, intervals, matrices where their elements are, in order
 *     y = 2x + 3 and 2x - y = -3, x > 3 and 3 < x: one's difference is a multiple of the other's
 *     1 < x < 3 and (1, 3)
 *     50\% and 50 and 0.5
 *     their values are, to six decimals, at points that stand for variables (math_value.h)
 */
#include "base/str.h"
#include "post/math_value.h"
#include "post/reward.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 512, ELEMENTS = 32, NESTED = 6 };

/* Marks of a tidied text. */
#define SET_OPEN '\1'
#define SET_CLOSE '\2'
#define UNION '\3'
#define PLUS_MINUS '\4'
#define NEXT_ROW '\5'

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

/* What is written otherwise, or not at all; the longer of two that begin alike is before the other.
 */
static const char *const rewritten[][2] = {
    {"\\\\", "\5"}, {"\\left", ""}, {"\\right", ""}, {"\\bigl", ""}, {"\\bigr", ""},
    {",\\!", ""}, {"{,}", ""}, {"\\,", ""}, {"\\!", ""}, {"\\;", ""}, {"\\:", ""}, {"\\ ", ""},
    {"~", ""}, {"\\$", ""}, {"$", ""}, {"\\displaystyle", ""}, {"\\quad", ""},
    {"\\lvert", "|"}, {"\\rvert", "|"}, {"\\vert", "|"}, {"\\mid", "|"},
    {"\\leqslant", "<="}, {"\\leq", "<="}, {"\\le", "<="}, {"\\geqslant", ">="}, {"\\geq", ">="},
    {"\\ge", ">="}, {"\\lt", "<"}, {"\\gt", ">"}, {"\\approx", "="},
    {"\\{", "\1"}, {"\\}", "\2"}, {"\\emptyset", "\1\2"}, {"\\varnothing", "\1\2"},
    {"\\cup", "\3"}, {"\\pm", "\4"}, {"\\mathbb{R}", "(-\\infty,\\infty)"}, {"+\\infty", "\\infty"},
    {"\xc2\xb0", "^\\circ"}, {"\xcf\x80", "\\pi"}, {"\xc3\x97", "*"}, {"\xc2\xb7", "*"},
    {"\xe2\x88\x9e", "\\infty"}, {"\xe2\x88\x92", "-"}, {"\xe2\x89\xa4", "<="},
    {"\xe2\x89\xa5", ">="}, {"\xe2\x89\x88", "="}, {"\xc2\xb1", "\4"}, {"\xe2\x88\xaa", "\3"}};

typedef struct {
    char text[2 * LONGEST + 1];
    size_t n;
    bool percent;
} answer;

static void put(answer *a, const char *text, size_t n)
{
    for (size_t i = 0; i < n && a->n < sizeof a->text - 1; i++)
        a->text[a->n++] = text[i];
    a->text[a->n] = 0;
}

static bool letters(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalpha((unsigned char)p[i]))
            return false;
    return n > 0;
}

/* The word at p is "or" or "and". */
static size_t joins(const char *p)
{
    size_t n = mx_starts_with(p, "or") ? 2 : mx_starts_with(p, "and") ? 3 : 0;
    return n && !isalnum((unsigned char)p[n]) ? n : 0;
}

/* The length of \text{...} and the like at p, 0: there is none. Words that join are a comma, those
 * after something are units, with their exponent. */
static size_t words(const char *p, answer *a)
{
    static const char *const marks[] = {"\\text{", "\\mathrm{", "\\textbf{", "\\mbox{",
                                        "\\mathbf{"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *from = p + strlen(marks[i]), *end = p + strlen(p);
        if (!mx_starts_with(p, marks[i]) || !(end = closing(from - 1, end, '{', '}')))
            continue;
        size_t n = (size_t)(end + 1 - p);
        while (*from == ' ')
            from++;
        if (joins(from)) {
            put(a, ",", 1);
        } else if (!a->n || i == 4 || !strchr("})0123456789", a->text[a->n - 1])) {
            for (; from < end; from++)
                put(a, from, *from != ' ');
        } else if (p[n] == '^') {
            n += p[n + 1] == '{' ? strcspn(p + n, "}") + 1 : 2;
        }
        return n;
    }
    return 0;
}

/* Words of two letters and more after a number, to the end: "5 cm", "3 square metres". */
static bool unit_follows(const char *p)
{
    if (*p != ' ')
        return false;
    while (*p == ' ') {
        size_t n = strcspn(++p, " ");
        if (n < 2 || !letters(p, n) || joins(p))
            return false;
        p += n;
    }
    return !*p;
}

/* A space: one that ends a command's name stays, "3 1/2" is 3\frac{1}{2}, and two other numbers
 * stay apart unless the second is thousands. Returns the bytes taken. */
static size_t space(const char *raw, const char *p, answer *a)
{
    size_t name = a->n;
    while (name && isalpha((unsigned char)a->text[name - 1]))
        name--;
    if (name && name < a->n && a->text[name - 1] == '\\' && isalpha((unsigned char)p[1])) {
        put(a, " ", 1);
        return 1;
    }
    if (p == raw || !isdigit((unsigned char)p[-1]))
        return 1;
    size_t n = strspn(p + 1, "0123456789");
    size_t k = n && p[1 + n] == '/' ? strspn(p + 2 + n, "0123456789") : 0;
    if (k) {
        char part[64];
        int wrote = snprintf(part, sizeof part, "\\frac{%.*s}{%.*s}", (int)(n < 20 ? n : 20), p + 1,
                             (int)(k < 20 ? k : 20), p + 2 + n);
        put(a, part, (size_t)wrote);
        return n + k + 2;
    }
    put(a, " ", n > 0 && n != 3);
    return 1;
}

/* One mark of the text; the bytes taken. */
static size_t mark(const char *raw, const char *p, answer *a)
{
    bool digit = p > raw && isdigit((unsigned char)p[-1]);
    size_t n = words(p, a);
    if (n)
        return n;
    if (*p == '%' || mx_starts_with(p, "\\%")) {
        a->percent = true;
        return *p == '%' ? 1 : 2;
    }
    if (digit && unit_follows(p))
        return strlen(p);
    if (*p == ' ' && joins(p + 1)) {
        put(a, ",", 1);
        return 1 + joins(p + 1);
    }
    if (isspace((unsigned char)*p))
        return space(raw, p, a);
    for (size_t i = 0; i < sizeof rewritten / sizeof *rewritten; i++) {
        n = strlen(rewritten[i][0]);
        if (mx_starts_with(p, rewritten[i][0]) &&
            !(*p == '\\' && letters(p + n - 1, 2) && p[n - 1] != '}')) {
            put(a, rewritten[i][1], strlen(rewritten[i][1]));
            return n;
        }
    }
    bool thousands = *p == ',' && digit && strspn(p + 1, "0123456789") == 3 &&
                     !strpbrk(raw, "([{");
    put(a, p, !thousands);
    return 1;
}

/* False: the text is longer than answers are. */
static bool tidy(const char *text, size_t n, answer *a)
{
    char raw[LONGEST + 1];
    *a = (answer){0};
    while (n && isspace((unsigned char)*text))
        text++, n--;
    while (n && (isspace((unsigned char)text[n - 1]) || text[n - 1] == '.'))
        n--;
    if (n > LONGEST)
        return false;
    memcpy(raw, text, n);
    raw[n] = 0;
    for (const char *p = raw; *p;)
        p += mark(raw, p, a);
    while (a->n && a->text[a->n - 1] == '.')
        a->text[--a->n] = 0;
    return true;
}

/* --- equal? --- */

static bool same(char *a, char *b, int depth);

static bool same_value(const char *a, const char *b, double scale)
{
    for (int point = 0; point < MX_MATH_POINTS; point++) {
        double complex x, y;
        if (!mx_math_value(a, point, &x) || !mx_math_value(b, point, &y) ||
            !mx_math_same(x * scale, y))
            return false;
    }
    return true;
}

/* a - b is everywhere the same multiple of c - d; of a positive one where they are inequalities. */
static bool same_difference(const char *const side[4], bool positive)
{
    double complex first = 0;
    for (int point = 0; point < MX_MATH_POINTS; point++) {
        double complex v[4];
        for (int i = 0; i < 4; i++)
            if (!mx_math_value(side[i], point, &v[i]))
                return false;
        double complex x = v[0] - v[1], y = v[2] - v[3], ratio = x / y;
        if (cabs(x) < 1e-9 || cabs(y) < 1e-9 || !isfinite(cabs(ratio)))
            return false;
        first = point ? first : ratio;
        if (cabs(ratio - first) > 1e-7 * cabs(first))
            return false;
    }
    return !positive || creal(first) > 0;
}

/* The length of the first piece of a text: to one of the marks outside of brackets, or all. */
static size_t piece(const char *p, const char *marks)
{
    int depth = 0;
    size_t n = 0;
    for (; p[n] && !(depth == 0 && strchr(marks, p[n])); n++)
        depth += strchr("([{\1", p[n]) ? 1 : strchr(")]}\2", p[n]) ? -1 : 0;
    return n;
}

/* Pieces in order, with the same marks between them. */
static bool same_pieces(char *a, char *b, const char *marks, int depth)
{
    for (;;) {
        size_t n = piece(a, marks), k = piece(b, marks);
        char mark = a[n];
        if (mark != b[k])
            return false;
        a[n] = b[k] = 0;
        if (!same(a, b, depth + 1))
            return false;
        if (!mark)
            return true;
        a += n + 1;
        b += k + 1;
    }
}

/* The name of what is asked: x, f(x), \angle A. */
static bool is_name(const char *p, size_t n)
{
    if (!n || n > 24 || !(isalpha((unsigned char)*p) || (*p == '\\' && n > 1)))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && !strchr("\\_(){}' ", p[i]))
            return false;
    return true;
}

/* --- inequalities --- */

typedef struct {
    char *side[3];
    bool or_equal[2];
    int n; /* sides; all signs are < */
} chain;

/* False: it is none. The text is cut up. */
static bool read_chain(char *text, chain *c)
{
    char sign[2];
    *c = (chain){.side = {text}, .n = 1};
    for (char *p = text; (p = strpbrk(p, "<>"));) {
        if (c->n == 3)
            return false;
        sign[c->n - 1] = *p;
        c->or_equal[c->n - 1] = p[1] == '=';
        *p++ = 0;
        p += *p == '=';
        c->side[c->n++] = p;
    }
    if (c->n == 1 || (c->n == 3 && sign[0] != sign[1]))
        return false;
    if (sign[0] == '>') {
        char *first = c->side[0];
        bool equal = c->or_equal[0];
        c->side[0] = c->side[c->n - 1];
        c->side[c->n - 1] = first;
        c->or_equal[0] = c->or_equal[c->n - 2];
        c->or_equal[c->n - 2] = equal;
    }
    return true;
}

/* What the numbers are that a chain allows its variable: 1 < x is (1,\infty). */
static bool interval_of(const chain *c, char *out, size_t cap)
{
    bool below = c->n == 2 && is_name(c->side[0], strlen(c->side[0]));
    const char *name = below ? c->side[0] : c->side[1];
    if (!is_name(name, strlen(name)))
        return false;
    const char *from = below ? "-\\infty" : c->side[0];
    const char *to = below ? c->side[1] : c->n == 3 ? c->side[2] : "\\infty";
    bool with = !below && c->or_equal[0], with_end = c->n == 3 ? c->or_equal[1] :
                below && c->or_equal[0];
    return snprintf(out, cap, "%c%s,%s%c", with ? '[' : '(', from, to, with_end ? ']' : ')') <
           (int)cap;
}

static bool same_chain(char *a, char *b, int depth)
{
    chain x, y;
    bool first = strpbrk(a, "<>") != NULL, second = strpbrk(b, "<>") != NULL;
    if ((first && !read_chain(a, &x)) || (second && !read_chain(b, &y)))
        return false;
    if (first && second) {
        bool alike = x.n == y.n && x.or_equal[0] == y.or_equal[0] && x.or_equal[1] == y.or_equal[1];
        if (x.n == 2)
            return alike && same_difference((const char *[]){x.side[0], x.side[1], y.side[0],
                                                             y.side[1]}, true);
        for (int i = 0; i < 3 && alike; i++)
            alike = same(x.side[i], y.side[i], depth + 1);
        return alike;
    }
    char interval[LONGEST];
    return interval_of(first ? &x : &y, interval, sizeof interval) &&
           same(first ? interval : a, first ? b : interval, depth + 1);
}

/* --- one element --- */

/* Bodies of \begin{pmatrix}...\end{pmatrix}, cut off; NULL: the text is no matrix. */
static char *matrix(char *text)
{
    char *end = strstr(text, "\\end{");
    if (!mx_starts_with(text, "\\begin{") || !end || !strchr(text, '}') ||
        mx_starts_with(text, "\\begin{vmatrix"))
        return NULL;
    *end = 0;
    return strchr(text, '}') + 1;
}

static bool same_equation(char *a, char *b, int depth)
{
    char *left = strchr(a, '='), *right = strchr(b, '=');
    if (!left || !right) { /* one of them: of "x = 2 + 3 = 5" what is after the last sign */
        char *with = left ? a : b, *last = strrchr(with, '=');
        size_t name = strcspn(with, "=");
        return (name == 0 || is_name(with, name)) &&
               same(left ? last + 1 : a, left ? b : last + 1, depth + 1);
    }
    *left++ = *right++ = 0;
    if (strcmp(a, b) == 0)
        return same(left, right, depth + 1);
    return same_difference((const char *[]){a, left, b, right}, false);
}

static bool same_words(const char *a, const char *b)
{
    return letters(a, strlen(a)) && a[1] && strcasecmp(a, b) == 0;
}

static bool same_one(char *a, char *b, int depth)
{
    size_t n = strlen(a), k = strlen(b);
    if (!n || !k)
        return false;
    if (strcmp(a, b) == 0 || same_words(a, b))
        return true;
    if (strpbrk(a, "<>") || strpbrk(b, "<>"))
        return same_chain(a, b, depth);
    if (strchr(a, '=') || strchr(b, '='))
        return same_equation(a, b, depth);
    if (mx_starts_with(a, "\\begin{")) {
        char *x = matrix(a), *y = matrix(b);
        return x && y && same_pieces(x, y, "&\5", depth);
    }
    bool pair = n > 2 && k > 2 && strchr("([", *a) && strchr(")]", a[n - 1]) && *a == *b &&
                a[n - 1] == b[k - 1];
    if (pair && piece(a + 1, ",") < n - 2) { /* (1, 2]: brackets alike, elements one by one */
        a[n - 1] = b[k - 1] = 0;
        return same_pieces(a + 1, b + 1, ",", depth);
    }
    return same_value(a, b, 1);
}

/* --- elements in any order --- */

typedef struct {
    char text[ELEMENTS][LONGEST];
    int n;
    bool bad;
} elements;

/* \pm is two elements. */
static void add_element(elements *e, const char *p, size_t n)
{
    const char *both = memchr(p, PLUS_MINUS, n);
    for (int i = 0; i < (both ? 2 : 1); i++) {
        if (e->n == ELEMENTS || n >= LONGEST) {
            e->bad = true;
            return;
        }
        char *to = e->text[e->n++];
        memcpy(to, p, n);
        to[n] = 0;
        if (both)
            to[both - p] = i ? '-' : '+';
    }
}

static void add_elements(elements *e, const char *p, size_t n)
{
    while (n > 0) {
        size_t k = piece(p, ",");
        k = k < n ? k : n;
        add_element(e, p, k);
        if (k == n)
            return;
        p += k + 1;
        n -= k + 1;
        if (n == 0) /* a comma at the end */
            add_element(e, p, 0);
    }
}

static void read_elements(elements *e, const char *p)
{
    e->n = 0;
    e->bad = false;
    for (bool more = true; more;) {
        size_t n = piece(p, "\3");
        more = p[n] == UNION;
        bool set = n >= 2 && *p == SET_OPEN && p[n - 1] == SET_CLOSE && piece(p + 1, "\2") == n - 2;
        add_elements(e, set ? p + 1 : p, set ? n - 2 : n);
        p += n + more;
    }
}

static bool all_found(const elements *a, const elements *b, int depth)
{
    bool all = true;
    for (int i = 0; i < a->n && all; i++) {
        all = false;
        for (int k = 0; k < b->n && !all; k++) {
            char x[LONGEST], y[LONGEST]; /* comparing cuts texts up */
            snprintf(x, sizeof x, "%s", a->text[i]);
            snprintf(y, sizeof y, "%s", b->text[k]);
            all = same_one(x, y, depth);
        }
    }
    return all;
}

/* What is after the sign of "x \in". */
static char *after_in(char *p)
{
    char *in = strstr(p, "\\in");
    bool is = in && !isalpha((unsigned char)in[3]) && is_name(p, (size_t)(in - p));
    return is ? in + 3 + (in[3] == ' ') : p;
}

static bool same(char *a, char *b, int depth)
{
    if (depth > NESTED || !*a || !*b)
        return false;
    if (strcmp(a, b) == 0)
        return true;
    elements *x = mx_realloc(NULL, 2 * sizeof *x), *y = x + 1;
    read_elements(x, after_in(a));
    read_elements(y, after_in(b));
    bool is = !x->bad && !y->bad && all_found(x, y, depth) && all_found(y, x, depth);
    mx_free(x);
    return is;
}

static double math(mx_reward_context *c, const mx_reward_input *j)
{
    char buf[64];
    answer is, want;
    const char *wanted = mx_reference_answer(j->record, buf, sizeof buf), *text;
    (void)c;
    if (!wanted)
        return NAN;
    size_t n, k = strlen(wanted);
    mx_extracted_answer(j, &text, &n);
    unboxed(&text, &n);
    unboxed(&wanted, &k);
    if (!tidy(wanted, k, &want) || !tidy(text, n, &is))
        return 0;
    if (is.percent != want.percent && same_value(is.text, want.text, is.percent ? 0.01 : 100))
        return 1;
    return same(is.text, want.text, 0);
}

const mx_reward mx_reward_math = {
    .name = "math",
    .doc = "1 where the answer (the last \\boxed{}, else as for exact) is equal as mathematics",
    .score = math,
};
