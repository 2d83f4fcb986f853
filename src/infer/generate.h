/* generate.h - offline generation: answers to a list of prompts, through the engine where it takes
 * the model, else in fixed batches. */
#ifndef MX_INFER_GENERATE_H
#define MX_INFER_GENERATE_H

#include "compile/quantize_weights.h"
#include "infer/sample.h"
#include "text/tokenizer/tokenizer.h"
#include "exec/model_ref.h"
#include "exec/virtual_ranks.h"

typedef struct {
    mx_sampling sampling;
    int64_t max_new_tokens;
    int64_t step_tokens;       /* through the engine: tokens of a batch at most */
    int64_t draft_tokens;      /* through the engine: drafted ahead and checked, */
    bool mtp;                  /* by the model's MTP layer, else from the text */
    bool no_prefix_cache;      /* equal prefixes of prompts are computed each for itself */
    int64_t batch;             /* sequences decoded together; 0: all prompts, at most 32 */
    const int32_t *stop_ids;   /* tokens that end an answer */
    int n_stop_ids;
    const char *const *stop;   /* texts that end an answer; they are cut off, their ids stay */
    int n_stop;
    const float *pixels; /* images of every prompt, as the model takes them; NULL: none */
    int64_t n_images;
    const char *device;
    int n_threads;
    mx_dtype compute;
    /* The rank of a mesh; all ranks make the same answers. NULL: alone */
    const mx_mesh_rank *mesh_rank;
    mx_weight_quant quant; /* quantization of weights and KV cache */
    const mx_adapter *adapters; /* several, in one batch; then the model has none of its own */
    int n_adapters;
    const int64_t *adapter_of; /* each prompt's, from 1 on; 0: the base model */
} mx_generate_options;

typedef struct {
    mx_tokens ids;        /* new tokens, the ending one left out */
    mx_str text;          /* of them */
    double log_prob;      /* sum over the new tokens */
    bool stopped;         /* by an end token or text, not by max_new_tokens */
} mx_answer;

typedef struct {
    double prompt_tokens, new_tokens, prompt_s, decode_s;
} mx_generate_counts;

/* One answer per prompt, in answers[0..n) (zeroed by the caller). Text of answer 0 is given to
 * `give` (unless NULL) as it is made, but never text that may become part of a stop text. The
 * tokenizer may be NULL (no text, no stop texts). */
mx_status mx_generate(const mx_model_ref *model, const mx_tokenizer *tok, const mx_tokens *prompts,
                      int64_t n, const mx_generate_options *o,
                      void (*give)(void *ctx, const char *text, size_t n_bytes), void *ctx,
                      mx_answer *answers, mx_generate_counts *counts) MX_MUST_USE;
void mx_answer_fini(mx_answer *a);
/* Tokens that end an answer: what generation_config.json or config.json names, and the tokenizer's
 * own (tok may be NULL). Gives their number, at most cap. */
int mx_stop_ids(const mx_model_ref *model, const mx_tokenizer *tok, int32_t *ids, int cap);

#endif
