/* lexer.c - the known patterns as code. Legend: c0 is the class of the first character of the
 * piece.
 *
 * Pieces of whitespace are alike in all of them:  \s*[\r\n]+ | \s+(?!\S) | \s+   takes a run of
 * whitespace up to its last line break; without one, all but the last character when something
 * follows (that character then leads the next word); a single character otherwise.
 */
#include "text/tokenizer/lexer.h"

#include "base/simd.h"
#include <string.h>

typedef const uint8_t bytes;

enum { LN = MX_UC_L | MX_UC_N, LNS = LN | MX_UC_SPACE };

static bytes *run_of(const mx_unicode *u, bytes *p, bytes *end, unsigned mask)
{
    while (p < end) {
        int n;
        if (!(mx_uc_at(u, p, &n) & mask))
            break;
        p += n;
    }
    return p;
}

static bytes *run_not(const mx_unicode *u, bytes *p, bytes *end, unsigned mask)
{
    while (p < end) {
        int n;
        if (mx_uc_at(u, p, &n) & mask)
            break;
        p += n;
    }
    return p;
}

/* run_of for sets whose ASCII part is the small letters (with fold 0x20: all letters): 16 bytes a
 * step, without a branch for each, until something else than ASCII comes. */
static inline bytes *run_ascii(const mx_unicode *u, bytes *p, bytes *end, unsigned mask,
                               uint8_t fold)
{
    while (end - p >= 16) {
        uint32_t stop = mx_outside16(p, fold, 'a', 25);
        if (stop) {
            p += __builtin_ctz(stop);
            if (*p < 0x80)
                return p;
            break;
        }
        p += 16;
    }
    return run_of(u, p, end, mask);
}

static inline bytes *letters(const mx_unicode *u, bytes *p, bytes *end)
{
    return run_ascii(u, p, end, MX_UC_L, 0x20);
}

static bool is_space_before(const mx_unicode *u, bytes *p, bytes *end)
{
    return run_of(u, p, end, MX_UC_SPACE) == end;
}

static inline bool is_break(uint8_t c)
{
    return c == '\r' || c == '\n';
}

static bytes *line_breaks(bytes *p, bytes *end)
{
    while (p < end && is_break(*p))
        p++;
    return p;
}

/* p is at whitespace. `breaks` says whether the pattern has \s*[\r\n]+. */
static bytes *white_space(const mx_unicode *u, bytes *p, bytes *end, bool breaks)
{
    bytes *q = p, *last = p, *after_break = NULL;
    while (q < end) {
        int n;
        if (!(mx_uc_at(u, q, &n) & MX_UC_SPACE))
            break;
        if (is_break(*q))
            after_break = q + 1;
        last = q;
        q += n;
    }
    if (breaks && after_break)
        return after_break;
    return q == end || last == p ? q : last;
}

/* 's 't 'm 'd 're 've 'll at p (which is at the apostrophe); p when it is none of them. */
static bytes *contraction(bytes *p, bytes *end, bool any_case)
{
    ptrdiff_t n = end - p;
    if (n < 2)
        return p;
    if (any_case && n >= 3 && p[1] == 0xC5 && p[2] == 0xBF)
        return p + 3; /* U+017F folds to s */
    uint8_t fold = any_case ? 0x20 : 0;
    uint8_t a = p[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p + 2;
    if (n < 3)
        return p;
    uint8_t b = p[2] | fold;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    return p;
}

static bytes *lex_gpt2(const mx_unicode *u, bytes *p, bytes *end)
{
    if (*p == '\'') {
        bytes *q = contraction(p, end, false);
        if (q != p)
            return q;
    }
    int n;
    bytes *q = p;
    unsigned c = mx_uc_at(u, p, &n);
    if (*p == ' ' && p + 1 < end) {
        q = p + 1;
        c = mx_uc_at(u, q, &n);
    }
    if (c & MX_UC_SPACE)
        return white_space(u, p, end, false);
    if (c & MX_UC_L)
        return letters(u, q + n, end);
    if (c & MX_UC_N)
        return run_of(u, q + n, end, MX_UC_N);
    return run_not(u, q + n, end, LNS);
}

static bytes *digits(const mx_unicode *u, bytes *p, bytes *end, int most)
{
    for (int k = 0; k < most && p < end; k++) {
        int n;
        if (!(mx_uc_at(u, p, &n) & MX_UC_N))
            break;
        p += n;
    }
    return p;
}

/* The cl100k pattern, with at most `n_digits` digits to a piece. */
static inline bytes *lex_words(const mx_unicode *u, bytes *p, bytes *end, int n_digits)
{
    int n, n1 = 0;
    unsigned c = mx_uc_at(u, p, &n), c1 = 0;
    bytes *q = p + n;
    if (c & MX_UC_L)
        return letters(u, q, end);
    if (*p == '\'') {
        bytes *r = contraction(p, end, true);
        if (r != p)
            return r;
    }
    if (c & MX_UC_N)
        return digits(u, p, end, n_digits);
    if (q < end)
        c1 = mx_uc_at(u, q, &n1);
    if ((c1 & MX_UC_L) && !is_break(*p))
        return letters(u, q + n1, end);
    if (!(c & MX_UC_SPACE))
        return line_breaks(run_not(u, q, end, LNS), end);
    if (*p == ' ' && q < end && !(c1 & LNS))
        return line_breaks(run_not(u, q + n1, end, LNS), end);
    return white_space(u, p, end, true);
}

static bytes *lex_cl100k(const mx_unicode *u, bytes *p, bytes *end)
{
    return lex_words(u, p, end, 3);
}

/* The same with \\s++$ before the line breaks: white space up to the end of the text is one piece.
 */
static bytes *lex_cl100k_end(const mx_unicode *u, bytes *p, bytes *end)
{
    bytes *q = lex_words(u, p, end, 3);
    int n;
    if (q < end && (mx_uc_at(u, p, &n) & MX_UC_SPACE) && is_space_before(u, p, q) &&
        run_of(u, q, end, MX_UC_SPACE) == end)
        return end;
    return q;
}

static bytes *lex_qwen(const mx_unicode *u, bytes *p, bytes *end)
{
    return lex_words(u, p, end, 1);
}

/* U* W+ at p, with U the UPPER and W the LOWER set (they share Lm, Lo, M): the end of the match, or
 * NULL. *upper is the end of the U run, for the second alternative U+ W*. When the run is not
 * followed by W, the expression backs off to the last character of the run that is in W too. */
static bytes *upper_lower(const mx_unicode *u, bytes *p, bytes *end, bytes **upper)
{
    bytes *both_end = NULL;
    int n;
    while (p < end) {
        unsigned c = mx_uc_at(u, p, &n);
        if (!(c & MX_UC_UPPER))
            break;
        p += n;
        if (c & MX_UC_LOWER)
            both_end = p;
    }
    *upper = p;
    if (p < end && (mx_uc_at(u, p, &n) & MX_UC_LOWER))
        return run_ascii(u, p + n, end, MX_UC_LOWER, 0);
    return both_end;
}

static bytes *with_contraction(bytes *p, bytes *end)
{
    return p < end && *p == '\'' ? contraction(p, end, true) : p;
}

static bytes *slashes_or_breaks(bytes *p, bytes *end)
{
    while (p < end && (is_break(*p) || *p == '/'))
        p++;
    return p;
}

static bytes *lex_o200k(const mx_unicode *u, bytes *p, bytes *end)
{
    int n, n1;
    unsigned c = mx_uc_at(u, p, &n);
    bytes *q = p + n, *r, *upper_after = q, *upper = p;
    bool prefix = !(c & LN) && !is_break(*p);
    if (prefix && q < end && (r = upper_lower(u, q, end, &upper_after)))
        return with_contraction(r, end);
    if ((c & (MX_UC_UPPER | MX_UC_LOWER)) && (r = upper_lower(u, p, end, &upper)))
        return with_contraction(r, end);
    if (prefix && upper_after > q)
        return with_contraction(upper_after, end);
    if (upper > p)
        return with_contraction(upper, end);
    if (c & MX_UC_N)
        return digits(u, p, end, 3);
    if (!(c & MX_UC_SPACE))
        return slashes_or_breaks(run_not(u, q, end, LNS), end);
    if (*p == ' ' && q < end && !(mx_uc_at(u, q, &n1) & LNS))
        return slashes_or_breaks(run_not(u, q + n1, end, LNS), end);
    return white_space(u, p, end, true);
}

static bool is_ascii_letter(uint8_t c)
{
    c |= 0x20;
    return c >= 'a' && c <= 'z';
}

static bytes *lex_deepseek(const mx_unicode *u, bytes *p, bytes *end)
{
    enum { LM = MX_UC_L | MX_UC_M, PS = MX_UC_P | MX_UC_S };
    int n, n1 = 0;
    unsigned c = mx_uc_at(u, p, &n), c1 = 0;
    bytes *q = p + n;
    if (*p < 0x80 && (c & PS) && q < end && is_ascii_letter(*q)) {
        while (q < end && is_ascii_letter(*q))
            q++;
        return q;
    }
    if (c & LM)
        return run_ascii(u, q, end, LM, 0x20);
    if (q < end)
        c1 = mx_uc_at(u, q, &n1);
    if ((c1 & LM) && !(c & PS) && !is_break(*p))
        return run_ascii(u, q + n1, end, LM, 0x20);
    if (c & PS)
        return line_breaks(run_of(u, q, end, PS), end);
    if (*p == ' ' && (c1 & PS))
        return line_breaks(run_of(u, q + n1, end, PS), end);
    if (c & MX_UC_SPACE)
        return white_space(u, p, end, true);
    /* A gap of digits, controls and unassigned characters; it ends where one can lead a word. */
    while (q < end && !(c1 & (LM | PS | MX_UC_SPACE))) {
        int n2;
        if (q + n1 < end && (mx_uc_at(u, q + n1, &n2) & LM))
            break;
        q += n1;
        if (q < end)
            c1 = mx_uc_at(u, q, &n1);
    }
    return q;
}

static bytes *lex_digits3(const mx_unicode *u, bytes *p, bytes *end)
{
    int n;
    if (mx_uc_at(u, p, &n) & MX_UC_N)
        return digits(u, p, end, 3);
    p += n;
    while (end - p >= 16) {
        /* a digit, or something else than ASCII */
        uint32_t stop = mx_outside16(p, 0, 0, 0x7F) | (~mx_outside16(p, 0, '0', 9) & 0xFFFF);
        p += stop ? __builtin_ctz(stop) : 16;
        if (stop)
            break;
    }
    return run_not(u, p, end, MX_UC_N);
}

/* U+4E00-9FA5 and U+3040-30FF: lead bytes E3 (81-83) and E4-E9. */
static bool is_cjk(bytes *p, int *n)
{
    *n = 1;
    if (*p < 0x80)
        return false;
    uint32_t cp;
    *n = mx_utf8_next(p, &cp);
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

static bytes *lex_cjk(const mx_unicode *u, bytes *p, bytes *end)
{
    (void)u;
    int n;
    bool cjk = is_cjk(p, &n);
    for (p += n; p < end && is_cjk(p, &n) == cjk;) {
        p += n;
        while (!cjk && end - p >= 16 && !mx_outside16(p, 0, 0, 0x7F))
            p += 16;
    }
    return p;
}

#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OTHER "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

const mx_lexer mx_lexer_list[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     lex_gpt2, false},
    {"gpt2", "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     lex_gpt2, false},
    {"gpt2",
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
     lex_gpt2, false},
    {"llama3", SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHER TAIL, lex_cl100k, false},
    {"cl100k",
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]"
     "++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
     lex_cl100k_end, false},
    {"cl100k",
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++"
     "[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     lex_cl100k, false},
    {"qwen", SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHER TAIL, lex_qwen, false},
    {"o200k",
     "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
     "*" SHORT "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
     lex_o200k, false},
    {"deepseek",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL,
     lex_deepseek, true},
    {"digits", "\\p{N}{1,3}", lex_digits3, true},
    {"cjk", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
     lex_cjk, true},
    {NULL, NULL, NULL, false},
};

/* The next character of a pattern in one spelling: line breaks as escapes, no needless backslash.
 */
static int next_spelled(const char **p, int *pending)
{
    if (*pending) {
        int c = *pending;
        *pending = 0;
        return c;
    }
    char c = **p;
    if (c == '\\' && ((*p)[1] == '"' || (*p)[1] == '/'))
        c = *++*p;
    *p += c != 0;
    if (c == '\r' || c == '\n') {
        *pending = c == '\r' ? 'r' : 'n';
        return '\\';
    }
    return c;
}

static bool same_pattern(const char *a, const char *b)
{
    int wait_a = 0, wait_b = 0;
    for (;;) {
        int x = next_spelled(&a, &wait_a), y = next_spelled(&b, &wait_b);
        if (x != y)
            return false;
        if (!x)
            return true;
    }
}

const mx_lexer *mx_lexer_find(const char *pattern)
{
    for (const mx_lexer *l = mx_lexer_list; l->name; l++)
        if (same_pattern(l->pattern, pattern))
            return l;
    return NULL;
}

const mx_lexer *mx_lexer_named(const char *name)
{
    for (const mx_lexer *l = mx_lexer_list; l->name; l++)
        if (strcmp(l->name, name) == 0)
            return l;
    return NULL;
}
