/* gemm_lt.c - see gemm_lt.h.
 *
 * cuBLASLt thinks in columns: a row-major (R, C) matrix with row stride ld is its column-major (C,
 * R) matrix with the same ld. So the row-major GEMM C = op(A) op(B) is computed as C^T =
 * op(B)^T op(A)^T: the library's "A" is our B, its "m" is our N, its "n" our M, and the transpose
 * flags carry over unchanged.
 *
 * Choice file, one line each, newest last wins, appended with one write(2):
 *     <key> TAB <16 hex digits x 8: the opaque algorithm> TAB <microseconds> NEWLINE
 * cuBLASLt promises that an algorithm's bytes stay valid for the same library version; the version
 * and the GPU's name are part of the key, and a restored algorithm is checked before use.
 */
#include "device/cuda/gemm/gemm_lt.h"
#include "device/cuda/core/op.h"

#include "base/arena.h"
#include "base/str.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNED = 256 }; /* an address that is never read, aligned as real ones are */
enum { SEARCH_CHOICES = 32, LONG_CHOICES = 6, TURNS = 3, WARM_US = 40000, TIMED_US = 40000 };

struct mx_gemm_lt {
    mx_cuda_libs *libs;
    cublasLtHandle_t handle;
    size_t workspace_bytes;
    const char *cache_path;
    char device[128]; /* the GPU's name with blanks replaced, for the key */
};

struct mx_gemm_plan {
    mx_gemm_lt *lt;
    mx_gemm_shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    const char *choice;
    char key[256];
};

static mx_status check(const mx_gemm_lt *lt, cublasStatus_t s, const char *what)
{
    return s == CUBLAS_STATUS_SUCCESS
               ? MX_OK
               : mx_fail(MX_DEVICE,
                         "cuBLASLt: %s failed: %s; run `maxc doctor` to see the versions found",
                         what, lt->libs->lt.cublasLtGetStatusString(s));
}

mx_status mx_gemm_lt_open(mx_gemm_lt **out, mx_cuda_libs *libs, size_t workspace_bytes,
                          const char *cache_path)
{
    *out = NULL;
    MX_TRY(mx_cuda_libs_open_lt(libs));
    struct cudaDeviceProp prop;
    int device = 0;
    MX_TRY(mx_cuda_check(cudaGetDevice(&device), "finding the current GPU"));
    MX_TRY(
        mx_cuda_check(cudaGetDeviceProperties(&prop, device), "asking for the GPU's properties"));
    mx_gemm_lt *lt;
    MX_TRY(mx_alloc((void **)&lt, sizeof *lt, "the cuBLASLt handle"));
    *lt = (mx_gemm_lt){.libs = libs, .workspace_bytes = workspace_bytes, .cache_path = cache_path};
    snprintf(lt->device, sizeof lt->device, "%.120s", prop.name);
    for (char *p = lt->device; *p; p++)
        if (*p == ' ' || *p == '\t')
            *p = '_';
    mx_status st = check(lt, libs->lt.cublasLtCreate(&lt->handle), "creating a handle");
    if (st)
        mx_free(lt);
    else
        *out = lt;
    return st;
}

void mx_gemm_lt_close(mx_gemm_lt *lt)
{
    if (!lt)
        return;
    lt->libs->lt.cublasLtDestroy(lt->handle);
    mx_free(lt);
}

void mx_gemm_lt_remember(mx_gemm_lt *lt, const char *cache_path)
{
    lt->cache_path = cache_path;
}

/* --- the choice file --- */

static void make_key(mx_gemm_plan *p)
{
    const mx_gemm_shape *s = &p->shape;
    snprintf(p->key, sizeof p->key,
             "%zu:%s:%" PRId64 "x%" PRId64 "x%" PRId64 "%c%c:ld%" PRId64 ",%" PRId64 ",%" PRId64
             ":b%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ":t%d%d%d:beta%d:end%d:ws%zu",
             p->lt->libs->lt.cublasLtGetVersion(), p->lt->device, s->m, s->n, s->k,
             s->trans_a ? 'T' : 'N', s->trans_b ? 'T' : 'N', s->lda, s->ldb, s->ldc, s->batch,
             s->stride_a, s->stride_b, s->stride_c, (int)s->in, (int)s->out, (int)s->tf32,
             s->beta != 0, (int)s->epilogue, p->lt->workspace_bytes);
    size_t n = strlen(p->key);
    if (s->scale_a)
        snprintf(p->key + n, sizeof p->key - n, ":q%d,%d,%d,%d", (int)s->in_b, (int)s->scale_a,
                 (int)s->scale_b, (int)s->fast);
}

static bool parse_algo(const char *hex, cublasLtMatmulAlgo_t *algo)
{
    for (int i = 0; i < 8; i++) {
        char word[17] = {0};
        memcpy(word, hex + 16 * i, 16);
        char *end;
        algo->data[i] = strtoull(word, &end, 16);
        if (end != word + 16)
            return false;
    }
    return true;
}

/* The last line with this key wins. A damaged line is passed over: the search can be made again. */
static bool cache_find(const mx_gemm_plan *p, cublasLtMatmulAlgo_t *algo)
{
    FILE *f = p->lt->cache_path ? fopen(p->lt->cache_path, "r") : NULL;
    if (!f)
        return false;
    char line[1024];
    bool found = false;
    size_t n = strlen(p->key);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, p->key, n) && line[n] == '\t' && strlen(line) > n + 1 + 128)
            found = parse_algo(line + n + 1, algo) || found;
    fclose(f);
    return found;
}

static void cache_add(const mx_gemm_plan *p, double us)
{
    if (!p->lt->cache_path)
        return;
    char line[1024];
    int n = snprintf(line, sizeof line, "%s\t", p->key);
    for (int i = 0; i < 8; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%016" PRIx64, (uint64_t)p->algo.data[i]);
    n += snprintf(line + n, sizeof line - (size_t)n, "\t%.2f\n", us);
    int fd = open(p->lt->cache_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return; /* only speed is lost: the next run searches again */
    if (write(fd, line, (size_t)n) != n)
        fprintf(stderr, "maxc: could not keep a GEMM's algorithm in %s\n", p->lt->cache_path);
    close(fd);
}

/* --- plans --- */

static cudaDataType_t lt_type(mx_gemm_type t)
{
    static const cudaDataType_t types[] = {
        [MX_GEMM_F32] = CUDA_R_32F, [MX_GEMM_BF16] = CUDA_R_16BF, [MX_GEMM_F16] = CUDA_R_16F,
        [MX_GEMM_E4M3] = CUDA_R_8F_E4M3, [MX_GEMM_E5M2] = CUDA_R_8F_E5M2, [MX_GEMM_I8] = CUDA_R_8I,
        [MX_GEMM_I32] = CUDA_R_32I};
    return types[t];
}

static mx_status make_layout(const mx_gemm_plan *p, cublasLtMatrixLayout_t *out, mx_gemm_type type,
                             int64_t rows, int64_t cols, int64_t ld, int64_t stride)
{
    const mx_gemm_lt *lt = p->lt;
    /* row-major (rows, cols) is the library's column-major (cols, rows) */
    MX_TRY(check(lt,
                 lt->libs->lt.cublasLtMatrixLayoutCreate(out, lt_type(type), (uint64_t)cols,
                                                         (uint64_t)rows, ld ? ld : cols),
                 "describing a matrix"));
    if (p->shape.batch <= 1)
        return MX_OK;
    int32_t batch = (int32_t)p->shape.batch;
    MX_TRY(check(lt,
                 lt->libs->lt.cublasLtMatrixLayoutSetAttribute(
                     *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
                 "setting a batch count"));
    return check(lt,
                 lt->libs->lt.cublasLtMatrixLayoutSetAttribute(
                     *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
                 "setting a batch stride");
}

static mx_status set(mx_gemm_plan *p, cublasLtMatmulDescAttributes_t what, const void *value,
                     size_t bytes)
{
    return check(p->lt, p->lt->libs->lt.cublasLtMatmulDescSetAttribute(p->op, what, value, bytes),
                 "describing a GEMM");
}

mx_status mx_gemm_plan_scales(mx_gemm_plan *p, const float *a, const float *b)
{
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b));
    return set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a);
}

static mx_status describe_scales(mx_gemm_plan *p)
{
    static const int32_t modes[] = {
        [MX_SCALE_ALL] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        [MX_SCALE_ROWS] = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F};
    int8_t fast = p->shape.fast;
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &modes[p->shape.scale_b], sizeof *modes));
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &modes[p->shape.scale_a], sizeof *modes));
    /* The library asks where they will lie before it suggests anything. */
    return mx_gemm_plan_scales(p, (const float *)ALIGNED, (const float *)ALIGNED);
}

static mx_status make_op(mx_gemm_plan *p)
{
    const mx_gemm_lt *lt = p->lt;
    const mx_gemm_shape *s = &p->shape;
    bool whole = s->in == MX_GEMM_I8;
    cublasComputeType_t compute = whole                            ? CUBLAS_COMPUTE_32I
                                  : s->in == MX_GEMM_F32 && s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                    : CUBLAS_COMPUTE_32F;
    MX_TRY(check(lt, lt->libs->lt.cublasLtMatmulDescCreate(&p->op, compute,
                                                           whole ? CUDA_R_32I : CUDA_R_32F),
                 "describing a GEMM"));
    cublasOperation_t ta = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    if (s->scale_a)
        MX_TRY(describe_scales(p));
    static const cublasLtEpilogue_t epilogues[] = {
        [MX_GEMM_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT, [MX_GEMM_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [MX_GEMM_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[s->epilogue], sizeof *epilogues));
    if (s->epilogue != MX_GEMM_GELU)
        return MX_OK;
    int64_t ld = s->ldc ? s->ldc : s->n;
    MX_TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld));
    /* The library asks where it will lie before it suggests anything. */
    return mx_gemm_plan_epilogue(p, (void *)ALIGNED, (void *)ALIGNED);
}

mx_status mx_gemm_plan_epilogue(mx_gemm_plan *p, const void *bias, void *aux)
{
    if (p->shape.epilogue != MX_GEMM_PLAIN)
        MX_TRY(set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return p->shape.epilogue == MX_GEMM_GELU
               ? set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux)
               : MX_OK;
}

static mx_status suggestions(const mx_gemm_plan *p, cublasLtMatmulHeuristicResult_t *res, int want,
                             int *found)
{
    const mx_gemm_lt *lt = p->lt;
    cublasLtMatmulPreference_t pref = NULL;
    MX_TRY(check(lt, lt->libs->lt.cublasLtMatmulPreferenceCreate(&pref), "making a preference"));
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    mx_status st = check(lt,
                         lt->libs->lt.cublasLtMatmulPreferenceSetAttribute(
                             pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->workspace_bytes,
                             sizeof lt->workspace_bytes),
                         "limiting the workspace");
    if (!st)
        st = check(lt,
                   lt->libs->lt.cublasLtMatmulPreferenceSetAttribute(
                       pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes),
                   "limiting the reduction schemes");
    *found = 0;
    if (!st)
        st = check(lt,
                   lt->libs->lt.cublasLtMatmulAlgoGetHeuristic(lt->handle, p->op, p->b, p->a, p->c,
                                                               p->c, pref, want, res, found),
                   "choosing an algorithm");
    if (!st && *found == 0)
        st = mx_fail(MX_DEVICE,
                     "cuBLASLt has no algorithm for %s; use row strides that are multiples "
                     "of 8 elements",
                     p->key);
    lt->libs->lt.cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

static mx_status plan_build(mx_gemm_plan *p)
{
    const mx_gemm_shape *s = &p->shape;
    MX_TRY(make_op(p));
    MX_TRY(make_layout(p, &p->a, s->in, s->trans_a ? s->k : s->m, s->trans_a ? s->m : s->k, s->lda,
                       s->stride_a));
    MX_TRY(make_layout(p, &p->b, s->scale_b ? s->in_b : s->in, s->trans_b ? s->n : s->k,
                       s->trans_b ? s->k : s->n, s->ldb, s->stride_b));
    MX_TRY(make_layout(p, &p->c, s->out, s->m, s->n, s->ldc, s->stride_c));
    make_key(p);
    if (cache_find(p, &p->algo)) {
        cublasLtMatmulHeuristicResult_t r;
        if (p->lt->libs->lt.cublasLtMatmulAlgoCheck(p->lt->handle, p->op, p->b, p->a, p->c, p->c,
                                                    &p->algo, &r) == CUBLAS_STATUS_SUCCESS &&
            r.workspaceSize <= p->lt->workspace_bytes) {
            p->choice = "cached";
            return MX_OK;
        }
    }
    cublasLtMatmulHeuristicResult_t res[1];
    int found;
    MX_TRY(suggestions(p, res, 1, &found));
    p->algo = res[0].algo;
    p->choice = "heuristic";
    return MX_OK;
}

mx_status mx_gemm_plan_new(mx_gemm_plan **out, mx_gemm_lt *lt, const mx_gemm_shape *shape)
{
    *out = NULL;
    MX_ASSERT(shape->m > 0 && shape->n > 0 && shape->k > 0, "m=%lld n=%lld k=%lld",
              (long long)shape->m, (long long)shape->n, (long long)shape->k);
    mx_gemm_plan *p;
    MX_TRY(mx_alloc((void **)&p, sizeof *p, "a GEMM plan"));
    *p = (mx_gemm_plan){.lt = lt, .shape = *shape};
    mx_status st = plan_build(p);
    if (st)
        mx_gemm_plan_free(p);
    else
        *out = p;
    return st;
}

void mx_gemm_plan_free(mx_gemm_plan *p)
{
    if (!p)
        return;
    const mx_cuda_libs *l = p->lt->libs;
    if (p->a)
        l->lt.cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        l->lt.cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        l->lt.cublasLtMatrixLayoutDestroy(p->c);
    if (p->op)
        l->lt.cublasLtMatmulDescDestroy(p->op);
    mx_free(p);
}

const char *mx_gemm_plan_choice(const mx_gemm_plan *p)
{
    return p->choice;
}

static cublasStatus_t launch(const mx_gemm_plan *p, const cublasLtMatmulAlgo_t *algo, const void *a,
                             const void *b, void *c, void *workspace, cudaStream_t stream)
{
    const int32_t one = (int32_t)p->shape.alpha, zero = (int32_t)p->shape.beta;
    bool whole = p->shape.in == MX_GEMM_I8;
    return p->lt->libs->lt.cublasLtMatmul(
        p->lt->handle, p->op, whole ? (const void *)&one : &p->shape.alpha, b, p->b, a, p->a,
        whole ? (const void *)&zero : &p->shape.beta, c, p->c, c, p->c, algo, workspace,
        p->lt->workspace_bytes, stream);
}

mx_status mx_gemm_plan_launch(const mx_gemm_plan *p, const void *a, const void *b, void *c,
                              void *workspace, cudaStream_t stream)
{
    cublasStatus_t s = launch(p, &p->algo, a, b, c, workspace, stream);
    return s == CUBLAS_STATUS_SUCCESS ? MX_OK : check(p->lt, s, p->key);
}

/* --- the timed search ---
 *
 * A large GPU at full load runs into its power limit within milliseconds and lowers its clock;
 * which algorithm is fastest then is a question of energy, and a short run on a cool chip does not
 * answer it. So: a short round drops what is clearly slow, then the rest take turns. In its turn an
 * algorithm runs alone until the clock is what its own energy leaves, and only then is timed; the
 * median of the turns counts, since the best one may only have had a cool start. */

typedef struct {
    cublasLtMatmulAlgo_t algo;
    double us; /* negative: does not run */
} contender;

/* Microseconds per GEMM over `n` of them in a row. */
static double time_algo(const mx_gemm_plan *p, const cublasLtMatmulAlgo_t *algo,
                        const void *const abc[3], void *ws, cudaStream_t stream, cudaEvent_t ev[2],
                        int n)
{
    cudaEventRecord(ev[0], stream);
    for (int i = 0; i < n; i++)
        if (launch(p, algo, abc[0], abc[1], (void *)abc[2], ws, stream) !=
            CUBLAS_STATUS_SUCCESS)
            return -1;
    cudaEventRecord(ev[1], stream);
    float ms;
    if (cudaEventSynchronize(ev[1]) != cudaSuccess ||
        cudaEventElapsedTime(&ms, ev[0], ev[1]) != cudaSuccess)
        return -1;
    return ms * 1e3 / n;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const contender *)a)->us, y = ((const contender *)b)->us;
    return (x < 0) - (y < 0) ? (x < 0) - (y < 0) : (x > y) - (x < y);
}

/* Fills `c` with what runs, fastest first; returns how many are worth a longer look. */
static int short_round(const mx_gemm_plan *p, const cublasLtMatmulHeuristicResult_t *res, int found,
                       contender *c, const void *const abc[3], void *ws, cudaStream_t stream,
                       cudaEvent_t ev[2])
{
    for (int i = 0; i < found; i++) {
        c[i].algo = res[i].algo;
        c[i].us = time_algo(p, &c[i].algo, abc, ws, stream, ev, 1); /* loads the kernel */
        if (c[i].us >= 0)
            c[i].us = time_algo(p, &c[i].algo, abc, ws, stream, ev, 3);
    }
    qsort(c, (size_t)found, sizeof *c, by_time);
    int n = 0;
    while (n < found && n < LONG_CHOICES && c[n].us >= 0 && c[n].us < c[0].us * 1.15)
        n++;
    return n;
}

/* Replaces the times of the first n by hot ones. */
static void long_round(const mx_gemm_plan *p, contender *c, int n, const void *const abc[3],
                       void *ws, cudaStream_t stream, cudaEvent_t ev[2])
{
    contender turn[LONG_CHOICES][TURNS];
    for (int t = 0; t < TURNS; t++)
        for (int i = 0; i < n; i++) {
            turn[i][t] = c[i];
            time_algo(p, &c[i].algo, abc, ws, stream, ev, 1 + (int)(WARM_US / c[i].us));
            turn[i][t].us =
                time_algo(p, &c[i].algo, abc, ws, stream, ev, 1 + (int)(TIMED_US / c[i].us));
        }
    for (int i = 0; i < n; i++) {
        qsort(turn[i], TURNS, sizeof *c, by_time);
        if (getenv("MX_GEMM_TRACE"))
            fprintf(stderr, "%s choice %d: %.1f us cool, %.1f us hot\n", p->key, i, c[i].us,
                    turn[i][TURNS / 2].us);
        c[i].us = turn[i][TURNS / 2].us;
    }
    qsort(c, (size_t)n, sizeof *c, by_time);
}

mx_status mx_gemm_plan_search(mx_gemm_plan *p, const void *a, const void *b, void *c,
                              void *workspace, cudaStream_t stream)
{
    if (!strcmp(p->choice, "cached"))
        return MX_OK;
    cublasLtMatmulHeuristicResult_t res[SEARCH_CHOICES];
    contender con[SEARCH_CHOICES];
    const void *abc[3] = {a, b, c};
    int found;
    MX_TRY(suggestions(p, res, SEARCH_CHOICES, &found));
    cudaEvent_t ev[2];
    MX_TRY(mx_cuda_check(cudaEventCreate(&ev[0]), "making an event"));
    MX_TRY(mx_cuda_check(cudaEventCreate(&ev[1]), "making an event"));
    int n = short_round(p, res, found, con, abc, workspace, stream, ev);
    long_round(p, con, n, abc, workspace, stream, ev);
    cudaEventDestroy(ev[0]);
    cudaEventDestroy(ev[1]);
    if (n == 0 || con[0].us < 0)
        return mx_fail(MX_DEVICE, "none of cuBLASLt's algorithms ran for %s", p->key);
    p->algo = con[0].algo;
    p->choice = "searched";
    cache_add(p, con[0].us);
    return MX_OK;
}
