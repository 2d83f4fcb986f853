/* lexer_test.c - every hand-written lexer against PCRE2 running the pattern it stands for.
 *
 * PCRE2 may know an older Unicode than the class table. Texts are made of characters on which the
 * two agree, found by asking both.
 */
#include "../test.h"

#include "text/tokenizer/lexer.h"
#include "text/tokenizer/regex.h"
#include <string.h>

enum { MAX_TEXT = 400 };

static const struct {
    const char *pattern;
    unsigned mask;
} properties[] = {
    {"\\p{L}", MX_UC_L},
    {"\\p{N}", MX_UC_N},
    {"\\s", MX_UC_SPACE},
    {"\\p{M}", MX_UC_M},
    {"\\p{P}", MX_UC_P},
    {"\\p{S}", MX_UC_S},
    {"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", MX_UC_UPPER},
    {"[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]", MX_UC_LOWER},
};

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* Characters up to U+2FFFF (a sample above U+2FFF) whose classes PCRE2 confirms. */
static int agreed_characters(const mx_unicode *u, mx_regex_scratch *s, uint32_t *out, int max)
{
    enum { N = sizeof properties / sizeof *properties };
    mx_regex *regex[N];
    int n = 0;
    for (int i = 0; i < N; i++)
        MX_CHECK_OK(mx_regex_open(&regex[i], properties[i].pattern, strlen(properties[i].pattern)));
    for (uint32_t cp = 0; cp < 0x30000 && n < max; cp += cp < 0x3000 ? 1 : 37) {
        uint8_t text[4];
        size_t len, start, end;
        bool same = cp < 0xD800 || cp > 0xDFFF;
        if (!same)
            continue;
        len = (size_t)mx_utf8_encode(cp, text);
        for (int i = 0; i < N && same; i++)
            same = (mx_regex_next(regex[i], s, text, len, 0, &start, &end) == MX_REGEX_FOUND) ==
                   ((mx_uc_class(u, cp) & properties[i].mask) != 0);
        if (same)
            out[n++] = cp;
    }
    for (int i = 0; i < N; i++)
        mx_regex_close(regex[i]);
    return n;
}

static size_t random_text(uint64_t *x, const uint32_t *pool, int n_pool, uint8_t *out)
{
    static const char *const part[] = {"'s",
                                       "'LL",
                                       "'Re",
                                       "'\xC5\xBF",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "abc",
                                       "ABC",
                                       "aB",
                                       "Ab",
                                       "12",
                                       "3456",
                                       ".,",
                                       "'",
                                       " '",
                                       "/",
                                       "\xC2\xA0",
                                       "\xE6\x97\xA5",
                                       "\xE3\x81\x8B\xE3\x80\x81",
                                       "e\xCC\x81",
                                       "\xCC\x81",
                                       "\xCA\xB0",
                                       "\xC7\x85",
                                       "-x",
                                       "\x01",
                                       "_",
                                       "$9",
                                       "\xE2\x80\x8B"};
    size_t n = 0;
    int parts = 1 + (int)(next_random(x) % 24);
    for (int i = 0; i < parts && n < MAX_TEXT - 16; i++) {
        uint64_t r = next_random(x);
        if (r & 3) {
            const char *p = part[(r >> 8) % (sizeof part / sizeof *part)];
            memcpy(out + n, p, strlen(p));
            n += strlen(p);
        } else {
            n += (size_t)mx_utf8_encode(pool[(r >> 8) % (uint64_t)n_pool], out + n);
        }
    }
    return n;
}

/* Where the piece that starts at `at` ends, by the regular expression. */
static size_t regex_piece(const mx_regex *r, mx_regex_scratch *s, const uint8_t *text, size_t n,
                          size_t at)
{
    size_t start, end;
    if (mx_regex_next(r, s, text, n, at, &start, &end) != MX_REGEX_FOUND)
        return n;
    return start > at ? start : end;
}

static void compare(const mx_lexer *l, const mx_unicode *u, mx_regex_scratch *s,
                    const uint32_t *pool, int n_pool)
{
    mx_regex *r;
    uint64_t x = 88172645463325252u;
    int n_bad = 0;
    MX_CHECK_OK(mx_regex_open(&r, l->pattern, strlen(l->pattern)));
    for (int i = 0; i < 20000 && n_bad < 3; i++) {
        uint8_t text[MAX_TEXT];
        size_t n = random_text(&x, pool, n_pool, text);
        for (size_t at = 0; at < n;) {
            size_t want = regex_piece(r, s, text, n, at);
            size_t got = (size_t)(l->lex(u, text + at, text + n) - text);
            if (got != want) {
                n_bad++;
                MX_CHECK(got == want,
                         "%s, text %d \"%.*s\": piece at %zu ends at %zu, expected %zu", l->name, i,
                         (int)n, text, at, got, want);
                break;
            }
            at = got;
        }
    }
    mx_regex_close(r);
}

MX_TEST(lexers_equal_their_patterns)
{
    static uint32_t pool[20000];
    mx_arena a = {0};
    mx_unicode u = {0};
    mx_regex_scratch *s = mx_regex_scratch_new();
    mx_unicode_init(&u, &a);
    int n = agreed_characters(&u, s, pool, 20000);
    MX_CHECK(n > 12000, "only %d characters agree", n);
    for (const mx_lexer *l = mx_lexer_list; l->name; l++)
        compare(l, &u, s, pool, n);
    mx_regex_scratch_free(s);
    mx_arena_fini(&a);
}

MX_TEST(lexers_are_found_by_their_pattern)
{
    for (const mx_lexer *l = mx_lexer_list; l->name; l++)
        MX_CHECK(mx_lexer_find(l->pattern) && mx_lexer_find(l->pattern)->lex == l->lex, "%s",
                 l->name);
    MX_CHECK(!mx_lexer_find("\\p{N}{1,4}"), "a pattern that differs");
    MX_CHECK(!mx_lexer_find("\\p{N}{1,3}+"), "a pattern that goes on");
    MX_CHECK(mx_lexer_find("\\p{N}{1,3}") != NULL, "digits");
}
