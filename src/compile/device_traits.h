/* device_traits.h - what a device is like, as far as programs are compiled and planned for it.
 * Passes ask for what they need to know by name; none asks which device it is.
 */
#ifndef MX_COMPILE_DEVICE_TRAITS_H
#define MX_COMPILE_DEVICE_TRAITS_H

#include "compile/rules.h"

/* A chip, as plans and MFU see it. 0: not known. */
typedef struct {
    const char *name;
    double memory_bytes, bytes_per_second;
    double flops_per_second[MX_DTYPE_COUNT]; /* of dense matmuls, by the dtype of the operands */
    int units; /* multiprocessors */
} mx_chip;

typedef struct mx_device_traits {
    const char *name; /* as device=NAME has it */

    /* Rewrites that it has kernels for, as lists that NULL ends; NULL: none. */
    const mx_rule *const *before_quantize, *const *before_autodiff, *const *after_remat;
    /* Its kernels take strided views: those of ops that say so (op.h), and of fused groups. */
    bool strided_views;

    /* Its memory is the host's: there is nowhere to offload to, and the host reads and writes
     * variables where they lie. */
    bool host_memory;
    /* Collectives may go on beside other nodes (compile/mesh/overlap.c). */
    bool overlaps;
    /* It plans memory itself: each value of a program is allocated separately, and the offsets of
     * the memory pass are not used. */
    bool plans_memory;
    /* The workspace of a node's kernel; one that could use any amount may take up to `most`. NULL:
     * what ops state for their CPU kernels. */
    size_t (*work_bytes)(const mx_node *n, size_t most);
    size_t gemm_work_bytes; /* in addition, for a library's GEMMs */
    /* A small value keeps its memory for this many nodes after its last reader: the device may
     * launch neighbouring nodes as one kernel, whose blocks are not all equally far along. */
    int linger;
    size_t align; /* alignment of values in bytes; 0: 64 */
    /* Variables of two dims have zeroed room up to a multiple of this many rows; 0: none. */
    int pad_rows;

    mx_chip chip;
} mx_device_traits;

/* Host memory, and nothing special: for programs that are compiled for no device. */
extern const mx_device_traits mx_plain_traits;

#endif
