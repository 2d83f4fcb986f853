/* nccl.h - NCCL, opened at run time (nccl.c), and groups of processes that talk through it
 * (nccl_group.c).
 *
 * NCCL's headers are not needed to build: what is used of its interface, which it keeps from
 * version to version, is declared here, by the names it has there but for the case of constants.
 */
#ifndef MX_DEVICE_CUDA_NCCL_H
#define MX_DEVICE_CUDA_NCCL_H

#include "device/cuda/ranks/group.h"

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef int ncclResult_t;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
typedef enum { NCCL_INT8 = 0, NCCL_INT32 = 2, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8,
               NCCL_BFLOAT16 = 9 } ncclDataType_t;
typedef enum { NCCL_SUM = 0, NCCL_MAX = 2 } ncclRedOp_t;

#define MX_NCCL_FUNCTIONS(F)                                                                       \
    F(ncclGetUniqueId, ncclUniqueId *id)                                                           \
    F(ncclCommInitRank, ncclComm_t *comm, int n, ncclUniqueId id, int rank)                        \
    F(ncclCommDestroy, ncclComm_t comm)                                                            \
    F(ncclCommAbort, ncclComm_t comm)                                                              \
    F(ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)                                 \
    F(ncclAllReduce, const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,     \
      ncclComm_t comm, cudaStream_t stream)                                                        \
    F(ncclReduceScatter, const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, \
      ncclComm_t comm, cudaStream_t stream)                                                        \
    F(ncclAllGather, const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,    \
      cudaStream_t stream)                                                                         \
    F(ncclSend, const void *in, size_t n, ncclDataType_t type, int to, ncclComm_t comm,            \
      cudaStream_t stream)                                                                         \
    F(ncclRecv, void *out, size_t n, ncclDataType_t type, int from, ncclComm_t comm,               \
      cudaStream_t stream)                                                                         \
    F(ncclGroupStart, void)                                                                        \
    F(ncclGroupEnd, void)

#define MX_NCCL_MEMBER(name, ...) ncclResult_t (*name)(__VA_ARGS__);
struct mx_nccl {
    void *so;
    const char *(*ncclGetErrorString)(ncclResult_t r);
    const char *(*ncclGetLastError)(ncclComm_t comm); /* NULL: a version without it */
    MX_NCCL_FUNCTIONS(MX_NCCL_MEMBER)
};

/* Opened once for a device; the error says what to install. */
mx_status mx_nccl_open(mx_cuda *c) MX_MUST_USE;
/* comm: NULL where there is none yet. */
mx_status mx_nccl_check(const mx_nccl *n, ncclResult_t r, ncclComm_t comm,
                        const char *what) MX_MUST_USE;
/* A communicator of the ranks of a group, which the group's own calls bring together. */
mx_status mx_nccl_group_open(mx_cuda_group **out, mx_cuda *c, mx_process_group *of) MX_MUST_USE;

#endif
