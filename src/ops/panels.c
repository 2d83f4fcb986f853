/* panels.c - see panels.h. */
#include "ops/panels.h"

#include "base/arena.h"
#include "ops/cpu/dequant_panels.h"
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

/* A panel of a weight of this type, laid out in `to`. */
typedef void lay_fn(const mx_type *t, const void *panel, void *to);

static mx_status lay_all(void *w, const mx_type *t, int32_t cols, lay_fn *lay)
{
    int64_t k = t->dim[t->ndim - 1], n = mx_type_count(t) / (cols * k);
    size_t bytes = (size_t)(cols * k) * mx_dtype_bytes(t->dtype);
    int threads = omp_get_max_threads();
    char *room;
    MX_TRY(mx_alloc((void **)&room, bytes * (size_t)threads, "the packing of weights"));
#pragma omp parallel for schedule(static) num_threads(threads) if (n > 8)
    for (int64_t i = 0; i < n; i++) {
        char *here = (char *)w + (size_t)i * bytes;
        char *mine = room + bytes * (size_t)omp_get_thread_num();
        lay(t, here, mine);
        memcpy(here, mine, bytes);
    }
    mx_free(room);
    return MX_OK;
}

static void lay_numbers(const mx_type *t, const void *panel, void *to)
{
    int64_t k = t->dim[t->ndim - 1];
    mx_gemm_pack(&(mx_gemm_args){.n = mx_panels_of(t->dtype).cols, .k = k, .b = panel, .ldb = k,
                                 .trans_b = true, .a_type = mx_num_of(t->dtype),
                                 .b_type = mx_num_of(t->dtype)},
                 to);
}

mx_status mx_panels_lay(void *w, const mx_type *t)
{
    mx_panels p = mx_panels_of(t->dtype);
    MX_ASSERT(mx_panels_fit(p, t));
    return lay_all(w, t, p.cols, lay_numbers);
}

mx_panels mx_code_panels_of(const mx_type *codes, const mx_type *scale)
{
    mx_codes_kind kind = codes->dtype == MX_U8 ? MX_CODES_INT4 : MX_CODES_INT8;
    int64_t bytes = codes->dim[1];
    bool fits = (codes->dtype == MX_U8 || codes->dtype == MX_I8) &&
                mx_code_panels_fit(kind, codes->dim[0], bytes) &&
                mx_code_panels_take(kind, codes->dtype == MX_U8 ? 2 * bytes : bytes, scale->dim[1]);
    return fits ? (mx_panels){MX_CODE_COLS, 4} : (mx_panels){0};
}

static void lay_words(const mx_type *t, const void *panel, void *to)
{
    int64_t bytes = t->dim[t->ndim - 1] * (int64_t)mx_dtype_bytes(t->dtype);
    mx_code_panel_lay(panel, bytes / 4, t->dtype == MX_U8, to);
}

mx_status mx_code_panels_lay(void *w, const mx_type *t)
{
    return lay_all(w, t, MX_CODE_COLS, lay_words);
}
