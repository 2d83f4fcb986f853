/* trl_defaults.h - where TRL's trainers have other values than MaxText: what the defaults of every
 * verb of post-training begin with. */
#ifndef MX_CMD_TRL_DEFAULTS_H
#define MX_CMD_TRL_DEFAULTS_H

#define MX_TRL_DEFAULTS                                                                            \
    "packing=false", "max_target_length=1024", "lr_schedule_type=linear",                          \
        "warmup_steps_fraction=0", "learning_rate_final_fraction=0", "adam_b2=0.999",              \
        "adam_weight_decay=0", "gradient_clipping_threshold=1", "num_epoch=-1", "steps=1000"

#endif
