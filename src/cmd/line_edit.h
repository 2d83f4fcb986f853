/* line_edit.h - a line of input at a terminal: editing keys, and the lines before with the arrows.
 */
#ifndef MX_CMD_LINE_EDIT_H
#define MX_CMD_LINE_EDIT_H

#include "base/str.h"

/* Zero-initialise. */
typedef struct {
    char **line; /* owned, the oldest first */
    int n;
} mx_line_history;

/* One line, without its break; pasted lines stay one text. Ctrl-C empties it. False: the end of
 * input (Ctrl-D on an empty line, SIGTERM). Standard input and error must be terminals. */
bool mx_line_read(mx_line_history *h, const char *prompt, mx_str *out);
void mx_line_history_fini(mx_line_history *h);

#endif
