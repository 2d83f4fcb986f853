/* token_cache.h - tokenized records on disk, found by the hash of what they were made from.
 *
 * A folder of files, each written by one process: a header, then entries
 *     key 16 bytes | n_docs u32 | n u32, n u32 | ids 4 n | trained n | checksum u64
 * The key is the XXH3-128 of the record's cells, seeded with everything else that tokens depend on
 * (tokenizer, template, settings), so an entry can never be stale. A torn or damaged tail ends the
 * file it is in; a folder that cannot be written is used for reading only. Deleting the folder is
 * always safe.
 */
#ifndef MX_DATA_TOKEN_CACHE_H
#define MX_DATA_TOKEN_CACHE_H

#include "data/load/encode.h"

typedef struct {
    uint64_t hi, lo;
} mx_cache_key;

typedef struct mx_token_cache mx_token_cache;
mx_status mx_token_cache_open(mx_token_cache **out, const char *dir,
                              const mx_encoder *e) MX_MUST_USE;
/* These three may be called by several threads. */
mx_cache_key mx_token_cache_key(const mx_token_cache *c, const mx_record *r);
bool mx_token_cache_get(mx_token_cache *c, mx_cache_key key, mx_document docs[2], int *n_docs);
void mx_token_cache_put(mx_token_cache *c, mx_cache_key key, const mx_document docs[2], int n_docs);
void mx_token_cache_close(mx_token_cache *c); /* NULL is a no-op */

#endif
