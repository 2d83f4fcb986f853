/* hf_dir.h - a Hugging Face model directory, read as it is.
 *
 *     config.json                       family and sizes
 *     generation_config.json            (may be absent)
 *     model.safetensors                 all weights, or
 *     model.safetensors.index.json      {"weight_map": {tensor: shard file}} and its shards
 *
 * Every file must lie in the directory itself. Symbolic links may lead elsewhere in it, or, in the
 * hub cache's layout (models--NAME/snapshots/REVISION), to models--NAME/blobs; any other way out is
 * refused, since an index or archive from a stranger could otherwise read any file of the user.
 * Pickle checkpoints (.bin, .pt, .pth, .ckpt) are programs and are refused.
 */
#ifndef MX_STORE_HF_DIR_H
#define MX_STORE_HF_DIR_H

#include "base/json_doc.h"
#include "store/safetensors.h"

typedef struct {
    mx_arena arena;
    const char *path; /* as given, without trailing slashes */
    const char *real_path;
    const char *single, *index; /* names of the weight file and of the index */
    json_t *config;             /* owns; never NULL after a successful open */
    json_t *generation_config;  /* owns; NULL when the file is absent */
    mx_st_file *files;          /* owns: the shards */
    int n_files;
    const mx_st_tensor **tensors; /* all, sorted by name */
    int64_t n_tensors;
    uint64_t total_bytes;
} mx_hf_dir;

typedef enum {
    MX_HF_ALL = 0,
    MX_HF_CONFIG_ONLY = 1,  /* the JSON files alone: a directory without weights is fine */
    MX_HF_WEIGHTS_ONLY = 2, /* config.json may be absent */
} mx_hf_parts;

/* Caller's storage; close on a zero object is a no-op. A failed open leaves nothing to close. */
mx_status mx_hf_dir_open(mx_hf_dir *d, const char *path, mx_hf_parts parts) MX_MUST_USE;
/* Only the safetensors files STEM.safetensors or STEM.safetensors.index.json and its shards:
 * another set of tensors in such a directory ("optimizer"). */
mx_status mx_hf_dir_open_set(mx_hf_dir *d, const char *path, const char *stem) MX_MUST_USE;
void mx_hf_dir_close(mx_hf_dir *d);

const mx_st_tensor *mx_hf_dir_find(const mx_hf_dir *d, const char *name); /* NULL when absent */

/* A JSON file of the directory; *out is NULL when absent and not required. json_decref it. */
mx_status mx_hf_dir_json(mx_hf_dir *d, const char *name, bool required, json_t **out) MX_MUST_USE;

#endif
