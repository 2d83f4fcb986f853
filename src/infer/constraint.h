/* constraint.h - a pattern as masks over the tokens of a vocabulary.
 *
 * The mask of an automaton's state is made once, when it is first needed: tokens are tried in the
 * order of their bytes, so that a common prefix is walked once, and a prefix that is not allowed
 * excludes all tokens that have it.
 */
#ifndef MX_INFER_CONSTRAINT_H
#define MX_INFER_CONSTRAINT_H

#include "infer/pattern.h"
#include "text/tokenizer/tokenizer.h"

/* The bytes of every token, in order. One for a server. */
typedef struct mx_token_bytes mx_token_bytes;
mx_status mx_token_bytes_open(mx_token_bytes **out, const mx_tokenizer *t,
                              int64_t vocab) MX_MUST_USE;
void mx_token_bytes_close(mx_token_bytes *b); /* NULL is a no-op */

/* Where one answer stands in its pattern. */
typedef struct mx_constraint mx_constraint;
mx_status mx_constraint_open(mx_constraint **out, const mx_token_bytes *b,
                             const mx_pattern *p) MX_MUST_USE;
void mx_constraint_close(mx_constraint *c); /* NULL is a no-op */
/* Makes the mask of where it stands, which costs a walk over the vocabulary, before it is asked
 * for. */
void mx_constraint_prepare(mx_constraint *c);
/* A bit for each token that may come next; those of stop_ids may where the text is whole. NULL:
 * none may, the vocabulary cannot spell what has to follow. Valid until the next call. */
const uint32_t *mx_constraint_mask(mx_constraint *c, const int32_t *stop_ids, int n_stop_ids);
bool mx_constraint_take(mx_constraint *c, int32_t id); /* false: it was not allowed */
bool mx_constraint_done(mx_constraint *c); /* the text is whole, and nothing may follow */

#endif
