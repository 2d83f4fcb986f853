/* linear_xent.h - attributes of linear_xent_slice. */
#ifndef MX_OPS_LINEAR_XENT_H
#define MX_OPS_LINEAR_XENT_H

#include <stdint.h>

typedef struct {
    double scale, softcap;
    int64_t first; /* number of the first word that is here */
    int64_t words; /* of the whole vocabulary: rows of w beyond them are padding */
} mx_xent_slice;

/* How many of the `rows` of w are words. */
int64_t mx_xent_words_here(const mx_xent_slice *a, int64_t rows);

#endif
