/* keys_optimizer.c - keys of the update rule and of the learning rate. The columns are those of
 * mx_key (base/key.h). */
#include "train/keys.h"

#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define ENUM MX_KEY_ENUM
#define LIST MX_KEY_LIST
#define OPTIMIZER MX_SECTION_OPTIMIZER
#define SCHEDULE MX_SECTION_SCHEDULE
#define FIXED MX_KEY_FIXED
#define OPTIONAL MX_KEY_OPTIONAL
#define PLANNED MX_KEY_PLANNED
#define STORED "float32~f32~fp32~float|bfloat16~bf16"

const mx_key mx_keys_optimizer[] = {
    {"opt_type", ENUM, OPTIMIZER, "adamw", "adamw|adam_pax|sgd|muon", "the update rule",
     "optimizer optim optimizer_type", FIXED, MX_BY_STEP, "opt_type=muon"},
    {"adam_b1", FLOAT, OPTIMIZER, "0.9", "0..1", "decay of the first moment",
     "adam_beta1 beta1 betas", 0, MX_BY_STEP, "adam_b1=0.5"},
    {"adam_b2", FLOAT, OPTIMIZER, "0.95", "0..1", "decay of the second moment", "adam_beta2 beta2",
     0, MX_BY_STEP, "adam_b2=0.5"},
    {"adam_eps", FLOAT, OPTIMIZER, "1e-08", "0..", "epsilon outside the root", "adam_epsilon eps",
     0, MX_BY_STEP, "adam_eps=0.001"},
    {"adam_eps_root", FLOAT, OPTIMIZER, "0", "0..", "epsilon inside the root", 0, 0, MX_BY_STEP,
     "adam_eps_root=0.001"},
    {"adam_weight_decay", FLOAT, OPTIMIZER, "0.1", "0..", "decoupled weight decay", "weight_decay",
     0, MX_BY_STEP, "adam_weight_decay=0.5"},
    {"adamw_mask", LIST, OPTIMIZER, "", 0, "patterns of weights without decay", "no_decay", 0,
     MX_BY_STEP, "adamw_mask=*proj*"},
    {"mu_dtype", ENUM, OPTIMIZER, "", "|" STORED,
     "storage of the first moment; empty: weight_dtype", 0, FIXED, MX_BY_STEP, "mu_dtype=bfloat16"},
    {"nu_dtype", ENUM, OPTIMIZER, "", "|" STORED,
     "storage of the second moment; empty: weight_dtype", 0, FIXED, MX_BY_STEP,
     "nu_dtype=bfloat16"},
    {"sgd_momentum", FLOAT, OPTIMIZER, "0", "0..1", "momentum of sgd", "momentum", 0, MX_BY_STEP,
     "sgd_momentum=0.5 opt_type=sgd"},
    {"muon_beta", FLOAT, OPTIMIZER, "0.95", "0..1", "decay of Muon's momentum", "muon_momentum", 0,
     MX_BY_STEP, "muon_beta=0.5 opt_type=muon"},
    {"muon_weight_decay", FLOAT, OPTIMIZER, "0", "0..", "weight decay of Muon", 0, 0, MX_BY_STEP,
     "muon_weight_decay=0.5 opt_type=muon"},
    {"muon_consistent_rms", FLOAT, OPTIMIZER, "0", "0..",
     "match this RMS of updates; 0 scales by the matrix's shape", 0, OPTIONAL, MX_BY_STEP,
     "muon_consistent_rms=0.2 opt_type=muon"},
    {"muon_steps", INT, OPTIMIZER, "5", "1..20", "Newton-Schulz iterations", "ns_steps", 0,
     MX_BY_STEP, "muon_steps=2 opt_type=muon"},
    {"gradient_clipping_threshold", FLOAT, OPTIMIZER, "1", "0..",
     "largest global norm; 0 leaves it",
     "grad_clip max_grad_norm clip_grad gradient_clip_val clip_grad_norm", 0, MX_BY_STEP,
     "gradient_clipping_threshold=0.1"},
    {"trainable_parameters_mask", LIST, OPTIMIZER, "", 0,
     "patterns of weights that are trained; empty: all. The rest gets no optimizer state", 0, FIXED,
     MX_BY_STEP, "trainable_parameters_mask=*norm*"},

    {"weight_sparsity_n", INT, OPTIMIZER, "0", "0..", "N of N:M sparsity: weights kept of a block",
     0, PLANNED | OPTIONAL},
    {"weight_sparsity_m", INT, OPTIMIZER, "0", "0..", "M of N:M sparsity: weights of a block", 0,
     PLANNED | OPTIONAL},
    {"weight_sparsity_update_step", INT, OPTIMIZER, "10", "1..", "steps between its masks", 0,
     PLANNED},
    {"weight_sparsity_start_step", INT, OPTIMIZER, "50", "0..", "first step with its masks", 0,
     PLANNED},

    {"learning_rate", FLOAT, SCHEDULE, "3e-05", "0..", "the peak", "lr max_lr peak_learning_rate",
     0, MX_BY_TRAIN, "learning_rate=0.02"},
    {"lr_schedule_type", ENUM, SCHEDULE, "cosine", "cosine|wsd|constant", "shape after the warmup",
     "lr_scheduler_type lr_scheduler lr_decay_style", 0, MX_BY_TRAIN, "lr_schedule_type=wsd"},
    {"learning_rate_final_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "last rate as a share of the peak", "=cosine_learning_rate_final_fraction min_lr min_lr_ratio",
     0, MX_BY_TRAIN, "learning_rate_final_fraction=0.5"},
    {"warmup_steps_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "share of the schedule that is warmup",
     "warmup_ratio warmup_steps warmup_iters lr_warmup_fraction num_warmup_steps", 0, MX_BY_TRAIN,
     "warmup_steps_fraction=0.5"},
    {"wsd_decay_steps_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "share of the schedule that decays", 0, 0, MX_BY_TRAIN,
     "wsd_decay_steps_fraction=0.9 lr_schedule_type=wsd"},
    {"wsd_decay_style", ENUM, SCHEDULE, "linear", "linear|cosine", "shape of that decay", 0, 0,
     MX_BY_TRAIN, "wsd_decay_style=cosine lr_schedule_type=wsd wsd_decay_steps_fraction=0.9"},
    {"learning_rate_schedule_steps", INT, SCHEDULE, "-1", "-1|1..",
     "length of the schedule; -1: steps. The rate is 0 afterwards", "lr_decay_steps lr_decay_iters",
     0, MX_BY_TRAIN, "learning_rate_schedule_steps=2"},
    {0},
};
