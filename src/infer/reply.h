/* reply.h - the text of an answer as its tokens come: whole characters, up to a stop text. */
#ifndef MX_INFER_REPLY_H
#define MX_INFER_REPLY_H

#include "text/tokenizer/tokenizer.h"

typedef struct {
    mx_token_stream stream;
    const char *const *stop; /* borrowed */
    int n_stop;
    bool keep_stop; /* the stop text stays in the text */
    mx_str text;
    size_t settled; /* bytes of it that cannot be the beginning of a stop text */
    int stopped_by; /* index of the stop text that has come; -1: none */
} mx_reply;

void mx_reply_init(mx_reply *r, const mx_tokenizer *t, bool skip_special, const char *const *stop,
                   int n_stop);
void mx_reply_fini(mx_reply *r); /* a zero object is a no-op */
/* One more token; with `searches` its text may end the answer. Nothing may follow that. */
mx_status mx_reply_push(mx_reply *r, int32_t id, bool searches) MX_MUST_USE;
/* No more tokens: what was held back. */
mx_status mx_reply_finish(mx_reply *r) MX_MUST_USE;

#endif
