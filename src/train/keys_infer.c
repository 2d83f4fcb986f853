/* keys_infer.c - keys of decoding, serving, adapters and post-training.
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
#define DECODE MX_SECTION_DECODE
#define SERVE MX_SECTION_SERVE
#define LORA MX_SECTION_LORA
#define POST MX_SECTION_POST

const mx_key mx_keys_infer[] = {
    {"prompt", TEXT, DECODE, "", 0,
     "text to continue; empty: one prompt per line of standard input", 0, 0},
    {"system", TEXT, DECODE, "", 0, "what the chat template is told before the prompt",
     "system_prompt system_message", 0},
    {"image_path", LIST, DECODE, "", 0, "pictures of the prompt: JPEG, PNG or WebP files",
     "=image =images", 0},
    {"max_new_tokens", INT, DECODE, "256", "1..", "tokens to write",
     "max_tokens n_predict max_length", 0},
    {"max_prefill_predict_length", INT, DECODE, "0", "0..", "longest prompt; 0: whatever fits", 0,
     0},
    {"decode_sampling_strategy", ENUM, DECODE, "", "|greedy|weighted|nucleus|topk|composite",
     "how the next token is chosen; empty: greedy, or as the numbers below say",
     "=sampling do_sample strategy", 0},
    {"decode_sampling_temperature", FLOAT, DECODE, "1", "0..", "temperature; 0 is greedy",
     "=temperature", 0},
    {"decode_sampling_top_k", INT, DECODE, "0", "0..", "keep the k most likely tokens; 0: all",
     "=top_k", 0},
    {"decode_sampling_nucleus_p", FLOAT, DECODE, "-1", "-1|0..1",
     "keep the most likely tokens up to this probability; -1: all", "=top_p", 0},
    {"min_p", FLOAT, DECODE, "0", "0..1", "drop tokens less likely than this share of the best", 0,
     0},
    {"repetition_penalty", FLOAT, DECODE, "1", ">0", "divides logits of tokens already there", 0,
     0},
    {"presence_penalty", FLOAT, DECODE, "0", "-2..2",
     "subtracted from logits of tokens already there", 0, 0},
    {"frequency_penalty", FLOAT, DECODE, "0", "-2..2", "the same, by how often they are there", 0,
     0},
    {"seed", INT, DECODE, "0", "0..", "seed of the sampling", "random_seed", 0},
    {"n", INT, DECODE, "1", "1..4096", "answers per prompt", "num_return_sequences", 0},
    {"batch", INT, DECODE, "0", "0..65536", "sequences decoded together; 0: chosen", 0, 0},
    {"stop", LIST, DECODE, "", 0, "texts that end an answer and are not part of it",
     "stop_sequences eos_token", 0},
    {"ignore_eos", BOOL, DECODE, "false", 0, "go on after the end token", 0, 0},
    {"echo", BOOL, DECODE, "false", 0, "print the prompt too", "return_full_text", 0},
    {"return_log_prob", BOOL, DECODE, "false", 0, "print the log-probability of each token",
     "logprobs", 0},
    {"use_chunked_prefill", BOOL, DECODE, "true", 0, "read long prompts in pieces", 0, 0},
    {"prefill_chunk_size", INT, DECODE, "512", "1..", "tokens of a piece", 0, 0},
    {"enable_prefix_caching", BOOL, DECODE, "true", 0,
     "prompts share the cache of equal beginnings", 0, 0},

    {"host", TEXT, SERVE, "127.0.0.1", 0, "address to listen on", 0, 0},
    {"port", INT, SERVE, "8000", "0..65535", "port to listen on; 0: any free one", 0, 0},
    {"api_key", TEXT, SERVE, "", 0, "required of clients; empty: none", 0, MX_KEY_SECRET},
    {"served_model_name", TEXT, SERVE, "", 0, "name of the model in answers", 0, 0},
    {"max_concurrent_requests", INT, SERVE, "256", "1..", "requests that wait or run", 0, 0},
    {"prometheus_port", INT, SERVE, "0", "0..65535", "port of the metrics; 0: none", 0, 0},

    {"lora.enable_lora", BOOL, LORA, "false", 0, "train adapters, not the weights",
     "=enable_lora use_lora use_peft", MX_KEY_FIXED},
    {"lora.lora_rank", INT, LORA, "16", "1..", "rank", "=lora_rank lora_r r", MX_KEY_FIXED},
    {"lora.lora_alpha", FLOAT, LORA, "32", ">0", "scale is alpha / rank", "=lora_alpha",
     MX_KEY_FIXED},
    {"lora.lora_dropout", FLOAT, LORA, "0", "0..1", "dropout before the adapter", "=lora_dropout",
     0},
    {"lora.lora_module_path", TEXT, LORA, "", 0,
     "pattern of weights with adapters; empty: all projections",
     "=lora_target_modules target_modules", MX_KEY_FIXED},
    {"lora.lora_weight_qtype", ENUM, LORA, "", "|int8|nf4|fp8",
     "storage of the frozen weights (QLoRA)", "=lora_weight_qtype load_in_4bit load_in_8bit",
     MX_KEY_FIXED},
    {"lora.lora_restore_path", TEXT, LORA, "", 0, "adapter to start from",
     "=hf_lora_adapter_path adapter_path", 0},

    {"sft_train_on_completion_only", BOOL, POST, "true", 0, "no loss on prompts",
     "train_on_inputs completion_only_loss assistant_only_loss", MX_KEY_FIXED},
    {"dpo.algo", ENUM, POST, "dpo", "dpo|orpo", "preference loss", "loss_type", MX_KEY_FIXED},
    {"dpo.dpo_beta", FLOAT, POST, "0.1", "0..", "strength of the preference", "=dpo_beta beta", 0},
    {"dpo.dpo_label_smoothing", FLOAT, POST, "0", "0..0.5", "share of wrong labels assumed",
     "=dpo_label_smoothing label_smoothing", 0},
    {"dpo.orpo_lambda", FLOAT, POST, "0.1", "0..", "weight of the odds ratio", "=orpo_lambda", 0},
    {"rl.loss_algo", ENUM, POST, "grpo", "grpo|gspo-token", "policy loss", "=loss_algo",
     MX_KEY_FIXED},
    {"rl.num_generations", INT, POST, "2", "2..", "answers per prompt",
     "=num_generations group_size", 0},
    {"rl.num_iterations", INT, POST, "1", "1..", "updates per set of answers", "=num_iterations",
     0},
    {"rl.grpo_beta", FLOAT, POST, "0.08", "0..", "weight of the KL to the reference",
     "=grpo_beta kl_coef", 0},
    {"rl.grpo_epsilon", FLOAT, POST, "0.2", "0..1", "clip of the ratio", "=grpo_epsilon cliprange",
     0},
    {"rl.epsilon_high", FLOAT, POST, "-1", "-1|0..", "upper clip; -1: as grpo_epsilon",
     "=epsilon_high", 0},
    {"rl.reward", TEXT, POST, "", 0, "program or built-in rule that scores answers",
     "=reward reward_funcs", 0},
    {"distill_alpha", FLOAT, POST, "0.5", "0..1", "weight of the teacher's distribution", 0, 0},
    {"distill_temperature", FLOAT, POST, "1", ">0", "softmax temperature", 0, 0},
    {"distill_beta", FLOAT, POST, "0", "0..", "weight of the feature loss; 0: none", 0, 0},
    {"distill_feature_loss_type", ENUM, POST, "cosine", "cosine|l2", "feature loss", 0, 0},
    {"teacher_path", TEXT, POST, "", 0, "the teacher: a Hugging Face directory or checkpoint",
     "teacher_model", 0},
    {0},
};
