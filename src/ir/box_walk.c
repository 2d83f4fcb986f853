/* box_walk.c - a rank's part of a tensor as runs of elements, each contiguous both in that part and
 * in the whole tensor. */
#include "ir/placement.h"

static bool is_whole(const mx_box *b, int d)
{
    return b->n_runs[d] == 1 && b->run[d][0].n == b->whole.dim[d];
}

mx_box_walk mx_box_begin(const mx_box *b, const mx_type *local)
{
    mx_box_walk w = {.box = b, .local = local, .inner = 1, .rows = 1};
    w.dim = local->ndim - 1;
    while (w.dim > 0 && is_whole(b, w.dim))
        w.inner *= local->dim[w.dim--];
    for (int d = 0; d < w.dim; d++)
        w.rows *= local->dim[d];
    return w;
}

/* Where row `row` of the dims before w->dim lies in the whole tensor; -1: padding. */
static int64_t row_in_whole(const mx_box_walk *w, int64_t row)
{
    int64_t at = 0, step = 1;
    for (int d = w->dim - 1; d >= 0; d--) {
        int64_t i = row % w->local->dim[d], k = 0;
        while (k < w->box->n_runs[d] && i >= w->box->run[d][k].n)
            i -= w->box->run[d][k++].n;
        if (k == w->box->n_runs[d])
            return -1;
        at += (w->box->run[d][k].from + i) * step;
        step *= w->box->whole.dim[d];
        row /= w->local->dim[d];
    }
    return at;
}

bool mx_box_next(mx_box_walk *w, mx_box_span *out)
{
    if (w->dim < 0) { /* a scalar */
        *out = (mx_box_span){0, 0, 1};
        return w->row++ == 0;
    }
    for (; w->row < w->rows; w->row++, w->run = 0, w->at = 0) {
        int64_t row = row_in_whole(w, w->row);
        while (row >= 0 && w->run < w->box->n_runs[w->dim]) {
            const mx_cut_run *r = &w->box->run[w->dim][w->run++];
            int64_t at = w->at;
            w->at += r->n;
            if (!r->n)
                continue;
            *out = (mx_box_span){(row * w->box->whole.dim[w->dim] + r->from) * w->inner,
                                 (w->row * w->local->dim[w->dim] + at) * w->inner,
                                 r->n * w->inner};
            return true;
        }
    }
    return false;
}
