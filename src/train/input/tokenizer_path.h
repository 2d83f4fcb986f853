/* tokenizer_path.h - the tokenizer and chat template that a configuration names. */
#ifndef MX_TRAIN_TOKENIZER_PATH_H
#define MX_TRAIN_TOKENIZER_PATH_H

#include "base/config.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/tokenizer.h"

/* tokenizer_path, or `otherwise` when it is empty (NULL or "": the byte tokenizer), read with
 * tokenizer_type and tokenizer_pattern. A name such as org/model that is no file here is fetched
 * from the hub. *where, unless NULL, is the file or folder that it was; memory from the arena. */
mx_status mx_tokenizer_from_config(mx_tokenizer **out, const mx_config *c, const char *otherwise,
                                   mx_arena *a, const char **where) MX_MUST_USE;

/* vocab_size is the tokenizer's where nothing says it and text is to be tokenized. */
mx_status mx_vocab_from_tokenizer(const mx_config *c) MX_MUST_USE;

/* The chat template that the configuration gives (chat_template, chat_template_path), else the one
 * in the folder `dir` (NULL or no folder: none). *out is NULL where there is none, which is an
 * error only with use_chat_template=true. *given, unless NULL, is the text of one that was given.
 */
mx_status mx_chat_from_config(mx_chat_template **out, const mx_config *c, const char *dir,
                              mx_arena *a, const char **given) MX_MUST_USE;

#endif
