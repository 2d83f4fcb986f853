/* train_data.c - keys of the data and tokenizer sections to loader options. Which files, and which
 * kind they are, is train_sets.c's business. */
#include "train/input/train_data.h"

#include "text/tokenizer/tokenizer_files.h"
#include "train/input/tokenizer_path.h"
#include "train/input/train_sets.h"
#include <string.h>
#include <unistd.h>

static const double LOOK_SECONDS = 0.5;

static mx_status open_tokenizer(mx_train_data *d, const mx_config *c, const char *model_dir)
{
    const char *otherwise = model_dir && mx_tokenizer_is_in(model_dir) ? model_dir : NULL;
    MX_TRY(mx_tokenizer_from_config(&d->tokenizer, c, otherwise, &d->arena, &d->tokenizer_at));
    return mx_chat_from_config(&d->chat, c, d->tokenizer_at, &d->arena, &d->chat_text);
}

/* How documents are packed is not asked where they are not: a run names keys without effect. */
static mx_pack_options pack_of(const mx_config *c)
{
    bool packs = mx_config_bool(c, "packing");
    const char *type = packs ? mx_config_text(c, "packing_type") : "";
    int64_t most = packs ? mx_config_int(c, "max_segments_per_seq") : 0;
    return (mx_pack_options){
        .kind = !packs                                     ? MX_PACK_NONE
                : strcmp(type, "best_fit") == 0            ? MX_PACK_BEST_FIT
                : strcmp(type, "bfd") == 0                 ? MX_PACK_BFD
                : strcmp(type, "concat_then_split") == 0   ? MX_PACK_CONCAT
                                                           : MX_PACK_FIRST_FIT,
        .seq_len = mx_config_int(c, "max_target_length"),
        .max_segments = most > 0 ? most : 0,
        .truncate = mx_config_bool(c, "use_truncation"),
        .seed = (uint64_t)mx_config_int(c, "data_shuffle_seed")};
}

/* What every set of the mixture shares. */
static void fill_sets(mx_dataset_options *sets, int n, const mx_train_data_request *r)
{
    const mx_config *c = r->config;
    int64_t epochs = mx_config_int(c, "num_epoch");
    for (int i = 0; i < n; i++) {
        mx_dataset_options *s = &sets[i];
        bool generated = mx_data_is_made(s->kind);
        s->shuffle = mx_config_bool(c, "enable_data_shuffling") && !r->evaluation && !r->once;
        s->seed = (uint64_t)mx_config_int(c, "data_shuffle_seed") + (uint64_t)i;
        s->n_epochs = r->evaluation || r->once ? 1 : generated || epochs < 0 ? 0 : epochs;
        s->shuffle_window = mx_config_int(c, "shuffle_buffer_size");
        s->source = (mx_source_options){
            .seed = s->seed + (r->evaluation ? 1000003 : 0), .vocab_size = r->vocab,
            .record_tokens = mx_config_int(c, "max_target_length"),
            .max_record_bytes = (size_t)mx_config_int(c, "max_record_bytes"),
            .n_synthetic = r->evaluation ? 1024 : 0};
    }
}

static void fill_encoder(mx_encoder *e, const mx_train_data *d, const mx_train_data_request *r)
{
    const mx_config *c = r->config;
    const char *const *columns, *name = r->evaluation ? "eval_data_columns" : "train_data_columns";
    *e = (mx_encoder){.tokenizer = d->tokenizer, .chat = d->chat, .vocab_size = r->vocab,
                      .add_bos = mx_config_bool(c, "add_bos"),
                      .add_eos = mx_config_bool(c, "add_eos"),
                      .parse_special = d->parse_special,
                      .loss_on = r->loss_on, .whole = r->post, .takes_pairs = r->pairs,
                      .sides_apart = r->sides_apart, .takes_margins = r->takes_margins,
                      .answers_last = r->answers_last};
    int n = mx_config_list(c, name, &columns);
    if (mx_config_is_set(c, name)) {
        e->n_columns = n;
        e->columns = columns;
    }
}

/* Relative names of pictures are also looked for beside the first data file. */
static const char *folder_of(const mx_dataset_options *set, mx_arena *a)
{
    char *path = mx_arena_strdup(a, set->paths ? set->paths : "");
    path[strcspn(path, ",")] = 0;
    char *slash = strrchr(path, '/');
    if (!slash)
        return ".";
    *slash = 0;
    return path;
}

/* Nothing is tokenized, so there need be no tokenizer; one that is named and here goes into the
 * checkpoints all the same. */
static bool all_are_ids(const mx_dataset_options *sets, int n)
{
    bool ids = true;
    for (int i = 0; i < n; i++)
        ids = ids && sets[i].kind && strcmp(sets[i].kind, "synthetic") == 0;
    return ids;
}

static mx_status open_images(mx_train_data *d, const mx_train_data_request *r,
                             const mx_dataset_options *set, bool only_ids)
{
    const mx_config *c = r->config;
    mx_image_spec s;
    r->model->family->images(r->model->config, &s);
    if (mx_config_bool(c, "packing") &&
        strcmp(mx_config_text(c, "packing_type"), "concat_then_split") == 0)
        return mx_fail(MX_USAGE, "%s: packing_type=concat_then_split would cut pictures; use "
                       "first_fit or best_fit", mx_config_where(c, "packing_type"));
    if (!only_ids && mx_tokenizer_find(d->tokenizer, s.piece) != s.token)
        return mx_fail(MX_INPUT,
                       "the model's image token is %lld, but the tokenizer (%s) has no %s of that "
                       "number; they do not belong together (use_multimodal=false trains on text "
                       "alone)",
                       (long long)s.token, mx_tokenizer_kind(d->tokenizer), s.piece);
    d->images = (mx_encode_images){
        .column = mx_config_text(c, r->evaluation ? "eval_image_column" : "train_image_column"),
        .folder = folder_of(set, &d->arena),
        .max_tokens = mx_config_int(c, "max_target_length"),
        .max_images = r->images_per_row};
    MX_TRY(mx_image_processor_open(&d->images.processor, &s, r->model_dir));
    if (mx_config_bool(c, "do_pan_and_scan"))
        MX_TRY(mx_image_processor_crops(&d->images.processor));
    d->images.table = mx_image_table_new();
    return MX_OK;
}

/* A token beyond the vocabulary would reach the embedding. */
static mx_status too_many_tokens(const mx_train_data_request *r, int32_t tokens)
{
    if (r->model_dir)
        return mx_fail(MX_USAGE,
                       "the tokenizer has %d tokens, the model's vocabulary only %lld "
                       "(%s/config.json); leave tokenizer_path out to use the model's own, or "
                       "choose one that belongs to it", tokens, (long long)r->vocab, r->model_dir);
    return mx_fail(MX_USAGE,
                   "the tokenizer has %d tokens, the model's vocabulary only %lld (vocab_size, "
                   "%s); leave vocab_size out to have as many, or choose another tokenizer",
                   tokens, (long long)r->vocab, mx_config_where(r->config, "vocab_size"));
}

mx_status mx_train_data_open(mx_train_data *d, const mx_train_data_request *request)
{
    mx_train_data_request r = *request;
    const mx_config *c = r.config;
    *d = (mx_train_data){0};
    mx_dataset_options *sets;
    int n;
    MX_TRY(mx_train_sets(c, r.evaluation, &d->arena, &sets, &n));
    d->only_ids = all_are_ids(sets, n);
    int32_t tokens = 0, pad = -1;
    const char *named = mx_config_text(c, "tokenizer_path");
    bool kept = !d->only_ids || (*named && access(named, F_OK) == 0);
    if (kept || !r.vocab) {
        MX_TRY(open_tokenizer(d, c, r.model_dir));
        tokens = mx_tokenizer_vocab_size(d->tokenizer);
        pad = mx_tokenizer_pad(d->tokenizer);
        d->keeps_tokenizer = kept;
    }
    r.vocab = r.vocab ? r.vocab : tokens;
    if (tokens > r.vocab && kept)
        return too_many_tokens(&r, tokens);
    fill_sets(sets, n, &r);
    d->sets = sets;
    d->n_sets = n;
    const char *cache = mx_config_text(c, "tokenizer_cache_dir");
    mx_loader_options o = {.datasets = sets, .n_datasets = n, .pack = pack_of(c),
                           .batch_rows = r.rows, .rank = r.rank, .n_ranks = r.n_ranks,
                           .n_threads = (int)mx_config_int(c, "loader_threads"),
                           .n_ahead = (int)mx_config_int(c, "prefetch_batches") *
                                      (r.pieces > 1 ? r.pieces : 1),
                           .skip_bad = strcmp(mx_config_text(c, "bad_record_policy"), "skip") == 0,
                           .bad_budget = mx_config_float(c, "bad_record_budget"),
                           .cache_dir = *cache ? cache : NULL,
                           .sample_seconds = r.look ? LOOK_SECONDS : 0};
    o.pack.exact = o.pack.drop_untrained = r.post;
    o.epoch_batches = r.post && strcmp(mx_config_text(c, "semantics"), "trl") == 0;
    if (r.keep_end && (r.drops_long || (o.pack.kind != MX_PACK_NONE && !r.pairs)))
        return mx_fail(MX_USAGE, "%s: cut from the start are rows of one record each, of sft, dpo "
                       "and orpo, and distill; set packing=false, or leave it out",
                       mx_config_where(c, "truncation_mode"));
    o.pack.keep_end = r.keep_end;
    if (r.pairs) {
        o.pack.kind = MX_PACK_NONE;
        o.pack.truncate = true;
        o.pack.drop_long = r.drops_long;
    }
    o.pack.pad_id = pad >= 0 && pad < r.vocab ? pad : 0;
    const char *special = mx_config_text(c, "special_in_text");
    d->parse_special = strcmp(special, "parse") == 0 || (r.post && strcmp(special, "auto") == 0);
    fill_encoder(&o.encoder, d, &r);
    if (r.images_per_row) {
        MX_TRY(open_images(d, &r, &sets[0], d->only_ids));
        o.encoder.images = &d->images;
        o.pack.window_rows = 64; /* a window's documents may hold the bytes of their pictures */
    }
    return r.no_loader ? MX_OK : mx_loader_open(&d->loader, &o);
}

void mx_train_data_close(mx_train_data *d)
{
    mx_loader_close(d->loader);
    mx_image_table_free(d->images.table);
    mx_chat_template_close(d->chat);
    mx_tokenizer_close(d->tokenizer);
    mx_arena_fini(&d->arena);
    *d = (mx_train_data){0};
}
