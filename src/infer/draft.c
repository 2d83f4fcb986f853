/* draft.c - draft tokens of an answer from what stands in its own text: prompt lookup.
 *
 * The last few tokens are looked for further up, the most recent place first, longer runs before
 * shorter ones; what followed there is the draft. Texts that quote their prompt (code, summaries,
 * extraction) repeat themselves much; elsewhere little is drafted, and little rejected.
 */
#include "infer/engine_impl.h"

#include <string.h>

enum { LONGEST = 4, SHORTEST = 2, MOST = 4096 /* tokens that are looked through */ };

int64_t mx_draft_lookup(const int32_t *ids, int64_t n_ids, int64_t n, int32_t *out)
{
    int64_t least = n_ids > MOST ? n_ids - MOST : 0;
    for (int64_t k = LONGEST; k >= SHORTEST; k--)
        for (int64_t at = n_ids - k - 1; at >= least; at--) {
            if (memcmp(ids + at, ids + n_ids - k, sizeof *ids * (size_t)k) != 0)
                continue;
            int64_t found = n_ids - at - k;
            found = found < n ? found : n;
            memmove(out, ids + at + k, sizeof *ids * (size_t)found);
            return found;
        }
    return 0;
}
