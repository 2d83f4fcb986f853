/* reorder.h - which chunks the op `reorder` moves where, for devices' kernels. */
#ifndef MX_OPS_REORDER_H
#define MX_OPS_REORDER_H

#include <stdint.h>

/* Elements [from, from + size) of the dim in the input are [to, to + size) in the output. */
typedef struct {
    int64_t from, to, size;
} mx_reorder_chunk;

int mx_reorder_dim(const void *attr);
int64_t mx_reorder_count(const void *attr); /* of chunks */
/* extent: of the dim. */
mx_reorder_chunk mx_reorder_at(const void *attr, int64_t extent, int64_t i);

#endif
