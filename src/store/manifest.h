/* manifest.h - the commit point of a checkpoint: one small JSON file that knows every byte of it.
 *
 *     {"digest": H, "files": {NAME: FILE...}, "format": "maxc-checkpoint", "metric": 2.31,
 *      "requires": [], "run": ID, "step": 300, "version": 1}
 *     FILE of safetensors = {"bytes": n, "header": H, "header_bytes": k, "tensors": {NAME: H...}}
 *     any other FILE      = {"bytes": n, "xxh3": H}
 *
 * H is XXH3-128 in hexadecimal. "digest" is that of the manifest's own text without the member. The
 * text is canonical (sorted keys, one indentation): a manifest that is not byte for byte what maxc
 * would write is refused, so a flipped bit cannot hide even in its white space.
 *
 * A checkpoint exists if and only if its manifest verifies. "requires" names features a reader must
 * know; a reader that does not know one refuses. Members unknown to this version are ignored.
 */
#ifndef MX_STORE_MANIFEST_H
#define MX_STORE_MANIFEST_H

#include "base/io.h"
#include "base/json_doc.h"
#include "store/hf_save.h"

typedef struct {
    const char *run;
    int64_t step;
    double metric; /* NAN: none */
} mx_manifest_head;

/* Building: `files` starts as json_object(). */
void mx_manifest_add_file(json_t *files, const char *name, uint64_t size_bytes, mx_digest digest);
void mx_manifest_add_shards(json_t *files, const mx_hf_saved *saved, const mx_st_source *tensors);
/* Writes dir/manifest.json durably (the directory is the caller's). Takes `files`. */
mx_status mx_manifest_write(const mx_io *io, const char *dir, const mx_manifest_head *head,
                            json_t *files) MX_MUST_USE;

/* Reads and checks the manifest itself. json_decref *out. */
mx_status mx_manifest_read(const char *dir, json_t **out) MX_MUST_USE;
/* head->run is borrowed from the manifest. */
void mx_manifest_get_head(const json_t *manifest, mx_manifest_head *head);

typedef enum {
    MX_CHECK_SIZES,  /* every file is there and has its size; headers are intact */
    MX_CHECK_HASHES, /* and every byte is what was written */
} mx_check_level;
/* Checks the directory against the manifest; all damage found is reported, tensors by name. */
mx_status mx_manifest_check(const char *dir, const json_t *manifest, mx_check_level level,
                            int n_threads) MX_MUST_USE;

#endif
