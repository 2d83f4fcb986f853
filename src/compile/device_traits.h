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
    const mx_rule *const *before_quantize, *const *before_autodiff, *const *behind_remat;
    /* Its kernels take strided views: those of ops that say so (op.h), and of fused groups. */
    bool strided_views;

    /* Its memory is the host's: there is nowhere to offload to, and the host reads and writes
     * variables where they lie. */
    bool host_memory;
    /* Collectives may go on beside other nodes (compile/mesh/overlap.c). */
    bool overlaps;
    /* It decides itself what shares memory: every value of a program is allocated by itself, and
     * the offsets of the memory pass are not used. */
    bool plans_memory;
    /* The workspace of a node's kernel, where one that could use any amount may take `most`; NULL:
     * what ops say of their CPU kernels. */
    size_t (*work_bytes)(const mx_node *n, size_t most);
    size_t gemm_work_bytes; /* beside that, of a library's GEMMs */
    /* For so many nodes behind the last one that reads a small value nothing else lies in its
     * place: the device may run neighbours as one, whose blocks are not all as far. */
    int linger;
    size_t align; /* values begin at multiples of so many bytes; 0: 64 */
    int pad_rows; /* a variable of two dims has room, zeroed, for rows up to a multiple; 0: none */

    mx_chip chip;
} mx_device_traits;

/* Host memory, and nothing special: for programs that are compiled for no device. */
extern const mx_device_traits mx_plain_traits;

#endif
