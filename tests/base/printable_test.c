/* printable_test.c - what others say reaches a terminal as text and nothing else. */
#include "../test.h"
#include "base/shown.h"
#include "base/utf8.h"
#include <string.h>

static void shows(const char *text, const char *want)
{
    char out[256], again[256];
    mx_printable(out, sizeof out, text, strlen(text));
    MX_CHECK(strcmp(out, want) == 0, "%s, not %s", out, want);
    mx_printable(again, sizeof again, out, sizeof out);
    MX_CHECK(strcmp(out, again) == 0, "%s becomes %s the second time", out, again);
}

MX_TEST(printable_escapes_what_a_terminal_would_obey)
{
    shows("plain text, 100% of it \\o/", "plain text, 100% of it \\o/");
    shows("Grüße, 世界 🙂", "Grüße, 世界 🙂");
    shows("two\nlines\tand", "two\\nlines\\tand");
    shows("\033[2J\033]0;title\007\r\b", "\\x1b[2J\\x1b]0;title\\x07\\x0d\\x08");
    shows("\302\233" "31m", "\\xc2\\x9b31m");     /* CSI in one character */
    shows("a\342\200\256b", "a\\xe2\\x80\\xaeb"); /* right to left */
    shows("\357\273\277x\342\200\213", "\\xef\\xbb\\xbfx\\xe2\\x80\\x8b");
    shows("\377\300\200\355\240\200", "\\xff\\xc0\\x80\\xed\\xa0\\x80");
    shows("cut \342\202", "cut \\xe2\\x82");
    shows("", "");
}

MX_TEST(printable_ends_where_room_or_text_does)
{
    char out[8], text[4] = {'a', 'b', 'c', 'd'}, all[1];
    MX_CHECK(strcmp(mx_printable(out, sizeof out, text, 4), "abcd") == 0, "%s", out);
    MX_CHECK(strcmp(mx_printable(out, sizeof out, "ab\0cd", 5), "ab") == 0, "%s", out);
    MX_CHECK(strcmp(mx_printable(out, 6, "abcd\033", 5), "abcd") == 0, "half an escape: %s", out);
    MX_CHECK(strcmp(mx_printable(out, 6, "abcdü", 6), "abcd") == 0, "half a character: %s", out);
    MX_CHECK(!*mx_printable(all, 1, "x", 1) && !*mx_printable(all, 1, NULL, 0));
    for (int i = 1; i < 256; i++) { /* whatever comes, what goes out is UTF-8 without controls */
        char in[3] = {(char)i, (char)(i * 7), 0}, shown[32];
        mx_printable(shown, sizeof shown, in, 2);
        size_t n = strlen(shown);
        MX_CHECK(mx_utf8_valid_prefix((const uint8_t *)shown, n) == n, "%d", i);
        for (size_t k = 0; k < n; k++)
            MX_CHECK((uint8_t)shown[k] >= 0x20 && shown[k] != 0x7f, "%d gives %s", i, shown);
    }
}

MX_TEST(shown_text_keeps_lines_and_marks_what_a_terminal_would_obey)
{
    mx_str out = {0};
    static const char text[] = "a\n\tb\r\x1b[31m\x0e\xc2\x9b" "1m\xff\xe2\x80\x8d\xc3\xbc";
    mx_str_add_shown(&out, text, sizeof text - 1);
    MX_CHECK(strcmp(mx_str_text(&out),
                    "a\n\tb\\x0d\\x1b[31m\\x0e\\xc2\\x9b1m\\xff\xe2\x80\x8d\xc3\xbc") == 0,
             "%s", mx_str_text(&out));
    mx_str_fini(&out);
}
