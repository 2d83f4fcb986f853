/* train_data.h - the data a configuration names, as a loader. */
#ifndef MX_TRAIN_TRAIN_DATA_H
#define MX_TRAIN_TRAIN_DATA_H

#include "base/config.h"
#include "data/image/encode_image.h"
#include "data/load/loader.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/tokenizer.h"

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_loader *loader;
    mx_tokenizer *tokenizer;
    const char *tokenizer_at; /* the file or folder it is from, or "byte"; the arena's */
    mx_chat_template *chat;
    const char *chat_text; /* of a template that the configuration gives; NULL: none */
    bool only_ids;         /* nothing is tokenized */
    bool keeps_tokenizer;  /* the one of the data or, of random tokens, the one that is named */
    bool parse_special;    /* as in mx_encoder */
    mx_encode_images images; /* table NULL: none */
    const mx_dataset_options *sets; /* of the mixture, in the arena */
    int n_sets;
    mx_arena arena;
} mx_train_data;

typedef struct {
    const mx_config *config;
    const char *model_dir; /* has tokenizer and template where no path is given; NULL: bytes */
    int64_t vocab;         /* 0: the tokenizer's */
    int64_t rows;          /* of one microbatch, over all ranks */
    int pieces;            /* batches that are used together: so many more are kept ready; 0: 1 */
    int rank, n_ranks;     /* data ranks; 0 of 0 is the whole batch */
    bool evaluation;
    mx_loss_on loss_on;
    bool no_loader;        /* the sets and the tokenizer alone */
    bool post;             /* records as post-training sees them: data/load/encode_whole.c */
    bool pairs;            /* chosen and rejected: two rows each, never packed */
    bool sides_apart;      /* as in mx_encoder */
    bool keep_end;         /* as in mx_pack_options */
    bool drops_long;       /* as in mx_pack_options */
    bool takes_margins;    /* likewise */
    bool answers_last;     /* likewise */
    const mx_model_spec *model; /* with use_multimodal its images are read; NULL: text alone */
    int64_t images_per_row;     /* at most, to the model */
    bool once;             /* every record one time, in the order of the data */
    bool look;                  /* how large the data is: mx_loader_samples */
} mx_train_data_request;
mx_status mx_train_data_open(mx_train_data *d, const mx_train_data_request *r) MX_MUST_USE;
void mx_train_data_close(mx_train_data *d);

#endif
