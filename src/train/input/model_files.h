/* model_files.h - the files beside a model's weights that a run carries into its checkpoints:
 * tokenizer, chat template, defaults of generation, image processors.
 *
 * They are read once, when the run begins. A checkpoint then has them whatever becomes of the
 * folder or the cache they came from, and a save reads nothing.
 */
#ifndef MX_TRAIN_MODEL_FILES_H
#define MX_TRAIN_MODEL_FILES_H

#include "store/hf_save.h"
#include "text/tokenizer/tokenizer.h"

typedef struct {
    const mx_tokenizer *tokenizer; /* NULL: the data needs none; the model's own files go along */
    const char *at;      /* the file or folder it was opened from */
    const char *pattern; /* tokenizer_pattern, which rank files do not say; may be "" */
    const char *chat;    /* the text of a chat template in place of the tokenizer's; NULL: none */
    const char *model;   /* the folder that the weights come from; NULL: none */
} mx_model_files_from;

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_hf_extra *v; /* names and contents, in the arena */
    int n, cap;
    mx_arena arena;
} mx_model_files;

/* A vocabulary is called as a folder calls one of its kind, whatever the file's name was; the byte
 * tokenizer is a word in tokenizer_config.json. */
mx_status mx_model_files_read(mx_model_files *f, const mx_model_files_from *from) MX_MUST_USE;
void mx_model_files_close(mx_model_files *f);

#endif
