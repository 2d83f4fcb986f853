/* sha.c - nettle's digests. */
#include "data/hub/sha.h"

#include <stdio.h>

void mx_sha256_init(mx_sha *s)
{
    s->is_sha1 = false;
    sha256_init(&s->state.sha256);
}

void mx_sha1_init(mx_sha *s)
{
    s->is_sha1 = true;
    sha1_init(&s->state.sha1);
}

void mx_sha_add(mx_sha *s, const void *data, size_t n)
{
    if (s->is_sha1)
        sha1_update(&s->state.sha1, n, data);
    else
        sha256_update(&s->state.sha256, n, data);
}

void mx_sha_hex(mx_sha *s, char *hex)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    int n = s->is_sha1 ? SHA1_DIGEST_SIZE : SHA256_DIGEST_SIZE;
    if (s->is_sha1)
        sha1_digest(&s->state.sha1, SHA1_DIGEST_SIZE, digest);
    else
        sha256_digest(&s->state.sha256, SHA256_DIGEST_SIZE, digest);
    for (int i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}
