/* sha.c - libcrypto's digests. */
#include "data/sha.h"

#include <openssl/evp.h>
#include <stdio.h>

static void give_up(mx_sha *s)
{
    EVP_MD_CTX_free(s->context);
    s->context = NULL;
}

static void start(mx_sha *s, const EVP_MD *kind)
{
    s->context = EVP_MD_CTX_new();
    if (s->context && !EVP_DigestInit_ex(s->context, kind, NULL))
        give_up(s);
}

void mx_sha256_init(mx_sha *s)
{
    start(s, EVP_sha256());
}

void mx_sha1_init(mx_sha *s)
{
    start(s, EVP_sha1());
}

void mx_sha_add(mx_sha *s, const void *data, size_t n)
{
    if (s->context && !EVP_DigestUpdate(s->context, data, n))
        give_up(s);
}

mx_status mx_sha_hex(mx_sha *s, char *hex)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    *hex = 0;
    if (!s->context || !EVP_DigestFinal_ex(s->context, digest, &n) || n > 32) {
        give_up(s);
        return mx_fail(MX_DEVICE, "libcrypto refuses to compute a SHA digest; is SHA-1 or SHA-256 "
                                  "forbidden in openssl.cnf?");
    }
    give_up(s);
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return MX_OK;
}
