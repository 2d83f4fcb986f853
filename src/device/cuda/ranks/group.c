/* group.c - what the kinds of groups share; see group.h. */
#include "device/cuda/ranks/group.h"

#include "device/cuda/core/layout.h"
#include "device/cuda/ranks/nccl.h"
#include <unistd.h>

enum { EAGER_LOOKS = 2000, REST_US = 50 }; /* how often the stream is looked at without a rest */

bool mx_cuda_sum_type(mx_dtype d, mx_sum_type *out)
{
    *out = d == MX_F32 ? MX_SUM_F32 : d == MX_BF16 ? MX_SUM_BF16 : d == MX_F64 ? MX_SUM_F64
                                                                               : MX_SUM_I32;
    return d == MX_F32 || d == MX_BF16 || d == MX_F64 || d == MX_I32;
}

mx_status mx_cuda_group_sum(mx_cuda *c, const mx_cuda_reduce *a, const mx_cuda_buffers *from, int n,
                            int64_t pitch)
{
    mx_cuda_sum s = {.n = n, .rows = a->outer, .run = a->run, .pitch = pitch,
                     .max = a->how == MX_REDUCE_MAX};
    MX_ASSERT(mx_cuda_sum_type(a->dtype, &s.type), "sums of %s", mx_dtype_name(a->dtype));
    return mx_cuda_check(mx_cuda_sum_buffers(a->out, from, &s, c->stream), "a sum over ranks");
}

mx_status mx_cuda_group_put(mx_cuda *c, const mx_cuda_pieces *a, int rank, int ranks,
                            const void *piece)
{
    mx_cuda_rows r = {.dst = (char *)a->out + a->run * rank, .src = piece,
                      .dst_pitch = a->run * ranks, .src_pitch = a->run, .width = a->run,
                      .rows = a->outer};
    return mx_cuda_check(mx_cuda_copy_rows(&r, c->stream), "a copy between ranks");
}

mx_status mx_cuda_group_fits(const mx_cuda_expert_rows *s, const int32_t *table)
{
    int mine = s->experts / s->ranks;
    int64_t rows = 0;
    for (int r = 0; r < s->ranks; r++) {
        const int32_t *at = table + (int64_t)r * (s->experts + 1) + s->index * mine;
        rows += at[mine] - at[0];
    }
    if (rows <= s->room)
        return MX_OK;
    return mx_fail(MX_DEVICE,
                   "the experts of rank %d of %d would get %lld rows, and there is room for %lld: "
                   "raise ragged_buffer_factor, or leave it at -1 for the most there can be",
                   s->index, s->ranks, (long long)rows, (long long)s->room);
}

mx_status mx_cuda_group_find(mx_cuda *c, mx_process_group *of, mx_cuda_group **out)
{
    for (*out = c->groups; *out; *out = (*out)->next)
        if ((*out)->of == of)
            return MX_OK;
    MX_CUDA_NEEDS(of->size <= MX_CUDA_RANKS, "a group of so many ranks");
    MX_CUDA_NEEDS(of->kind->threads || of->nccl, "ranks that talk through host memory");
    MX_TRY((of->kind->threads ? mx_cuda_peers_open : mx_nccl_group_open)(out, c, of));
    (*out)->next = c->groups;
    c->groups = *out;
    return MX_OK;
}

/* The error of the first group that has one; all of them are then given up. */
static mx_status poll_groups(mx_cuda *c)
{
    mx_status st = MX_OK;
    for (mx_cuda_group *g = c->groups; g && !st; g = g->next)
        if (g->kind->poll)
            st = g->kind->poll(g);
    for (mx_cuda_group *g = c->groups; g && st; g = g->next)
        if (g->kind->abort)
            g->kind->abort(g);
    return st;
}

static bool are_watched(const mx_cuda *c)
{
    for (const mx_cuda_group *g = c->groups; g; g = g->next)
        if (g->kind->poll)
            return true;
    return false;
}

mx_status mx_cuda_wait(mx_cuda *c, cudaEvent_t event)
{
    const char *what = "a step on the GPU";
    if (!are_watched(c))
        return mx_cuda_check(event ? cudaEventSynchronize(event)
                                   : cudaStreamSynchronize(c->stream), what);
    for (int looks = 0;; looks++) {
        cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(c->stream);
        if (e != cudaErrorNotReady && looks)
            return mx_cuda_check(e, what);
        if (looks % EAGER_LOOKS == 0 || looks > EAGER_LOOKS)
            MX_TRY(poll_groups(c));
        if (looks > EAGER_LOOKS)
            usleep(REST_US);
    }
}

mx_status mx_cuda_group_prepare(mx_cuda *c, const mx_exec_step *s, void **state)
{
    mx_cuda_group *g = NULL;
    if (s->call.group)
        MX_TRY(mx_cuda_group_find(c, s->call.group, &g));
    *state = g;
    return MX_OK;
}

void mx_cuda_group_drop(mx_cuda *c, void *state)
{
    (void)c, (void)state;
}

void mx_cuda_groups_close(mx_cuda *c)
{
    while (c->groups) {
        mx_cuda_group *g = c->groups;
        c->groups = g->next;
        g->kind->close(g);
    }
    mx_free(c->nccl);
    c->nccl = NULL;
}
