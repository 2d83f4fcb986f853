/* digest.h - the 128-bit hash (XXH3) that stands in manifests: 32 hexadecimal digits, as xxh128sum
 * prints it. It finds damage, every flipped bit included; it does not defend against forgery. */
#ifndef MX_STORE_DIGEST_H
#define MX_STORE_DIGEST_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t hi, lo;
} mx_digest;

enum { MX_DIGEST_TEXT = 33 };

mx_digest mx_digest_of(const void *p, size_t n);
bool mx_digest_equal(mx_digest a, mx_digest b);
const char *mx_digest_text(mx_digest d, char buf[MX_DIGEST_TEXT]);
bool mx_digest_parse(const char *text, mx_digest *out);

/* Of n bytes of a file at `at`. */
mx_status mx_digest_of_file(int fd, const char *path, uint64_t at, uint64_t n,
                            mx_digest *out) MX_MUST_USE;

/* In pieces: start, add..., end (which frees). */
typedef struct mx_digest_state mx_digest_state;
mx_digest_state *mx_digest_start(void);
void mx_digest_add(mx_digest_state *s, const void *p, size_t n);
mx_digest mx_digest_end(mx_digest_state *s);

#endif
