/* linear_xent.h - attributes of linear_xent_slice. */
#ifndef MX_OPS_LINEAR_XENT_H
#define MX_OPS_LINEAR_XENT_H

#include <stdint.h>

typedef struct {
    double scale, softcap;
    int64_t first; /* number of the first word that is here */
    int64_t vocab; /* of all ranks: rows of w beyond it are padding */
} mx_xent_slice;

/* How many of the `rows` of w are tokens of the vocabulary. */
int64_t mx_xent_vocab_here(const mx_xent_slice *a, int64_t rows);

#endif
