/* pack.h - offsets for values of known size and lifetime. */
#ifndef MX_COMPILE_PACK_H
#define MX_COMPILE_PACK_H

#include "base/arena.h"
#include <stdint.h>

typedef struct {
    int64_t bytes;
    int first, last; /* alive from step `first` to step `last`, both included */
    int64_t at;      /* the result */
} mx_life;

/* Gives every value a place in one buffer such that two that are alive in the same step do not
 * overlap. Gives the buffer's size. */
int64_t mx_pack(mx_life *life, int n, mx_arena *scratch);

#endif
