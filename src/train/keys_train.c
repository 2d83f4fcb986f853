/* keys_train.c - keys of the training loop, the optimizer, the schedule and evaluation.
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
#define RETIRED MX_KEY_RETIRED
#define TRAIN MX_SECTION_TRAIN
#define OPTIMIZER MX_SECTION_OPTIMIZER
#define SCHEDULE MX_SECTION_SCHEDULE
#define EVAL MX_SECTION_EVAL
#define FIXED MX_KEY_FIXED

const mx_key mx_keys_train[] = {
    {"steps", INT, TRAIN, "150001", "-1|1..", "steps in all; -1 takes learning_rate_schedule_steps",
     "max_steps num_steps max_iters train_iters total_steps iterations", 0},
    {"per_device_batch_size", FLOAT, TRAIN, "12", ">0",
     "sequences per device and step; below 1 when devices share a sequence",
     "batch_size micro_batch_size per_device_train_batch_size train_batch_size", 0},
    {"max_target_length", INT, TRAIN, "2048", "1..", "tokens in a sequence",
     "max_seq_len max_seq_length seq_len seq_length sequence_length block_size context_length "
     "max_length model_max_length n_ctx",
     FIXED},
    {"gradient_accumulation_steps", INT, TRAIN, "1", "1..", "microbatches per update",
     "grad_accum accumulation_steps gradient_accumulation accumulate_grad_batches", 0},
    {"enable_dropout", BOOL, TRAIN, "true", 0, "dropout with dropout_rate", 0, 0},
    {"z_loss_multiplier", FLOAT, TRAIN, "0", "0..", "weight of the squared log-partition", "z_loss",
     0},
    {"abort_on_nan_loss", BOOL, TRAIN, "true", 0, "stop when the loss is NaN", 0, 0},
    {"abort_on_inf_loss", BOOL, TRAIN, "true", 0, "stop when the loss is infinite", 0, 0},
    {"skip_step_on_spikes", BOOL, TRAIN, "false", 0, "skip updates on outliers of loss or norm", 0,
     0},
    {"skip_step_interval", INT, TRAIN, "128", "2..", "steps in the statistics of spikes", 0, 0},
    {"skip_step_scaling_factor", FLOAT, TRAIN, "6", ">0", "standard deviations that make a spike",
     0, 0},
    {"rollback_after_skips", INT, TRAIN, "0", "0..",
     "consecutive skipped steps after which the last checkpoint is restored; 0 never", 0, 0},
    {"enable_rampup_batch_size", BOOL, TRAIN, "false", 0, "grow the batch in stages",
     "rampup_batch_size", 0},
    {"per_device_batch_size_start", FLOAT, TRAIN, "4", ">0", "first batch size of the ramp", 0, 0},
    {"per_device_batch_size_increment", FLOAT, TRAIN, "2", ">0", "growth per stage of the ramp", 0,
     0},
    {"global_rampup_samples", INT, TRAIN, "500", "1..", "sequences seen during the ramp", 0, 0},
    {"training_objective", ENUM, TRAIN, "causal_lm", "causal_lm|block_diffusion", "what is learnt",
     0, FIXED},
    {"max_inflight_computations", RETIRED, TRAIN, 0, 0, "the loop queues one step ahead by itself",
     0, 0},

    {"opt_type", ENUM, OPTIMIZER, "adamw", "adamw|adam_pax|sgd|muon", "the update rule",
     "optimizer optim optimizer_type", FIXED},
    {"adam_b1", FLOAT, OPTIMIZER, "0.9", "0..1", "decay of the first moment",
     "adam_beta1 beta1 betas", 0},
    {"adam_b2", FLOAT, OPTIMIZER, "0.95", "0..1", "decay of the second moment", "adam_beta2 beta2",
     0},
    {"adam_eps", FLOAT, OPTIMIZER, "1e-08", "0..", "epsilon outside the root", "adam_epsilon eps",
     0},
    {"adam_eps_root", FLOAT, OPTIMIZER, "0", "0..", "epsilon inside the root", 0, 0},
    {"adam_weight_decay", FLOAT, OPTIMIZER, "0.1", "0..", "decoupled weight decay", "weight_decay",
     0},
    {"adamw_mask", LIST, OPTIMIZER, "", 0, "patterns of weights without decay", "no_decay", 0},
    {"mu_dtype", ENUM, OPTIMIZER, "", "|float32|bfloat16",
     "storage of the first moment; empty: weight_dtype", 0, FIXED},
    {"nu_dtype", ENUM, OPTIMIZER, "", "|float32|bfloat16",
     "storage of the second moment; empty: weight_dtype", 0, FIXED},
    {"sgd_momentum", FLOAT, OPTIMIZER, "0", "0..1", "momentum of sgd", "momentum", 0},
    {"muon_beta", FLOAT, OPTIMIZER, "0.95", "0..1", "decay of Muon's momentum", "muon_momentum", 0},
    {"muon_weight_decay", FLOAT, OPTIMIZER, "0", "0..", "weight decay of Muon", 0, 0},
    {"muon_consistent_rms", FLOAT, OPTIMIZER, "0", "0..",
     "match this RMS of updates; 0 scales by the matrix's shape", 0, MX_KEY_OPTIONAL},
    {"muon_steps", INT, OPTIMIZER, "5", "1..20", "Newton-Schulz iterations", "ns_steps", 0},
    {"gradient_clipping_threshold", FLOAT, OPTIMIZER, "1", "0..",
     "largest global norm; 0 leaves it",
     "grad_clip max_grad_norm clip_grad gradient_clip_val clip_grad_norm", 0},
    {"trainable_parameters_mask", LIST, OPTIMIZER, "", 0,
     "patterns of weights that are trained; empty: all. The rest gets no optimizer state", 0,
     FIXED},

    {"learning_rate", FLOAT, SCHEDULE, "3e-05", "0..", "the peak", "lr max_lr peak_learning_rate",
     0},
    {"lr_schedule_type", ENUM, SCHEDULE, "cosine", "cosine|wsd|linear|constant",
     "shape after the warmup",
     "lr_scheduler_type lr_scheduler lr_decay_style", 0},
    {"learning_rate_final_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "last rate as a share of the peak", "=cosine_learning_rate_final_fraction min_lr min_lr_ratio",
     0},
    {"warmup_steps_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "share of the schedule that is warmup",
     "warmup_ratio warmup_steps warmup_iters lr_warmup_fraction num_warmup_steps", 0},
    {"wsd_decay_steps_fraction", FLOAT, SCHEDULE, "0.1", "0..1",
     "share of the schedule that decays", 0, 0},
    {"wsd_decay_style", ENUM, SCHEDULE, "linear", "linear|cosine", "shape of that decay", 0, 0},
    {"learning_rate_schedule_steps", INT, SCHEDULE, "-1", "-1|1..",
     "length of the schedule; -1: steps. The rate is 0 afterwards", "lr_decay_steps lr_decay_iters",
     0},

    {"eval_interval", INT, EVAL, "-1", "-1|1..", "steps between evaluations; -1 never",
     "=eval_period val_check_interval eval_every", 0},
    {"eval_steps", INT, EVAL, "-1", "-1|1..", "batches per evaluation; -1 all", "eval_iters", 0},
    {"eval_start_step", INT, EVAL, "0", "0..", "first step that may evaluate", 0, 0},
    {"eval_per_device_batch_size", FLOAT, EVAL, "0", "0..",
     "sequences per device; 0 as in training", "per_device_eval_batch_size", 0},
    {"target_eval_loss", FLOAT, EVAL, "0", "0..", "stop when evaluation reaches this loss; 0 never",
     0, 0},
    {0},
};
