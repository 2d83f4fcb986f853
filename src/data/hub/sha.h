/* sha.h - SHA-256 and SHA-1, which name files on the Hugging Face hub: large files by the SHA-256
 * of their bytes, small ones as git does, by the SHA-1 of "blob SIZE\0" and their bytes. SHA-1 is
 * used here against damage, not against an adversary. Computed by nettle. */
#ifndef MX_DATA_SHA_H
#define MX_DATA_SHA_H

#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    union {
        struct sha256_ctx sha256;
        struct sha1_ctx sha1;
    } state;
    bool is_sha1;
} mx_sha;

void mx_sha256_init(mx_sha *s);
void mx_sha1_init(mx_sha *s);
void mx_sha_add(mx_sha *s, const void *data, size_t n);
/* Ends it; 64 or 40 hexadecimal digits and a NUL into `hex`, which has room for 65. */
void mx_sha_hex(mx_sha *s, char *hex);

#endif
