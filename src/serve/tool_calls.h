/* tool_calls.h - calls of functions as models write them; see tool_calls.c. */
#ifndef MX_SERVE_TOOL_CALLS_H
#define MX_SERVE_TOOL_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* How a family writes calls. */
typedef struct mx_call_form mx_call_form;
struct mx_call_form {
    const char *sign; /* what chat templates of the family have in them */
    const char *mark; /* what calls begin with */
    bool whole;       /* calls are the whole answer, and the mark may be left out */
    int id_chars;     /* that the template wants of a call's id; 0: any number */
    void (*read)(const char *text, size_t n, const json_t *tools, json_t *calls);
};

/* The form of models with this chat template. */
const mx_call_form *mx_call_form_of(const char *chat_template);
/* The calls of a whole answer, [{"name": ..., "arguments": "..."}, ...], empty: there are none.
 * *n_text: bytes of text before them, all of the answer where there are none. New reference. */
json_t *mx_calls_read(const mx_call_form *form, const json_t *tools, const char *text, size_t n,
                      size_t *n_text);
/* Of an answer that goes on: how many of its first n bytes are surely no part of a call. */
size_t mx_calls_before(const mx_call_form *form, const char *text, size_t n);

#endif
