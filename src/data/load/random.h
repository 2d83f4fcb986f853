/* random.h - counter-based random numbers for data: every draw is a pure function of its keys.
 *
 * Data order, the built-in corpus and synthetic tokens must be computable at any index without
 * having computed the ones before it, so there is no generator state that someone must save: a
 * stream is (key, counter), and draw n of a stream is mx_mix64(key + (n + 1) * golden).
 * mx_mix64 is a bijection of 64-bit integers with full avalanche (xor-shift-multiply, the finaliser
 * of SplitMix64); it is not cryptographic and does not need to be.
 */
#ifndef MX_DATA_RANDOM_H
#define MX_DATA_RANDOM_H

#include <stdint.h>

static inline uint64_t mx_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One key out of two: used to derive the key of a sub-stream (seed + epoch, seed + index, ...). */
static inline uint64_t mx_mix_key(uint64_t a, uint64_t b)
{
    uint64_t first = mx_mix64(a + 0x9e3779b97f4a7c15u);
    return mx_mix64(first ^ (b * 0xd1342543de82ef95u + 0x632be59bd9b4e019u));
}

/* A stream of draws: {key, 0} starts it. */
typedef struct {
    uint64_t key, n;
} mx_draws;

static inline uint64_t mx_draw64(mx_draws *d)
{
    return mx_mix64(d->key + ++d->n * 0x9e3779b97f4a7c15u);
}

/* 0 .. n-1. The bias is below n / 2^64. */
static inline uint64_t mx_draw_below(mx_draws *d, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)mx_draw64(d) * n) >> 64);
}

#endif
