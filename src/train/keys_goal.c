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
    {"use_rslora", BOOL, LORA, "false", 0, "scale is alpha / sqrt(rank)", 0, FIXED},
    {"use_dora", BOOL, LORA, "false", 0, "adapters turn weights, their lengths are trained apart",
     0, FIXED},
    {"modules_to_save", LIST, LORA, "", 0, "modules that are trained whole beside adapters", 0,
     FIXED},
    {0},
};
