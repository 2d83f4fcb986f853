/* hosted.c - pinned host memory: variables that are kept there and used from there, and activations
 * that wait there for the backward pass (op_offload.c).
 *
 * Pinned memory has an address on the GPU: a kernel reads and writes it like its own, over the bus.
 * So every op takes such a variable as it is, and one that goes through each element once (an
 * update) keeps both directions of the bus busy at once while its other operands come from the
 * GPU's memory.
 *
 * The pages are ordinary ones, taken and zeroed by several threads and then pinned: a state of
 * tens of GiB takes seconds that way, where the driver's own allocation uses one thread.
 */
#include "device/cuda/core/context.h"

#include "base/machine.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20, SMALL_PAGE = 4096, TOUCHERS = 16 };

bool mx_cuda_is_hosted(const mx_cuda *c, const void *p)
{
    for (int i = 0; i < MX_CUDA_HOSTED; i++)
        if (c->hosted[i].at && (const char *)p >= c->hosted[i].at &&
            (const char *)p < c->hosted[i].at + c->hosted[i].bytes)
            return true;
    return false;
}

typedef struct {
    volatile char *at;
    size_t bytes;
} stretch;

static void *touch(void *arg)
{
    const stretch *s = arg;
    for (size_t i = 0; i < s->bytes; i += SMALL_PAGE)
        s->at[i] = 0;
    return NULL;
}

/* The first touch is where the system zeroes a page: that is most of the time. */
static void touch_all(char *at, size_t bytes)
{
    pthread_t thread[TOUCHERS];
    stretch part[TOUCHERS];
    int started = 0;
    size_t each = (bytes / TOUCHERS + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    for (size_t from = 0; from < bytes; from += each, started++) {
        part[started] = (stretch){at + from, bytes - from < each ? bytes - from : each};
        if (pthread_create(&thread[started], NULL, touch, &part[started]))
            break; /* the driver takes the rest itself */
    }
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}

static mx_status no_memory(const char *what, size_t bytes, const char *why)
{
    mx_machine m;
    mx_machine_read(&m);
    return mx_fail(MX_MEMORY,
                   "%s needs %.2f GiB of pinned host memory, and %s; %.2f GiB are free. For the "
                   "optimizer use mu_dtype=bfloat16 nu_dtype=bfloat16, which halve it, or "
                   "optimizer_memory_host_offload=false; for activations offload fewer tensors",
                   what, (double)bytes / (1 << 30), why, (double)m.free_bytes / (1 << 30));
}

mx_status mx_cuda_hosted_alloc(mx_cuda *c, void **out, size_t bytes, const char *what)
{
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    mx_machine m;
    int k = 0;
    *out = NULL;
    while (k < MX_CUDA_HOSTED && c->hosted[k].at)
        k++;
    MX_ASSERT(k < MX_CUDA_HOSTED, "%d programs with state on the host", k);
    /* Asked first: the system would give the pages out and then kill a process for them. */
    mx_machine_read(&m);
    int64_t most = m.limit_bytes && m.limit_bytes < m.free_bytes ? m.limit_bytes : m.free_bytes;
    if (most && (double)rounded > (double)most)
        return no_memory(what, bytes, "that is more than there is");
    char *p = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return no_memory(what, bytes, "the system gives none");
    (void)madvise(p, rounded, MADV_HUGEPAGE); /* advice: refusal changes nothing but speed */
    touch_all(p, rounded);
    cudaError_t e = cudaHostRegister(p, rounded, cudaHostRegisterDefault);
    if (e) {
        cudaGetLastError();
        munmap(p, rounded);
        return no_memory(what, bytes, cudaGetErrorString(e));
    }
    c->hosted[k].at = *out = p;
    c->hosted[k].bytes = rounded;
    return MX_OK;
}

bool mx_cuda_hosted_release(mx_cuda *c, void *p)
{
    for (int i = 0; i < MX_CUDA_HOSTED; i++)
        if (p && c->hosted[i].at == p) {
            cudaHostUnregister(p);
            munmap(p, c->hosted[i].bytes);
            c->hosted[i].at = NULL;
            return true;
        }
    return false;
}

/* The host reads and writes it itself, once the GPU is through with it. */
mx_status mx_cuda_hosted_copy(mx_cuda *c, void *dst, const void *src, size_t bytes)
{
    MX_TRY(mx_cuda_wait(c, NULL));
    memcpy(dst, src, bytes);
    return MX_OK;
}
