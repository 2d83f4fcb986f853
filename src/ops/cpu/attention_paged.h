/* attention_paged.h - attention of single queries over a cache that lies in pages; see
 * ops/paged_attention.c. */
#ifndef MX_OPS_CPU_ATTENTION_PAGED_H
#define MX_OPS_CPU_ATTENTION_PAGED_H

#include "ops/cpu/attention_kernel.h"

typedef struct {
    mx_attn attn;          /* batch: queries; heads, dims, type, scale, softcap, sinks, v_row */
    int64_t slots, page;   /* of the pool; positions of a page */
    int64_t rows, columns; /* of the table */
    int64_t window, chunk; /* 0: none */
    int64_t selected;      /* positions in a query's list; 0: no lists */
    bool ahead;            /* a query may see positions beyond its own */
    bool coded, e4m3;      /* keys and values are int8, or E4M3, with scales */
} mx_paged;

typedef struct {
    const void *q, *k, *v;
    const int32_t *positions, *row, *table;
    void *out;
    const int32_t *selected; /* (batch, selected), -1 unused */
    const int32_t *until;    /* (batch): the last position that a query sees; NULL: its own */
    const float *k_scale, *v_scale; /* (slots, k_heads); NULL: not coded */
} mx_paged_args;

size_t mx_paged_work_bytes(const mx_paged *g);
void mx_paged_forward(const mx_paged *g, const mx_paged_args *p, void *work);

#endif
