/* encode.h - examples become documents: token ids, and which of them are trained.
 *
 * Special-token strings inside data are ordinary text unless special_in_text says otherwise: a web
 * page that contains "<|endoftext|>" must not end a document. A chat template's own marks are
 * special tokens; the same marks inside a message's content are not.
 */
#ifndef MX_DATA_ENCODE_H
#define MX_DATA_ENCODE_H

#include "data/load/example.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/tokenizer.h"

/* What the loss is on. */
typedef enum {
    MX_LOSS_ALL,        /* every token */
    MX_LOSS_COMPLETION, /* completions, where a record has a prompt; whole records otherwise */
    MX_LOSS_ASSISTANT,  /* completions, and of conversations what the assistant wrote */
} mx_loss_on;

typedef struct {
    const mx_tokenizer *tokenizer; /* borrowed. NULL: only records that hold ids */
    const mx_chat_template *chat;  /* borrowed. NULL: "User: ...\nAssistant: ...\n" */
    bool add_bos, add_eos;         /* where the tokenizer has them; not around chat templates */
    mx_loss_on loss_on;
    bool whole;                    /* records as one text each: encode_whole.c */
    bool takes_pairs;              /* preferences and nothing else; otherwise they are refused */
    bool sides_apart;              /* ORPO's pairs: encode_whole.c */
    bool takes_margins;            /* of pairs: the column `margin` */
    bool answers_last;             /* of conversations without a prompt, the last message is it */
    bool parse_special;            /* special-token strings in data become special tokens */
    int64_t vocab_size;            /* ids from files must be below it; 0: not checked */
    const char *const *columns;    /* named by the user; NULL: by example.h's table */
    int n_columns;
    const struct mx_encode_images *images; /* borrowed (encode_image.h). NULL: text alone */
} mx_encoder;

/* How records become documents, as one number: for what depends on it. */
static inline int mx_encoder_mode(const mx_encoder *e)
{
    return (int)e->loss_on + 8 * e->whole + 16 * e->takes_pairs + 32 * e->sides_apart +
           64 * e->takes_margins + 128 * e->answers_last;
}

/* Owns its memory and keeps it from one to the next. */
typedef struct {
    mx_tokens ids;
    uint8_t *trained; /* (ids.n) */
    int64_t cap_trained;
    const struct mx_record_pictures *pictures; /* while it is encoded; NULL: none */
    int next_picture;
    bool mark_trained; /* what the text around pictures is */
    float margin;      /* of a pair's sides, with takes_margins */
} mx_document;

void mx_document_fini(mx_document *d);

/* A preference gives two documents, everything else one: *n. out[] has room for two. */
mx_status mx_encode_record(const mx_encoder *e, const mx_record *r, mx_document out[2], int *n)
    MX_MUST_USE;

/* encode_whole.c: an example as post-training sees it. */
mx_status mx_encode_whole(const mx_encoder *e, const mx_example *x,
                          mx_document out[2]) MX_MUST_USE;
/* encode_chat.c: the first n messages rendered; `prompt`: with what begins an answer. */
mx_status mx_chat_text(const mx_encoder *e, json_t *messages, json_t *tools, size_t n, bool prompt,
                       mx_str *out) MX_MUST_USE;
/* The conversation's text, and where in it the assistant wrote; `spans` are the caller's to free.
 * `plain`: contents hold special tokens' texts, which only mx_encode_chat tells apart. */
mx_status mx_chat_assistant(const mx_encoder *e, json_t *messages, json_t *tools, mx_str *out,
                            mx_chat_spans *spans, bool *plain) MX_MUST_USE;
/* A conversation, appended. */
mx_status mx_encode_chat(const mx_encoder *e, json_t *messages, json_t *tools, mx_document *d)
    MX_MUST_USE;
/* Appends text whose tokens are all trained or all not. `parse`: special tokens are recognised. */
mx_status mx_encode_text(const mx_encoder *e, const char *text, size_t n, bool parse, bool trained,
                         mx_document *d) MX_MUST_USE;
/* Marks the tokens from `from` to the end as trained or not. */
void mx_encode_mark(mx_document *d, int64_t from, bool trained);
void mx_encode_id(int32_t id, bool trained, mx_document *d); /* id < 0: nothing */

#endif
