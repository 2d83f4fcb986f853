/* order.c - the permutation and the mixture.
 *
 * Permutation: a Feistel network over 2^(2h) >= n values is a bijection whatever its round function
 * is; values that fall outside 0..n-1 are sent through again until they fall inside (cycle
 * walking), which is a bijection of 0..n-1. 2^(2h) < 4 n, so at most four passes are expected. Six
 * rounds of a 64-bit mixer leave no structure that a test of pairs, neighbours or fixed points
 * finds.
 *
 * Mixture: at each t, of the sequences that may give the next item without being ahead of their
 * share (c_k < w_k (t + 1)), the one whose next item is due first ((c_k + 1) / w_k smallest) gives
 * it. This is Tijdeman's rule; it keeps |c_k - w_k t| < 1 for every k and t. Integers only: shares
 * are per_cycle / MX_MIX_CYCLE, so that every machine computes the same schedule.
 */
#include "data/load/order.h"

#include "data/load/random.h"
#include <math.h>
#include <string.h>

enum { ROUNDS = 6 };

int64_t mx_permute(int64_t n, uint64_t key, int64_t i)
{
    MX_ASSERT(i >= 0 && i < n, "item %lld of %lld", (long long)i, (long long)n);
    if (n < 2)
        return i;
    int half = 1;
    while (half < 31 && (int64_t)1 << (2 * half) < n)
        half++;
    MX_ASSERT(((int64_t)1 << (2 * half)) >= n, "%lld items are too many", (long long)n);
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t f = mx_mix64(key + right * 0x9e3779b97f4a7c15u + (round << 56)) & mask;
            uint64_t t = left ^ f;
            left = right;
            right = t;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Shares of the cycle: rounded down, then the largest remainders get what is left; none gets 0. */
static void share_out(mx_mix *m, const double *weights, double total)
{
    double left[MX_MIX_MAX];
    int given = 0;
    for (int k = 0; k < m->n; k++) {
        double exact = weights[k] / total * MX_MIX_CYCLE;
        m->per_cycle[k] = exact < 1 ? 1 : (int32_t)floor(exact);
        left[k] = exact - m->per_cycle[k];
        given += m->per_cycle[k];
    }
    for (; given != MX_MIX_CYCLE; given += given < MX_MIX_CYCLE ? 1 : -1) {
        int best = 0, sign = given < MX_MIX_CYCLE ? 1 : -1;
        for (int k = 1; k < m->n; k++)
            if (sign * left[k] > sign * left[best] || (sign < 0 && m->per_cycle[best] == 1))
                best = k;
        m->per_cycle[best] += sign;
        left[best] -= sign;
    }
}

mx_status mx_mix_init(mx_mix *m, mx_arena *a, const double *weights, int n)
{
    double total = 0;
    if (n < 1 || n > MX_MIX_MAX)
        return mx_fail(MX_USAGE, "a mixture of %d datasets: expected 1 to %d", n, MX_MIX_MAX);
    for (int k = 0; k < n; k++) {
        if (!(weights[k] > 0) || !isfinite(weights[k]))
            return mx_fail(MX_USAGE,
                           "dataset %d of the mixture has weight %g; weights must be above 0",
                           k + 1, weights[k]);
        total += weights[k];
    }
    *m = (mx_mix){
        .n = n, .per_cycle = MX_NEW_N(a, int32_t, n), .which = mx_arena_alloc(a, MX_MIX_CYCLE)};
    share_out(m, weights, total);
    int64_t count[MX_MIX_MAX] = {0};
    for (int64_t t = 0; t < MX_MIX_CYCLE; t++) {
        int best = -1;
        for (int k = 0; k < n; k++) {
            if (count[k] * MX_MIX_CYCLE >= m->per_cycle[k] * (t + 1))
                continue;
            if (best < 0 ||
                (count[k] + 1) * m->per_cycle[best] < (count[best] + 1) * m->per_cycle[k])
                best = k;
        }
        MX_ASSERT(best >= 0, "no sequence is due at %lld", (long long)t);
        count[best]++;
        m->which[t] = (uint8_t)best;
    }
    return MX_OK;
}
