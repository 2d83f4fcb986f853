/* gemm.c - cuts a GEMM into tiles and gives them to threads.
 *
 * A tile is a rectangle of C that one thread computes alone, over all of k, with gemm_levels.c. The
 * cut affects speed and never bits. There is no split of k: GEMMs with small C and large k run
 * on fewer threads and stay reproducible.
 *
 * Why not a library: oneDNN's sgemm allocates, splits k by the thread count, so that bits change
 * with it, and its bf16 GEMM wants weights packed beforehand (docs/decisions.md;
 * bench/kernels_bench.c measures both).
 */
#include "ops/cpu/gemm.h"

#include "base/status.h"
#include "ops/cpu/gemm_tile.h"
#include <omp.h>
#include <string.h>

int mx_gemm_tile_cols(mx_num type)
{
    return mx_gemm_level_at(type, type, mx_simd_level())->nr;
}

typedef struct {
    int64_t rows, cols;     /* of a tile */
    int64_t n_rows, n_cols; /* tiles per GEMM */
} cut;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Tiles as large as the packing buffers allow, then more of them until every thread has as many:
 * rows while many remain (each cut packs B once more), then columns (A once more, and every thread
 * reads all of A). Threads do not share a packed block: where two cores have no cache in common,
 * handing it over costs more than packing it twice. For the same reason rows are cut where A is not
 * transposed, even if the columns alone would do: what comes before and after such a GEMM works on
 * rows too, so a thread finds its rows of A in its own cache, and its rows of C later. Columns make
 * the GEMM alone faster, since B is packed once, and a whole step slower (docs/log/cpu.md); they
 * are taken in bf16 where B is transposed and k short. Rows are cut evenly and not at whole
 * register tiles: a short last one costs every thread less than a whole one costs the thread that
 * has it. */
static cut choose_cut(const mx_gemm_args *g, const mx_gemm_level *l, int64_t batch, int threads)
{
    bool cols_first = l->pair == 2 && !g->trans_a && g->trans_b && g->k <= 768;
    int64_t mm = 1, nn = ceil_div(g->n, l->nc);
    if (l->pair == 1 && !g->trans_a && batch * nn < 4 * threads && g->m / threads >= 256)
        mm = threads;
    while (threads > 1 && batch * mm * nn < 8 * threads && batch * mm * nn % threads) {
        if (cols_first && g->n / (nn + 1) >= 256)
            nn++;
        else if (g->m / (mm + 1) >= 256)
            mm++;
        else if (g->n / (nn + 1) >= 2 * l->nr)
            nn++;
        else if (g->m / (mm + 1) >= 2 * l->mr)
            mm++;
        else
            break;
    }
    cut c = {.rows = ceil_div(g->m, mm), .cols = ceil_div(ceil_div(g->n, nn), l->nr) * l->nr};
    c.n_rows = ceil_div(g->m, c.rows);
    c.n_cols = ceil_div(g->n, c.cols);
    return c;
}

static void run_tile(const mx_gemm_args *g, mx_gemm_tile_fn *run, const cut *c, int64_t i)
{
    int64_t per = c->n_rows * c->n_cols, p = i / per, col = i % per / c->n_rows,
            row = i % per % c->n_rows;
    mx_gemm_tile t = {
        .g = g,
        .a = (const char *)g->a + p * g->a_step * MX_NUM_BYTES(g->a_type),
        .b = (const char *)g->b + p * g->b_step * MX_NUM_BYTES(g->b_type),
        .c = (char *)g->c + p * g->c_step * MX_NUM_BYTES(g->c_type),
        .m0 = row * c->rows,
        .n0 = col * c->cols,
    };
    t.m1 = t.m0 + c->rows < g->m ? t.m0 + c->rows : g->m;
    t.n1 = t.n0 + c->cols < g->n ? t.n0 + c->cols : g->n;
    run(&t);
}

static void clear(const mx_gemm_args *g, int64_t batch)
{
    size_t bytes = (size_t)MX_NUM_BYTES(g->c_type);
    for (int64_t p = 0; p < batch; p++)
        for (int64_t i = 0; i < g->m; i++)
            memset((char *)g->c + (size_t)(p * g->c_step + i * g->ldc) * bytes, 0,
                   (size_t)g->n * bytes);
}

size_t mx_gemm_pack_bytes(const mx_gemm_args *g)
{
    const mx_gemm_level *l = mx_gemm_level_at(g->a_type, g->b_type, mx_simd_level());
    int64_t words = ceil_div(g->k, l->pair);
    size_t word = g->a_type == MX_NUM_F64 ? sizeof(double) : sizeof(float); /* or two of bf16 */
    return words > l->kc ? 0 : word * (size_t)(words * ceil_div(g->n, l->nr) * l->nr);
}

void mx_gemm_pack(const mx_gemm_args *g, void *packed)
{
    mx_gemm_level_at(g->a_type, g->b_type, mx_simd_level())->pack(g, packed);
}

void mx_gemm(const mx_gemm_args *g)
{
    int64_t batch = g->batch > 1 ? g->batch : 1;
    MX_ASSERT((g->a_type == MX_NUM_F64) == (g->c_type == MX_NUM_F64)
                  && (g->b_type == MX_NUM_F64) == (g->c_type == MX_NUM_F64),
              "types a=%d b=%d c=%d", g->a_type, g->b_type, g->c_type);
    MX_ASSERT(g->shape < MX_GEMM_LOWER_A || (g->accumulate && mx_gemm_pack_bytes(g)),
              "a triangle over k=%ld, accumulate %d", (long)g->k, g->accumulate);
    if (g->m <= 0 || g->n <= 0)
        return;
    if (g->k <= 0) {
        if (!g->accumulate)
            clear(g, batch);
        return;
    }
    const mx_gemm_level *l = mx_gemm_level_at(g->a_type, g->b_type, mx_simd_level());
    int threads = mx_kernel_threads(g->threads);
    if ((double)g->m * (double)g->n * (double)g->k * (double)batch < 64e3)
        threads = 1; /* a fork costs more */
    bool gemv = !g->b_packed && !g->one_path && mx_gemv_can(g);
    mx_gemm_tile_fn *run = gemv ? mx_gemv_run : l->run;
    cut c = choose_cut(g, l, batch, threads);
    int64_t n_tiles = batch * c.n_rows * c.n_cols;
    if (threads == 1 || n_tiles == 1) {
        for (int64_t i = 0; i < n_tiles; i++)
            run_tile(g, run, &c, i);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < n_tiles; i++)
        run_tile(g, run, &c, i);
}
