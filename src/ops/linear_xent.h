/* linear_xent.h - attributes of linear_xent; attributes and inputs of linear_xent_slice and its
 * gradients. */
#ifndef MX_OPS_LINEAR_XENT_H
#define MX_OPS_LINEAR_XENT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double scale, softcap, z_loss;
    bool w_fixed; /* w is not trained: in place of dw is one number that is never read */
} mx_xent_attr;

typedef struct {
    double scale, softcap;
    int64_t first; /* number of the first word that is here */
    int64_t vocab; /* of all ranks: rows of w beyond it are padding */
    bool keep; /* training keeps the logits, as exponentials, and does not project again */
} mx_xent_slice;

/* x, w and labels, then what linear_xent_slice_back reads. */
enum {
    MX_SLICE_X,
    MX_SLICE_W,
    MX_SLICE_LABELS,
    MX_SLICE_LSE,
    MX_SLICE_DLSE,
    MX_SLICE_DPICKED,
    MX_SLICE_PICKED,
    MX_SLICE_ABOUT,
    MX_SLICE_KEPT,
    MX_SLICE_N_IN
};

/* How many of the `rows` of w are tokens of the vocabulary. */
int64_t mx_xent_vocab_here(const mx_xent_slice *a, int64_t rows);

#endif
