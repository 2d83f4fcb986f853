/* tokenizer_json.h - between the files that read the parts of a tokenizer.json. */
#ifndef MX_TEXT_TOKENIZER_JSON_H
#define MX_TEXT_TOKENIZER_JSON_H

#include "base/json_tree.h"
#include "text/tokenizer/tokenizer_parts.h"

mx_status mx_json_read_normalizer(mx_tokenizer *t, const mx_json_node *v,
                                  const char *where) MX_MUST_USE;
/* *byte_level is set when the text is to be seen as bytes. */
mx_status mx_json_read_pretok(mx_tokenizer *t, const mx_json_node *v, const char *where,
                              bool *byte_level) MX_MUST_USE;
mx_status mx_json_read_decoder(mx_tokenizer *t, const mx_json_node *v,
                               const char *where) MX_MUST_USE;
mx_status mx_json_read_post(mx_tokenizer *t, const mx_json_node *v, const char *where) MX_MUST_USE;

/* A string member, copied to the tokenizer's arena. */
const char *mx_json_keep(mx_tokenizer *t, const mx_json_node *object, const char *key,
                         const char *other, size_t *n);
/* {"String": s} or {"Regex": r}, or a plain string. Exactly one of *find and *regex is set. */
mx_status mx_json_read_pattern(mx_tokenizer *t, const mx_json_node *v, const char *where,
                               const char **find, size_t *n_find, const char **regex) MX_MUST_USE;

#endif
