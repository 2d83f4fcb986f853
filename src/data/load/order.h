/* order.h - the order of records: permutations and mixtures, computed and not stored. */
#ifndef MX_DATA_ORDER_H
#define MX_DATA_ORDER_H

#include "base/arena.h"
#include <stdint.h>

/* Where item i (0 <= i < n) goes in the permutation of n items that `key` names. Time and memory do
 * not depend on n. */
int64_t mx_permute(int64_t n, uint64_t key, int64_t i);

/* Interleaves K sequences so that after any t items, sequence k has given within one of t *
 * weight_k. The schedule repeats every MX_MIX_CYCLE items, so weights are exact to 1 in
 * MX_MIX_CYCLE. */
enum { MX_MIX_CYCLE = 16384, MX_MIX_MAX = 256 };
typedef struct {
    int n;               /* sequences */
    int32_t *per_cycle;  /* (n) items of each in one cycle */
    uint8_t *which;      /* (MX_MIX_CYCLE) */
} mx_mix;

/* Weights are relative and positive. */
mx_status mx_mix_init(mx_mix *m, mx_arena *a, const double *weights, int n) MX_MUST_USE;
static inline int mx_mix_at(const mx_mix *m, int64_t t)
{
    return m->which[t % MX_MIX_CYCLE];
}

#endif
