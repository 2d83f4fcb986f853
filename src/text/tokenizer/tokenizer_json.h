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

#endif
