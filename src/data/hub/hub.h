/* hub.h - files of a Hugging Face hub repository, through the same cache that its own library uses.
 *
 *     $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub
 *       datasets--ORG--NAME/refs/main               the commit that "main" was when last asked
 *                           blobs/ETAG              contents, named by their hash
 *                           snapshots/COMMIT/PATH   links to blobs
 * What is in the cache is not fetched again, and is used when the hub cannot be reached;
 * HF_HUB_OFFLINE=1 uses the cache alone. HF_TOKEN (or $HF_HOME/token) is sent to the hub's own
 * address only. HF_ENDPOINT is another address.
 */
#ifndef MX_DATA_HUB_H
#define MX_DATA_HUB_H

#include "base/arena.h"
#include "base/str.h"

/* "org/name": one slash, the hub's letters, none of the beginnings of a path. */
bool mx_hub_is_name(const char *name);

typedef struct {
    const char *repo;     /* "org/name" or "name" */
    bool model;           /* a model repository; otherwise a dataset */
    const char *revision; /* branch, tag or commit; NULL: main */
    const char *pattern;  /* which files: comma-separated patterns over paths; NULL or "": all */
    const char *token;    /* NULL or "": from the environment */
    void (*progress)(void *ctx, const char *file, int64_t done, int64_t total); /* may be NULL */
    void *ctx;
} mx_hub_request;

/* Local paths of the files, sorted, and the snapshot's folder; memory from the arena. */
mx_status mx_hub_fetch(const mx_hub_request *r, mx_arena *a, char ***paths, int *n,
                       char **folder) MX_MUST_USE;

/* Of a dataset's file names, those that hold a split: by folder, by name, or all when none says so.
 * Appends a comma-separated list of names to `out`. name and data_dir may be "". */
void mx_hub_choose(char *const *names, int n, const char *name, const char *data_dir,
                   const char *split, mx_str *out);
/* Names of all files of the repository, without fetching any. */
mx_status mx_hub_list(const mx_hub_request *r, mx_arena *a, char ***names, int *n) MX_MUST_USE;

#endif
