/* auth.h - the secret that the ranks of a run share, and what is derived from it.
 *
 * The secret itself never crosses the network: both sides of a connection derive keys from it and
 * from random numbers of both, and sign with them (HMAC-SHA256, cut to 16 bytes). What is sent
 * after that is not encrypted.
 *
 * The secret is the user's (`rendezvous_secret`), or rank 0 makes one for this start and keeps it,
 * until all ranks are there, in a file that only this user can read, in the folder that ranks share
 * anyway. Job numbers, ports and addresses of launchers are known to others and are never used.
 */
#ifndef MX_DIST_AUTH_H
#define MX_DIST_AUTH_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

enum { MX_AUTH_KEY = 32, MX_AUTH_MAC = 16, MX_AUTH_NONCE = 16, MX_AUTH_ID = 8 };
enum { MX_AUTH_SECRET_LEAST = 16 }; /* characters of a user's secret */

typedef struct {
    uint8_t bytes[MX_AUTH_KEY];
} mx_auth_key;

mx_status mx_auth_random(void *p, size_t n) MX_MUST_USE;
/* Of a user's text; refuses one that is too short. */
mx_status mx_auth_key_of_text(mx_auth_key *key, const char *secret) MX_MUST_USE;
/* The key for one purpose, with what makes it unique. */
mx_auth_key mx_auth_derive(const mx_auth_key *from, const char *purpose, const void *p, size_t n);
/* Over a counter and n bytes. */
void mx_auth_sign(const mx_auth_key *key, uint64_t counter, const void *p, size_t n,
                  uint8_t mac[MX_AUTH_MAC]);
/* In a time that does not depend on where they differ. */
bool mx_auth_equal(const void *a, const void *b, size_t n);

/* A file DIR/.maxc-rendezvous-ID with a new secret; in the nearest folder above that exists, when
 * DIR does not. Its path is put into `path`. Files that killed starts have left are removed. */
mx_status mx_auth_file_make(const char *dir, const uint8_t id[MX_AUTH_ID], mx_auth_key *key,
                            char *path, size_t cap) MX_MUST_USE;
/* The secret in that file, provided that nobody but this user can have written or read it. */
mx_status mx_auth_file_read(const char *dir, const uint8_t id[MX_AUTH_ID],
                            mx_auth_key *key) MX_MUST_USE;

#endif
