/* json_tree.c - one recursive-descent pass over a private copy of the text.
 *
 * Invariants: the copy is followed by 16 zero bytes, so looking at p[0..8) is always allowed and a
 * NUL ends every loop; nodes come from blocks of 512, so an arena allocation is paid once per
 * block.
 */
#include "base/json_tree.h"

#include "base/file.h"
#include "base/utf8.h"
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 128, BLOCK = 512, INDEX_FROM = 9 };
static const size_t max_bytes = (size_t)1 << 31;

typedef struct {
    mx_arena *arena;
    const char *where;
    char *start, *p, *end;
    mx_json_node *block; /* the rest of the current block of nodes */
    int n_block, depth;
    locale_t c_locale; /* made for the first number with a fraction */
} reader;

static mx_status bad(const reader *r, const char *at, const char *expected)
{
    return mx_fail(MX_INPUT,
                   "%s: byte %zu: %s; the file is not valid JSON, get it again or repair it",
                   r->where, (size_t)(at - r->start), expected);
}

static mx_json_node *new_node(reader *r)
{
    if (!r->n_block) {
        r->block = MX_NEW_N(r->arena, mx_json_node, BLOCK);
        r->n_block = BLOCK;
    }
    r->n_block--;
    return r->block++;
}

static void skip_space(reader *r)
{
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')
        r->p++;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)p[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87
                                                     : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* At the four digits of a \u escape; writes the character at *out and advances both. */
static mx_status read_unicode(reader *r, char **out)
{
    int unit = hex4(r->p);
    if (unit < 0)
        return bad(r, r->p, "expected four hexadecimal digits after \\u");
    uint32_t cp = (uint32_t)unit;
    r->p += 4;
    if (cp >= 0xD800 && cp < 0xE000) {
        int low = r->p[0] == '\\' && r->p[1] == 'u' ? hex4(r->p + 2) : -1;
        if (cp >= 0xDC00 || low < 0xDC00 || low >= 0xE000)
            return bad(r, r->p - 6, "a lone surrogate escape stands for no character");
        cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        r->p += 6;
    }
    *out += mx_utf8_encode(cp, (uint8_t *)*out);
    return MX_OK;
}

static mx_status read_escape(reader *r, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->p[1];
    if (c == 'u') {
        r->p += 2;
        return read_unicode(r, out);
    }
    const char *k = c ? strchr(from, c) : NULL;
    if (!k)
        return bad(r, r->p, "unknown escape in a string");
    *(*out)++ = to[k - from];
    r->p += 2;
    return MX_OK;
}

/* True when some byte of w is a quote, a backslash, below 0x20 or above 0x7F. */
static bool word_is_special(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
    uint64_t hit = (w - ones * 0x20) | (quote - ones) | (slash - ones) | w;
    return (hit & highs) != 0;
}

/* At the opening quote. Gives the unescaped text, NUL-terminated, in place. */
static mx_status read_string(reader *r, const char **text, uint32_t *n)
{
    char *begin = ++r->p, *out = NULL; /* out stays NULL until something had to move */
    for (;;) {
        if (!out) {
            uint64_t w;
            while (memcpy(&w, r->p, 8), !word_is_special(w))
                r->p += 8;
        }
        unsigned char c = (unsigned char)*r->p;
        if (c == '"')
            break;
        if (c < 0x20)
            return bad(r, r->p,
                       r->p >= r->end ? "the text ends inside a string"
                                      : "a control character inside a string");
        if (c == '\\') {
            if (!out)
                out = r->p;
            MX_TRY(read_escape(r, &out));
            continue;
        }
        uint32_t cp;
        int k = c < 0x80 ? 1 : mx_utf8_decode((uint8_t *)r->p, (uint8_t *)r->end, &cp);
        if (!k)
            return bad(r, r->p, "invalid UTF-8 inside a string");
        if (out) {
            memmove(out, r->p, (size_t)k);
            out += k;
        }
        r->p += k;
    }
    if (!out)
        out = r->p;
    r->p++;
    *out = 0;
    *text = begin;
    *n = (uint32_t)(out - begin);
    return MX_OK;
}

static mx_status read_number(reader *r, mx_json_node *v)
{
    char *p = r->p;
    bool negative = *p == '-', whole = true, fits = true;
    p += negative;
    if (*p < '0' || *p > '9')
        return bad(r, r->p, "expected a value");
    uint64_t u = 0;
    if (*p == '0' && p[1] >= '0' && p[1] <= '9')
        return bad(r, p, "a number must not start with 0");
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        fits = fits && u <= (UINT64_MAX - digit) / 10;
        u = u * 10 + digit;
    }
    if (*p == '.') {
        whole = false;
        if (*++p < '0' || *p > '9')
            return bad(r, p, "expected a digit after the decimal point");
        while (*p >= '0' && *p <= '9')
            p++;
    }
    if (*p == 'e' || *p == 'E') {
        whole = false;
        p++;
        p += *p == '+' || *p == '-';
        if (*p < '0' || *p > '9')
            return bad(r, p, "expected a digit in the exponent");
        while (*p >= '0' && *p <= '9')
            p++;
    }
    if (whole && fits && u <= (uint64_t)INT64_MAX + negative) {
        v->type = MX_JSON_INT;
        v->i = negative ? (int64_t)(0 - u) : (int64_t)u;
    } else {
        v->type = MX_JSON_REAL;
        if (!r->c_locale)
            r->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        v->d = strtod_l(r->p, NULL, r->c_locale);
        if (v->d - v->d != 0)
            return bad(r, r->p, "a number too large for a double");
    }
    r->p = p;
    return MX_OK;
}

static uint64_t hash_key(const char *s, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, s, n);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static size_t index_size(uint32_t n)
{
    size_t size = 16;
    while (size < (size_t)n * 2)
        size *= 2;
    return size;
}

static mx_status duplicate(const reader *r, const mx_json_node *m)
{
    return mx_fail(MX_INPUT,
                   "%s: byte %u: the member \"%.80s\" appears twice in one object; remove one",
                   r->where, m->at, m->key);
}

static bool same_key(const mx_json_node *m, const char *key, size_t n)
{
    return m->key_len == n && memcmp(m->key, key, n) == 0;
}

/* Refuses duplicates; large objects keep the hash that this takes, for lookups. */
static mx_status check_members(reader *r, mx_json_node *v)
{
    if (v->n < INDEX_FROM) {
        for (const mx_json_node *a = v->first; a; a = a->next)
            for (const mx_json_node *b = a->next; b; b = b->next)
                if (same_key(b, a->key, a->key_len))
                    return duplicate(r, b);
        return MX_OK;
    }
    size_t mask = index_size(v->n) - 1;
    v->index = MX_NEW_N(r->arena, const mx_json_node *, mask + 1);
    for (const mx_json_node *m = v->first; m; m = m->next) {
        size_t k = hash_key(m->key, m->key_len) & mask;
        for (; v->index[k]; k = (k + 1) & mask)
            if (same_key(v->index[k], m->key, m->key_len))
                return duplicate(r, m);
        v->index[k] = m;
    }
    return MX_OK;
}

static mx_status read_value(reader *r, mx_json_node *v);

static mx_status read_members(reader *r, mx_json_node *v, char close)
{
    const mx_json_node **link = &v->first;
    bool object = close == '}';
    r->p++;
    skip_space(r);
    if (*r->p == close) {
        r->p++;
        return MX_OK;
    }
    for (;;) {
        mx_json_node *m = new_node(r);
        if (object) {
            if (*r->p != '"')
                return bad(r, r->p, "expected a member name in quotes");
            MX_TRY(read_string(r, &m->key, &m->key_len));
            skip_space(r);
            if (*r->p != ':')
                return bad(r, r->p, "expected ':' after a member name");
            r->p++;
            skip_space(r);
        }
        MX_TRY(read_value(r, m));
        *link = m;
        link = &m->next;
        v->n++;
        skip_space(r);
        char c = *r->p;
        if (c != ',' && c != close)
            return bad(r, r->p, object ? "expected ',' or '}'" : "expected ',' or ']'");
        r->p++;
        if (c == close)
            return object ? check_members(r, v) : MX_OK;
        skip_space(r);
    }
}

static mx_status read_word(reader *r, mx_json_node *v)
{
    if (strncmp(r->p, "true", 4) == 0 || strncmp(r->p, "false", 5) == 0) {
        v->type = MX_JSON_BOOL;
        v->b = *r->p == 't';
        r->p += v->b ? 4 : 5;
        return MX_OK;
    }
    if (strncmp(r->p, "null", 4) != 0)
        return bad(r, r->p,
                   r->p >= r->end ? "the text ends where a value was expected"
                                  : "expected a value");
    r->p += 4;
    return MX_OK;
}

static mx_status read_value(reader *r, mx_json_node *v)
{
    v->at = (uint32_t)(r->p - r->start);
    char c = *r->p;
    if (c == '"') {
        v->type = MX_JSON_STRING;
        return read_string(r, &v->s, &v->n);
    }
    if (c == '{' || c == '[') {
        if (++r->depth > MAX_DEPTH)
            return bad(r, r->p, "nested more than 128 levels deep");
        v->type = c == '{' ? MX_JSON_OBJECT : MX_JSON_ARRAY;
        MX_TRY(read_members(r, v, c == '{' ? '}' : ']'));
        r->depth--;
        return MX_OK;
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r, v);
    return read_word(r, v);
}

mx_status mx_json_tree_parse_in_place(const mx_json_node **out, mx_arena *a, char *text, size_t n,
                                      const char *where)
{
    *out = NULL;
    if (n >= max_bytes)
        return mx_fail(MX_INPUT, "%s: %zu bytes of JSON; at most 2 GiB are read", where, n);
    reader r = {.arena = a, .where = where, .start = text, .p = text, .end = text + n};
    mx_json_node *v = new_node(&r);
    skip_space(&r);
    mx_status st = read_value(&r, v);
    if (!st) {
        skip_space(&r);
        if (r.p != r.end)
            st = bad(&r, r.p, "something follows the end of the document");
    }
    if (r.c_locale)
        freelocale(r.c_locale);
    *out = st ? NULL : v;
    return st;
}

mx_status mx_json_tree_parse(const mx_json_node **out, mx_arena *a, const char *text, size_t n,
                             const char *where)
{
    char *copy = mx_arena_alloc(a, n + 16);
    if (n)
        memcpy(copy, text, n);
    return mx_json_tree_parse_in_place(out, a, copy, n, where);
}

mx_status mx_json_tree_load(const mx_json_node **out, mx_arena *a, const char *path)
{
    char *text;
    size_t n;
    *out = NULL;
    MX_TRY(mx_file_read(a, path, max_bytes - 1, &text, &n));
    return mx_json_tree_parse_in_place(out, a, text, n, path);
}

static const mx_json_node *json_get_n(const mx_json_node *object, const char *key, size_t n)
{
    if (!object || object->type != MX_JSON_OBJECT)
        return NULL;
    if (object->index) {
        size_t mask = index_size(object->n) - 1;
        for (size_t k = hash_key(key, n) & mask; object->index[k]; k = (k + 1) & mask)
            if (same_key(object->index[k], key, n))
                return object->index[k];
        return NULL;
    }
    for (const mx_json_node *m = object->first; m; m = m->next)
        if (same_key(m, key, n))
            return m;
    return NULL;
}

const mx_json_node *mx_json_get(const mx_json_node *object, const char *key)
{
    return json_get_n(object, key, strlen(key));
}

const char *mx_json_get_text(const mx_json_node *object, const char *key, const char *other)
{
    const mx_json_node *m = mx_json_get(object, key);
    return m && m->type == MX_JSON_STRING ? m->s : other;
}

int64_t mx_json_get_int(const mx_json_node *object, const char *key, int64_t other)
{
    const mx_json_node *m = mx_json_get(object, key);
    return m && m->type == MX_JSON_INT ? m->i : other;
}

bool mx_json_get_bool(const mx_json_node *object, const char *key, bool other)
{
    const mx_json_node *m = mx_json_get(object, key);
    return m && m->type == MX_JSON_BOOL ? m->b : other;
}

double mx_json_number(const mx_json_node *v)
{
    return v->type == MX_JSON_INT ? (double)v->i : v->type == MX_JSON_REAL ? v->d : 0;
}

const char *mx_json_type_name(mx_json_type t)
{
    static const char *const name[] = {"null",     "a boolean", "an integer", "a number",
                                       "a string", "an array",  "an object"};
    return name[t];
}

void mx_json_add_string(mx_str *out, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n, *plain = p;
    mx_str_add_n(out, "\"", 1);
    while (p < end) {
        uint32_t cp = *p;
        int k = cp < 0x80 ? 1 : mx_utf8_decode(p, end, &cp);
        if (k && cp >= 0x20 && cp != '"' && cp != '\\') {
            p += k;
            continue;
        }
        mx_str_add_n(out, (const char *)plain, (size_t)(p - plain));
        if (!k) {
            mx_str_add(out, "\xEF\xBF\xBD");
            k = mx_utf8_bad_length(p, end);
        } else if (cp == '"' || cp == '\\') {
            mx_str_addf(out, "\\%c", (char)cp);
        } else if (cp == '\n') {
            mx_str_add(out, "\\n");
        } else {
            mx_str_addf(out, "\\u%04x", cp);
        }
        p += k;
        plain = p;
    }
    mx_str_add_n(out, (const char *)plain, (size_t)(p - plain));
    mx_str_add_n(out, "\"", 1);
}
