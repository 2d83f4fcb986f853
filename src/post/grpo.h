/* grpo.h - group-relative policy optimisation: what its parts share.
 *
 * G answers to each of P prompts; rows of the batch are prompt 0's answers, prompt 1's, ...
 */
#ifndef MX_POST_GRPO_H
#define MX_POST_GRPO_H

#include "post/prompts.h"
#include "post/reward.h"
#include "train/run/objective.h"

/* How the losses of tokens become one number (grpo_loss.c). */
typedef enum {
    MX_MEAN_OF_SEQUENCES, /* each sequence's mean, and the mean of these */
    MX_MEAN_OF_MICROBATCH, /* over the tokens of a microbatch */
    MX_SUM_BY_LENGTH,     /* over sequences x max_completion_length */
    MX_MEAN_OF_TOKENS,    /* over the tokens of the step */
    MX_SUM_OF_SEQUENCES,  /* each sequence's sum, and the mean of these */
} mx_grpo_mean;

/* The KL to the reference, of each token; far = log p_ref - log p. */
typedef enum {
    MX_KL_K3,      /* e^far - far - 1; times the ratio with use_bias_correction_kl */
    MX_KL_K1,      /* -far */
    MX_KL_K3_HELD, /* k3 with far within 20, itself within 10 */
} mx_grpo_kl;

/* What programs differ in (grpo_loss.c): semantics=NAME. */
typedef struct {
    const char *name;
    const char *losses;      /* that it has, the first unless loss_type is set; NULL: all, dapo */
    int64_t generations;     /* unless num_generations is set */
    double beta;             /* unless it is set */
    double std_epsilon;      /* is added to a group's standard deviation */
    double log_ratio;        /* the log of a token's ratio stays within it; 0: no limit */
    double dual_clip;        /* most that a bad answer's ratio counts; 0: no limit */
    mx_grpo_kl kl;
    bool by_token;           /* gspo: values by sequence, gradients by token */
    bool cispo_low;          /* cispo: the ratio is held within 1 - epsilon too */
} mx_grpo_semantics;

typedef struct mx_grpo_loss mx_grpo_loss;

typedef struct {
    const mx_grpo_semantics *of;
    const mx_grpo_loss *loss;
    int64_t generations, iterations, max_completion;
    int64_t at_once; /* answers that are decoded together; 0: as many as suit the device */
    double temperature, beta, epsilon, epsilon_high, delta; /* delta 0: none */
    double sapo_positive, sapo_negative;
    double vespo_k[2], vespo_lambda[2]; /* of good answers, of bad ones */
    double top_entropy; /* share of tokens that are learned from; 1: all */
    double off_policy; /* bad answers that are unlikelier now by more teach nothing; 0: all do */
    bool by_sequence; /* importance weights of whole sequences */
    bool bias_correction, mask_truncated, record;
    int64_t off_policy_steps; /* generations that answers are given ahead: 0 or 1 */
    bool policy_moves; /* between the answers and a step that learns from them */
    bool sampled; /* answers are sampled here, not read from rollout_path */
    const char *scale; /* group, batch or none */
    bool each_normalized; /* rewards are made comparable one by one, and then summed */
    double logp_limit; /* of sampling's and training's difference; below 0: 0 where it is exact */
} mx_grpo;

/* What a loss is made of. */
typedef struct {
    mx_node *ratio;     /* (B, S), or (B, 1) by sequence */
    mx_node *log_ratio; /* (B, S), of tokens; 0 where none counts */
    mx_node *advantage; /* (B, 1) */
    mx_node *logp;      /* (B, S) */
} mx_grpo_terms;

struct mx_grpo_loss {
    const char *name;
    mx_grpo_mean mean;
    /* The loss of each token, (B, S). */
    mx_node *(*build)(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *t);
    bool clips; /* has clip_ratio metrics */
};
const mx_grpo_loss *mx_grpo_loss_find(const char *name); /* NULL: none */
const char *mx_grpo_loss_names(mx_arena *a);
const mx_grpo_semantics *mx_grpo_semantics_find(const char *name); /* NULL: none */
/* The objective's loss over the graph. Inputs: advantage (B), old and reference (B, S), has_old
 * (B): 0 where the policy that answered is the present one. */
mx_node *mx_grpo_build(mx_graph *g, const mx_head *h, mx_build *b, const void *settings);

#define MX_LOGP_GAP "sampling/sampling_logp_difference/max"
#define MX_OLD_GAP "sampling/old_logp_difference/max"

/* --- answers --- */

typedef struct {
    mx_tokens ids; /* with the end token, where it ended by itself */
    float *logp;   /* of each under the sampler; owns; NULL: not known */
    mx_str text;
    bool truncated;
    double reward; /* as recorded; NAN: to be judged */
    bool unjudged; /* recorded as null: nothing could judge it */
} mx_completion;
void mx_completion_fini(mx_completion *c);
/* An answer as rewards see it; borrows. */
mx_reward_input mx_reward_input_of(const mx_post_prompt *asked, const mx_completion *c,
                                   const mx_grpo *s);

/* rollout.c: answers by the weights of the run's own session, in place. On a mesh all ranks ask for
 * the answers of all. */
typedef struct mx_sampler mx_sampler;
/* The memory that it will take. */
mx_status mx_sampler_beside(const mx_objective_run *o, const mx_grpo *s, int64_t rows,
                            mx_beside *out) MX_MUST_USE;
mx_status mx_sampler_open(mx_sampler **out, const mx_objective_run *o, const mx_grpo *s,
                          int64_t rows) MX_MUST_USE;
void mx_sampler_close(mx_sampler *s); /* NULL is a no-op */
/* Are the log-probabilities of answers those of a training step, to the bit? */
bool mx_sampler_is_exact(const mx_sampler *s);
/* G answers to each of n prompts; draws are a function of (seed, generation, answer). */
mx_status mx_sampler_run(mx_sampler *s, const mx_post_prompt *prompts, int64_t n,
                         int64_t generation, mx_completion *out) MX_MUST_USE;
/* The answers of a record of rollout_path. */
mx_status mx_recorded_answers(const mx_train_data *d, const mx_post_prompt *asked, const mx_grpo *s,
                              mx_completion *out) MX_MUST_USE;

/* advantage.c: from rewards (n answers in groups of G, NAN: not judged) to advantages; the share of
 * answers whose group's rewards are all equal. */
typedef struct {
    double mean, std, zero_share;
} mx_reward_facts;
/* With each_normalized `score` (n, count) is rewarded by `weight` (count), not `reward`. */
typedef struct {
    const double *reward, *score, *weight; /* score NULL: the reward is the only one */
    int count;
} mx_group_rewards;
mx_reward_facts mx_advantages(const mx_grpo *s, const mx_group_rewards *r, int64_t n,
                              float *advantage);

#endif
