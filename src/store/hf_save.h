/* hf_save.h - weights written as a Hugging Face directory that transformers loads. */
#ifndef MX_STORE_HF_SAVE_H
#define MX_STORE_HF_SAVE_H

#include "store/st_write.h"

#define MX_HF_SHARD_BYTES ((uint64_t)5000000000) /* transformers' own "5GB" */

/* A further file of the directory: its text, or a file to copy (config.json, tokenizer.json...). */
typedef struct {
    const char *name;
    const void *data; /* NULL: copy `from` */
    size_t n_bytes;
    const char *from;
} mx_hf_extra;

typedef struct {
    const char *stem;           /* "model" when NULL: model.safetensors, model-00001-of-00003... */
    uint64_t max_shard_bytes;   /* MX_HF_SHARD_BYTES when 0 */
    int n_threads;              /* shards written at once; 1 when 0 */
    const mx_st_pair *metadata; /* beside format=pt, which transformers asks for */
    int n_metadata;
    mx_st_writer writer; /* io and fetch; its own metadata is ignored */
    /* Several ranks write one set: shard i belongs to rank (i + first_rank) % n_ranks. */
    int rank, n_ranks, first_rank; /* n_ranks 0: this process writes all */
} mx_hf_save_opts;

typedef struct {
    const char *name; /* without the directory */
    mx_st_written st;
    int64_t first, count; /* tensors, in the order given */
} mx_hf_shard;

/* What was written, for a manifest; lives in the caller's arena. */
typedef struct {
    mx_hf_shard *shards;
    int n_shards;
    mx_digest *digests; /* of each tensor, in the order given */
    uint64_t total_bytes;
    const char *index_name; /* NULL when there is one file and no index */
    uint64_t index_bytes;
    mx_digest index_digest;
} mx_hf_saved;

/* Stacks split: a tensor called "a.*.b" of dims (E, ...) becomes "a.0.b", "a.1.b"... of dims
 * (...), over the same data. Others stay as they are. Gives the number; the list lives in the
 * arena. */
int64_t mx_hf_split_stacks(const mx_st_source *tensors, int64_t n, mx_arena *arena,
                           mx_st_source **out);
/* Which tensors go into which shard (name, first, count), without writing anything. */
void mx_hf_plan_shards(const mx_st_source *tensors, int64_t n, const mx_hf_save_opts *opts,
                       mx_arena *arena, mx_hf_saved *out);
/* Writes the tensors into an existing directory: one file, or shards and an index when they exceed
 * max_shard_bytes (a tensor is never split). Each file is written beside its name, fsynced and
 * renamed; the index comes last and the directory is fsynced. Weights an earlier save left under
 * other names are removed at the end, so the directory never means two models. */
int mx_hf_shard_rank(const mx_hf_save_opts *opts, int shard);
/* The first half of it: the shards that are this rank's, and the directory fsynced. */
mx_status mx_hf_save_shards(const char *dir, const mx_st_source *tensors, int64_t n,
                            const mx_hf_save_opts *opts, mx_arena *arena,
                            mx_hf_saved *out) MX_MUST_USE;
/* The same by ranks that have parts of tensors (mx_st_source.box): plan, then begin, put and end,
 * each when every rank is through with the one before. */
typedef struct {
    const char *dir;
    const mx_hf_save_opts *opts;
    mx_hf_saved *saved;
    const mx_st_source *const *tensors; /* from here on the plan's */
    mx_st_writer writer;
} mx_hf_boxes;
typedef enum { MX_BOXES_BEGIN, MX_BOXES_PUT, MX_BOXES_END } mx_hf_boxes_phase;
void mx_hf_boxes_plan(mx_hf_boxes *b, const mx_st_source *tensors, int64_t n, mx_arena *arena);
mx_status mx_hf_boxes_do(mx_hf_boxes *b, mx_hf_boxes_phase phase) MX_MUST_USE;
/* The second half, of one rank, when every shard is there. */
mx_status mx_hf_save_index(const char *dir, const mx_st_source *tensors,
                           const mx_hf_save_opts *opts, mx_arena *arena,
                           mx_hf_saved *out) MX_MUST_USE;
/* Writes or copies one further file. The caller syncs the directory. */
mx_status mx_hf_save_extra(const char *dir, const mx_hf_extra *extra, const mx_io *io,
                           uint64_t *size_bytes, mx_digest *digest) MX_MUST_USE;
/* Both, creating `dir` (one level) when it is not there. Stacks are split. */
mx_status mx_hf_save(const char *dir, const mx_st_source *tensors, int64_t n,
                     const mx_hf_extra *extras, int n_extras,
                     const mx_hf_save_opts *opts) MX_MUST_USE;

#endif
