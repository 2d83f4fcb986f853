/* highway.c - HighwayHash64 in portable C.
 *
 * State: four lanes each of v0, v1, mul0, mul1 (64 bits). A packet of 32 bytes is added to v1; each
 * of v0 and v1 is multiplied (32 x 32 -> 64) into the mul lanes and then added to the other after a
 * fixed permutation of its bytes (the "zipper merge"), which spreads the well-mixed middle bytes of
 * a product. A last partial packet rotates v1 by its length; four rounds with swapped lanes end it.
 * The loops over four lanes vectorise. Reference: "Fast keyed hash/pseudo-random function using
 * SIMD multiply and permute".
 */
#include "data/formats/highway.h"

#include <string.h>

typedef struct {
    uint64_t v0[4], v1[4], mul0[4], mul1[4];
} state;

static inline uint64_t swap_halves(uint64_t x)
{
    return x >> 32 | x << 32;
}

/* Adds the zipper merge of the pair (lo, hi) to the pair (to[0], to[1]). Bytes are picked by
 * masks. */
static inline void zipper_add(const uint64_t from[2], uint64_t to[2])
{
    uint64_t lo = from[0], hi = from[1];
    to[0] += ((lo & 0xff000000u) | (hi & 0xff00000000u)) >> 24 |
             ((lo & 0xff0000000000u) | (hi & 0xff000000000000u)) >> 16 | (lo & 0xff0000u) |
             (lo & 0xff00u) << 32 | (hi & 0xff00000000000000u) >> 8 | lo << 56;
    to[1] += ((hi & 0xff000000u) | (lo & 0xff00000000u)) >> 24 | (hi & 0xff0000u) |
             (hi & 0xff0000000000u) >> 16 | (hi & 0xff00u) << 24 | (lo & 0xff000000000000u) >> 8 |
             (hi & 0xffu) << 48 | (lo & 0xff00000000000000u);
}

static inline void update(state *s, const uint64_t lanes[4])
{
    for (int i = 0; i < 4; i++) {
        s->v1[i] += s->mul0[i] + lanes[i];
        s->mul0[i] ^= (s->v1[i] & 0xffffffffu) * (s->v0[i] >> 32);
        s->v0[i] += s->mul1[i];
        s->mul1[i] ^= (s->v0[i] & 0xffffffffu) * (s->v1[i] >> 32);
    }
    zipper_add(s->v1, s->v0);
    zipper_add(s->v1 + 2, s->v0 + 2);
    zipper_add(s->v0, s->v1);
    zipper_add(s->v0 + 2, s->v1 + 2);
}

static inline void update_packet(state *s, const uint8_t *p)
{
    uint64_t lanes[4];
    memcpy(lanes, p, 32);
    update(s, lanes);
}

static uint64_t rotate_both_halves(uint64_t x, unsigned by)
{
    uint32_t lo = (uint32_t)x, hi = (uint32_t)(x >> 32);
    if (by) {
        lo = lo << by | lo >> (32 - by);
        hi = hi << by | hi >> (32 - by);
    }
    return (uint64_t)hi << 32 | lo;
}

/* n is 1..31 bytes. The last up to four go to fixed places of the packet. */
static void update_rest(state *s, const uint8_t *p, size_t n)
{
    uint8_t packet[32] = {0};
    size_t whole = n & ~(size_t)3, tail = n & 3;
    for (int i = 0; i < 4; i++) {
        s->v0[i] += ((uint64_t)n << 32) + n;
        s->v1[i] = rotate_both_halves(s->v1[i], (unsigned)n);
    }
    memcpy(packet, p, whole);
    if (n & 16) {
        memcpy(packet + 28, p + n - 4, 4);
    } else if (tail) {
        packet[16] = p[whole];
        packet[17] = p[whole + (tail >> 1)];
        packet[18] = p[whole + tail - 1];
    }
    update_packet(s, packet);
}

uint64_t mx_highway64(const uint64_t key[4], const void *data, size_t n)
{
    static const uint64_t init0[4] = {0xdbe6d5d5fe4cce2fu, 0xa4093822299f31d0u, 0x13198a2e03707344u,
                                      0x243f6a8885a308d3u};
    static const uint64_t init1[4] = {0x3bd39e10cb0ef593u, 0xc0acf169b5f18a8cu, 0xbe5466cf34e90c6cu,
                                      0x452821e638d01377u};
    state s;
    for (int i = 0; i < 4; i++) {
        s.mul0[i] = init0[i];
        s.mul1[i] = init1[i];
        s.v0[i] = init0[i] ^ key[i];
        s.v1[i] = init1[i] ^ swap_halves(key[i]);
    }
    const uint8_t *p = data;
    for (; n >= 32; p += 32, n -= 32)
        update_packet(&s, p);
    if (n)
        update_rest(&s, p, n);
    for (int round = 0; round < 4; round++) {
        uint64_t lanes[4] = {swap_halves(s.v0[2]), swap_halves(s.v0[3]), swap_halves(s.v0[0]),
                             swap_halves(s.v0[1])};
        update(&s, lanes);
    }
    return s.v0[0] + s.v1[0] + s.mul0[0] + s.mul1[0];
}
