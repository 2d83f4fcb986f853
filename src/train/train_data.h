/* train_data.h - the data a configuration names, as a loader. */
#ifndef MX_TRAIN_TRAIN_DATA_H
#define MX_TRAIN_TRAIN_DATA_H

#include "base/config.h"
#include "data/loader.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_loader *loader;
    mx_tokenizer *tokenizer;
    mx_chat_template *chat;
    mx_arena arena;
} mx_train_data;

/* `model_dir` is where tokenizer and chat template are looked for when no path is given (NULL: bytes).
 * `rows` is the global batch of one microbatch. */
mx_status mx_train_data_open(mx_train_data *d, const mx_config *c, const char *model_dir,
                             int64_t vocab, int64_t rows, bool evaluation) MX_MUST_USE;
void mx_train_data_close(mx_train_data *d);

#endif
