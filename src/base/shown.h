/* shown.h - text of models, files and data on a terminal. What a terminal would obey (control
 * characters but newline and tab, bytes that are no text) is written as \xNN. mx_printable (utf8.h)
 * is for names that stay in one line.
 */
#ifndef MX_BASE_SHOWN_H
#define MX_BASE_SHOWN_H

#include "base/str.h"

void mx_str_add_shown(mx_str *out, const char *text, size_t n);
/* To standard output: as it is into a pipe or a file, shown on a terminal. */
void mx_print_shown(const char *text, size_t n);
/* In place, for messages, which quote files and peers: `?` for each byte that a terminal would
 * obey. */
void mx_replace_controls(char *text);

#endif
