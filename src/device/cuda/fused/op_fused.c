/* op_fused.c - fused groups: generated, compiled by NVRTC, cached on disk, launched. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/pdl.h"
#include "device/cuda/fused/fused_source.h"
#include "device/cuda/train/train_kernels.h"
#include "ops/gpu_work.h"

#include <string.h>

enum { SMALL = 128 }; /* blocks of a kernel for which the launch is a part of the time */

typedef struct {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    mx_fused_launch at;
} fused;

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    fused *f = state;
    if (f && f->library)
        cudaLibraryUnload(f->library);
    mx_free(f);
}

/* As many blocks as run at once: each then leaves one row of sums, and none waits for a place. */
static mx_status fit_grid(fused *f)
{
    int64_t n = 0;
    MX_TRY(mx_cuda_check(mx_cuda_blocks_at_once(&n, (const void *)f->kernel, (int)f->at.block),
                         "a fused kernel"));
    unsigned most = (unsigned)(n < MX_GPU_SUM_BLOCKS ? n : MX_GPU_SUM_BLOCKS);
    f->at.grid = f->at.grid > most && most ? most : f->at.grid;
    return MX_OK;
}

static int64_t sum_rows(const fused *f)
{
    return (int64_t)f->at.grid * f->at.rows_per_block;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    mx_str source = {0};
    mx_nvrtc_result r = {0};
    fused *f = mx_realloc(NULL, sizeof *f);
    *f = (fused){0};
    mx_status st = mx_fused_source(((const mx_fused_attr *)s->call.attr)->group, s->call.in,
                                   s->call.out, &source, &f->at);
    mx_nvrtc_job job = {.name = "fused.cu", .source = mx_str_text(&source), .arch = c->arch,
                        .cache_dir = c->cache_dir};
    if (!st)
        st = mx_nvrtc_compile(&r, &c->libs, &job);
    if (!st)
        st = mx_nvrtc_load(&f->library, &r, "a fused kernel");
    if (!st)
        st = mx_nvrtc_kernel(&f->kernel, f->library, "fused");
    if (!st && f->at.n_sums)
        st = fit_grid(f);
    *work_bytes = sizeof(float) * (size_t)(f->at.n_sums * sum_rows(f) * f->at.cols);
    mx_free(r.cubin);
    mx_str_fini(&source);
    if (st)
        drop(c, f);
    else
        *state = f;
    return st;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const fused *f = state;
    void *pointer[MX_MAX_IN + MX_MAX_OUT + 1], *args[MX_MAX_IN + MX_MAX_OUT + 1];
    int n = 0;
    for (int i = 0; i < s->call.n_in; i++)
        pointer[n++] = s->call.in[i].data;
    for (int k = 0; k < s->call.n_out; k++)
        pointer[n++] = s->call.out[k].data;
    pointer[n++] = s->call.work;
    for (int i = 0; i < n; i++)
        args[i] = &pointer[i];
    if (!f->at.grid)
        return MX_OK;
    cudaLaunchAttribute early = {0};
    cudaLaunchConfig_t config = {.gridDim = {f->at.grid, 1, 1}, .blockDim = {f->at.block, 1, 1},
                                 .stream = c->stream, .attrs = &early};
    config.numAttrs = f->at.grid <= SMALL ? mx_pdl_attribute(&early, c->stream) : 0;
    MX_TRY(mx_cuda_check(cudaLaunchKernelExC(&config, (const void *)f->kernel, args),
                         "a fused kernel"));
    if (!f->at.n_sums)
        return MX_OK;
    mx_column_sums sums = {.n = f->at.n_sums, .rows = sum_rows(f), .cols = f->at.cols,
                           .part = s->call.work};
    for (int i = 0; i < sums.n; i++)
        sums.out[i] = s->call.out[f->at.sum_out[i]].data;
    return mx_cuda_check(mx_cuda_column_sums(&sums, c->stream), "column sums");
}

const mx_cuda_op mx_cuda_op_fused = {"fused", prepare, launch, drop};
