/* grpo_batch.h - the answers of a step, from their prompts to rows of a batch (grpo_batch.c), and
 * those that a checkpoint holds (grpo_held.c). */
#ifndef MX_POST_GRPO_BATCH_H
#define MX_POST_GRPO_BATCH_H

#include "post/grpo.h"
#include "post/reference.h"
#include <pthread.h>
#include <stdio.h>

/* One generation: the answers that `num_iterations` steps learn from. */
typedef struct {
    int64_t generation; /* -1: none */
    int64_t updates;    /* that the weights had seen which gave the answers */
    mx_str from;        /* the place in the data before its prompts */
    mx_post_prompt *asked;
    mx_completion *answer;
    mx_batch batch;  /* own rows */
    int32_t *tokens; /* owns: of all rows */
    float *advantage, *old, *has_old, *drawn; /* (rows), (rows, S), (rows), (rows, S) */
    double *score, *reward;
    double sampling_s;         /* that answering took */
    double gap_mean, gap_most; /* of sampling's log-probabilities to the policy's */
    bool finished;             /* judged: it can be trained on */
    /* judging */
    mx_rewards *by;
    mx_reward_input *judged; /* own rows; owns */
    int64_t n_judged;
    double *to;
    pthread_t thread;
    bool in_thread, scored; /* scored: `score` holds what a judge said */
    mx_status said;
    /* of the finished batch */
    mx_metric metric[MX_HOST_METRICS];
    int n_metrics;
    char names[2 * MX_MAX_REWARDS][64];
} mx_grpo_batch;

enum { MX_GRPO_SETS = 2 };

typedef struct {
    const mx_grpo *s;
    mx_prompts *prompts;
    mx_sampler *sampler;
    mx_rewards *rewards; /* NULL: recorded ones alone */
    mx_reference *reference, *policy; /* NULL: not needed */
    int64_t n_prompts, rows, seq; /* of a step, on this rank; on a mesh on all ranks */
    int64_t own, first;           /* rows of this rank's, and where they begin */
    mx_grpo_batch set[MX_GRPO_SETS]; /* generation g is number g % n_sets */
    int n_sets;
    json_t *held; /* of a checkpoint: generations that were answered already; NULL: none */
    mx_arena arena;
    FILE *record;
} mx_grpo_run;

mx_status mx_grpo_batch_open(mx_grpo_run *r, mx_grpo_batch *b) MX_MUST_USE;
void mx_grpo_batch_close(mx_grpo_run *r, mx_grpo_batch *b);
/* Asks and samples, with the weights as they are. *end: there are no more prompts. */
mx_status mx_grpo_begin(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b,
                        int64_t generation, bool *end) MX_MUST_USE;
/* Waits for the judge; a no-op where that is done. */
mx_status mx_grpo_finish(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b) MX_MUST_USE;
/* Ends the judge's thread, whatever it says; that is kept in the batch. */
void mx_grpo_join(mx_grpo_batch *b);

/* The place in the data and the generations that wait after it, JSON. */
void mx_grpo_position(const mx_objective_run *o, mx_str *json);
mx_status mx_grpo_seek(mx_grpo_run *r, const mx_objective_run *o) MX_MUST_USE;
/* The answers of a generation as a checkpoint holds them; *found: it does. */
mx_status mx_grpo_take_held(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b,
                            int64_t generation, bool *found) MX_MUST_USE;
/* What the policy that gave them thought of them, into the rows that they have become. */
void mx_grpo_take_old(mx_grpo_run *r, mx_grpo_batch *b, int64_t generation);

#endif
