/* status_test.c - what a message may hold. */
#include "base/status.h"

#include "../test.h"
#include <string.h>

/* Messages quote files and peers, and end on a terminal. */
MX_TEST(messages_carry_no_terminal_escapes)
{
    mx_status st = mx_fail(MX_INPUT, "model_type \"%s\"", "\x1b]0;x\x07\x7f\r");
    st = mx_status_wrap(st, "%s:\t1\n", "a\x1b[2J");
    MX_CHECK(strcmp(mx_status_text(st), "a?[2J:\t1\n: model_type \"?]0;x???\"") == 0, "%s",
             mx_status_text(st));
    mx_status_free(st);
    st = mx_fail(MX_INPUT, "%s", "\xc2\x9b" "31m \xc3\x9b \xc2\xa9");
    MX_CHECK(strcmp(mx_status_text(st), "\?\?31m \xc3\x9b \xc2\xa9") == 0, "%s",
             mx_status_text(st));
    mx_status_free(st);
}
