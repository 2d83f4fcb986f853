/* loader.h - batches, ready before the step asks for them.
 *
 * One reader thread follows the mixture, n_threads threads tokenize, one thread packs; what each
 * produces is put back in order, so the batches are a pure function of the options: the number of
 * threads, the number of ranks and the speed of the machine change nothing.
 *
 *     mx_loader *l;
 *     MX_TRY(mx_loader_open(&l, &options));
 *     const mx_batch *b;
 *     MX_TRY(mx_loader_next(l, &b));           b is NULL after the last one
 *     mx_loader_position(l, &json);            into the checkpoint
 *     MX_TRY(mx_loader_seek(l, json, n));      after a restart: the batch that would have
 *                                              followed comes next, on any number of ranks
 *
 * Legend: B is batch_rows, over all ranks; a rank holds rows [rank B/R, (rank+1) B/R) of each
 * batch. Every rank packs the whole stream and keeps its rows: text is tokenized at tens of
 * millions of tokens a second, which no training step consumes, and in return a position is a few
 * integers that every rank knows.
 */
#ifndef MX_DATA_LOADER_H
#define MX_DATA_LOADER_H

#include "data/load/dataset.h"
#include "data/load/encode.h"
#include "data/load/pack.h"
#include "data/load/sample.h"

typedef struct {
    const mx_dataset_options
        *datasets; /* borrowed during open only, except for strings: while open */
    int n_datasets;
    mx_encoder encoder;
    mx_pack_options pack;
    int64_t batch_rows;
    int rank, n_ranks;      /* n_ranks 0 means 1; must divide batch_rows */
    int n_threads;          /* tokenizing; default 1 */
    int n_ahead;            /* batches kept ready; default 2 */
    bool skip_bad;          /* bad_record_policy=skip: leave bad records out, within the budget */
    double bad_budget;      /* largest fraction of bad records; 10 are always allowed */
    bool drop_last; /* leave out the last batch when it is not full; otherwise it is padded */
    bool epoch_batches; /* an epoch's last batch is padded too, not filled up from the next */
    const char *cache_dir;  /* keep tokenized records there; NULL: do not */
    double sample_seconds;  /* to look how large each dataset is, when it is opened; 0: do not */
} mx_loader_options;

typedef struct {
    int32_t *tokens, *labels, *segments,
        *positions; /* (rows, seq_len) each; pack.h says what they hold */
    int64_t rows, seq_len;
    int64_t step;      /* number of this batch since the start of the data */
    int64_t n_tokens;  /* places of these rows that hold a token */
    int64_t n_trained; /* places with a label; 0 is possible and means no loss */
    int64_t n_firsts;  /* rows whose first token is trained, though nothing predicts it */
    float *pixels;     /* of the rows' images, in order, as the model takes them; NULL: none yet */
    int64_t n_images, cap_images;
    float *margins;    /* (rows) of pairs with takes_margins, both rows the same; else 0 */
    int64_t *first_image; /* (rows + 1): those of row r are first_image[r] to first_image[r + 1] */
} mx_batch;

typedef struct {
    mx_pack_counts pack;
    int64_t records, bad_records;
    int64_t cache_hits;
    double wait_seconds;   /* how long mx_loader_next had to wait in all */
    const char *first_bad; /* message of the first bad record, or NULL; borrowed while open */
} mx_loader_counts;

typedef struct mx_loader mx_loader;
mx_status mx_loader_open(mx_loader **out, const mx_loader_options *o) MX_MUST_USE;
/* Waits for the first batch, without taking it: data that cannot be read or encoded is known
 * then. MX_STOPPED when a signal asks to stop meanwhile. */
mx_status mx_loader_ready(mx_loader *l) MX_MUST_USE;
/* *batch stays valid until the next call; NULL after the last. An error stays. */
mx_status mx_loader_next(mx_loader *l, const mx_batch **batch) MX_MUST_USE;
/* Where the data stands after the batch that was given last, as a small JSON object. */
void mx_loader_position(const mx_loader *l, mx_str *json);
/* A hash of some of the bytes of all its files, by which ranks know that they read the same. */
mx_status mx_loader_sample(const mx_loader *l, uint64_t *hash) MX_MUST_USE;
/* Refused when the data or the packing is not what the position was made with. */
mx_status mx_loader_seek(mx_loader *l, const char *json, size_t n) MX_MUST_USE;
/* What was found with sample_seconds: one a dataset, borrowed; NULL: nobody looked. */
const mx_data_sample *mx_loader_samples(const mx_loader *l);
/* Up to the batch given last, whose packing window counts as a whole. */
mx_loader_counts mx_loader_report(mx_loader *l);
void mx_loader_close(mx_loader *l); /* NULL is a no-op */

#endif
