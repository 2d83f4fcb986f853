/* jinja_lex.c - template text to tokens.
 *
 * Outside tags everything is DATA, after the whitespace rules that transformers sets:
 *     {%-  {{-  {#-   white space before goes               -%}  -}}  -#}  white space after goes
 *     {%   {#         blanks from the start of line go      %}   #}        one newline after goes
 *     {%+             keeps the blanks                      +%}            keeps the newline
 * {{ and }} alone touch nothing. {% raw %} ... {% endraw %} is DATA. \r\n and \r are read as \n,
 * and one newline at the very end of the text is dropped.
 *
 * Inside a tag, }} and %} end it only when every ( [ { has been closed, so {{ {'a': {}} }} is one
 * tag. Strings have Python's escapes.
 */
#include "text/jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_NAMES = 2000 };

typedef struct {
    mx_chat_template *t;
    const char *s; /* normalised text */
    size_t n, at;
    int line;
    size_t line_at; /* `line` counts the newlines before this offset */
    bool line_starting;
    mx_jtokens *out;
} lexer;

static int line_of(lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++)
        x->line += x->s[x->line_at] == '\n';
    return x->line;
}

static mx_jtoken *emit(lexer *x, mx_jtoken_kind kind, size_t at)
{
    mx_jtokens *o = x->out;
    MX_GROW(o->v, o->n, o->cap);
    o->v[o->n] = (mx_jtoken){.kind = kind, .line = line_of(x, at)};
    return &o->v[o->n++];
}

static bool looking_at(const lexer *x, size_t at, const char *word)
{
    size_t k = strlen(word);
    return at + k <= x->n && memcmp(x->s + at, word, k) == 0;
}

static size_t find(const lexer *x, size_t from, const char *word)
{
    const char *p = from < x->n ? memmem(x->s + from, x->n - from, word, strlen(word)) : NULL;
    return p ? (size_t)(p - x->s) : SIZE_MAX;
}

static size_t skip_space(const lexer *x, size_t at)
{
    int32_t cp;
    while (at < x->n) {
        int k = mx_juni_next(x->s + at, x->n - at, &cp);
        if (!mx_juni_space(cp))
            break;
        at += (size_t)k;
    }
    return at;
}

static bool all_space(const lexer *x, size_t from, size_t to)
{
    return skip_space(x, from) >= to;
}

static size_t rstrip(const lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t k = to - 1;
        while (k > from && ((unsigned char)x->s[k] & 0xC0) == 0x80)
            k--;
        int32_t cp;
        mx_juni_next(x->s + k, to - k, &cp);
        if (!mx_juni_space(cp))
            break;
        to = k;
    }
    return to;
}

/* The text in [from, to) stands before a tag with `sign`. */
static void emit_data(lexer *x, size_t from, size_t to, char sign, bool variable)
{
    size_t end = to;
    if (sign == '-') {
        end = rstrip(x, from, to);
    } else if (sign != '+' && !variable) {
        size_t bol = to;
        while (bol > from && x->s[bol - 1] != '\n')
            bol--;
        if ((bol > from || x->line_starting) && all_space(x, bol, to))
            end = bol;
    }
    if (end > from) {
        mx_jtoken *t = emit(x, MX_T_DATA, from);
        t->p = x->s + from;
        t->n = end - from;
    }
}

/* What follows the close of a block or comment, whose sign and text end before `at`. */
static size_t after_block(lexer *x, char sign, size_t at)
{
    if (sign == '-')
        at = skip_space(x, at);
    else if (sign != '+' && at < x->n && x->s[at] == '\n')
        at++;
    x->line_starting = x->s[at - 1] == '\n';
    return at;
}

/* `at` may lie before the last token, so lines are counted from the top. */
static mx_status lex_error(lexer *x, size_t at, const char *what)
{
    x->line = 1;
    x->line_at = 0;
    return mx_fail(MX_INPUT, "chat template line %d: %s", line_of(x, at), what);
}

static mx_status comment(lexer *x, size_t begin, size_t body)
{
    size_t end = find(x, body, "#}");
    if (end == SIZE_MAX)
        return lex_error(x, begin, "the comment opened by {# is never closed; add #}");
    char sign = end > body ? x->s[end - 1] : 0;
    x->at = after_block(x, sign, end + 2);
    return MX_OK;
}

/* {% raw %}: true when `at` (after "{%" and its sign) opens one; *body is then the first byte of
 * it. */
static bool raw_begin(const lexer *x, size_t at, size_t *body)
{
    at = skip_space(x, at);
    if (!looking_at(x, at, "raw"))
        return false;
    at = skip_space(x, at + 3);
    if (looking_at(x, at, "-%}"))
        *body = skip_space(x, at + 3);
    else if (looking_at(x, at, "%}"))
        *body = at + 2;
    else
        return false;
    return true;
}

static mx_status raw(lexer *x, size_t begin, size_t body)
{
    x->line_starting = x->s[body - 1] == '\n';
    for (size_t at = body; (at = find(x, at, "{%")) != SIZE_MAX; at += 2) {
        size_t k = at + 2;
        char sign = k < x->n && (x->s[k] == '-' || x->s[k] == '+') ? x->s[k++] : 0;
        k = skip_space(x, k);
        if (!looking_at(x, k, "endraw"))
            continue;
        k = skip_space(x, k + 6);
        char end_sign = k < x->n && (x->s[k] == '-' || x->s[k] == '+') ? x->s[k++] : 0;
        if (!looking_at(x, k, "%}"))
            continue;
        emit_data(x, body, at, sign, false);
        x->at = after_block(x, end_sign, k + 2);
        return MX_OK;
    }
    return lex_error(x, begin, "{% raw %} is never closed; add {% endraw %}");
}

/* --- inside a tag --- */
static void add_code_point(mx_str *s, int32_t cp)
{
    utf8proc_uint8_t b[4];
    mx_str_add_n(s, (char *)b, (size_t)utf8proc_encode_char(cp, b));
}

/* Up to `max` digits of the base; how many there were. */
static int digits(const char *p, const char *end, int base, int max, int32_t *value)
{
    int k = 0;
    for (*value = 0; k < max && p + k < end; k++) {
        int ch = p[k], d = ch >= '0' && ch <= '9'                 ? ch - '0'
                           : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10
                                                                  : 99;
        if (d >= base)
            break;
        *value = *value * base + d;
    }
    return k;
}

/* One escape; p stands after the backslash. Gives the bytes used, 0 when it is malformed. */
static int escape(const char *p, const char *end, mx_str *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = memchr(from, *p, sizeof from - 1);
    int32_t cp;
    if (simple) {
        mx_str_add_n(out, &to[simple - from], 1);
        return 1;
    }
    if (*p == '\n')
        return 1;
    if (*p >= '0' && *p <= '7') {
        int k = digits(p, end, 8, 3, &cp);
        add_code_point(out, cp);
        return k;
    }
    int want = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (!want) { /* Python keeps an unknown escape as it stands */
        mx_str_add_n(out, "\\", 1);
        return *p == 'N' ? 0 : -1;
    }
    if (digits(p + 1, end, 16, want, &cp) != want || !utf8proc_codepoint_valid(cp))
        return 0;
    add_code_point(out, cp);
    return want + 1;
}

static mx_status string(lexer *x)
{
    char quote = x->s[x->at];
    size_t begin = x->at, end = begin + 1;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return lex_error(x, begin,
                         "a string is opened here and never closed; add the matching quote");
    mx_str text = {0};
    const char *p = x->s + begin + 1, *stop = x->s + end;
    while (p < stop) {
        const char *back = memchr(p, '\\', (size_t)(stop - p));
        mx_str_add_n(&text, p, (size_t)((back ? back : stop) - p));
        if (!back)
            break;
        int k = escape(back + 1, stop, &text);
        if (k == 0) {
            mx_str_fini(&text);
            return lex_error(x, begin,
                             "a string holds a malformed or unsupported escape; expected "
                             "\\xHH, \\uHHHH or \\UHHHHHHHH of a valid code point");
        }
        p = back + 1 + (k < 0 ? 0 : k);
    }
    mx_jtoken *t = emit(x, MX_T_STRING, begin);
    t->n = text.len;
    t->p = mx_arena_copy(&x->t->arena, mx_str_text(&text), text.len);
    mx_str_fini(&text);
    x->at = end + 1;
    return MX_OK;
}

static bool is_digit(char ch)
{
    return ch >= '0' && ch <= '9';
}

/* Copies a run of digits without its underscores (1_000). */
static size_t digit_run(const lexer *x, size_t at, char *buf, size_t cap, size_t *n)
{
    while (at < x->n &&
           (is_digit(x->s[at]) || (x->s[at] == '_' && at + 1 < x->n && is_digit(x->s[at + 1])))) {
        if (x->s[at] != '_' && *n + 1 < cap)
            buf[(*n)++] = x->s[at];
        at++;
    }
    return at;
}

static mx_status number(lexer *x)
{
    char buf[320];
    size_t n = 0, begin = x->at, at = begin, k;
    if (x->s[at] == '0' && at + 1 < x->n && strchr("xXoObB", x->s[at + 1])) {
        int base = (x->s[at + 1] | 32) == 'x' ? 16 : (x->s[at + 1] | 32) == 'o' ? 8 : 2;
        int32_t v = 0;
        int used = digits(x->s + at + 2, x->s + x->n, base,
                          base == 2   ? 31
                          : base == 8 ? 10
                                      : 7,
                          &v);
        emit(x, MX_T_INT, begin)->i = v;
        x->at = at + 2 + (size_t)used;
        return used ? MX_OK
                    : lex_error(x, begin, "expected digits after the 0x, 0o or 0b of a number");
    }
    at = digit_run(x, at, buf, sizeof buf, &n);
    bool real = false, after_dot = begin > 0 && x->s[begin - 1] == '.';
    if (!after_dot && at + 1 < x->n && x->s[at] == '.' && is_digit(x->s[at + 1])) {
        real = true;
        buf[n < sizeof buf - 2 ? n++ : n] = '.';
        at = digit_run(x, at + 1, buf, sizeof buf, &n);
    }
    k = at + 1 < x->n && (x->s[at + 1] == '+' || x->s[at + 1] == '-') ? at + 2 : at + 1;
    if (!after_dot && at < x->n && (x->s[at] | 32) == 'e' && k < x->n && is_digit(x->s[k])) {
        real = true;
        for (; at < k && n < sizeof buf - 2; at++)
            buf[n++] = x->s[at];
        at = digit_run(x, k, buf, sizeof buf, &n);
    }
    buf[n] = 0;
    mx_jtoken *t = emit(x, real ? MX_T_FLOAT : MX_T_INT, begin);
    if (n >= sizeof buf - 2 || (!real && !mx_parse_i64(buf, &t->i)))
        return lex_error(x, begin, "a number is out of range; integers have 64 bits here");
    t->f = real ? strtod(buf, NULL) : 0; /* out of range is inf or 0, as in Python */
    x->at = at;
    return MX_OK;
}

static int operator(const lexer *x, size_t at, int *len)
{
    static const struct {
        char text[3];
        int op;
    } two[] = {{"==", MX_OP_EQ}, {"!=", MX_OP_NE},  {"<=", MX_OP_LE},
               {">=", MX_OP_GE}, {"**", MX_OP_POW}, {"//", MX_OP_FLOORDIV}};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looking_at(x, at, two[i].text)) {
            *len = 2;
            return two[i].op;
        }
    *len = 1;
    return memchr("+-/*%~[](){}<>=.:|,;", x->s[at], 20) ? x->s[at] : 0;
}

static bool name_char(char ch)
{
    return is_digit(ch) || ((ch | 32) >= 'a' && (ch | 32) <= 'z') || ch == '_' ||
           (unsigned char)ch >= 0x80;
}

/* The closing of the tag at x->at, sign included: its length, or 0. */
static int tag_end(const lexer *x, bool variable, char *sign)
{
    *sign = 0;
    size_t at = x->at;
    if (x->s[at] == '-' || (x->s[at] == '+' && !variable))
        *sign = x->s[at++];
    if (!looking_at(x, at, variable ? "}}" : "%}"))
        return 0;
    return *sign ? 3 : 2;
}

static mx_status op_token(lexer *x, char *stack, int *depth)
{
    int len, op = operator(x, x->at, &len);
    char ch = x->s[x->at];
    if (!op)
        return lex_error(x, x->at,
                         mx_arena_printf(&x->t->arena, "unexpected character '%c' in a tag", ch));
    if (ch == '(' || ch == '[' || ch == '{') {
        if (*depth == MX_J_PARSE_DEPTH)
            return lex_error(x, x->at, "brackets are nested more than 200 deep");
        stack[(*depth)++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
    } else if (ch == ')' || ch == ']' || ch == '}') {
        if (*depth == 0 || stack[--*depth] != ch)
            return lex_error(x, x->at,
                             mx_arena_printf(&x->t->arena,
                                             "'%c' closes nothing that was "
                                             "opened in this tag",
                                             ch));
    }
    emit(x, MX_T_OP, x->at)->op = op;
    x->at += (size_t)len;
    return MX_OK;
}

static mx_status tag(lexer *x, size_t begin, bool variable)
{
    char stack[MX_J_PARSE_DEPTH], sign;
    int depth = 0;
    emit(x, variable ? MX_T_VAR_BEGIN : MX_T_BLOCK_BEGIN, begin);
    for (;;) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->n)
            return lex_error(
                x, begin, variable ? "{{ is never closed; add }}" : "{% is never closed; add %}");
        int k = depth ? 0 : tag_end(x, variable, &sign);
        if (k) {
            emit(x, variable ? MX_T_VAR_END : MX_T_BLOCK_END, x->at);
            x->at = after_block(x, variable && !sign ? '+' : sign, x->at + (size_t)k);
            return MX_OK;
        }
        char ch = x->s[x->at];
        if (ch == '"' || ch == '\'') {
            MX_TRY(string(x));
        } else if (is_digit(ch)) {
            MX_TRY(number(x));
        } else if (name_char(ch)) {
            size_t end = x->at;
            while (end < x->n && name_char(x->s[end]))
                end++;
            emit(x, MX_T_NAME, x->at)->p = mx_jinja_intern(x->t, x->s + x->at, end - x->at);
            x->at = end;
            if (x->t->n_names > MAX_NAMES) /* interning is a linear search */
                return lex_error(x, end, "more than 2,000 different names");
        } else {
            MX_TRY(op_token(x, stack, &depth));
        }
    }
}

static mx_status next(lexer *x)
{
    size_t begin = x->at, open = begin;
    while ((open = find(x, open, "{")) != SIZE_MAX) {
        if (open + 1 < x->n && strchr("{%#", x->s[open + 1]) && x->s[open + 1])
            break;
        open++;
    }
    if (open == SIZE_MAX) {
        emit_data(x, begin, x->n, '+', true);
        x->at = x->n;
        return MX_OK;
    }
    char kind = x->s[open + 1];
    size_t at = open + 2, body;
    char sign = at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at++] : 0;
    emit_data(x, begin, open, sign, kind == '{');
    x->at = at;
    if (kind == '#')
        return comment(x, open, at);
    if (kind == '%' && raw_begin(x, at, &body))
        return raw(x, open, body);
    return tag(x, open, kind == '{');
}

/* \r\n and \r become \n, the last newline goes; the copy lives in the template's arena. */
static const char *normalise(mx_arena *a, const char *text, size_t *n)
{
    char *s = mx_arena_alloc(a, *n + 1);
    size_t k = 0;
    for (size_t i = 0; i < *n; i++) {
        if (text[i] == '\r' && i + 1 < *n && text[i + 1] == '\n')
            continue;
        s[k++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (k && s[k - 1] == '\n')
        k--;
    *n = k;
    return s;
}

mx_status mx_jinja_lex(mx_chat_template *t, const char *text, size_t n, mx_jtokens *out)
{
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &cp);
        if (k <= 0)
            return mx_fail(MX_INPUT,
                           "the chat template is not UTF-8: byte %zu is 0x%02x; save it as UTF-8",
                           i, (unsigned char)text[i]);
        i += (size_t)k;
    }
    lexer x = {.t = t, .line = 1, .line_starting = true, .out = out, .n = n};
    x.s = normalise(&t->arena, text, &x.n);
    while (x.at < x.n)
        MX_TRY(next(&x));
    emit(&x, MX_T_END, x.n);
    return MX_OK;
}

const char *mx_jinja_interned(const mx_chat_template *t, const char *name)
{
    for (int i = 0; i < t->n_names; i++)
        if (strcmp(t->names[i], name) == 0)
            return t->names[i];
    return NULL;
}

const char *mx_jinja_intern(mx_chat_template *t, const char *p, size_t n)
{
    for (int i = 0; i < t->n_names; i++)
        if (strncmp(t->names[i], p, n) == 0 && t->names[i][n] == 0)
            return t->names[i];
    char *s = mx_arena_alloc(&t->arena, n + 1);
    memcpy(s, p, n);
    MX_GROW(t->names, t->n_names, t->cap_names);
    return t->names[t->n_names++] = s;
}
