/* held.h - calibration goes on where the round before it stopped.
 *
 * A round rounds the matrices that read some of the model's tensors, in the order of the model.
 * What does not depend on a matrix that is still to be rounded is the same in all later rounds: of
 * it, the tensors that later rounds read are held in host memory for every window of the text, and
 * are inputs ("held:0", "held:1", ...) of the next round's graph. So a round runs the part of the
 * model that it is about and not what is before it, and as many rounds as there are tensors cost
 * two passes over the model.
 *
 * Which tensors those are follows from the graph alone (mx_held_cut): a model builds the same graph
 * every time. Where one of them is not a float tensor, or they need more memory than they may take,
 * nothing is held, and the next round begins at the tokens. Bits are the same either way.
 */
#ifndef MX_TRAIN_HELD_H
#define MX_TRAIN_HELD_H

#include "ir/graph.h"

/* What a graph's matrices read: x[k] is the tensor k, in the order of the model. */
typedef struct {
    mx_node **x;
    int n;
    int *rank; /* by node id: of a weight the last tensor that it is multiplied with; else -1 */
} mx_held_reads;

typedef struct {
    int first, end; /* of the round that held them */
    int64_t most;   /* numbers of a window that may be held */
    int n;          /* tensors; 0: none */
    int64_t *count; /* numbers of each, in a window */
    int64_t window; /* numbers of all of them */
    float **values; /* by window; owns them */
    int n_windows;
} mx_held;

/* The round [first, end) of graph g, whose roots are there already: roots "hold:0", ... for the
 * next round, and inputs in place of what `was` holds. *now: their sizes, without values. */
void mx_held_cut(mx_graph *g, const mx_held_reads *r, const mx_held *was, mx_held *now);
/* Room for the values of window i; what `was` held of that window is not needed any more then. */
mx_status mx_held_room(mx_held *h, int i, int n_windows) MX_MUST_USE;
void mx_held_drop(mx_held *h, int i);
void mx_held_fini(mx_held *h); /* a zero object is a no-op */

#endif
