/* paged_split.h - leaves of paged attention on the GPU (paged_mma.cuh), where few sequences share a
 * cache: a quarter as long, so that more of the chip works on one answer. Their results take as
 * much room as those of so many times the heads. */
#ifndef MX_OPS_PAGED_SPLIT_H
#define MX_OPS_PAGED_SPLIT_H

static inline int mx_paged_split(int64_t rows)
{
    return rows <= 8 ? 4 : 1;
}

#endif
