/* mixture.c - datasets interleaved by weight; the position is one count and a cursor per dataset.
 */
#include "data/load/dataset.h"

mx_status mx_mixture_open(mx_mixture *m, const mx_dataset_options *o, int n)
{
    *m = (mx_mixture){0};
    if (n < 1 || n > MX_MIX_MAX)
        return mx_fail(MX_USAGE, "%d datasets were named; expected 1 to %d", n, MX_MIX_MAX);
    double weights[MX_MIX_MAX];
    for (int k = 0; k < n; k++)
        weights[k] = o[k].weight ? o[k].weight : 1;
    m->n = n;
    m->sets = MX_NEW_N(&m->arena, mx_dataset *, n);
    m->at.n = n;
    m->at.cursors = MX_NEW_N(&m->arena, mx_cursor, n);
    mx_status st = mx_mix_init(&m->mix, &m->arena, weights, n);
    for (int k = 0; !st && k < n; k++, m->open++)
        st = mx_dataset_open(&m->sets[k], &o[k]);
    if (st)
        mx_mixture_close(m);
    return st;
}

mx_status mx_mixture_next(mx_mixture *m, mx_record *r, int *which, bool *end)
{
    *which = mx_mix_at(&m->mix, m->at.t);
    mx_status st = mx_dataset_next(m->sets[*which], &m->at.cursors[*which], r, end);
    m->at.t += !*end;
    return st;
}

void mx_mixture_close(mx_mixture *m)
{
    for (int k = 0; m->sets && k < m->n; k++)
        mx_dataset_close(m->sets[k]);
    mx_arena_fini(&m->arena);
    *m = (mx_mixture){0};
}
