/* example.h - what a record means: one of five shapes, whatever its columns are called.
 *
 *   columns                                      example
 *   ids | tokens [labels]                        IDS: already tokenized
 *   text | content                               TEXT
 *   input_ids [labels | assistant_masks]         IDS
 *   messages | conversations (ShareGPT)          CHAT
 *   instruction [input] output (Alpaca)          CHAT: user, assistant
 *   prompt completion | response | answer,
 *     question answer                            COMPLETION (strings), CHAT (lists of messages)
 *   [prompt] chosen rejected                     PREFERENCE
 * The first row that applies from the bottom up wins, so that {prompt, chosen, rejected, text} is
 * a preference. `columns` names others: one (text or messages), two (prompt, completion), or three
 * (prompt, chosen, rejected).
 */
#ifndef MX_DATA_EXAMPLE_H
#define MX_DATA_EXAMPLE_H

#include "data/formats/source.h"
#include <jansson.h>

typedef enum {
    MX_EXAMPLE_TEXT,
    MX_EXAMPLE_IDS,
    MX_EXAMPLE_CHAT,
    MX_EXAMPLE_COMPLETION,
    MX_EXAMPLE_PREFERENCE,
} mx_example_kind;

typedef struct {
    const char *text; /* borrowed from the record; NULL: none */
    size_t len;
} mx_text_range;

/* Release with mx_example_fini; the record must outlive it. */
typedef struct {
    mx_example_kind kind;
    mx_text_range text;             /* TEXT */
    mx_text_range prompt, completion; /* COMPLETION; PREFERENCE: no prompt has NULL as text */
    mx_text_range chosen, rejected; /* PREFERENCE of strings */
    json_t *messages; /* CHAT: array of {role, content, ...}. Owned, as are the next three */
    json_t *chosen_messages,
        *rejected_messages;    /* PREFERENCE of messages: the whole conversations */
    size_t n_prompt;           /* messages that are the prompt, where the record says; else 0 */
    json_t *tools;             /* CHAT: schemas, when the record has a `tools` column */
    const int32_t *ids,
        *labels; /* IDS; labels NULL: every token is trained. Owned when `own_ids` */
    int64_t n_ids;
    int32_t *own_ids;
} mx_example;

/* How much better a pair's chosen answer is: reward models learn it. */
#define MX_MARGIN_COLUMN "margin"

/* TRL's column of variables for the chat template. A conversation rendered without them would be
 * another one. */
#define MX_VARIABLES_COLUMN "chat_template_kwargs"
mx_status mx_refuse_variables(void) MX_MUST_USE;

/* Columns to read when the user names none. Ends in NULL. */
extern const char *const mx_example_columns[];
extern const int mx_example_n_columns;

mx_status mx_example_from_record(mx_example *e, const mx_record *r, const char *const *columns,
                                 int n_columns) MX_MUST_USE;
void mx_example_fini(mx_example *e);

#endif
