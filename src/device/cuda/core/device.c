/* device.c - the CUDA device: opened and closed, its memory, copies to and from the host. What it
 * does with programs is in program.c. */
#include "device/cuda/core/context.h"

#include "device/chips.h"
#include "device/cuda/core/kernels.h"
#include "device/cuda/ranks/comm_stream.h"
#include "device/cuda/ranks/group.h"
#include "interface.h"
#include "ops/gpu_work.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    mx_device device; /* first: what the session sees */
    mx_device_traits traits;
    mx_cuda cuda;
} cuda_device;

enum { STAGE_BYTES = 64 << 20 };

cudaStream_t mx_cuda_stream(const mx_cuda *c)
{
    return c->stream;
}

mx_cuda *mx_cuda_of(mx_device *d)
{
    return &((cuda_device *)d)->cuda;
}

/* A handle is an address on the GPU. */
static void *cuda_address(mx_device *d, mx_device_buffer b)
{
    (void)d;
    return (char *)b.handle + b.offset;
}

static mx_status cuda_alloc(mx_device *d, mx_memory where, size_t bytes, const char *what,
                            mx_device_buffer *out)
{
    *out = (mx_device_buffer){.bytes = bytes};
    if (where == MX_MEMORY_HOST)
        return mx_cuda_hosted_alloc(mx_cuda_of(d), &out->handle, bytes, what);
    cudaError_t e = cudaMalloc(&out->handle, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        return mx_fail(MX_MEMORY,
                       "%s needs %.2f GiB on the GPU; %.2f of %.2f GiB are free. Lower "
                       "per_device_batch_size or max_target_length, or use remat_policy=full, "
                       "remat_policy=custom decoder_layer_input=offload or "
                       "optimizer_memory_host_offload=true",
                       what, (double)bytes / (1 << 30), (double)free_bytes / (1 << 30),
                       (double)total / (1 << 30));
    }
    MX_TRY(mx_cuda_check(e, what));
    /* Waited for: the clearing runs on another stream than the copies that may follow at once. */
    MX_TRY(mx_cuda_check(cudaMemset(out->handle, 0, bytes), what));
    return mx_cuda_check(cudaDeviceSynchronize(), what);
}

static void cuda_release(mx_device *d, mx_device_buffer b)
{
    if (!mx_cuda_hosted_release(mx_cuda_of(d), b.handle))
        cudaFree(b.handle);
}

/* The driver waits for the stream before it copies more than 64 KiB of ordinary memory. The inputs
 * of a step go through pinned memory instead, so that they can be given while the step before still
 * runs; the stream is waited for once in STAGE_BYTES. */
static mx_status cuda_write(mx_device *d, mx_device_buffer to, const void *src)
{
    mx_cuda *c = mx_cuda_of(d);
    void *dst = cuda_address(d, to);
    size_t bytes = to.bytes;
    if (mx_cuda_is_hosted(c, dst))
        return mx_cuda_hosted_copy(c, dst, src, bytes);
    if (c->stage && bytes <= STAGE_BYTES / 4) {
        if (c->stage_at + bytes > STAGE_BYTES) {
            MX_TRY(mx_cuda_wait(c, NULL));
            c->stage_at = 0;
        }
        src = memcpy(c->stage + c->stage_at, src, bytes);
        c->stage_at += (bytes + 255) / 256 * 256;
    }
    return mx_cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream),
                         "copying to the GPU");
}

static mx_status cuda_read(mx_device *d, void *dst, mx_device_buffer from)
{
    mx_cuda *c = mx_cuda_of(d);
    const void *src = cuda_address(d, from);
    if (mx_cuda_is_hosted(c, src))
        return mx_cuda_hosted_copy(c, dst, src, from.bytes);
    MX_TRY(mx_cuda_check(cudaMemcpyAsync(dst, src, from.bytes, cudaMemcpyDeviceToHost, c->stream),
                         "copying from the GPU"));
    return mx_cuda_wait(c, NULL);
}

static mx_status cuda_fill(mx_device *d, mx_device_buffer to, const mx_fill *f)
{
    mx_cuda *c = mx_cuda_of(d);
    void *dst = cuda_address(d, to);
    MX_CUDA_NEEDS(!mx_cuda_is_hosted(c, dst), "values in host memory");
    if (f->init.kind == MX_INIT_ZEROS)
        return mx_cuda_check(
            cudaMemsetAsync(dst, 0, (size_t)f->n * mx_dtype_bytes(f->dtype), c->stream),
            "the first weights");
    bool bytes = f->dtype == MX_U8 && f->init.kind == MX_INIT_CHOICE && f->init.cols == 1;
    MX_CUDA_NEEDS(f->dtype == MX_F32 || f->dtype == MX_BF16 || bytes, "weights of this dtype");
    MX_CUDA_NEEDS(f->init.kind != MX_INIT_UNIFORM, "uniform weights");
    mx_cuda_fill fill = {.scale = f->init.kind == MX_INIT_ONES ? 1.0 : f->init.scale, .n = f->n,
                         .seed = f->seed, .stream = f->stream, .f32 = f->dtype == MX_F32};
    fill.kind = bytes                                 ? MX_CUDA_FILL_BYTES
                : f->init.kind == MX_INIT_NORMAL      ? MX_CUDA_FILL_NORMAL
                : f->init.kind == MX_INIT_LOG_UNIFORM ? MX_CUDA_FILL_LOG_UNIFORM
                                                      : MX_CUDA_FILL_SAME;
    return mx_cuda_check(mx_cuda_fill_with(dst, &fill, c->stream), "the first weights");
}

static mx_status cuda_convert(mx_device *d, mx_device_buffer dst, mx_dtype to, mx_device_buffer src,
                              mx_dtype from)
{
    mx_cuda_values a = {cuda_address(d, src), from}, b = {cuda_address(d, dst), to};
    int64_t n = (int64_t)(dst.bytes / mx_dtype_bytes(to));
    return mx_cuda_check(mx_cuda_convert(b, a, n, mx_cuda_of(d)->stream), "copies of weights");
}

/* Readback: pinned memory and an event. */
static mx_status readback_open(mx_device *d, size_t bytes, void **host, void **mark)
{
    cudaEvent_t event;
    (void)d;
    MX_TRY(mx_cuda_check(cudaHostAlloc(host, bytes, cudaHostAllocDefault), "pinned memory"));
    MX_TRY(mx_cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
    *mark = event;
    return MX_OK;
}

static mx_status readback_copy(mx_device *d, void *dst, mx_device_buffer src)
{
    return mx_cuda_check(cudaMemcpyAsync(dst, cuda_address(d, src), src.bytes,
                                         cudaMemcpyDeviceToHost, mx_cuda_of(d)->stream),
                         "copying from the GPU");
}

static mx_status readback_clock(mx_device *d, double *dst)
{
    return mx_cuda_check(mx_cuda_clock(dst, mx_cuda_of(d)->stream), "the GPU's clock");
}

static mx_status readback_mark(mx_device *d, void *mark)
{
    return mx_cuda_check(cudaEventRecord(mark, mx_cuda_of(d)->stream), "an event");
}

static mx_status readback_wait(mx_device *d, void *mark)
{
    return mx_cuda_wait(mx_cuda_of(d), mark);
}

static void readback_close(mx_device *d, void *host, void *mark)
{
    mx_status_free(mx_cuda_wait(mx_cuda_of(d), NULL));
    cudaEventDestroy(mark);
    cudaFreeHost(host);
}

static const mx_device_readback readback = {readback_open, readback_copy, readback_clock,
                                            readback_mark, readback_wait, readback_close};

static mx_status cuda_free_bytes(mx_device *d, size_t *bytes)
{
    size_t all;
    (void)d;
    return mx_cuda_check(cudaMemGetInfo(bytes, &all), "the GPU's free memory");
}

static void cuda_close(mx_device *d)
{
    mx_cuda *c = mx_cuda_of(d);
    mx_status_free(mx_cuda_wait(c, NULL));
    cudaFree(c->gemm_work);
    if (c->stage)
        cudaFreeHost(c->stage);
    mx_cuda_groups_close(c);
    mx_cuda_comm_close(c);
    mx_gemm_lt_close(c->lt);
    mx_sdpa_close(c->sdpa);
    cudaFree(c->mark);
    if (c->copies)
        cudaStreamDestroy(c->copies);
    cudaStreamDestroy(c->stream);
    mx_cuda_libs_close(&c->libs);
    mx_free(d);
}

/* What the GPU is; its rates, where its model is known. */
static void describe(mx_chip *chip, char *name, size_t cap, const struct cudaDeviceProp *prop)
{
    const mx_chip *known = mx_chip_of_model(prop->name);
    if (known)
        *chip = *known;
    snprintf(name, cap, "%s", prop->name);
    chip->name = name;
    chip->memory_bytes = (double)prop->totalGlobalMem;
    chip->units = prop->multiProcessorCount;
}

static mx_status open_libraries(mx_cuda *c, mx_chip *chip)
{
    struct cudaDeviceProp prop;
    MX_TRY(mx_cuda_check(cudaGetDeviceProperties(&prop, 0), "looking at the GPU"));
    describe(chip, c->name, sizeof c->name, &prop);
    snprintf(c->arch, sizeof c->arch, "sm_%d%d%s", prop.major, prop.minor,
             prop.major == 9 ? "a" : "");
    MX_TRY(mx_cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream"));
    MX_TRY(mx_cuda_check(cudaMalloc(&c->gemm_work, MX_GPU_GEMM_WORK), "workspace"));
    MX_TRY(mx_cuda_check(cudaMalloc(&c->mark, sizeof(int)), "a mark"));
    if (cudaHostAlloc((void **)&c->stage, STAGE_BYTES, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError(); /* slower, not wrong */
        c->stage = NULL;
    }
    mx_device_cache_dir(c->cache_dir, sizeof c->cache_dir);
    snprintf(c->choices, sizeof c->choices, "%s/" MX_CHOICES_FILE, c->cache_dir);
    MX_TRY(mx_cuda_libs_open_lt(&c->libs));
    MX_TRY(mx_gemm_lt_open(&c->lt, &c->libs, MX_GPU_GEMM_WORK, NULL));
    MX_TRY(mx_cuda_libs_open_rtc(&c->libs));
    mx_status st = mx_cuda_libs_open_dnn(&c->libs);
    if (!st)
        st = mx_sdpa_open(&c->sdpa, &c->libs);
    mx_status_free(st); /* without cuDNN our own attention kernels do the work */
    return MX_OK;
}

static mx_status open_device(const mx_device_traits *traits, mx_device **out)
{
    int n = 0;
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    *out = NULL;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
        return mx_fail(MX_DEVICE, "no CUDA device was found%s%s; `maxc doctor` says what is "
                                  "missing, device=cpu runs without one",
                       seen ? " with CUDA_VISIBLE_DEVICES=" : "", seen ? seen : "");
    cuda_device *d = mx_realloc(NULL, sizeof *d);
    memset(d, 0, sizeof *d);
    d->traits = *traits;
    d->device = (mx_device){.traits = &d->traits, .alloc = cuda_alloc, .release = cuda_release,
                            .write = cuda_write, .read = cuda_read, .address = cuda_address,
                            .prepare = mx_cuda_program_prepare, .run = mx_cuda_program_run,
                            .drop = mx_cuda_program_drop,
                            .close = cuda_close, .readback = &readback,
                            .staging = &mx_cuda_staging, .free_bytes = cuda_free_bytes,
                            .forget = mx_cuda_program_forget, .fill = cuda_fill,
                            .convert = cuda_convert, .comm_mark = mx_cuda_comm_mark,
                            .comm_seconds = mx_cuda_comm_seconds};
    mx_status st = open_libraries(&d->cuda, &d->traits.chip);
    if (st)
        mx_free(d);
    else
        *out = &d->device;
    return st;
}

/* Looked up by name when the plug-in is opened. */
extern const mx_plugin mx_plugin_table;
const mx_plugin mx_plugin_table = {MX_INTERFACE, open_device, mx_cuda_compile_kernels};
