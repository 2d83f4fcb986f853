/* staging.c - large data on its way to the GPU, several pieces at a time.
 *
 * A thread that uploads has a stream and two staging buffers of pinned memory: while the GPU copies
 * from one, the thread fills the other. Values of another type than the one wanted are copied as
 * they are and converted on the GPU, from a device buffer that the stream's copies share, in
 * order. So reading, copying and converting go on beside each other, and the host needs two buffers
 * a thread, however much is loaded.
 *
 * Pinned memory is ordinary memory here that is locked afterwards: the system can then read from
 * the disk straight into it (O_DIRECT).
 */
#include "device/cuda/core/context.h"

#include "base/arena.h"
#include "device/cuda/core/kernels.h"

enum { BUFFERS = 2, PAGE = 4096 };

typedef struct {
    cudaStream_t stream;
    void *memory; /* owns; the buffers are the whole pages in it */
    char *buffer[BUFFERS];
    bool pinned;
    void *device_buffer; /* on the GPU: values before they are converted; NULL: none yet */
    size_t buffer_bytes;
    cudaEvent_t through[BUFFERS]; /* the last copy from this buffer is */
    int next;
} uploader;

cudaError_t mx_cuda_convert(mx_cuda_values to, mx_cuda_values from, int64_t n, cudaStream_t stream)
{
    if (to.dtype == from.dtype)
        return cudaMemcpyAsync(to.at, from.at, (size_t)n * mx_dtype_bytes(to.dtype),
                               cudaMemcpyDeviceToDevice, stream);
    if (to.dtype == MX_BF16 && from.dtype == MX_F32)
        return mx_cuda_cast_f32_bf16(to.at, from.at, n, stream);
    if (to.dtype == MX_F32 && from.dtype == MX_BF16)
        return mx_cuda_cast_bf16_f32(to.at, from.at, n, stream);
    return cudaErrorInvalidValue;
}

static mx_status close_staging(mx_device *d, void *p)
{
    uploader *u = p;
    (void)d;
    if (!u)
        return MX_OK;
    cudaError_t e = u->stream ? cudaStreamSynchronize(u->stream) : cudaSuccess;
    for (int i = 0; i < BUFFERS; i++)
        if (u->through[i])
            cudaEventDestroy(u->through[i]);
    if (u->stream)
        cudaStreamDestroy(u->stream);
    cudaFree(u->device_buffer);
    if (u->pinned)
        cudaHostUnregister(u->buffer[0]);
    mx_free(u->memory);
    mx_free(u);
    return mx_cuda_check(e, "copying to the GPU");
}

static mx_status fill_staging(uploader *u)
{
    size_t bytes = BUFFERS * u->buffer_bytes;
    MX_TRY(mx_alloc(&u->memory, bytes + PAGE, "pinned memory"));
    u->buffer[0] = (char *)(((uintptr_t)u->memory + PAGE - 1) / PAGE * PAGE);
    for (int i = 1; i < BUFFERS; i++)
        u->buffer[i] = u->buffer[i - 1] + u->buffer_bytes;
    MX_TRY(mx_cuda_check(cudaHostRegister(u->buffer[0], bytes, cudaHostRegisterDefault),
                         "pinned memory for loading"));
    u->pinned = true;
    MX_TRY(mx_cuda_check(cudaStreamCreateWithFlags(&u->stream, cudaStreamNonBlocking), "a stream"));
    for (int i = 0; i < BUFFERS; i++)
        MX_TRY(mx_cuda_check(cudaEventCreateWithFlags(&u->through[i], cudaEventDisableTiming |
                                                                          cudaEventBlockingSync),
                             "an event"));
    return MX_OK;
}

static mx_status open_staging(mx_device *d, size_t buffer_bytes, void **out)
{
    uploader *u = mx_small_alloc(sizeof *u);
    *u = (uploader){.buffer_bytes = (buffer_bytes + PAGE - 1) / PAGE * PAGE};
    mx_status st = fill_staging(u);
    *out = st ? NULL : u;
    if (st)
        mx_status_free(close_staging(d, u));
    return st;
}

static mx_status next_buffer(mx_device *d, void *p, void **host)
{
    uploader *u = p;
    (void)d;
    *host = u->buffer[u->next];
    return mx_cuda_check(cudaEventSynchronize(u->through[u->next]), "copying to the GPU");
}

static mx_status send(mx_device *d, void *p, const mx_upload *what)
{
    uploader *u = p;
    bool same = what->to == what->from;
    void *dst = d->address(d, what->dst);
    if (!same && !u->device_buffer)
        MX_TRY(mx_cuda_check(cudaMalloc(&u->device_buffer, u->buffer_bytes),
                             "a buffer for loading"));
    MX_TRY(mx_cuda_check(cudaMemcpyAsync(same ? dst : u->device_buffer, what->src,
                                         (size_t)what->n * mx_dtype_bytes(what->from),
                                         cudaMemcpyDefault, u->stream), /* it may lie on the host */
                         "copying to the GPU"));
    MX_TRY(mx_cuda_check(cudaEventRecord(u->through[u->next], u->stream), "an event"));
    u->next = (u->next + 1) % BUFFERS;
    if (same)
        return MX_OK;
    mx_cuda_values to = {dst, what->to}, from = {u->device_buffer, what->from};
    return mx_cuda_check(mx_cuda_convert(to, from, what->n, u->stream), "converting weights");
}

const mx_device_staging mx_cuda_staging = {open_staging, next_buffer, send, close_staging};
