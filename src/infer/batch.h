/* batch.h - a model over a cache in pages: tokens of any sequences in, logits out.
 *
 * A token is a row of the batch, whether it is one of a prompt or the next one of an answer. There
 * is a program for each of several batch sizes; a batch takes the smallest that holds it. What a
 * token gives depends on its own sequence alone, bit for bit.
 */
#ifndef MX_INFER_BATCH_H
#define MX_INFER_BATCH_H

#include "compile/lora.h"
#include "exec/step.h"

typedef struct mx_engine_batch mx_engine_batch;

typedef struct {
    int64_t tokens;     /* of a batch at most */
    int64_t sequences;  /* that the cache can tell apart at once */
    int64_t rows;       /* of logits that a batch gives at most */
    int64_t max_length; /* of a sequence */
    int64_t page;       /* tokens of a page */
    int64_t pages;
    bool keep_hidden;    /* hidden states of all tokens can be read: mx_engine_batch_after */
    bool draft;          /* the model's first MTP layer in place of the model: reads `before` */
    int64_t image_width; /* of an image token's features; 0: there are no images */
    bool places;         /* tokens have places (models/model.h) */
    int64_t draw_vocab; /* ids that the device samples from; 0: the caller samples */
    mx_lora adapters;   /* slots of a rank, or none */
    mx_compile_options compile;
} mx_engine_batch_settings;

/* Memory of the cache: a token's entries, in pages, and a sequence's recurrent states, which do not
 * grow with it. Only the state after the last token is kept: there is no way back to an earlier
 * one. */
typedef struct {
    int64_t token, sequence;
} mx_cache_bytes;
mx_status mx_engine_batch_cache_bytes(const mx_model_spec *m, const mx_engine_batch_settings *o,
                                      mx_cache_bytes *out) MX_MUST_USE;
/* What the session takes for the programs besides that cache: weights that it does not have yet,
 * activations, inputs, workspace. */
mx_status mx_engine_batch_other_bytes(mx_session *s, const mx_model_spec *m,
                                      const mx_engine_batch_settings *o, int64_t *out) MX_MUST_USE;
/* Adds programs to the session. Weights are loaded by the caller, before or after, and then laid
 * out. */
mx_status mx_engine_batch_open(mx_engine_batch **out, mx_session *s, const mx_model_spec *m,
                               const mx_engine_batch_settings *o) MX_MUST_USE;
/* Once, when weights are loaded: in the order in which the programs read them. */
mx_status mx_engine_batch_lay_weights(mx_engine_batch *b) MX_MUST_USE;
/* The same for those that only the graph `more` has, of another program of the session. */
mx_status mx_engine_batch_lay_more(mx_engine_batch *b, const mx_graph *more) MX_MUST_USE;
const mx_graph *mx_engine_batch_graph(const mx_engine_batch *b);
void mx_engine_batch_close(mx_engine_batch *b); /* NULL is a no-op */

/* One batch, filled by the caller: token i of `n` is token[i] at position[i] of sequence row[i],
 * kept in slot[i], with the adapter in adapter_slot[i] (-1: none); logits are wanted of tokens
 * last[0..n_last). Where the device samples, a token may be the last one sampled of sequence
 * from[i] (-1: it is token[i]), whether the batch that sampled it is over or not; sampling
 * (n_last, 4) says how (ops/sample_token.c), and there are logits only where wants_logits is set.
 * table (sequences, columns), the page table: the page of each `page` positions; who changes it
 * counts up table_changes.
 * With images: has_images where there are such tokens, which are -1; image (n, image_width) are
 * their features, 0 for the others, and until[i] the last position that token i sees, its own for
 * the others. Where tokens have places, place[i] are those of token i.
 * Of an MTP layer: before (n, width), the hidden states that tokens follow. */
typedef struct {
    int64_t n, n_last;
    int32_t *token, *position, *row, *slot, *last, *adapter_slot, *from;
    float *sampling;
    bool *wants_logits;
    int32_t *table;
    int64_t columns, table_changes;
    bool has_images;
    float *image;
    int32_t *until, (*place)[3];
    float *before;
} mx_engine_batch_input;
/* The batch's own; what is in it stays. */
mx_engine_batch_input *mx_engine_batch_input_of(mx_engine_batch *b);
/* That of another rank's batch, of the same settings; logits are not read here. */
void mx_engine_batch_copy_input(mx_engine_batch *b, const mx_engine_batch_input *from);
mx_status mx_engine_batch_run(mx_engine_batch *b) MX_MUST_USE;
/* The two halves of that: one more batch may be launched before the first is waited for, if no
 * logits are wanted of the first. Gives a number to wait with. */
mx_status mx_engine_batch_launch(mx_engine_batch *b, int *turn) MX_MUST_USE;
mx_status mx_engine_batch_wait(mx_engine_batch *b, int turn) MX_MUST_USE;
/* (vocab) of token last[i]; borrowed */
const float *mx_engine_batch_logits(const mx_engine_batch *b, int64_t i);
/* What the device has sampled for token last[i] of the batch that was waited for last; -1: its
 * logits are not numbers. */
int32_t mx_engine_batch_drawn(const mx_engine_batch *b, int64_t i);
/* Where the host's memory is not the device's: every program once, so that no request waits for
 * kernels to be chosen or graphs to be captured. */
mx_status mx_engine_batch_warm_up(mx_engine_batch *b) MX_MUST_USE;
/* The last layer's output for tokens last[], (n_last, width), of the batch that has just run. */
mx_status mx_engine_batch_hidden(mx_engine_batch *b, float *out) MX_MUST_USE;
/* Hidden states of all tokens of that batch, (n, width), as an MTP layer reads them; borrowed. */
mx_status mx_engine_batch_after(mx_engine_batch *b, const float **out) MX_MUST_USE;
int64_t mx_engine_batch_width(const mx_engine_batch *b);

#endif
