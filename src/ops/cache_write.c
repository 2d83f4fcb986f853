/* cache_write.c - new entries into a decode cache, in place.
 *
 *     cache (B, S, ...)   new (B, T, ...)   slots (B, T) int32
 *     cache[b, slots[b, t]] = new[b, t]
 * A slot outside [0, S) is skipped: -1 marks a sequence that is padding or finished. Output 0 is
 * the cache's own memory. `new` is converted to the cache's dtype. The dims after S are heads and
 * head size for keys and values, and absent for positions (B, S). There is no gradient: decoding
 * only.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"
#include "ops/load.h"

enum { MX_INPUTS_CACHE_WRITE };

static const char *notation(const mx_node *n)
{
    static const char *const dims[] = {"b!s,b!t,b!t->b!s", "b!sd,b!td,b!t->b!sd",
                                       "b!shd,b!thd,b!t->b!shd", "b!scde,b!tcde,b!t->b!scde"};
    int nd = n->in[CACHE_OLD]->type.ndim;
    return dims[nd < 2 ? 0 : nd > 5 ? 3 : nd - 2];
}

static void cache_write_cpu(const mx_call *c)
{
    const mx_tensor *fresh = &c->in[CACHE_NEW], *cache = &c->out[0];
    const int32_t *slot = c->in[CACHE_SLOTS].data;
    int64_t B = cache->type.dim[0], S = cache->type.dim[1], T = fresh->type.dim[1];
    int64_t entry = 1;
    for (int i = 2; i < cache->type.ndim; i++)
        entry *= cache->type.dim[i];
    /* Over sequences, not entries: two entries for one slot keep their order. */
#pragma omp parallel for schedule(static) if (B * T * entry > 1 << 15)
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            int64_t s = slot[b * T + t];
            if (s >= 0 && s < S)
                mx_convert_run(fresh, (b * T + t) * entry, cache, (b * S + s) * entry, entry);
        }
}

mx_node *mx_cache_write(mx_graph *g, mx_node *cache, mx_node *fresh, mx_node *slots)
{
    return MX_APPLY(g, &mx_op_cache_write, NULL, cache, fresh, slots);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){0, 2 * (double)mx_type_bytes(&n->in[CACHE_NEW]->type)};
}

const mx_op mx_op_cache_write = {
    .name = "cache_write",
    .doc = "new entries into a decode cache, in place",
    .dtypes = MX_ANY_DTYPE,
    .dtypes_at = {[CACHE_SLOTS] = MX_INDICES},
    .notation = notation,
    .alias = {1},
    .no_cast = true,
    .cost = cost,
    .cpu = cache_write_cpu,
    .cases = (const mx_case[]){{3, {{4, {2, 6, 2, 4}, .no_grad = true},
                                    {4, {2, 3, 2, 4}, .no_grad = true},
                                    {2, {2, 3}, MX_I32, -1, 7}}},
                               {3, {{2, {4, 5}, MX_I32, 0, 9}, {2, {4, 1}, MX_I32, 10, 19},
                                    {2, {4, 1}, MX_I32, 0, 5}}}, {0}},
};
