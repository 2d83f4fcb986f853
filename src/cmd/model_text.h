/* model_text.h - a model with its tokenizer and chat template: what verbs that write text open. */
#ifndef MX_CMD_MODEL_TEXT_H
#define MX_CMD_MODEL_TEXT_H

#include "cmd/verb.h"
#include "infer/generate.h"
#include "text/jinja/chat_template.h"

enum { MX_MAX_STOP_IDS = 32 };

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_model_ref ref;
    mx_tokenizer *tok;
    mx_chat_template *chat; /* NULL: none */
    mx_dtype compute;       /* of dtype=; float32 where it is not given */
    int32_t stop_ids[MX_MAX_STOP_IDS];
    int n_stop_ids;
    mx_arena arena;
} mx_model_text;

/* The model that the first argument names. */
mx_status mx_model_text_open(mx_model_text *m, const mx_invocation *inv) MX_MUST_USE;
void mx_model_text_close(mx_model_text *m);

/* What the keys of sampling say: greedy unless one of them asks for something else. */
mx_sampling mx_sampling_of(const mx_config *c);

/* Are tokens to be guessed, and by the model's own MTP layers? */
bool mx_drafts_by_mtp(const mx_config *c);

#endif
