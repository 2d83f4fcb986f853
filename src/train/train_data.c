/* train_data.c - keys of the data section to loader options.
 *
 * dataset_type empty: found from dataset_path; without a path, the built-in corpus of stories and sums, so
 * that `maxc train model_name=...` alone trains something real.
 */
#include "train/train_data.h"

#include <string.h>
#include <unistd.h>

static const char *pick_path(const mx_config *c, bool evaluation)
{
    const char *p = mx_config_text(c, evaluation ? "eval_dataset_path" : "dataset_path");
    const char *other[] = {evaluation ? "hf_eval_files" : "hf_train_files",
                           evaluation ? "grain_eval_files" : "grain_train_files"};
    for (int i = 0; i < 2 && !*p; i++)
        p = mx_config_text(c, other[i]);
    return p;
}

/* The source kinds have their own names; these are MaxText's words for them. */
static const char *kind_of(const mx_config *c, const char *path)
{
    const char *type = mx_config_text(c, "dataset_type");
    static const char *const by_files[] = {"hf", "tfds", "grain", "c4_mlperf", "olmo_grain"};
    for (size_t i = 0; i < sizeof by_files / sizeof *by_files; i++)
        if (strcmp(type, by_files[i]) == 0)
            type = "";
    if (strcmp(type, "corpus") == 0 || (!*type && !*path))
        return "story";
    return type;
}

static mx_status open_tokenizer(mx_train_data *d, const mx_config *c, const char *model_dir)
{
    const char *path = mx_config_text(c, "tokenizer_path");
    mx_tokenizer_options o = {.pattern = mx_config_text(c, "tokenizer_pattern")};
    if (!*path && model_dir &&
        (access(mx_arena_printf(&d->arena, "%s/tokenizer.json", model_dir), R_OK) == 0 ||
         access(mx_arena_printf(&d->arena, "%s/tokenizer.model", model_dir), R_OK) == 0))
        path = model_dir;
    MX_TRY(mx_tokenizer_open(&d->tokenizer, *path ? path : "byte", &o));
    if (*path && access(path, X_OK) == 0 && mx_config_bool(c, "use_chat_template"))
        MX_TRY(mx_chat_template_open_dir(&d->chat, path, NULL));
    return MX_OK;
}

static mx_pack_options pack_of(const mx_config *c)
{
    const char *type = mx_config_text(c, "packing_type");
    int64_t most = mx_config_int(c, "max_segments_per_seq");
    return (mx_pack_options){
        .kind = !mx_config_bool(c, "packing")              ? MX_PACK_NONE
                : strcmp(type, "best_fit") == 0            ? MX_PACK_BEST_FIT
                : strcmp(type, "concat_then_split") == 0   ? MX_PACK_CONCAT
                                                           : MX_PACK_FIRST_FIT,
        .seq_len = mx_config_int(c, "max_target_length"),
        .max_segments = most > 0 ? most : 0,
        .truncate = mx_config_bool(c, "use_truncation"),
        .seed = (uint64_t)mx_config_int(c, "data_shuffle_seed")};
}

mx_status mx_train_data_open(mx_train_data *d, const mx_config *c, const char *model_dir,
                             int64_t vocab, int64_t rows, bool evaluation)
{
    *d = (mx_train_data){0};
    MX_TRY(open_tokenizer(d, c, model_dir));
    if (mx_tokenizer_vocab_size(d->tokenizer) > vocab)
        return mx_fail(MX_USAGE, "the tokenizer has %d tokens, the model's vocabulary only %lld; set "
                       "vocab_size or choose another tokenizer",
                       mx_tokenizer_vocab_size(d->tokenizer), (long long)vocab);
    const char *path = pick_path(c, evaluation), *kind = kind_of(c, path);
    const char *const *columns;
    int64_t epochs = mx_config_int(c, "num_epoch");
    bool generated = strcmp(kind, "story") == 0 || strcmp(kind, "synthetic") == 0;
    mx_dataset_options set = {.paths = path, .kind = kind,
                              .shuffle = mx_config_bool(c, "enable_data_shuffling") && !evaluation,
                              .seed = (uint64_t)mx_config_int(c, "data_shuffle_seed"),
                              .n_epochs = evaluation ? 1 : generated || epochs < 0 ? 0 : epochs,
                              .shuffle_window = mx_config_int(c, "shuffle_buffer_size")};
    set.source = (mx_source_options){.seed = set.seed + (evaluation ? 1 : 0), .vocab_size = vocab,
                                     .record_tokens = mx_config_int(c, "max_target_length")};
    mx_loader_options o = {.datasets = &set, .n_datasets = 1, .pack = pack_of(c), .batch_rows = rows,
                           .n_threads = (int)mx_config_int(c, "loader_threads"),
                           .n_ahead = (int)mx_config_int(c, "prefetch_batches"),
                           .skip_bad = strcmp(mx_config_text(c, "bad_record_policy"), "skip") == 0,
                           .bad_budget = mx_config_float(c, "bad_record_budget")};
    const char *cache = mx_config_text(c, "tokenizer_cache_dir");
    o.cache_dir = *cache ? cache : NULL;
    int32_t pad = mx_tokenizer_pad(d->tokenizer);
    o.pack.pad_id = pad >= 0 && pad < vocab ? pad : 0;
    o.encoder = (mx_encoder){.tokenizer = d->tokenizer, .chat = d->chat,
                             .add_bos = mx_config_bool(c, "add_bos"),
                             .add_eos = mx_config_bool(c, "add_eos"), .vocab_size = vocab};
    if (mx_config_is_set(c, evaluation ? "eval_data_columns" : "train_data_columns")) {
        o.encoder.n_columns = mx_config_list(c, evaluation ? "eval_data_columns"
                                                           : "train_data_columns", &columns);
        o.encoder.columns = columns;
    }
    return mx_loader_open(&d->loader, &o);
}

void mx_train_data_close(mx_train_data *d)
{
    mx_loader_close(d->loader);
    mx_chat_template_close(d->chat);
    mx_tokenizer_close(d->tokenizer);
    mx_arena_fini(&d->arena);
    *d = (mx_train_data){0};
}
