/* pattern_regex.c - regular expressions as patterns: a recursive descent, a function a level. */
#include "infer/pattern.h"

#include "base/utf8.h"
#include <string.h>

enum { MOST_DEPTH = 100, MOST_REPEAT = 1000, MOST_RANGES = 256, LAST_CHAR = 0x10ffff };

typedef struct {
    mx_arena *a;
    const uint8_t *at, *end, *text;
    bool in_string;
    int depth;
    mx_status error;
} reader;

static mx_pattern *wrong(reader *r, const char *what)
{
    if (!r->error)
        r->error = mx_fail(MX_USAGE, "the regular expression cannot be followed at byte %d: %s",
                           (int)(r->at - r->text), what);
    return NULL;
}

/* --- sets of characters --- */

typedef struct {
    mx_char_range r[MOST_RANGES];
    int n;
} set;

static void add(set *s, uint32_t from, uint32_t to)
{
    if (s->n < MOST_RANGES)
        s->r[s->n++] = (mx_char_range){from, to};
}

/* In order, without overlap. */
static void sort(set *s)
{
    int n = 0;
    for (int i = 1; i < s->n; i++)
        for (int k = i; k > 0 && s->r[k].from < s->r[k - 1].from; k--) {
            mx_char_range x = s->r[k];
            s->r[k] = s->r[k - 1];
            s->r[k - 1] = x;
        }
    for (int i = 0; i < s->n; i++)
        if (n > 0 && s->r[i].from <= s->r[n - 1].to + 1)
            s->r[n - 1].to = s->r[i].to > s->r[n - 1].to ? s->r[i].to : s->r[n - 1].to;
        else
            s->r[n++] = s->r[i];
    s->n = n;
}

static void invert(set *s)
{
    set in = *s;
    uint32_t from = 0;
    s->n = 0;
    sort(&in);
    for (int i = 0; i < in.n; i++) {
        if (in.r[i].from > from)
            add(s, from, in.r[i].from - 1);
        from = in.r[i].to + 1;
    }
    if (from <= LAST_CHAR)
        add(s, from, LAST_CHAR);
}

static mx_pattern *chars(reader *r, set *s)
{
    if (r->in_string) { /* without what a JSON string escapes */
        invert(s);
        add(s, 0, 0x1f);
        add(s, '"', '"');
        add(s, '\\', '\\');
        invert(s);
    }
    sort(s);
    mx_pattern *p = mx_pattern_chars(r->a, s->r, s->n);
    return p ? p : wrong(r, "a set without characters");
}

/* Where ten digits begin that are not ASCII (general category Nd of Unicode 14). */
static const uint32_t other_digits[] = {
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
    0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50,
    0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};

/* What is of a class in some dialects alone: it is neither in the class nor in its complement. */
static void add_doubtful(set *s, uint8_t letter)
{
    static const mx_char_range spaces[] = {
        {0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; letter == 's' && i < sizeof spaces / sizeof *spaces; i++)
        add(s, spaces[i].from, spaces[i].to);
    for (size_t i = 0; letter == 'd' && i < sizeof other_digits / sizeof *other_digits; i++)
        add(s, other_digits[i], other_digits[i] + 9);
    if (letter == 'd') /* of mathematics */
        add(s, 0x1d7ce, 0x1d7ff);
    if (letter == 'w')
        add(s, 0x80, LAST_CHAR);
}

/* \d and its like; false: another letter. inverted: what is added is what is left out. */
static bool add_class(set *s, uint8_t c, bool inverted)
{
    set in = {0};
    if (c == 'd' || c == 'D') {
        add(&in, '0', '9');
    } else if (c == 'w' || c == 'W') {
        add(&in, '0', '9');
        add(&in, 'A', 'Z');
        add(&in, '_', '_');
        add(&in, 'a', 'z');
    } else if (c == 's' || c == 'S') {
        add(&in, '\t', '\r');
        add(&in, ' ', ' ');
    } else {
        return false;
    }
    if ((c < 'a') != inverted)
        add_doubtful(&in, c | 32);
    if (c < 'a')
        invert(&in);
    for (int i = 0; i < in.n; i++)
        add(s, in.r[i].from, in.r[i].to);
    return true;
}

static uint32_t next_char(reader *r)
{
    uint32_t c = 0;
    int n = r->at < r->end ? mx_utf8_decode(r->at, r->end, &c) : 0;
    if (!n)
        wrong(r, "it is not valid UTF-8, or ends too early");
    r->at += n ? n : 1;
    return c;
}

/* What follows a backslash, as one character. */
static uint32_t escaped(reader *r)
{
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
    uint32_t c = next_char(r), x = 0;
    const char *at = c < 128 && c ? strchr(letters, (int)c) : NULL;
    if (at)
        return (uint8_t)values[at - letters];
    if (c == 'x' || c == 'u') {
        for (int i = 0; i < (c == 'x' ? 2 : 4); i++) {
            uint8_t d = r->at < r->end ? *r->at : 0;
            bool digit = d >= '0' && d <= '9', letter = (d | 32) >= 'a' && (d | 32) <= 'f';
            if (!digit && !letter)
                wrong(r, "hexadecimal digits are expected");
            x = x * 16 + (uint32_t)(digit ? d - '0' : (d | 32) - 'a' + 10);
            r->at++;
        }
        return x;
    }
    if ((c | 32) >= 'a' && (c | 32) <= 'z')
        wrong(r, "this letter has no meaning after \\");
    if (c >= '1' && c <= '9')
        wrong(r, "what a group has matched cannot be asked for again");
    return c;
}

static mx_pattern *class(reader *r)
{
    set s = {0};
    bool inverts = r->at < r->end && *r->at == '^', first = true;
    r->at += inverts;
    while (!r->error && (first || r->at >= r->end || *r->at != ']')) {
        uint32_t from = next_char(r), to;
        first = false;
        if (from == '\\' && r->at < r->end && add_class(&s, *r->at, inverts)) {
            r->at++;
            continue;
        }
        from = to = from == '\\' ? escaped(r) : from;
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            to = next_char(r);
            to = to == '\\' ? escaped(r) : to;
        }
        if (to < from)
            wrong(r, "a range from a later character to an earlier one");
        add(&s, from, to);
    }
    r->at++;
    if (s.n >= MOST_RANGES)
        wrong(r, "too many characters in one set");
    if (inverts)
        invert(&s);
    return r->error ? NULL : chars(r, &s);
}

/* --- expressions --- */

static mx_pattern *either(reader *r);

static mx_pattern *group(reader *r)
{
    if (r->end - r->at > 1 && r->at[0] == '?') {
        if (r->at[1] != ':')
            return wrong(r, "looking ahead or back, and names, are not supported");
        r->at += 2;
    }
    if (++r->depth > MOST_DEPTH)
        return wrong(r, "it is nested too deep");
    mx_pattern *p = either(r);
    r->depth--;
    if (r->at >= r->end || *r->at != ')')
        return wrong(r, "a group is not closed");
    r->at++;
    return p;
}

/* One character as a JSON string writes it; NULL: as it is. */
static const char *json_escape(uint32_t c)
{
    static const char chars_[] = "\"\\\n\t\r\f\b";
    static const char *const escapes[] = {"\\\"", "\\\\", "\\n", "\\t", "\\r", "\\f", "\\b"};
    const char *at = c && c < 128 ? strchr(chars_, (int)c) : NULL;
    return at ? escapes[at - chars_] : NULL;
}

static mx_pattern *atom(reader *r)
{
    uint32_t c = next_char(r);
    set s = {0};
    if (c == '(')
        return group(r);
    if (c == '[')
        return class(r);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return wrong(r, "there is nothing to repeat");
    if (c == '^' || c == '$')
        return wrong(r, "^ and $ stand only at the ends");
    if (c == '.') {
        add(&s, '\n', '\n');
        add(&s, '\r', '\r');
        add(&s, 0x2028, 0x2029); /* lines end there in JavaScript's dialect */
        invert(&s);
    } else if (c == '\\' && r->at < r->end && add_class(&s, *r->at, false)) {
        r->at++;
    } else {
        c = c == '\\' ? escaped(r) : c;
        const char *escape = r->in_string ? json_escape(c) : NULL;
        if (escape && !r->error)
            return mx_pattern_text(r->a, escape, 2);
        add(&s, c, c);
    }
    return r->error ? NULL : chars(r, &s);
}

static int number(reader *r)
{
    int n = -1;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9' && n <= MOST_REPEAT; r->at++)
        n = (n < 0 ? 0 : n) * 10 + (*r->at - '0');
    if (n > MOST_REPEAT)
        wrong(r, "more than 1000 repetitions");
    return n;
}

static mx_pattern *repeated(reader *r)
{
    mx_pattern *p = atom(r);
    while (!r->error && r->at < r->end && strchr("*+?{", *r->at)) {
        int least = *r->at == '+', most = *r->at == '?' ? 1 : -1;
        if (*r->at++ == '{') {
            least = most = number(r);
            if (r->at < r->end && *r->at == ',') {
                r->at++;
                most = number(r);
            }
            if (least < 0 || (most >= 0 && most < least) || r->at >= r->end || *r->at++ != '}')
                return wrong(r, "expected {2}, {2,} or {2,5}");
        }
        if (r->at < r->end && *r->at == '?')
            r->at++; /* fewer first: the texts are the same */
        p = mx_pattern_repeat(r->a, p, least, most);
    }
    return p;
}

static mx_pattern *either(reader *r)
{
    mx_pattern *all = NULL, *p = NULL;
    bool several = false;
    while (!r->error && r->at < r->end && *r->at != ')') {
        if (*r->at == '|') {
            r->at++;
            all = several ? mx_pattern_or(r->a, all, p) : p;
            several = true;
            p = NULL;
        } else {
            p = mx_pattern_then(r->a, p, repeated(r));
        }
    }
    return several ? mx_pattern_or(r->a, all, p) : p;
}

mx_status mx_pattern_regex(mx_arena *a, const char *text, size_t n, bool in_string,
                           mx_pattern **out)
{
    reader r = {.a = a, .text = (const uint8_t *)text, .in_string = in_string};
    bool begins = n > 0 && text[0] == '^';
    bool ends = n > 1 && text[n - 1] == '$' && text[n - 2] != '\\';
    r.at = r.text + begins;
    r.end = r.text + n - (ends ? 1 : 0);
    *out = either(&r);
    if (!r.error && r.at < r.end)
        wrong(&r, "a ) without its (");
    if (!r.error && in_string) {
        set any = {0};
        mx_pattern *around;
        invert(&any);
        around = mx_pattern_repeat(a, chars(&r, &any), 0, -1);
        *out = mx_pattern_then(a, begins ? NULL : around, *out);
        *out = mx_pattern_then(a, *out, ends ? NULL : around);
    }
    return r.error;
}
