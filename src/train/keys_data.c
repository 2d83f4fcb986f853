/* keys_data.c - keys of the data and the tokenizer.
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
#define DATA MX_SECTION_DATA
#define TOKENIZER MX_SECTION_TOKENIZER
#define FIXED MX_KEY_FIXED

const mx_key mx_keys_data[] = {
    {"dataset_type", ENUM, DATA, "",
     "|synthetic|corpus|text|jsonl|parquet|arrow|tfrecord|arrayrecord|tokens|hf|tfds|grain|c4_"
     "mlperf|"
     "olmo_grain",
     "kind of the data; empty: found from the files, synthetic without files", "data_type", 0},
    {"dataset_path", TEXT, DATA, "", 0, "file, folder or pattern of the training data",
     "=data_path data_dir train_file train_data dataset", 0},
    {"dataset_name", TEXT, DATA, "", 0, "name of the dataset inside a tfds folder", 0, 0},
    {"eval_dataset_name", TEXT, DATA, "", 0, "the same for evaluation", 0, 0},
    {"eval_dataset_path", TEXT, DATA, "", 0, "file, folder or pattern of the evaluation data",
     "validation_file val_data eval_data", 0},
    {"train_split", TEXT, DATA, "train", 0, "split to train on", "dataset_train_split", 0},
    {"eval_split", TEXT, DATA, "validation", 0, "split to evaluate on", "dataset_test_split", 0},
    {"hf_path", TEXT, DATA, "", 0, "a dataset on the Hugging Face hub, or the name of a format", 0,
     0},
    {"hf_name", TEXT, DATA, "", 0, "its configuration", "dataset_config_name", 0},
    {"hf_data_dir", TEXT, DATA, "", 0, "its subfolder", 0, 0},
    {"hf_train_files", TEXT, DATA, "", 0, "its files for training, a pattern", "data_files", 0},
    {"hf_eval_split", TEXT, DATA, "", 0, "its split for evaluation", 0, 0},
    {"hf_eval_files", TEXT, DATA, "", 0, "its files for evaluation, a pattern", 0, 0},
    {"hf_access_token", TEXT, DATA, "", 0, "token of the hub; empty: HF_TOKEN", "hf_token token",
     MX_KEY_SECRET},
    {"grain_train_files", TEXT, DATA, "", 0, "patterns for training, with weights: a*,0.3;b*,0.7",
     0, 0},
    {"grain_eval_files", TEXT, DATA, "", 0, "patterns for evaluation", 0, 0},
    {"grain_train_mixture_config_path", TEXT, DATA, "", 0, "JSON of datasets and weights", 0, 0},
    {"grain_file_type", ENUM, DATA, "arrayrecord", "arrayrecord|parquet|tfrecord",
     "format of those", 0, 0},
    {"train_data_columns", LIST, DATA, "text", 0, "columns that are read",
     "text_column dataset_text_field", 0},
    {"eval_data_columns", LIST, DATA, "text", 0, "the same for evaluation", 0, 0},
    {"train_image_column", TEXT, DATA, "image", 0, "column of images", 0, 0},
    {"eval_image_column", TEXT, DATA, "image", 0, "the same for evaluation", 0, 0},
    {"packing", BOOL, DATA, "true", 0, "several documents in a sequence", "pack sample_packing",
     FIXED},
    {"packing_type", ENUM, DATA, "first_fit", "first_fit|best_fit|concat_then_split",
     "how they are placed", "=grain_packing_type packing_strategy", FIXED},
    {"max_segments_per_seq", INT, DATA, "-1", "-1|1..", "documents in a sequence; -1: any", 0,
     FIXED},
    {"num_epoch", INT, DATA, "1", "-1|1..", "passes over the data; -1: without end",
     "num_train_epochs epochs num_epochs", 0},
    {"enable_data_shuffling", BOOL, DATA, "true", 0, "shuffle", "shuffle", FIXED},
    {"shuffle_buffer_size", INT, DATA, "1000", "1..",
     "window of the shuffle where there is no index", "=grain_shuffle_buffer_size", FIXED},
    {"loader_threads", INT, DATA, "0", "0..1024", "threads that prepare batches; 0: chosen",
     "=grain_worker_count num_workers dataloader_num_workers", 0},
    {"prefetch_batches", INT, DATA, "4", "1..10000", "batches prepared ahead",
     "prefetch dataloader_prefetch_factor", 0},
    {"bad_record_policy", ENUM, DATA, "stop", "stop|skip", "what a damaged record does", 0, 0},
    {"bad_record_budget", FLOAT, DATA, "0.0001", "0..1", "share of records that may be skipped", 0,
     0},
    {"max_record_bytes", INT, DATA, "268435456", "1..", "largest record", 0, 0},

    {"tokenizer_path", TEXT, TOKENIZER, "", 0,
     "file, folder or hub name; empty: bytes, or the model's",
     "=tokenizer tokenizer_name tokenizer_name_or_path vocab_file", FIXED},
    {"tokenizer_type", ENUM, TOKENIZER, "auto", "auto|sentencepiece|huggingface|tiktoken|byte",
     "format of the tokenizer", 0, 0},
    {"tokenizer_pattern", ENUM, TOKENIZER, "", "|gpt2|cl100k|llama3|o200k|qwen|deepseek|kimi",
     "pattern for rank files, which do not say", 0, FIXED},
    {"special_in_text", ENUM, TOKENIZER, "auto", "auto|parse|text",
     "strings that look like special tokens; auto: text in data, as the library in tokenize",
     0, FIXED},
    {"do_pan_and_scan", BOOL, TOKENIZER, "false", 0,
     "long pictures are shown in crops as well (Gemma 3)", 0, FIXED},
    {"tokenizer_cache_dir", TEXT, TOKENIZER, "", 0, "keep tokenized data here; empty: do not", 0,
     0},
    {"tokenize_train_data", BOOL, TOKENIZER, "true", 0, "false when the data is token ids", 0, 0},
    {"tokenize_eval_data", BOOL, TOKENIZER, "true", 0, "the same for evaluation", 0, 0},
    {"add_bos", BOOL, TOKENIZER, "true", 0, "begin each document with the BOS token",
     "add_bos_token", FIXED},
    {"add_eos", BOOL, TOKENIZER, "true", 0, "end each document with the EOS token", "add_eos_token",
     FIXED},
    {"use_truncation", BOOL, TOKENIZER, "true", 0, "cut long documents; false: split them",
     "truncation", FIXED},
    {"use_chat_template", ENUM, TOKENIZER, "auto", "auto|true|false",
     "the chat template around prompts; auto: where the model has one", 0, 0},
    {"chat_template", TEXT, TOKENIZER, "", 0, "a Jinja template; empty: the tokenizer's", 0, 0},
    {"chat_template_path", TEXT, TOKENIZER, "", 0, "file with such a template", 0, 0},
    {"max_corpus_chars", INT, TOKENIZER, "10000000", "1..", "text read to train a tokenizer", 0, 0},
    {"grain_ram_budget_mb", RETIRED, DATA, 0, 0, "threads are not tuned; see loader_threads", 0, 0},
    {"grain_num_threads", RETIRED, DATA, 0, 0, "one pool of threads; see loader_threads", 0, 0},
    {"grain_prefetch_buffer_size", RETIRED, DATA, 0, 0, "see prefetch_batches", 0, 0},
    {"grain_per_worker_buffer_size", RETIRED, DATA, 0, 0, "see prefetch_batches", 0, 0},
    {0},
};
