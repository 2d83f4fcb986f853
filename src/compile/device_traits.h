/* device_traits.h - what a device is like, as far as programs are compiled for it. Passes ask for
 * what they need to know by name; none asks which device it is.
 */
#ifndef MX_COMPILE_DEVICE_TRAITS_H
#define MX_COMPILE_DEVICE_TRAITS_H

#include "compile/rules.h"

typedef struct {
    const char *name; /* as device=NAME has it */

    /* Rewrites that it has kernels for, as lists that NULL ends; NULL: none. */
    const mx_rule *const *before_autodiff, *const *behind_remat;
    /* Its kernels take strided views: those of ops that say so (op.h), and of fused groups. */
    bool strided_views;
    /* Its memory is the host's: there is nowhere to offload to. */
    bool host_memory;
} mx_device_traits;

#endif
