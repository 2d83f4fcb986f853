/* panels.c - see panels.h. */
#include "ops/panels.h"

#include "base/arena.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/num.h"
#include <string.h>

mx_panels mx_panels_of(mx_dtype t)
{
    const mx_gemm_level *l = mx_gemm_level_at(mx_num_of(t), mx_num_of(t), mx_simd_level());
    return (mx_panels){l->nr, l->pair};
}

bool mx_panels_fit(mx_panels p, const mx_type *w)
{
    return w->ndim >= 2 && w->dim[w->ndim - 2] % p.cols == 0 && w->dim[w->ndim - 1] % p.pair == 0;
}

mx_status mx_panels_lay(void *w, const mx_type *t)
{
    mx_panels p = mx_panels_of(t->dtype);
    int64_t k = t->dim[t->ndim - 1], n = mx_type_count(t) / (p.cols * k);
    size_t bytes = (size_t)(p.cols * k) * mx_dtype_bytes(t->dtype);
    int threads = omp_get_max_threads();
    char *room;
    MX_ASSERT(mx_panels_fit(p, t));
    MX_TRY(mx_alloc((void **)&room, bytes * (size_t)threads, "the packing of weights"));
#pragma omp parallel for schedule(static) num_threads(threads) if (n > 8)
    for (int64_t i = 0; i < n; i++) {
        char *here = (char *)w + (size_t)i * bytes;
        char *mine = room + bytes * (size_t)omp_get_thread_num();
        mx_gemm_pack(&(mx_gemm_args){.n = p.cols, .k = k, .b = here, .ldb = k, .trans_b = true,
                                     .a_type = mx_num_of(t->dtype), .b_type = mx_num_of(t->dtype)},
                     mine);
        memcpy(here, mine, bytes);
    }
    mx_free(room);
    return MX_OK;
}
