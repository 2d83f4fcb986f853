/* staged_load.h - many variables at once from tensors of a checkpoint: disk, conversion and device
 * at work beside each other. */
#ifndef MX_STORE_STAGED_LOAD_H
#define MX_STORE_STAGED_LOAD_H

#include "device/device.h"
#include "store/quant.h"

/* One variable from a tensor of as many elements as it has as a whole: all, or its part of them. */
typedef struct {
    mx_var *var;
    const mx_quant_tensor *from;
    mx_st_scan scan; /* out: NaN and infinity that were seen */
} mx_staged_load;

/* Reads all of them; the device has them when it returns. Variables are marked as written only when
 * all could be read; the first failure is returned. */
mx_status mx_staged_load_all(mx_session *s, mx_staged_load *loads, int64_t n) MX_MUST_USE;

#endif
