/* regex.c - translation of Oniguruma patterns, and matching. */
#include "text/tokenizer/regex.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/str.h"
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The longest pattern of a published tokenizer has 1,000 bytes. Looking for the end of a class is
 * linear, for each of its brackets. */
enum { MAX_PATTERN = 16 << 10, MAX_TRANSLATION = 256 << 10, MAX_MATCH_STEPS = 100000000 };
/* A match of published tokenizers takes far below a microsecond a byte. Steps alone are no limit: a
 * step may read all of the text. The clock is read after this many matches, and after this many
 * places where none begins. */
enum { MATCHES_A_LOOK = 16, STARTS_A_LOOK = 64 };
static const double TEXT_S = 5, BYTE_S = 2e-6;
/* Of a range in a pattern that ignores case, PCRE2 looks up every single character. */
enum { MAX_CASELESS_RANGES = 32 };

struct mx_regex {
    pcre2_code *code; /* owns */
};

struct mx_regex_scratch {
    pcre2_match_data *data;       /* owns; the whole match only */
    pcre2_match_context *context; /* owns */
    double begun, limit;          /* of the text, in seconds */
    double cpu_begun;             /* 0: not looked at yet */
    int matches;
    bool over;
};

#define SPACE                                                                                      \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"
#define ALPHABETIC                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"                    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
/* Oniguruma counts the superscripts and fractions of Latin-1 too. */
#define WORD ALPHABETIC "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define EDGE "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
#define NO_EDGE "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"

/* \\p{Han} means the script alone (PCRE2 takes its extensions too); long names of categories. */
static size_t add_property(const char *p, const char *end, mx_str *out)
{
    static const char *const name[][2] = {
        {"Letter", "L"},
        {"Mark", "M"},
        {"Number", "N"},
        {"Punctuation", "P"},
        {"Symbol", "S"},
        {"Other", "C"},
        {"Separator", "Z"},
        {"Uppercase_Letter", "Lu"},
        {"Lowercase_Letter", "Ll"},
        {"Any", "Any"},
        {"Decimal_Number", "Nd"},
        {"Space_Separator", "Zs"},
    };
    const char *close = memchr(p, '}', (size_t)(end - p));
    if (!close || p[2] != '{')
        return 0;
    const char *start = p + 3 + (p[3] == '^');
    size_t n = (size_t)(close - start);
    if (n < 3)
        return 0;
    mx_str_add_n(out, p, (size_t)(start - p));
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (strlen(name[i][0]) == n && memcmp(start, name[i][0], n) == 0) {
            mx_str_addf(out, "%s}", name[i][1]);
            return (size_t)(close + 1 - p);
        }
    if (!memchr(start, '=', n) && !memchr(start, ':', n))
        mx_str_add(out, "sc:");
    mx_str_add_n(out, start, n + 1);
    return (size_t)(close + 1 - p);
}

/* Writes the translation of the escape at p (which is at the backslash); returns its length. */
static size_t add_escape(const char *p, const char *end, bool in_class, mx_str *out)
{
    char c = p + 1 < end ? p[1] : 0;
    const char *set = c == 's' || c == 'S' ? SPACE : c == 'w' || c == 'W' ? WORD : NULL;
    bool negative = c == 'S' || c == 'W';
    if (set && !(in_class && negative)) {
        if (in_class)
            mx_str_add(out, set);
        else
            mx_str_addf(out, "[%s%s]", negative ? "^" : "", set);
        return 2;
    }
    if (c == 'p' || c == 'P') {
        size_t n = add_property(p, end, out);
        if (n)
            return n;
    }
    if (!in_class && (c == 'b' || c == 'B')) {
        mx_str_add(out, c == 'b' ? EDGE : NO_EDGE);
        return 2;
    }
    if (c == 'u' && end - p >= 6 && strspn(p + 2, "0123456789abcdefABCDEF") >= 4) {
        mx_str_addf(out, "\\x{%.4s}", p + 2);
        return 6;
    }
    size_t n = c ? 2 : 1;
    mx_str_add_n(out, p, n);
    return n;
}

/* The end of the class that starts at p (at its '['), or NULL; *difference is where "&&[^" stands.
 */
static const char *class_end(const char *p, const char *end, const char **difference)
{
    const char *q = p + 1;
    int depth = 0;
    *difference = NULL;
    q += q < end && *q == '^';
    q += q < end && *q == ']';
    for (; q < end; q++) {
        if (*q == '\\')
            q++;
        else if (!depth && end - q >= 4 && memcmp(q, "&&[^", 4) == 0) {
            *difference = q;
            q += 3;
            depth++;
        } else if (*q == ']' && depth-- == 0)
            return q + 1;
    }
    return NULL;
}

static void add_class(const char *p, const char *end, mx_str *out)
{
    while (p < end) {
        if (*p == '\\') {
            p += add_escape(p, end, true, out);
        } else {
            mx_str_add_n(out, p, 1);
            p++;
        }
    }
}

static void translate(const char *p, size_t n, mx_str *out)
{
    const char *end = p + n, *difference, *stop;
    while (p < end) {
        if (*p == '\\') {
            p += add_escape(p, end, false, out);
        } else if (*p == '[' && (stop = class_end(p, end, &difference))) {
            if (difference) { /* [A&&[^B]] = (?:(?![B])[A]) */
                mx_str_add(out, "(?:(?![");
                add_class(difference + 4, stop - 2, out);
                mx_str_add(out, "])");
                add_class(p, difference, out);
                mx_str_add(out, "])");
            } else {
                add_class(p, stop, out);
            }
            p = stop;
        } else {
            mx_str_add_n(out, p, 1);
            p++;
        }
    }
}

/* "(?i)" or "(?xi:": is case ignored in some part? */
static bool ignores_case(const char *pattern)
{
    for (const char *p = strstr(pattern, "(?"); p; p = strstr(p + 2, "(?")) {
        size_t n = strspn(p + 2, "^-abdimnpsuxDPSW");
        if (memchr(p + 2, 'i', n) && strchr(":)", p[2 + n]))
            return true;
    }
    return false;
}

/* Limits that can be seen before anything is translated. */
static mx_status check_pattern(const char *pattern, size_t n)
{
    if (n > MAX_PATTERN)
        return mx_fail(MX_INPUT, "a regular expression of %zu bytes; at most %d are accepted", n,
                       MAX_PATTERN);
    int ranges = 0;
    for (size_t i = 0; i < n; i++)
        ranges += pattern[i] == '-';
    if (ranges > MAX_CASELESS_RANGES && ignores_case(pattern))
        return mx_fail(MX_INPUT,
                       "the regular expression \"%.200s\" ignores case and has %d ranges; at most "
                       "%d are accepted",
                       pattern, ranges, MAX_CASELESS_RANGES);
    const char *end = pattern + n;
    for (const char *p = memchr(pattern, '\\', n); p; p = memchr(p, '\\', (size_t)(end - p))) {
        if (end - p > 1 && p[1] == 'G')
            return mx_fail(MX_INPUT,
                           "the regular expression \"%.200s\" cannot be used: \\G is not accepted",
                           pattern);
        p += end - p > 1 ? 2 : 1;
    }
    return MX_OK;
}

mx_status mx_regex_open(mx_regex **out, const char *pattern, size_t n)
{
    *out = NULL;
    MX_TRY(check_pattern(pattern, n));
    mx_str text = {0};
    translate(pattern, n, &text);
    if (text.len > MAX_TRANSLATION) {
        mx_status st = mx_fail(MX_INPUT,
                               "the regular expression \"%.200s\" becomes one of %zu "
                               "bytes; at most %d are accepted",
                               pattern, text.len, MAX_TRANSLATION);
        mx_str_fini(&text);
        return st;
    }
    int error;
    PCRE2_SIZE at;
    /* Never \C, which would split characters. */
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)mx_str_text(&text), text.len, options, &error, &at, NULL);
    mx_str_fini(&text);
    if (!code) {
        PCRE2_UCHAR reason[160];
        pcre2_get_error_message(error, reason, sizeof reason);
        return mx_fail(MX_INPUT,
                       "the regular expression \"%.200s\" cannot be used: %s (near byte %zu of "
                       "its translation)",
                       pattern, (const char *)reason, (size_t)at);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    mx_regex *r = mx_realloc(NULL, sizeof *r);
    r->code = code;
    *out = r;
    return MX_OK;
}

void mx_regex_close(mx_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    mx_free(r);
}

mx_regex_scratch *mx_regex_scratch_new(void)
{
    mx_regex_scratch *s = mx_realloc(NULL, sizeof *s);
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(s->context, MAX_MATCH_STEPS);
    pcre2_set_heap_limit(s->context, 1024 * 1024); /* KiB */
    mx_regex_begin(s, mx_regex_seconds(0));
    return s;
}

void mx_regex_scratch_free(mx_regex_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    mx_free(s);
}

double mx_regex_seconds(size_t bytes)
{
    return TEXT_S + BYTE_S * (double)bytes;
}

void mx_regex_begin(mx_regex_scratch *s, double seconds)
{
    s->begun = mx_clock_now();
    s->limit = seconds;
    s->cpu_begun = 0;
    s->matches = 0;
    s->over = false;
}

/* The process may have been stopped, or not been scheduled: when the limit has passed on the clock,
 * matches may still take as many seconds of this thread's processor time. */
static void look_at_time(mx_regex_scratch *s)
{
    if (mx_clock_now() - s->begun < s->limit)
        return;
    double cpu = mx_clock_of(CLOCK_THREAD_CPUTIME_ID);
    s->over = s->cpu_begun > 0 && cpu - s->cpu_begun > s->limit;
    if (s->cpu_begun <= 0)
        s->cpu_begun = cpu;
}

/* The first match that begins at or after `at`, and not after `last`. */
static int match(const mx_regex *r, mx_regex_scratch *s, const uint8_t *text, size_t n, size_t at,
                 size_t last)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    pcre2_set_offset_limit(s->context, last);
    int rc = pcre2_match(r->code, text, n, at, options, s->data, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its state on the heap */
        rc = pcre2_match(r->code, text, n, at, options | PCRE2_NO_JIT, s->data, s->context);
    return rc;
}

mx_regex_result mx_regex_next(const mx_regex *r, mx_regex_scratch *s, const uint8_t *text, size_t n,
                              size_t at, size_t *start, size_t *end)
{
    int rc = PCRE2_ERROR_NOMATCH;
    for (size_t from = at, next; rc == PCRE2_ERROR_NOMATCH && from <= n && !s->over; from = next) {
        next = n - from < STARTS_A_LOOK ? n + 1 : from + STARTS_A_LOOK;
        while (next < n && (text[next] & 0xc0) == 0x80)
            next++;
        rc = match(r, s, text, n, from, next - 1);
        if (rc == PCRE2_ERROR_NOMATCH || ++s->matches % MATCHES_A_LOOK == 0)
            look_at_time(s);
    }
    if (s->over)
        return MX_REGEX_GAVE_UP;
    if (rc == PCRE2_ERROR_NOMATCH)
        return MX_REGEX_NONE;
    if (rc < 0)
        return MX_REGEX_GAVE_UP;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(s->data);
    /* \K in a look-around can put the start before `at`, and after the end */
    *start = v[0] < at ? at : v[0];
    *end = v[1] < *start ? *start : v[1];
    return MX_REGEX_FOUND;
}
