/* keys_checkpoint.c - keys of checkpoints, and of what is kept, recomputed or moved to host memory.
 * The columns are those of mx_key (base/key.h). */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define CHECKPOINT MX_SECTION_CHECKPOINT
#define MEMORY MX_SECTION_MEMORY
#define OPTIONAL MX_KEY_OPTIONAL
#define PLANNED MX_KEY_PLANNED
#define PATH MX_KEY_PATH
#define PLACE MX_PLACES

const mx_key mx_keys_checkpoint[] = {
    {"load_parameters_path", TEXT, CHECKPOINT, "", 0, "folder whose weights the run starts from",
     "init_from pretrained_model_name_or_path model_name_or_path", PATH, MX_BY_STEP,
     "load_parameters_path=model"},
    {"load_full_state_path", TEXT, CHECKPOINT, "", 0,
     "checkpoint whose weights, optimizer and step the run starts from", "resume_from_checkpoint",
     PATH, MX_BY_TRAIN, "load_full_state_path=runs/first/checkpoints/2",
     .seen_by = "tests/cli/refuge.sh"},
    {"enable_checkpointing", BOOL, CHECKPOINT, "true", 0, "save and restore at all", 0, 0,
     MX_BY_TRAIN, "enable_checkpointing=false checkpoint_period=1"},
    {"async_checkpointing", BOOL, CHECKPOINT, "true", 0, "write in the background", 0, 0,
     MX_BY_TRAIN, "async_checkpointing=false"},
    {"checkpoint_period", INT, CHECKPOINT, "10000", "1..", "steps between saves",
     "save_steps save_interval checkpoint_every checkpoint_interval", 0, "train bench",
     "checkpoint_period=1"},
    {"max_num_checkpoints_to_keep", INT, CHECKPOINT, "-1", "-1|1..",
     "newest ones kept; -1 keeps all", "save_total_limit keep_last", OPTIONAL, MX_BY_TRAIN,
     "max_num_checkpoints_to_keep=1 checkpoint_period=1"},
    {"keep_checkpoint_every", INT, CHECKPOINT, "-1", "-1|1..",
     "steps that are multiples stay for good", 0, 0, MX_BY_TRAIN,
     "keep_checkpoint_every=2 max_num_checkpoints_to_keep=1 checkpoint_period=1"},
    {"keep_best_checkpoints", INT, CHECKPOINT, "0", "0..", "best by evaluation loss, kept as well",
     "load_best_model_at_end", 0, MX_BY_TRAIN,
     "keep_best_checkpoints=1 max_num_checkpoints_to_keep=1 checkpoint_period=1 eval_interval=1 "
     "eval_steps=1 learning_rate=9"},
    {"save_checkpoint_on_start", BOOL, CHECKPOINT, "false", 0, "save before the first step", 0, 0,
     MX_BY_TRAIN, "save_checkpoint_on_start=true"},
    {"save_checkpoint_on_completion", BOOL, CHECKPOINT, "true", 0, "save when training ends", 0, 0,
     MX_BY_TRAIN, "save_checkpoint_on_completion=false"},
    {"enable_autocheckpoint", BOOL, CHECKPOINT, "true", 0, "save on SIGTERM, SIGUSR1 and SIGINT", 0,
     0, MX_BY_TRAIN, "enable_autocheckpoint=false", .seen_by = "tests/cli/run.sh"},
    {"enable_continuous_checkpointing", BOOL, CHECKPOINT, "false", 0,
     "start a save as soon as the one before has ended", 0, 0, MX_BY_TRAIN,
     "enable_continuous_checkpointing=true async_checkpointing=false"},
    {"checkpoint_storage_target_data_file_size_bytes", INT, CHECKPOINT, "2147483648", "1048576..",
     "largest size of one weights file", "max_shard_size", 0, MX_BY_TRAIN,
     "checkpoint_storage_target_data_file_size_bytes=1048576 vocab_size=9000"},
    {"max_checkpoint_failures", INT, CHECKPOINT, "5", "0..",
     "failed saves in a row after which the run stops, its state in local_checkpoint_directory; 0 "
     "never",
     0, 0, MX_BY_TRAIN, "max_checkpoint_failures=1", .seen_by = "tests/cli/faults.sh"},
    {"local_checkpoint_directory", TEXT, CHECKPOINT, "", 0,
     "folder for the state when checkpoints cannot be written; empty is /dev/shm, in memory", 0,
     PATH, MX_BY_TRAIN, "local_checkpoint_directory=/local/state",
     .seen_by = "tests/cli/refuge.sh"},
    {"local_checkpoint_period", INT, CHECKPOINT, "0", "0..",
     "steps between node-local saves; 0 never", 0, PLANNED},
    {"allow_config_change", BOOL, CHECKPOINT, "false", 0,
     "resume although keys changed that should not change", "ignore_config_mismatch", 0,
     MX_BY_TRAIN, "allow_config_change=true", .seen_by = "tests/train/run_config_test.c"},

    {"checkpoint_todelete_subdir", TEXT, CHECKPOINT, "", 0,
     "move expired checkpoints into this subfolder", 0, PLANNED | OPTIONAL,
     .instead =
         "copy what must stay before it expires, or keep more (max_num_checkpoints_to_keep)"},
    {"checkpoint_todelete_full_path", TEXT, CHECKPOINT, "", 0,
     "move expired checkpoints into this folder", 0, PLANNED | OPTIONAL,
     .instead =
         "copy what must stay before it expires, or keep more (max_num_checkpoints_to_keep)"},
    {"enable_multi_tier_checkpointing", BOOL, CHECKPOINT, "false", 0,
     "node-local saves that peers hold as well", 0, PLANNED},
    {"multi_tier_checkpointing_backup_interval_minutes", INT, CHECKPOINT, "0", "0..",
     "minutes between its saves to the run folder", 0, PLANNED | OPTIONAL},
    {"multi_tier_checkpointing_backup_interval_steps", INT, CHECKPOINT, "0", "0..",
     "steps between its saves to the run folder", 0, PLANNED | OPTIONAL},
    {"mtc_data_parallelism", INT, CHECKPOINT, "0", "0..", "equal replicas that hold its saves", 0,
     PLANNED},
    {"enable_emergency_checkpoint", BOOL, CHECKPOINT, "false", 0, "frequent node-local saves", 0,
     PLANNED},

    {"remat_policy", ENUM, MEMORY, "full",
     "none|elementwise|full|minimal|minimal_with_context|save_dot_except_mlp|save_dot_except_mlpwi|"
     "save_dot_with_context_except_mlp|save_qkv_proj|save_out_proj|qkv_proj_offloaded|minimal_"
     "offloaded|custom",
     "what is kept for the backward pass, not recomputed; *_offloaded: in host memory",
     "gradient_checkpointing activation_checkpointing", 0, "train plan bench verify",
     "remat_policy=none"},
    {"decoder_layer_input", ENUM, MEMORY, "device", "!" PLACE,
     "custom policy: input of a layer; offload, here and below: in host memory", 0, 0, MX_BY_STEP,
     "decoder_layer_input=offload remat_policy=custom"},
    {"context", ENUM, MEMORY, "remat", PLACE, "custom policy: attention context", 0, 0, MX_BY_STEP,
     "context=device remat_policy=custom"},
    {"mlpwi", ENUM, MEMORY, "remat", PLACE, "custom policy: merged gate and up projection", 0,
     PLANNED, .instead = "mlpwi_0 and mlpwi_1 name the two"},
    {"mlpwi_0", ENUM, MEMORY, "remat", PLACE, "custom policy: gate projection", 0, 0, MX_BY_STEP,
     "mlpwi_0=device remat_policy=custom"},
    {"mlpwi_1", ENUM, MEMORY, "remat", PLACE, "custom policy: up projection", 0, 0, MX_BY_STEP,
     "mlpwi_1=device remat_policy=custom"},
    {"mlpwo", ENUM, MEMORY, "remat", PLACE, "custom policy: down projection", 0, 0, MX_BY_STEP,
     "mlpwo=device remat_policy=custom decoder_block=olmo3"},
    {"moe_mlpwi_0", ENUM, MEMORY, "remat", PLACE, "custom policy: expert gate projection", 0, 0,
     MX_BY_STEP, "moe_mlpwi_0=device remat_policy=custom decoder_block=qwen3_moe num_experts=4"},
    {"moe_mlpwi_1", ENUM, MEMORY, "remat", PLACE, "custom policy: expert up projection", 0, 0,
     MX_BY_STEP, "moe_mlpwi_1=device remat_policy=custom decoder_block=qwen3_moe num_experts=4"},
    {"moe_mlpwo", ENUM, MEMORY, "remat", PLACE, "custom policy: expert down projection", 0, 0,
     MX_BY_STEP,
     "moe_mlpwo=device remat_policy=custom decoder_block=gpt_oss num_experts=4 "
     "num_experts_per_tok=2"},
    {"query_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: query projection", 0, 0,
     MX_BY_STEP, "query_proj=device remat_policy=custom"},
    {"key_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: key projection", 0, 0, MX_BY_STEP,
     "key_proj=device remat_policy=custom"},
    {"value_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: value projection", 0, 0,
     MX_BY_STEP, "value_proj=device remat_policy=custom"},
    {"qkv_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: merged q, k, v projection", 0, 0,
     MX_BY_STEP,
     "qkv_proj=device remat_policy=custom decoder_block=qwen3_5 num_experts=4 "
     "base_num_decoder_layers=2 inhomogeneous_layer_cycle_interval=2 gdn_num_key_heads=2 "
     "gdn_num_value_heads=4 gdn_key_head_dim=8 gdn_value_head_dim=8"},
    {"out_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: attention output projection", 0, 0,
     MX_BY_STEP, "out_proj=device remat_policy=custom"},
    {"query_wa_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: MLA query compression", 0,
     PLANNED, .instead = "mla_q names it"},
    {"kv_wa_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: MLA key/value compression", 0,
     PLANNED, .instead = "it is always kept"},
    {"mla_q", ENUM, MEMORY, "remat", PLACE, "custom policy: MLA queries", 0, 0, MX_BY_STEP,
     "mla_q=device remat_policy=custom decoder_block=deepseek routed_score_func=sigmoid "
     "num_experts=4 q_lora_rank=16"},
    {"mla_kv", ENUM, MEMORY, "remat", PLACE, "custom policy: MLA keys and values", 0, PLANNED,
     .instead = "it is always kept"},
    {"attention_out", ENUM, MEMORY, "remat", PLACE, "custom policy: output of attention", 0,
     PLANNED, .instead = "out_proj names it"},
    {"optimizer_memory_host_offload", BOOL, MEMORY, "false", 0, "optimizer state in host memory",
     "cpu_offload", 0, MX_BY_STEP, "optimizer_memory_host_offload=true"},
    {"parameter_memory_host_offload", BOOL, MEMORY, "false", 0, "weights in host memory", 0,
     PLANNED},
    {"kv_proj", ENUM, MEMORY, "remat", PLACE, "custom policy: merged key and value projection", 0,
     PLANNED, .instead = "key_proj and value_proj name the two"},
    {"engram", ENUM, MEMORY, "remat", PLACE, "custom policy: output of n-gram memory", 0, PLANNED},
    {"indexer_cutoff_threshold", ENUM, MEMORY, "remat", PLACE,
     "custom policy: the indexer's threshold", 0, PLANNED},
    {0},
};
