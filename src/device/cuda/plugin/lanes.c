/* lanes.c - large data on its way to the GPU, several pieces at a time.
 *
 * A lane is a stream with two slots of pinned memory: while the GPU copies from one, the thread
 * that owns the lane fills the other. Values of another type than the one wanted are copied as they
 * are and converted on the GPU, from room of one slot that the lane's copies share, in order. So
 * reading, copying and converting go on beside each other, and the host needs two slots a lane,
 * however much is loaded.
 *
 * Pinned memory is ordinary memory here that is locked afterwards: the system can then read from
 * the disk straight into it (O_DIRECT).
 */
#include "device/cuda/plugin/context.h"

#include "base/arena.h"
#include "device/cuda/plugin/kernels.h"

enum { SLOTS = 2, PAGE = 4096 };

typedef struct {
    cudaStream_t stream;
    void *memory; /* owns; the slots are the whole pages in it */
    char *slot[SLOTS];
    bool pinned;
    void *room; /* on the GPU, of one slot: values before they are converted; NULL: none yet */
    size_t slot_bytes;
    cudaEvent_t through[SLOTS]; /* the last copy from this slot is */
    int next;
} lane;

cudaError_t mx_cuda_convert(const mx_freight *f, cudaStream_t stream)
{
    if (f->to == f->from)
        return cudaMemcpyAsync(f->dst, f->src, (size_t)f->n * mx_dtype_bytes(f->to),
                               cudaMemcpyDeviceToDevice, stream);
    if (f->to == MX_BF16 && f->from == MX_F32)
        return mx_cuda_cast_f32_bf16(f->dst, f->src, f->n, stream);
    if (f->to == MX_F32 && f->from == MX_BF16)
        return mx_cuda_cast_bf16_f32(f->dst, f->src, f->n, stream);
    return cudaErrorInvalidValue;
}

static mx_status close_lane(mx_device *d, void *p)
{
    lane *l = p;
    (void)d;
    if (!l)
        return MX_OK;
    cudaError_t e = l->stream ? cudaStreamSynchronize(l->stream) : cudaSuccess;
    for (int i = 0; i < SLOTS; i++)
        if (l->through[i])
            cudaEventDestroy(l->through[i]);
    if (l->stream)
        cudaStreamDestroy(l->stream);
    cudaFree(l->room);
    if (l->pinned)
        cudaHostUnregister(l->slot[0]);
    mx_free(l->memory);
    mx_free(l);
    return mx_cuda_check(e, "copying to the GPU");
}

static mx_status fill_lane(lane *l)
{
    size_t bytes = SLOTS * l->slot_bytes;
    MX_TRY(mx_alloc(&l->memory, bytes + PAGE, "pinned memory"));
    l->slot[0] = (char *)(((uintptr_t)l->memory + PAGE - 1) / PAGE * PAGE);
    for (int i = 1; i < SLOTS; i++)
        l->slot[i] = l->slot[i - 1] + l->slot_bytes;
    MX_TRY(mx_cuda_check(cudaHostRegister(l->slot[0], bytes, cudaHostRegisterDefault),
                         "pinned memory for loading"));
    l->pinned = true;
    MX_TRY(mx_cuda_check(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "a stream"));
    for (int i = 0; i < SLOTS; i++)
        MX_TRY(mx_cuda_check(cudaEventCreateWithFlags(&l->through[i], cudaEventDisableTiming |
                                                                          cudaEventBlockingSync),
                             "an event"));
    return MX_OK;
}

static mx_status open_lane(mx_device *d, size_t slot_bytes, void **out)
{
    lane *l = mx_small_alloc(sizeof *l);
    *l = (lane){.slot_bytes = (slot_bytes + PAGE - 1) / PAGE * PAGE};
    mx_status st = fill_lane(l);
    *out = st ? NULL : l;
    if (st)
        mx_status_free(close_lane(d, l));
    return st;
}

static mx_status lane_slot(mx_device *d, void *p, void **host)
{
    lane *l = p;
    (void)d;
    *host = l->slot[l->next];
    return mx_cuda_check(cudaEventSynchronize(l->through[l->next]), "copying to the GPU");
}

static mx_status lane_send(mx_device *d, void *p, const mx_freight *f)
{
    lane *l = p;
    (void)d;
    bool same = f->to == f->from;
    mx_freight there = *f;
    if (!same && !l->room)
        MX_TRY(mx_cuda_check(cudaMalloc(&l->room, l->slot_bytes), "room for loading"));
    there.src = l->room;
    MX_TRY(mx_cuda_check(cudaMemcpyAsync(same ? f->dst : l->room, f->src,
                                         (size_t)f->n * mx_dtype_bytes(f->from),
                                         cudaMemcpyDefault, l->stream), /* it may lie on the host */
                         "copying to the GPU"));
    MX_TRY(mx_cuda_check(cudaEventRecord(l->through[l->next], l->stream), "an event"));
    l->next = (l->next + 1) % SLOTS;
    return same ? MX_OK : mx_cuda_check(mx_cuda_convert(&there, l->stream), "converting weights");
}

void mx_cuda_lanes(mx_device *d)
{
    d->lane_open = open_lane;
    d->lane_slot = lane_slot;
    d->lane_send = lane_send;
    d->lane_close = close_lane;
}
