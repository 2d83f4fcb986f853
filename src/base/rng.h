/* rng.h - Philox4x32-10: random numbers as a pure function of (key, counter).
 *
 * Nothing has to be saved for a bit-identical resume: code that needs random numbers names a seed,
 * a stream (what they are for) and an index, and gets the same numbers every time, on any thread.
 * Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
 */
#ifndef MX_BASE_RNG_H
#define MX_BASE_RNG_H

#include <stdint.h>

typedef struct {
    uint32_t v[4];
} mx_random4;

static inline mx_random4 mx_philox(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                     (uint32_t)(stream >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (mx_random4){{c[0], c[1], c[2], c[3]}};
}

/* [0, 1) with 24 bits, and with 53. */
static inline float mx_uniform_f32(uint32_t u)
{
    return (float)(u >> 8) * 0x1p-24f;
}
static inline double mx_uniform_f64(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

/* Cheaper bits for rounding: two rounds of a 64-bit finaliser over a key and a counter. */
static inline uint64_t mx_hash64(uint64_t key, uint64_t index)
{
    uint64_t z = key + index * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A 64-bit hash of a name, to give each thing its own stream. */
static inline uint64_t mx_stream_of(const char *name)
{
    uint64_t h = 1469598103934665603ull;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211ull;
    return h;
}

#endif
