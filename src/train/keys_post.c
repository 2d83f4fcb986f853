/* keys_post.c - keys of adapters and post-training. The columns are those of mx_key (base/key.h).
 */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define INTS MX_KEY_INTS
#define LORA MX_SECTION_LORA
#define POST MX_SECTION_POST
#define FIXED MX_KEY_FIXED
#define OPTIONAL MX_KEY_OPTIONAL
#define PLANNED MX_KEY_PLANNED
#define PATH MX_KEY_PATH

const mx_key mx_keys_post[] = {
    {"lora.enable_lora", BOOL, LORA, "false", 0, "train adapters, not the weights",
     "=enable_lora use_lora use_peft", FIXED | PLANNED},
    {"lora.lora_rank", INT, LORA, "16", "1..", "rank", "=lora_rank lora_r r", FIXED | PLANNED},
    {"lora.lora_alpha", FLOAT, LORA, "32", ">0", "scale is alpha / rank", "=lora_alpha",
     FIXED | PLANNED},
    {"lora.lora_dropout", FLOAT, LORA, "0", "0..1", "dropout before the adapter", "=lora_dropout",
     PLANNED},
    {"lora.lora_module_path", TEXT, LORA, "", 0,
     "pattern of weights with adapters; empty: all projections",
     "=lora_target_modules target_modules", FIXED | PLANNED},
    {"lora.lora_weight_qtype", ENUM, LORA, "", "|int8|nf4|fp8",
     "storage of the frozen weights (QLoRA)", "=lora_weight_qtype load_in_4bit load_in_8bit",
     FIXED | PLANNED},
    {"lora.lora_restore_path", TEXT, LORA, "", 0, "adapter to start from",
     "=hf_lora_adapter_path adapter_path", PLANNED | PATH},

    {"lora_input_adapters_path", TEXT, LORA, "", 0,
     "folder of adapters to serve, one subfolder each", 0, PLANNED | PATH},

    {"sft_train_on_completion_only", BOOL, POST, "false", 0, "no loss on prompts",
     "train_on_inputs completion_only_loss assistant_only_loss", FIXED, "data",
     "sft_train_on_completion_only=true dataset_path=chat.jsonl"},
    {"dpo.algo", ENUM, POST, "dpo", "dpo|orpo", "preference loss", "loss_type", FIXED | PLANNED},
    {"dpo.dpo_beta", FLOAT, POST, "0.1", "0..", "strength of the preference", "=dpo_beta beta",
     PLANNED},
    {"dpo.dpo_label_smoothing", FLOAT, POST, "0", "0..0.5", "share of wrong labels assumed",
     "=dpo_label_smoothing label_smoothing", PLANNED},
    {"dpo.orpo_lambda", FLOAT, POST, "0.1", "0..", "weight of the odds ratio", "=orpo_lambda",
     PLANNED},
    {"rl.loss_algo", ENUM, POST, "grpo", "grpo|gspo-token", "policy loss", "=loss_algo",
     FIXED | PLANNED},
    {"rl.num_generations", INT, POST, "2", "2..", "answers per prompt",
     "=num_generations group_size", PLANNED},
    {"rl.num_iterations", INT, POST, "1", "1..", "updates per set of answers", "=num_iterations",
     PLANNED},
    {"rl.grpo_beta", FLOAT, POST, "0.08", "0..", "weight of the KL to the reference",
     "=grpo_beta kl_coef", PLANNED},
    {"rl.grpo_epsilon", FLOAT, POST, "0.2", "0..1", "clip of the ratio", "=grpo_epsilon cliprange",
     PLANNED},
    {"rl.epsilon_high", FLOAT, POST, "-1", "-1|0..", "upper clip; -1: as grpo_epsilon",
     "=epsilon_high", PLANNED},
    {"rl.reward", TEXT, POST, "", 0, "program or built-in rule that scores answers",
     "=reward reward_funcs", PLANNED},
    {"distill_alpha", FLOAT, POST, "0.5", "0..1", "weight of the teacher's distribution", 0,
     PLANNED},
    {"distill_temperature", FLOAT, POST, "1", ">0", "softmax temperature", 0, PLANNED},
    {"distill_beta", FLOAT, POST, "0", "0..", "weight of the feature loss; 0: none", 0, PLANNED},
    {"distill_feature_loss_type", ENUM, POST, "cosine", "cosine|l2", "feature loss", 0, PLANNED},
    {"teacher_path", TEXT, POST, "", 0, "the teacher: a Hugging Face directory or checkpoint",
     "teacher_model", PLANNED | PATH},
    {"use_sft", BOOL, POST, "false", 0, "fine-tune on answers", 0, PLANNED},
    {"use_dpo", BOOL, POST, "false", 0, "learn from preferences", 0, PLANNED},
    {"distill_layer_indices", INTS, POST, "", "0..", "layers of the feature loss", 0,
     PLANNED | OPTIONAL},
    {"distill_alpha_end", FLOAT, POST, "-1", 0, "last weight of the teacher; negative: it stays", 0,
     PLANNED | OPTIONAL},
    {"distill_alpha_schedule", ENUM, POST, "constant", "constant|linear|cosine",
     "how the weight of the teacher changes", 0, PLANNED},
    {"distill_temperature_end", FLOAT, POST, "-1", 0, "last temperature; negative: it stays", 0,
     PLANNED | OPTIONAL},
    {"distill_temperature_schedule", ENUM, POST, "constant", "constant|linear|cosine",
     "how the temperature changes", 0, PLANNED},
    {"distill_beta_end", FLOAT, POST, "-1", 0,
     "last weight of the feature loss; negative: it stays", 0, PLANNED | OPTIONAL},
    {"distill_beta_schedule", ENUM, POST, "constant", "constant|linear|cosine",
     "how the weight of the feature loss changes", 0, PLANNED},
    {0},
};
