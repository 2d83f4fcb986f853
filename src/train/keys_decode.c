/* keys_decode.c - keys of decoding and serving. The columns are those of mx_key (base/key.h). */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define LIST MX_KEY_LIST
#define DECODE MX_SECTION_DECODE
#define SERVE MX_SECTION_SERVE
#define SECRET MX_KEY_SECRET
#define PLANNED MX_KEY_PLANNED
#define PATH MX_KEY_PATH

const mx_key mx_keys_decode[] = {
    {"prompt", TEXT, DECODE, "", 0,
     "text to continue; empty: one prompt per line of standard input", 0, 0, MX_BY_GENERATE,
     "prompt=Hello"},
    {"image_path", LIST, DECODE, "", 0, "pictures of the prompt: JPEG, PNG or WebP files",
     "=image =images", PATH, MX_BY_GENERATE, "image_path=photo.jpg"},
    {"max_new_tokens", INT, DECODE, "256", "1..", "tokens to write",
     "max_tokens n_predict max_length", 0, MX_BY_GENERATE, "max_new_tokens=3"},
    {"decode_sampling_strategy", ENUM, DECODE, "", "|greedy|weighted|nucleus|topk|composite",
     "how the next token is chosen; empty: greedy, or as the numbers below say",
     "=sampling do_sample strategy", 0, MX_BY_GENERATE, "decode_sampling_strategy=weighted"},
    {"decode_sampling_temperature", FLOAT, DECODE, "1", "0..", "temperature; 0 is greedy",
     "=temperature", 0, MX_BY_GENERATE, "decode_sampling_temperature=0.7"},
    {"decode_sampling_top_k", INT, DECODE, "0", "0..", "keep the k most likely tokens; 0: all",
     "=top_k", 0, MX_BY_GENERATE, "decode_sampling_top_k=3 decode_sampling_temperature=2"},
    {"decode_sampling_nucleus_p", FLOAT, DECODE, "-1", "-1|0..1",
     "keep the most likely tokens up to this probability; -1: all", "=top_p", 0, MX_BY_GENERATE,
     "decode_sampling_nucleus_p=0.1 decode_sampling_temperature=2"},
    {"min_p", FLOAT, DECODE, "0", "0..1", "drop tokens less likely than this share of the best", 0,
     0, MX_BY_GENERATE, "min_p=0.9 decode_sampling_temperature=2"},
    {"repetition_penalty", FLOAT, DECODE, "1", ">0", "divides logits of tokens already there", 0, 0,
     MX_BY_GENERATE, "repetition_penalty=1000"},
    {"presence_penalty", FLOAT, DECODE, "0", "-2..2",
     "subtracted from logits of tokens already there", 0, 0, MX_BY_GENERATE, "presence_penalty=2"},
    {"frequency_penalty", FLOAT, DECODE, "0", "-2..2", "the same, by how often they are there", 0,
     0, MX_BY_GENERATE, "frequency_penalty=2"},
    {"seed", INT, DECODE, "0", "0..", "seed of the sampling", "random_seed", 0, MX_BY_GENERATE,
     "seed=1 decode_sampling_temperature=1.5"},
    {"n", INT, DECODE, "1", "1..4096", "answers per prompt", "num_return_sequences", 0,
     MX_BY_GENERATE, "n=2"},
    {"batch", INT, DECODE, "0", "0..65536", "sequences decoded together; 0: chosen", 0, 0,
     MX_BY_GENERATE, "batch=1 n=3", .seen_by = "tests/infer/decode_test.c"},
    {"stop", LIST, DECODE, "", 0, "texts that end an answer", "stop_sequences eos_token", 0,
     MX_BY_GENERATE, "stop=%"},
    {"ignore_eos", BOOL, DECODE, "false", 0, "go on after the end token", 0, 0, MX_BY_GENERATE,
     "ignore_eos=true seed=3 decode_sampling_temperature=3 max_new_tokens=30"},
    {"echo", BOOL, DECODE, "false", 0, "print the prompt too", "return_full_text", 0,
     MX_BY_GENERATE, "echo=true"},
    {"return_log_prob", BOOL, DECODE, "false", 0, "print the log-probability of each token",
     "logprobs", PLANNED},
    {"use_chunked_prefill", BOOL, DECODE, "false", 0, "read long prompts in pieces", 0, PLANNED},
    {"prefill_chunk_size", INT, DECODE, "512", "1..", "tokens of a piece", 0, PLANNED},
    {"enable_prefix_caching", BOOL, DECODE, "false", 0,
     "prompts share the cache of equal beginnings", 0, PLANNED},

    {"load_from_prefill_dir", BOOL, DECODE, "false", 0, "read the cache of a prompt from a file", 0,
     PLANNED},
    {"prefill_cache_dir", TEXT, DECODE, "", 0, "folder of such files", 0, PLANNED | PATH},
    {"autoregressive_decode_assert", TEXT, DECODE, "", 0, "text that must be written", 0, PLANNED,
     .instead = "compare what generate prints"},
    {"video_path", LIST, DECODE, "", 0, "films of the prompt", 0, PLANNED | PATH},
    {"audio_path", LIST, DECODE, "", 0, "sounds of the prompt", 0, PLANNED | PATH},

    {"host", TEXT, SERVE, "127.0.0.1", 0, "address to listen on", 0, PLANNED},
    {"port", INT, SERVE, "8000", "0..65535", "port to listen on; 0: any free one", 0, PLANNED},
    {"api_key", TEXT, SERVE, "", 0, "required of clients; empty: none", 0, SECRET | PLANNED},
    {"served_model_name", TEXT, SERVE, "", 0, "name of the model in answers", 0, PLANNED},
    {"max_concurrent_requests", INT, SERVE, "256", "1..", "requests that wait or run", 0, PLANNED},
    {"prometheus_port", INT, SERVE, "0", "0..65535", "port of the metrics; 0: none", 0, PLANNED},
    {"prefix_caching_hbm_byte", INT, SERVE, "10000000000", "0..",
     "device memory for shared prompts", 0, PLANNED},
    {"prefix_caching_dram_byte", INT, SERVE, "100000000000", "0..",
     "host memory for shared prompts", 0, PLANNED},
    {0},
};
