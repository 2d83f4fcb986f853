/* keys_goal.c - keys of post-training: what a run of sft, dpo, grpo is for.
 *
 * Columns: name, type, section, default, accepted, help, aliases (`=` accepted as is), flags.
 */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define LIST MX_KEY_LIST
#define LORA MX_SECTION_LORA
#define POST MX_SECTION_POST
#define FIXED MX_KEY_FIXED

const mx_key mx_keys_goal[] = {
    {"semantics", ENUM, POST, "trl", "trl|maxtext|verl",
     "whose formulas are meant where programs differ", 0, FIXED},
    {"loss_on", ENUM, POST, "", "|completion|assistant|all",
     "tokens that sft trains on; empty: completions, and the whole of records without a prompt", 0,
     FIXED},
    {"loss_type", TEXT, POST, "", 0,
     "the loss of the objective: nll, dft; sigmoid, ipo, orpo ...; grpo, dapo ...", 0, FIXED},
    {"loss_weights", LIST, POST, "", 0, "weights of several losses of loss_type; empty: 1 each", 0,
     FIXED},
    {"beta", FLOAT, POST, "-1", "-1|0..",
     "strength of a preference, weight of a KL; -1: as dpo_beta, orpo_lambda, grpo_beta say", 0,
     FIXED},
    {"reference_path", TEXT, POST, "", 0, "the reference; empty: the model at the start",
     "ref_model", FIXED},
    {"f_divergence_type", ENUM, POST, "reverse_kl",
     "reverse_kl|forward_kl|js_divergence|alpha_divergence", "divergence that dpo's scores are of",
     0, FIXED},
    {"f_alpha_divergence_coef", FLOAT, POST, "0.5", 0, "alpha of alpha_divergence", 0, FIXED},
    {"ld_alpha", FLOAT, POST, "-1", "-1|0..1",
     "weight of tokens beyond the shorter answer's length (LD-DPO); -1: 1", 0, FIXED},
    {"use_weighting", BOOL, POST, "false", 0, "weigh pairs by their likelihood (WPO)", 0, FIXED},
    {"discopop_tau", FLOAT, POST, "0.05", ">0", "temperature of loss_type=discopop", 0, FIXED},
    {"max_completion_length", INT, POST, "512", "1..", "tokens of an answer that grpo samples", 0,
     FIXED},
    {"scale_rewards", ENUM, POST, "group", "group|batch|none",
     "whose standard deviation rewards are divided by", 0, FIXED},
    {"importance_sampling_level", ENUM, POST, "token", "token|sequence",
     "what the ratio of new and old policy is of", 0, FIXED},
    {"delta", FLOAT, POST, "0", "0|>1", "upper limit of the ratio; 0: none", 0, FIXED},
    {"use_bias_correction_kl", BOOL, POST, "true", 0, "the KL is weighted by the ratio", 0, FIXED},
    {"mask_truncated_completions", BOOL, POST, "false", 0,
     "nothing is learned from answers that did not end", 0, FIXED},
    {"sapo_temperature_pos", FLOAT, POST, "1", ">0", "loss_type=sapo, of good answers", 0, FIXED},
    {"sapo_temperature_neg", FLOAT, POST, "1.05", ">0", "loss_type=sapo, of bad answers", 0, FIXED},
    {"rollout_path", TEXT, POST, "", 0,
     "recorded groups of answers to train on, instead of sampling", 0, FIXED},
    {"record_rollouts", BOOL, POST, "false", 0, "write every group to RUN/rollouts.jsonl", 0, 0},
    {"reward_weights", LIST, POST, "", 0, "weights of several rewards; empty: 1 each", 0, FIXED},
    {"reward_pattern", TEXT, POST,
     "(?s)\\s*<reasoning>.*</reasoning>\\s*<answer>.*</answer>\\s*", 0,
     "regular expression of reward=format", 0, FIXED},
    {"reward_command", TEXT, POST, "", 0, "program that judges answers: docs/post-training.md", 0,
     FIXED},
    {"reward_workers", INT, POST, "1", "1..64", "copies of reward_command that run", 0, 0},
    {"reward_timeout", FLOAT, POST, "30", ">0", "seconds it may take for an answer", 0, 0},
    {"reward_sandbox", BOOL, POST, "true", 0, "it has no network and gains no rights", 0, 0},
    {"use_rslora", BOOL, LORA, "false", 0, "scale is alpha / sqrt(rank)", 0, FIXED},
    {"use_dora", BOOL, LORA, "false", 0, "adapters turn weights, their lengths are trained apart",
     0, FIXED},
    {"modules_to_save", LIST, LORA, "", 0, "modules that are trained whole beside adapters", 0,
     FIXED},
    {0},
};
