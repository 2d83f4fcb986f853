/* matmul.h - a contraction as the matrix products a device runs. */
#ifndef MX_OPS_MATMUL_H
#define MX_OPS_MATMUL_H

#include "ir/op.h"

/* C (m, n) = op(A) op(B) [+ C], row-major, batched; offsets and strides in elements. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    int a, b;                    /* which inputs A and B are: they may be swapped */
    int64_t a_at, b_at, c_at;
    int64_t batch, a_step, b_step, c_step;
} mx_product;

typedef mx_status (*mx_product_fn)(void *ctx, const mx_product *p);
/* Calls `each` for the products of a matmul node with these attributes and types, in order. */
mx_status mx_matmul_products(const void *attr, const mx_type *a, const mx_type *b, const mx_type *c,
                             mx_product_fn each, void *ctx) MX_MUST_USE;

#endif
