/* pack.c - largest first: every value gets the lowest offset that is free during its lifetime.
 *
 * For training steps the buffer comes out close to the high-water mark, which no placement can
 * beat; best fit in the order of execution is worse (docs/log/cpu.md). Quadratic in the number of
 * values, which costs little beside the other passes. */
#include "compile/pack.h"

#include <stdlib.h>

/* Ties go by the order of making, so that equal programs have equal addresses. */
static int by_size(const void *a, const void *b)
{
    const mx_life *x = *(mx_life *const *)a, *y = *(mx_life *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->first != y->first ? x->first - y->first : (x > y) - (x < y);
}

int64_t mx_pack(mx_life *life, int n, mx_arena *scratch)
{
    mx_life **order = MX_NEW_N(scratch, mx_life *, n + 1);
    int *next = MX_NEW_N(scratch, int, n + 1), head = -1; /* what has a place, by address */
    int64_t end = 0;
    for (int i = 0; i < n; i++)
        order[i] = &life[i];
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++) {
        mx_life *x = order[i];
        int *link = &head;
        x->at = 0;
        for (int *q = &head; *q >= 0; q = &next[*q]) {
            const mx_life *y = order[*q];
            if (y->at <= x->at)
                link = &next[*q]; /* x comes after y in the list */
            if (y->last < x->first || y->first > x->last)
                continue;
            if (y->at - x->at >= x->bytes)
                break;
            if (y->at + y->bytes > x->at)
                x->at = y->at + y->bytes;
        }
        while (*link >= 0 && order[*link]->at <= x->at)
            link = &next[*link];
        next[i] = *link;
        *link = i;
        end = x->at + x->bytes > end ? x->at + x->bytes : end;
    }
    return end;
}
