/* digest.c - XXH3-128 from libxxhash. */
#include "store/digest.h"

#include "base/arena.h"
#include "base/io.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the size of a state, so that its memory is ours */
#include <xxhash.h>

enum { PIECE_BYTES = 1 << 20 };

mx_digest mx_digest_of(const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);
    return (mx_digest){h.high64, h.low64};
}

bool mx_digest_equal(mx_digest a, mx_digest b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

const char *mx_digest_text(mx_digest d, char buf[MX_DIGEST_TEXT])
{
    snprintf(buf, MX_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, d.hi, d.lo);
    return buf;
}

bool mx_digest_parse(const char *text, mx_digest *out)
{
    uint64_t half[2] = {0, 0};
    if (strlen(text) != 32)
        return false;
    for (int i = 0; i < 32; i++) {
        const char *digits = "0123456789abcdef", *hit = strchr(digits, text[i]);
        if (!hit)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)(hit - digits);
    }
    *out = (mx_digest){half[0], half[1]};
    return true;
}

mx_digest_state *mx_digest_start(void)
{
    XXH3_state_t *s = mx_small_alloc(sizeof *s);
    XXH3_INITSTATE(s);
    MX_ASSERT(XXH3_128bits_reset(s) == XXH_OK);
    return (mx_digest_state *)s;
}

void mx_digest_add(mx_digest_state *s, const void *p, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)s, p, n);
}

mx_digest mx_digest_end(mx_digest_state *s)
{
    XXH128_hash_t h = XXH3_128bits_digest((XXH3_state_t *)s);
    mx_free(s);
    return (mx_digest){h.high64, h.low64};
}

mx_status mx_digest_of_file(int fd, const char *path, uint64_t at, uint64_t n, mx_digest *out)
{
    void *piece;
    MX_TRY(mx_alloc(&piece, PIECE_BYTES, "a piece of a file"));
    mx_digest_state *h = mx_digest_start();
    mx_status st = MX_OK;
    for (uint64_t i = 0; i < n && !st; i += PIECE_BYTES) {
        size_t k = n - i < PIECE_BYTES ? (size_t)(n - i) : PIECE_BYTES;
        st = mx_io_read_at(NULL, fd, piece, k, at + i, path);
        if (!st)
            mx_digest_add(h, piece, k);
    }
    *out = mx_digest_end(h);
    mx_free(piece);
    return st;
}
