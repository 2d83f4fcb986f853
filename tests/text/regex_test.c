/* regex_test.c - matches far from where the search begins, and the limit on time for a text. */
#include "../test.h"

#include "base/arena.h"
#include "text/tokenizer/regex.h"
#include <string.h>

static mx_regex *open_pattern(const char *pattern)
{
    mx_regex *r = NULL;
    MX_CHECK_OK(mx_regex_open(&r, pattern, strlen(pattern)));
    return r;
}

/* A text is searched in parts: they end between characters, and look-behinds see over their ends.
 */
MX_TEST(regex_finds_what_begins_far_away)
{
    enum { N = 700 };
    uint8_t text[2 * N + 1];
    size_t start = 0, end = 0;
    for (int i = 0; i < N; i++)
        memcpy(text + 2 * i, "\xC3\xA9", 2);
    text[2 * N] = 'b';
    mx_regex *r = open_pattern("(?<=\xC3\xA9)b");
    mx_regex_scratch *s = mx_regex_scratch_new();
    for (size_t n = 1; n <= N; n++) {
        const uint8_t *p = text + 2 * (N - n);
        mx_regex_result found = mx_regex_next(r, s, p, 2 * n + 1, 0, &start, &end);
        bool good = found == MX_REGEX_FOUND && start == 2 * n && end == start + 1;
        MX_CHECK(good, "%zu characters", n);
        found = mx_regex_next(r, s, p, 2 * n, 0, &start, &end);
        MX_CHECK(found == MX_REGEX_NONE, "%zu characters without it", n);
    }
    mx_regex_scratch_free(s);
    mx_regex_close(r);
}

/* Few steps for each match, each of which reads all of the text. */
MX_TEST(regex_gives_up_on_a_text_that_takes_too_long)
{
    enum { N = 1 << 20 };
    size_t start, end;
    uint8_t *text = mx_realloc(NULL, N);
    memset(text, 'a', N);
    mx_regex *never = open_pattern("a(?=.*1)"), *always = open_pattern("a(?=.*)");
    mx_regex_scratch *s = mx_regex_scratch_new();
    mx_regex_begin(s, 0.02);
    MX_CHECK(mx_regex_next(never, s, text, N, 0, &start, &end) == MX_REGEX_GAVE_UP);
    mx_regex_begin(s, 0.02);
    size_t at = 0;
    while (at < N && mx_regex_next(always, s, text, N, at, &start, &end) == MX_REGEX_FOUND)
        at = end;
    MX_CHECK(at < N, "the whole text was read");
    mx_regex_begin(s, mx_regex_seconds(1));
    MX_CHECK(mx_regex_next(always, s, text, 1, 0, &start, &end) == MX_REGEX_FOUND, "a new text");
    mx_regex_scratch_free(s);
    mx_regex_close(never);
    mx_regex_close(always);
    mx_free(text);
}

MX_TEST(regex_refuses_the_place_where_a_search_began)
{
    mx_regex *r;
    MX_CHECK_ERROR(mx_regex_open(&r, "\\Ga", 3), "\\G is not accepted");
    mx_regex_close(open_pattern("\\\\Ga"));
}
