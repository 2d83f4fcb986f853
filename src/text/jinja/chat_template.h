/* chat_template.h - a conversation becomes text, by the template its model was published with.
 *
 * A Hugging Face directory carries a chat template, written in Jinja: chat_template.jinja, or the
 * "chat_template" of tokenizer_config.json (a string, or a list of named ones) or of
 * chat_template.json, or additional_chat_templates/NAME.jinja. mx_chat_render does what
 * transformers' apply_chat_template does before tokenizing, and can say which bytes the assistant
 * wrote ({% generation %} marks).
 *
 *     mx_chat_template *t;
 *     MX_TRY(mx_chat_template_open_dir(&t, "Qwen3-0.6B", NULL));
 *     mx_str text = {0};
 *     mx_chat_options o = {.add_generation_prompt = true};
 *     MX_TRY(mx_chat_render(t, messages, &o, &text, NULL));
 *
 * Templates and messages are untrusted: see mx_chat_limits. A template is immutable once open, and
 * may be used by many threads.
 */
#ifndef MX_TEXT_CHAT_TEMPLATE_H
#define MX_TEXT_CHAT_TEMPLATE_H

#include "base/str.h"
#include <jansson.h>

typedef struct mx_chat_template mx_chat_template;

/* Zero means the default in the comment. */
typedef struct {
    /* nodes evaluated, items gone through, bytes copied, compared and searched: 20,000,000 and 64
     * more for each byte of text in messages and variables */
    int64_t steps;
    size_t output_bytes; /* 64 MiB */
    size_t memory_bytes; /* values made during one render: 512 MiB */
    int depth;           /* nesting of calls and expressions: 400 */
} mx_chat_limits;

typedef struct {
    bool add_generation_prompt;
    bool continue_final_message; /* end the text inside the last message, for a model to go on */
    const json_t *tools;         /* array of JSON schemas, or NULL (the template then sees none) */
    const json_t *documents;     /* likewise */
    const char *bos_token, *eos_token, *pad_token,
        *unk_token; /* NULL: not defined in the template */
    const json_t
        *variables; /* object: more names for the template (enable_thinking, ...), or NULL */
    int64_t now;    /* seconds since 1970 for strftime_now; 0 is the clock */
    mx_chat_limits limits;
} mx_chat_options;

/* Byte ranges of the result that stood between {% generation %} and {% endgeneration %}, in order.
 */
typedef struct {
    size_t begin, end;
} mx_chat_span;
typedef struct {
    mx_chat_span *v; /* owned: mx_chat_spans_fini */
    int n, cap;
} mx_chat_spans;

mx_status mx_chat_template_open(mx_chat_template **t, const char *text) MX_MUST_USE;
mx_status mx_chat_template_open_n(mx_chat_template **t, const char *text, size_t n) MX_MUST_USE;
/* From a Hugging Face directory. `name` chooses among named templates; NULL is "default". */
mx_status mx_chat_template_open_dir(mx_chat_template **t, const char *dir,
                                    const char *name) MX_MUST_USE;
/* Whether the directory says that it has one; what it has may still be damaged. */
mx_status mx_chat_template_in_dir(const char *dir, bool *has) MX_MUST_USE;
void mx_chat_template_close(mx_chat_template *t);
/* Whether the template marks what the assistant wrote. Without marks, spans stay empty. */
bool mx_chat_template_has_generation(const mx_chat_template *t);

/* The template itself, as it was opened; NULL where t is NULL. */
const char *mx_chat_template_text(const mx_chat_template *t);

/* Appends to `out`. `messages` is an array of objects; `spans` may be NULL. */
mx_status mx_chat_render(const mx_chat_template *t, const json_t *messages,
                         const mx_chat_options *o, mx_str *out, mx_chat_spans *spans) MX_MUST_USE;
void mx_chat_spans_fini(mx_chat_spans *s);

#endif
