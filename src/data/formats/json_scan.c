/* json_scan.c - a strict pass over one JSON object (RFC 8259), without building a tree.
 *
 * A tree of a 2 KB line costs several times the line; a training record needs one or two strings
 * out of it. So the scanner walks the text once, checks the grammar, copies the wanted strings
 * (undoing escapes) and notes where other wanted values begin and end. Nested values stay text:
 * code that needs messages parses that slice with a real parser.
 *
 * Strict where it matters: depth is capped (no recursion deeper than MAX_DEPTH), the text must be
 * UTF-8 (checked by the caller's one pass), control characters and lone surrogates are errors, a
 * wanted key may appear once. Strings are walked eight bytes at a time: with a word w,
 *     (w ^ q) - 0x01.. & ~(w ^ q) & 0x80..   has a bit where a byte equals q,
 * and the same trick with w - 0x20.. finds control characters.
 */
#include "data/formats/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 128, MAX_COLUMNS = 4096 };

typedef struct {
    const char *start, *p, *end;
    const char *error; /* first one sticks */
} scan;

static bool fail(scan *s, const char *what)
{
    if (!s->error)
        s->error = what;
    return false;
}

static void skip_space(scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

static bool expect(scan *s, char c, const char *what)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c)
        return fail(s, what);
    s->p++;
    return true;
}

/* Moves to the next quote, backslash or control character. */
static void skip_plain(scan *s)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (s->end - s->p >= 8) {
        uint64_t w;
        memcpy(&w, s->p, 8);
        uint64_t q = w ^ ones * '"', b = w ^ ones * '\\';
        if ((((q - ones) & ~q) | ((b - ones) & ~b) | ((w - ones * 0x20) & ~w)) & high)
            break;
        s->p += 8;
    }
    while (s->p < s->end && *s->p != '"' && *s->p != '\\' && (unsigned char)*s->p >= 0x20)
        s->p++;
}

static bool hex4(scan *s, unsigned *out)
{
    *out = 0;
    if (s->end - s->p < 4)
        return fail(s, "a \\u escape needs four hexadecimal digits");
    for (int i = 0; i < 4; i++) {
        char c = *s->p++;
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return fail(s, "a \\u escape needs four hexadecimal digits");
        *out = *out * 16 + (unsigned)d;
    }
    return true;
}

static size_t put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* After a backslash: writes what it stands for (at most 4 bytes). 0 on error. */
static size_t escape(scan *s, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end)
        return fail(s, "the string does not end");
    char c = *s->p++;
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        out[0] = to[hit - from];
        return 1;
    }
    unsigned u, low;
    if (c != 'u')
        return fail(s, "unknown escape in a string");
    if (!hex4(s, &u))
        return 0;
    if (u >= 0xdc00 && u < 0xe000)
        return fail(s, "a low surrogate (\\uDC00-\\uDFFF) without a high one before it");
    if (u >= 0xd800 && u < 0xdc00) {
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
            return fail(s, "a high surrogate (\\uD800-\\uDBFF) without a low one after it");
        s->p += 2;
        if (!hex4(s, &low))
            return 0;
        if (low < 0xdc00 || low >= 0xe000)
            return fail(s, "a high surrogate (\\uD800-\\uDBFF) without a low one after it");
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    return put_utf8(out, u);
}

/* The rest of a string after its opening quote, decoded to `out` (NULL: only checked). The decoded
 * text is never longer than the literal. */
static bool string_rest(scan *s, char *out, size_t *len)
{
    size_t n = 0;
    for (;;) {
        const char *from = s->p;
        skip_plain(s);
        size_t k = (size_t)(s->p - from);
        if (out && k)
            memcpy(out + n, from, k);
        n += k;
        if (s->p == s->end)
            return fail(s, "the string does not end");
        char c = *s->p++;
        if (c == '"')
            break;
        if (c != '\\')
            return s->p--, fail(s, "a control character inside a string (it must be escaped)");
        char four[4];
        size_t m = escape(s, four);
        if (!m)
            return false;
        if (out)
            memcpy(out + n, four, m);
        n += m;
    }
    if (len)
        *len = n;
    return true;
}

static bool number(scan *s)
{
    const char *p = s->p, *end = s->end;
    if (p < end && *p == '-')
        p++;
    const char *digits = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        return fail(s, "a value was expected");
    if (p < end && *p == '.') {
        digits = ++p;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        if (p == digits)
            return fail(s, "a digit must follow the decimal point");
    }
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        digits = p;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        if (p == digits)
            return fail(s, "a digit must follow the exponent");
    }
    s->p = p;
    return true;
}

static bool word(scan *s, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n) != 0)
        return fail(s, "a value was expected");
    s->p += n;
    return true;
}

static bool skip_value(scan *s, int depth);

static bool skip_members(scan *s, char close, int depth)
{
    s->p++;
    skip_space(s);
    if (s->p < s->end && *s->p == close)
        return s->p++, true;
    for (;;) {
        if (close == '}' && (!expect(s, '"', "a key in quotes was expected") ||
                             !string_rest(s, NULL, NULL) || !expect(s, ':', "':' was expected")))
            return false;
        if (!skip_value(s, depth + 1))
            return false;
        skip_space(s);
        if (s->p < s->end && *s->p == close)
            return s->p++, true;
        if (!expect(s, ',', "',' or the end of the list or object was expected"))
            return false;
    }
}

static bool skip_value(scan *s, int depth)
{
    skip_space(s);
    if (depth > MAX_DEPTH)
        return fail(s, "values are nested more than 128 deep");
    if (s->p == s->end)
        return fail(s, "the text ends where a value was expected");
    switch (*s->p) {
    case '"': return s->p++, string_rest(s, NULL, NULL);
    case '{': return skip_members(s, '}', depth);
    case '[': return skip_members(s, ']', depth);
    case 't': return word(s, "true");
    case 'f': return word(s, "false");
    case 'n': return word(s, "null");
    default: return number(s);
    }
}

/* One `"key": value`; the key's opening quote is behind us. */
static bool member(scan *s, const mx_source *source, mx_record *r)
{
    char key[256];
    size_t key_len;
    const char *key_at = s->p;
    skip_plain(s);
    if ((size_t)(s->p - key_at) > sizeof key / 2)
        return fail(s, "a key of more than 128 bytes");
    s->p = key_at;
    /* an escaped key may still be long: bound the scan by what the buffer holds */
    scan k = {s->start, s->p, s->end - s->p > 255 ? s->p + 255 : s->end, NULL};
    if (!string_rest(&k, key, &key_len))
        return s->p = k.p, fail(s, k.error);
    s->p = k.p;
    key[key_len] = 0;
    if (!expect(s, ':', "':' was expected after a key"))
        return false;
    skip_space(s);
    if (!mx_source_wants(source, key, key_len))
        return skip_value(s, 1);
    if (mx_record_find(r, key) >= 0)
        return fail(s, "a key appears twice");
    if (r->n_cells == MAX_COLUMNS)
        return fail(s, "more than 4,096 keys");
    const char *from = s->p;
    if (s->p < s->end && *s->p == '"') {
        s->p++;
        size_t n;
        char *out = mx_record_reserve(r, key, key_len, MX_CELL_TEXT, (size_t)(s->end - s->p));
        if (!string_rest(s, out, &n))
            return false;
        mx_record_commit(r, n);
        return true;
    }
    if (!skip_value(s, 1))
        return false;
    mx_record_add(r, key, *from == 'n' ? MX_CELL_NULL : MX_CELL_JSON, from, (size_t)(s->p - from));
    return true;
}

static bool object(scan *s, const mx_source *source, mx_record *r)
{
    if (!expect(s, '{', "a JSON object was expected"))
        return false;
    skip_space(s);
    if (s->p < s->end && *s->p == '}')
        s->p++;
    else
        for (;;) {
            if (!expect(s, '"', "a key in quotes was expected") || !member(s, source, r))
                return false;
            skip_space(s);
            if (s->p < s->end && *s->p == '}') {
                s->p++;
                break;
            }
            if (!expect(s, ',', "',' or '}' was expected"))
                return false;
        }
    skip_space(s);
    return s->p == s->end || fail(s, "text follows the object");
}

mx_status mx_json_scan_object(const mx_source *source, const char *text, size_t n, mx_record *r)
{
    size_t valid = mx_utf8_valid(text, n);
    if (valid < n)
        return mx_fail(MX_INPUT, "byte %zu of the line (0x%02x) is not UTF-8; convert the file, or "
                       "set bad_record_policy=skip", valid, (unsigned char)text[valid]);
    scan s = {text, text, text + n, NULL};
    if (object(&s, source, r))
        return MX_OK;
    return mx_fail(MX_INPUT,
                   "not a valid JSON line: %s, at byte %zu of the line; correct the line, or set "
                   "bad_record_policy=skip",
                   s.error, (size_t)(s.p - s.start));
}

void mx_json_write_string(mx_str *out, const char *text, size_t n)
{
    mx_str_add_n(out, "\"", 1);
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        mx_str_add_n(out, text + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\')
            mx_str_addf(out, "\\%c", c);
        else if (c == '\n')
            mx_str_add_n(out, "\\n", 2);
        else
            mx_str_addf(out, "\\u%04x", c);
    }
    mx_str_add_n(out, text + from, n - from);
    mx_str_add_n(out, "\"", 1);
}

void mx_json_write_double(mx_str *out, double v)
{
    char text[40];
    double back;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (mx_parse_f64(text, &back) && back == v)
            break;
    }
    if (!isfinite(v))
        mx_str_add(out, "null");
    else
        mx_str_addf(out, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}
