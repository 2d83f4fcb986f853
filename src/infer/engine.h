/* engine.h - many requests at once: continuous batching over a paged cache.
 *
 *     mx_engine_open(&e, &options);
 *     mx_engine_admit(e, &prompt, &request, &r);            any number, at any time
 *     while (mx_engine_busy(e)) {
 *         mx_engine_step(e);
 *         while ((r = mx_engine_take(e)))                   requests that have something new
 *             ... r->tokens, r->reply.text; and once r->finish is set: mx_engine_cancel(e, r)
 *     }
 *
 * A step is one batch: the next token of every running answer, and chunks of prompts up to
 * step_tokens (chunked prefill). Requests that do not fit wait in the order in which they came;
 * when the cache is full, the request that began last is preempted: it gives up its pages and is
 * recomputed later. Scheduling does not change results: tokens and log-probabilities of a request
 * are the same bits whether it runs alone or in a batch.
 *
 * One thread at a time.
 */
#ifndef MX_INFER_ENGINE_H
#define MX_INFER_ENGINE_H

#include "compile/quantize_weights.h"
#include "infer/adapters.h"
#include "infer/constraint.h"
#include "infer/images.h"
#include "infer/reply.h"
#include "infer/sample.h"
#include "exec/model_ref.h"

typedef struct mx_engine mx_engine;

typedef struct {
    const mx_model_ref *model;     /* borrowed */
    const mx_tokenizer *tokenizer; /* borrowed; NULL: no texts, no stop texts */
    const struct mx_mesh_rank *mesh_rank; /* set by engine_mesh.c; NULL: no mesh */
    struct mx_batch_ranks *ranks;         /* how batches get to the other ranks */
    mx_session *session;           /* without programs; taken, on failure too. NULL: opened, on */
    const char *device;            /* this device, */
    int n_threads;                 /* its number of threads */
    mx_dtype compute;
    mx_weight_quant quant; /* quantization of weights and KV cache */
    int64_t sequences;       /* running at once (max_num_seqs); 0: chosen */
    int64_t step_tokens;     /* of a batch (max_num_batched_tokens); 0: chosen */
    int64_t max_length;      /* of prompt and answer; 0: the model's, at most 32,768 */
    int64_t cache_tokens;    /* capacity of the KV cache; 0: chosen */
    double memory_share;     /* of a GPU's memory that may be used, where it is chosen; 0: 0.9 */
    bool no_prefix_cache;    /* equal prefixes of prompts are not shared */
    bool device_draws;       /* the device samples where it can, and the next batch is launched
                                before the last one is waited for; always so where the device's
                                memory is not the host's */
    int64_t draft_tokens;    /* speculative decoding: drafted for an answer in a step; 0: none */
    bool mtp;                /* drafted by the model's MTP layer, else by prompt lookup (draft.c) */
    int64_t adapter_slots;   /* adapters that requests can choose among; 0: none */
    int64_t adapter_rank;    /* theirs at most */
    bool images;             /* requests may have them */
    uint64_t seed;           /* of random weights */
    const int32_t *stop_ids; /* tokens that end every answer (mx_stop_ids); borrowed */
    int n_stop_ids;
} mx_engine_options;

/* An error where the model's caches cannot be paged (mx_engine_batch_cache_bytes). */
mx_status mx_engine_open(mx_engine **out, const mx_engine_options *o) MX_MUST_USE;
void mx_engine_close(mx_engine *e); /* NULL is a no-op; requests that are left go with it */
/* Can this model be served? MX_OK, or why not. */
mx_status mx_engine_can(const mx_model_spec *m) MX_MUST_USE;

typedef enum {
    MX_FINISH_NOT, /* goes on */
    MX_FINISH_STOP,
    MX_FINISH_LENGTH,
    MX_FINISH_ERROR,
} mx_finish;

typedef struct {
    mx_sampling sampling;
    uint64_t stream;          /* of random numbers: one for each answer to a prompt */
    int64_t max_new, min_new; /* tokens */
    const int32_t *stop_ids;  /* besides the engine's */
    int n_stop_ids;
    bool ignore_eos;         /* the engine's stop ids do not end it */
    const char *const *stop; /* texts */
    int n_stop;
    bool keep_stop;    /* the stop text stays in the text */
    bool show_special; /* special tokens have text */
    const mx_logit_bias *bias;
    int n_bias;
    mx_constraint
        *constraint;       /* constrained decoding; taken by an admitted request; NULL: none */
    bool log_probs;        /* of each token, */
    int n_top;             /* and of the n_top likeliest in its place */
    bool prompt_log_probs; /* of the prompt's tokens too */
    bool embedding;        /* the prompt's last hidden state, of the last layer; max_new is 0 */
    mx_image_set *images;  /* of the prompt, in the order of their tokens; held; NULL: none */
    int64_t adapter;       /* its slot, from 1 on; 0: the base model */
    const char *salt;      /* of the prefix cache: only equal salts share pages; NULL: none */
    void *owner;           /* the caller's */
} mx_request_options;      /* everything is copied */

/* A request, to be read by its owner. */
typedef struct {
    mx_tokens tokens; /* prompt and answer; a stop id is the last one */
    int64_t n_prompt;
    int64_t n_text;  /* tokens of the answer, a stop id left out */
    mx_reply reply;  /* the answer's text */
    float *log_prob; /* of each token, where asked for; NaN: not known (a prompt's first) */
    mx_choice *top;  /* (tokens, n_top) */
    int n_top;
    float *embedding; /* (mx_engine_width), where asked for, once it has finished */
    mx_finish finish;
    int32_t stop_id;  /* that ended it; -1: none */
    mx_status error;  /* with MX_FINISH_ERROR */
    int64_t n_cached; /* tokens of the prompt that were found in the cache */
    double arrived, started, first,
        last; /* seconds: queued, first in a batch, first and last token */
    void *owner;
} mx_request;

/* Loads an adapter into a slot, 1 to adapter_slots, that no request uses; NULL: empties it. Pages
 * that were cached with the slot's earlier adapter are not reused. */
mx_status mx_engine_adapt(mx_engine *e, int64_t slot, const mx_adapter *a) MX_MUST_USE;

/* Refused at once: an empty prompt, ids that the model does not have, more than can ever fit. */
mx_status mx_engine_admit(mx_engine *e, const mx_tokens *prompt, const mx_request_options *o,
                          mx_request **out) MX_MUST_USE;
/* Ends the request where it goes on, and forgets it. */
void mx_engine_cancel(mx_engine *e, mx_request *r);
bool mx_engine_busy(const mx_engine *e);
/* One batch; nothing where there is nothing to do. An error is the device's: no request goes on. */
mx_status mx_engine_step(mx_engine *e) MX_MUST_USE;
/* A request with something new since it was last taken; NULL: no more. */
mx_request *mx_engine_take(mx_engine *e);

typedef struct {
    int64_t running, waiting, pages, pages_held;
    int64_t steps, batch_tokens, prompt_tokens, new_tokens, preemptions;
    int64_t prefix_queries, prefix_hits; /* tokens */
    int64_t drafted, accepted;           /* draft tokens */
    int64_t ahead;                       /* steps that were launched before the last one was over */
    double step_s, model_s;              /* seconds of steps, and of those in the model itself */
} mx_engine_counts;
mx_engine_counts mx_engine_count(const mx_engine *e);
int64_t mx_engine_max_length(const mx_engine *e);
int64_t mx_engine_vocab(const mx_engine *e); /* ids that can be sampled */
int64_t mx_engine_width(const mx_engine *e); /* hidden size: of embeddings */

#endif
