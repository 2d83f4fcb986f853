/* prompt.h - what a model is asked: a text or a conversation, and how it becomes tokens.
 *
 * A line of input is one prompt:
 *   "..."                               a JSON string, which may hold newlines
 *   [{"role": ..., "content": ...}, …]  a conversation
 *   {"messages": […], "tools": […]}     the same, with tools
 *   {…, "adapter": "NAME"}              either, or "prompt": "...", answered with this adapter of
 *                                       several; "": with none
 *   anything else                       plain text
 * With a chat template a plain text is a user's message; a conversation that ends with the
 * assistant's words is continued, any other is answered.
 */
#ifndef MX_INFER_PROMPT_H
#define MX_INFER_PROMPT_H

#include "infer/pictures.h"
#include "text/jinja/chat_template.h"
#include <jansson.h>

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    char *text;       /* as it was given; owns */
    json_t *messages; /* owns; NULL: a plain text */
    json_t *tools;    /* owns; NULL: none */
    char *adapter;    /* the name of one, as it was given; owns; NULL: nothing was said */
} mx_prompt;

void mx_prompt_from_text(mx_prompt *p, const char *text, size_t n);
/* What looks like a conversation and is none is an error. */
mx_status mx_prompt_from_line(mx_prompt *p, const char *line, size_t n) MX_MUST_USE;
void mx_prompt_close(mx_prompt *p);

typedef struct {
    const mx_tokenizer *tokenizer;
    const mx_chat_template *chat; /* NULL: texts as they are, and no conversations */
    const mx_pictures *pictures;
    const char *system; /* before the first message; NULL or "": nothing */
} mx_prompt_setup;
mx_status mx_prompt_encode(const mx_prompt *p, const mx_prompt_setup *w,
                           mx_tokens *out) MX_MUST_USE;
/* A list of messages with role and content, not empty; an error says what is wrong. */
mx_status mx_messages_check(const json_t *list) MX_MUST_USE;
/* The template's text of messages; the tokenizer names begin and end in it. */
mx_status mx_messages_render(const json_t *messages, const mx_chat_template *chat,
                             const mx_tokenizer *t, mx_chat_options o, mx_str *out) MX_MUST_USE;

#endif
