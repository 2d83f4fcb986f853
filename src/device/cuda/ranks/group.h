/* group.h - how the ranks of a process group (ir/process_group.h) exchange what lies on GPUs.
 *
 * A kind is a way to do it: `peers` (peers.c), ranks that are threads of this process and share a
 * GPU; `nccl` (nccl_group.c), a process for each GPU. Calls enqueue on the rank's stream; all ranks
 * of the group make the same ones in the same order. They are never part of a CUDA graph: peers
 * meet on the host, and NCCL does not end what is to be given up while a graph holds it. Where
 * there is no kind for a group, collectives go through host memory and the group's own calls, as
 * every op without a CUDA kernel does.
 *
 * Sums are made as process_group.h says, in the order of ranks.
 */
#ifndef MX_DEVICE_CUDA_GROUP_H
#define MX_DEVICE_CUDA_GROUP_H

#include "device/cuda/ranks/collective.h"
#include "device/cuda/core/context.h"
#include "ir/process_group.h"

/* out (outer, ranks, run): the pieces (outer, run) of all ranks. `in` is this rank's piece, or, for
 * all_to_all, a piece for each rank, one after the other. Counted in bytes. */
typedef struct {
    const void *in;
    void *out;
    int64_t outer, run;
    void *work; /* mx_gpu_stage_bytes of `out` where outer > 1 */
} mx_cuda_pieces;

/* in (outer, ranks, run) -> out (outer, run): the sum over ranks of this rank's piece. all_reduce:
 * in and out (run), outer 1. Counted in elements. */
typedef struct {
    const void *in;
    void *out;
    int64_t outer, run;
    mx_dtype dtype;
    mx_reduction how;
    void *work; /* mx_gpu_reduce_bytes of `in` */
} mx_cuda_reduce;

/* Rows of this rank's tokens `x`, sorted by expert, and rows `y` of its experts. */
typedef struct {
    mx_cuda_expert_rows rows;
    void *x, *y;
    int64_t n;  /* rows of x */
    bool back;  /* from y to x */
    void *work; /* mx_gpu_exchange_bytes */
} mx_cuda_exchange;

struct mx_cuda_group {
    const struct mx_cuda_group_kind *kind;
    mx_cuda *cuda;        /* borrows */
    mx_process_group *of; /* borrows */
    mx_cuda_group *next;  /* of the device's */
};

typedef struct mx_cuda_group_kind {
    const char *name;
    mx_status (*all_gather)(mx_cuda_group *g, const mx_cuda_pieces *a);
    mx_status (*all_to_all)(mx_cuda_group *g, const mx_cuda_pieces *a);
    mx_status (*reduce_scatter)(mx_cuda_group *g, const mx_cuda_reduce *a);
    mx_status (*all_reduce)(mx_cuda_group *g, const mx_cuda_reduce *a);
    mx_status (*shift)(mx_cuda_group *g, const void *in, void *out, size_t bytes, int by);
    mx_status (*exchange)(mx_cuda_group *g, const mx_cuda_exchange *a);
    /* Optional, for ranks that may be gone: has something failed? Then `abort` ends what the GPU
     * waits for. */
    mx_status (*poll)(mx_cuda_group *g);
    void (*abort)(mx_cuda_group *g);
    void (*close)(mx_cuda_group *g);
} mx_cuda_group_kind;

/* The device's way for this group, made when it is first asked for: all ranks of the group ask in
 * the same order. */
mx_status mx_cuda_group_find(mx_cuda *c, mx_process_group *of, mx_cuda_group **out) MX_MUST_USE;
void mx_cuda_groups_close(mx_cuda *c);
/* For ops: the state of a step is its group, which the device keeps; NULL: this rank is alone. */
mx_status mx_cuda_group_prepare(mx_cuda *c, const mx_exec_step *s, void **state) MX_MUST_USE;
void mx_cuda_group_drop(mx_cuda *c, void *state);

/* peers.c */
mx_status mx_cuda_peers_open(mx_cuda_group **out, mx_cuda *c, mx_process_group *of) MX_MUST_USE;

/* kernel_time.c: what is issued between begin and end is timed while no other rank's kernels run.
 * Both do nothing where it is not open. */
mx_status mx_cuda_kernel_time_open(mx_cuda *c, mx_process_group *group) MX_MUST_USE;
void mx_cuda_kernel_time_close(mx_cuda *c);
mx_status mx_cuda_kernel_time_begin(mx_cuda *c) MX_MUST_USE;
mx_status mx_cuda_kernel_time_end(mx_cuda *c) MX_MUST_USE;
double mx_cuda_kernel_time_take(mx_cuda *c); /* milliseconds since the last call */

/* For kinds: the sum of pieces that lie in `from`, `pitch` elements from row to row. */
mx_status mx_cuda_group_sum(mx_cuda *c, const mx_cuda_reduce *a, const mx_cuda_buffers *from, int n,
                            int64_t pitch) MX_MUST_USE;
/* A piece (outer, run) into its place in `out`. */
mx_status mx_cuda_group_put(mx_cuda *c, const mx_cuda_pieces *a, int rank, int ranks,
                            const void *piece) MX_MUST_USE;
/* Is there room for the rows that come, where the buffer is smaller than the most there can be? */
mx_status mx_cuda_group_fits(const mx_cuda_expert_rows *s, const int32_t *table) MX_MUST_USE;
bool mx_cuda_sum_type(mx_dtype d, mx_sum_type *out); /* false: no sums of this dtype */

#endif
