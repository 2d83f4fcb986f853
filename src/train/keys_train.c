/* keys_train.c - keys of the training loop and of evaluation. The columns are those of mx_key
 * (base/key.h). */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define ENUM MX_KEY_ENUM
#define TRAIN MX_SECTION_TRAIN
#define EVAL MX_SECTION_EVAL
#define FIXED MX_KEY_FIXED
#define PLANNED MX_KEY_PLANNED

const mx_key mx_keys_train[] = {
    {"steps", INT, TRAIN, "150001", "-1|1..", "steps in all; -1 takes learning_rate_schedule_steps",
     "max_steps num_steps max_iters train_iters total_steps iterations", 0, "train bench",
     "steps=2"},
    {"per_device_batch_size", FLOAT, TRAIN, "12", ">0",
     "sequences per device and step; below 1 when devices share a sequence",
     "batch_size micro_batch_size per_device_train_batch_size train_batch_size", 0, MX_BY_STEP,
     "per_device_batch_size=3"},
    {"max_target_length", INT, TRAIN, "2048", "1..", "tokens in a sequence",
     "max_seq_len max_seq_length seq_len seq_length sequence_length block_size context_length "
     "max_length model_max_length n_ctx",
     FIXED, "train data plan bench", "max_target_length=16"},
    {"gradient_accumulation_steps", INT, TRAIN, "1", "1..", "microbatches per update",
     "grad_accum accumulation_steps gradient_accumulation accumulate_grad_batches", 0, "train plan",
     "gradient_accumulation_steps=2"},
    {"z_loss_multiplier", FLOAT, TRAIN, "0", "0..", "weight of the squared log-partition", "z_loss",
     0, MX_BY_STEP, "z_loss_multiplier=0.1"},
    {"abort_on_nan_loss", BOOL, TRAIN, "true", 0, "stop when the loss is NaN", 0, 0, MX_BY_TRAIN,
     "abort_on_nan_loss=false", .seen_by = "tests/train/late_test.c"},
    {"abort_on_inf_loss", BOOL, TRAIN, "true", 0, "stop when the loss is infinite", 0, 0,
     MX_BY_TRAIN, "abort_on_inf_loss=false", .seen_by = "tests/train/late_test.c"},
    {"skip_step_on_spikes", BOOL, TRAIN, "false", 0, "skip updates on outliers of loss or norm", 0,
     0, MX_BY_STEP, "skip_step_on_spikes=true"},
    {"skip_step_interval", INT, TRAIN, "128", "2..", "steps in the statistics of spikes", 0, 0,
     MX_BY_TRAIN, "skip_step_interval=2 skip_step_on_spikes=true",
     .seen_by = "tests/train/run_faults_test.c"},
    {"skip_step_scaling_factor", FLOAT, TRAIN, "6", ">0", "standard deviations that make a spike",
     0, 0, MX_BY_TRAIN, "skip_step_scaling_factor=3 skip_step_on_spikes=true",
     .seen_by = "tests/train/run_faults_test.c"},
    {"rollback_after_skips", INT, TRAIN, "0", "0..",
     "consecutive skipped steps after which the last checkpoint is restored; 0 never", 0, 0,
     MX_BY_TRAIN, "rollback_after_skips=3 skip_step_on_spikes=true",
     .seen_by = "tests/train/run_faults_test.c"},
    {"enable_rampup_batch_size", BOOL, TRAIN, "false", 0, "grow the batch in stages",
     "rampup_batch_size", 0, "train plan",
     "enable_rampup_batch_size=true per_device_batch_size=4 per_device_batch_size_start=2 "
     "global_rampup_samples=4"},
    {"per_device_batch_size_start", FLOAT, TRAIN, "4", ">0", "first batch size of the ramp", 0, 0,
     MX_BY_TRAIN,
     "per_device_batch_size_start=1 enable_rampup_batch_size=true per_device_batch_size=4 "
     "per_device_batch_size_increment=1 global_rampup_samples=4"},
    {"per_device_batch_size_increment", FLOAT, TRAIN, "2", ">0", "growth per stage of the ramp", 0,
     0, MX_BY_TRAIN,
     "per_device_batch_size_increment=1 enable_rampup_batch_size=true per_device_batch_size=4 "
     "per_device_batch_size_start=2 global_rampup_samples=4"},
    {"global_rampup_samples", INT, TRAIN, "500", "1..", "sequences seen during the ramp", 0, 0,
     MX_BY_TRAIN,
     "global_rampup_samples=4 enable_rampup_batch_size=true per_device_batch_size=4 "
     "per_device_batch_size_start=2"},
    {"training_objective", ENUM, TRAIN, "causal_lm", "causal_lm|!block_diffusion", "what is learnt",
     0, FIXED | PLANNED},

    {"block_diffusion_mask_id", INT, TRAIN, "-1", "-1..", "mask token of block diffusion", 0,
     PLANNED},
    {"block_diffusion_min_noise", FLOAT, TRAIN, "0.001", "0..1",
     "least share of masked tokens in a block", 0, PLANNED},
    {"block_diffusion_logit_alignment", ENUM, TRAIN, "same_position", "same_position|shifted",
     "which place predicts a token", 0, PLANNED},
    {"block_diffusion_canvas_policy", ENUM, TRAIN, "all_masked", "all_masked|seed_and_mask",
     "what a block starts from", 0, PLANNED},

    {"eval_interval", INT, EVAL, "-1", "-1|1..", "steps between evaluations; -1 never",
     "=eval_period val_check_interval eval_every", 0, MX_BY_TRAIN, "eval_interval=1 eval_steps=1"},
    {"eval_steps", INT, EVAL, "-1", "-1|1..", "batches per evaluation; -1 all", "eval_iters", 0,
     MX_BY_TRAIN,
     "eval_steps=1 eval_interval=2 eval_dataset_path=eval.jsonl dataset_path=data.jsonl"},
    {"eval_start_step", INT, EVAL, "0", "0..", "first step that may evaluate", 0, 0, MX_BY_TRAIN,
     "eval_start_step=2 eval_interval=1 eval_steps=1"},
    {"eval_per_device_batch_size", FLOAT, EVAL, "0", "0..",
     "sequences per device; 0 as in training", "per_device_eval_batch_size", 0, MX_BY_TRAIN,
     "eval_per_device_batch_size=3 eval_interval=1 eval_steps=1"},
    {"target_eval_loss", FLOAT, EVAL, "0", "0..", "stop when evaluation reaches this loss; 0 never",
     0, 0, MX_BY_TRAIN, "target_eval_loss=100 eval_interval=1 eval_steps=1"},
    {0},
};
