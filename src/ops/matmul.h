/* matmul.h - a contraction as the matrix products a device runs. */
#ifndef MX_OPS_MATMUL_H
#define MX_OPS_MATMUL_H

#include "ir/op.h"

typedef struct {
    char spec[48];
    mx_dtype out;
    bool has_out; /* the result's dtype is `out`, not the first input's */
} mx_matmul_attr;

/* The attributes of a product with a third input, and perhaps a second output, of these letters.
 * Summed letters must stay whole: halves of the sum would each have the third input. */
mx_matmul_attr mx_matmul_third(const mx_node *product, const char *third, const char *more_out);
mx_cost mx_matmul_cost(const mx_node *n);
/* A weight's gradient is kept in the weight's own dtype even when a bfloat16 copy was multiplied,
 * unless half the memory is preferred (grad_dtype). */
mx_dtype mx_matmul_gradient_dtype(const mx_graph *g, const mx_node *factor);

/* C (m, n) = op(A) op(B) [+ C], row-major, batched; offsets and strides in elements. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    int a, b;                    /* which inputs A and B are: they may be swapped */
    int64_t a_at, b_at, c_at;
    int64_t batch, a_step, b_step, c_step;
} mx_product;

/* Is this a product of rows with a matrix, in bfloat16, without a bias? On a GPU such products can
 * end in something else (compile/bias.c, slope.c, swiglu.c). */
bool mx_matmul_is_of_rows(const mx_node *y);

/* Input 0's rows times the whole of input 1, both packed, and so is the result. */
static inline bool mx_product_is_dense(const mx_product *p)
{
    return p->batch <= 1 && !p->accumulate && !p->trans_a && p->lda == p->k && p->ldc == p->n &&
           p->ldb == (p->trans_b ? p->k : p->n) && p->a == 0 && p->b == 1 && p->a_at == 0 &&
           p->b_at == 0 && p->c_at == 0;
}

typedef mx_status (*mx_product_fn)(void *ctx, const mx_product *p);
/* Calls `each` for the products of a matmul node with these attributes and types, in order. */
mx_status mx_matmul_products(const void *attr, const mx_type *a, const mx_type *b, const mx_type *c,
                             mx_product_fn each, void *ctx) MX_MUST_USE;

#endif
