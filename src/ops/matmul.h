/* matmul.h - a contraction as the GEMMs a device runs, and what they do with their results before
 * they write them: epilogues.
 *
 * A matmul node has the two factors first among its inputs and the result first among its outputs.
 * Each epilogue adds its own, in the order of the list. With C the result so far, (*, n):
 *
 *     epilogue      reads            gives beside C      C becomes
 *     bias          b (n)                                C + b
 *     residual      r (*, n)                             C + r
 *     gelu                           u = C               gelu_tanh(C)
 *     gelu_grad     u (*, n)                             C gelu_tanh'(u)
 *     bias_grad                      db (n) float32      C; db is its sum over rows
 *     swiglu        w2, as factor 2  g = C, u = x w2     silu(g) u
 *     swiglu_grad   g, u (*, n)      du = C silu(g)      C u silu'(g)
 *
 * The CPU kernel rounds C between epilogues and is their specification; a device may keep C in
 * registers. Rules make the lists that the device has kernels for (compile/epilogues.c).
 */
#ifndef MX_OPS_MATMUL_H
#define MX_OPS_MATMUL_H

#include "ir/op.h"

/* Inputs: the factors, then those of the epilogues. */
enum { MX_MATMUL_A, MX_MATMUL_B, MX_MATMUL_REST };

typedef enum {
    MX_EPILOGUE_NONE, /* ends a list */
    MX_EPILOGUE_BIAS,
    MX_EPILOGUE_RESIDUAL,
    MX_EPILOGUE_GELU,
    MX_EPILOGUE_GELU_GRAD,
    MX_EPILOGUE_BIAS_GRAD,
    MX_EPILOGUE_SWIGLU,
    MX_EPILOGUE_SWIGLU_GRAD,
    MX_EPILOGUE_COUNT
} mx_epilogue;

enum { MX_MAX_EPILOGUES = 3 };
typedef struct {
    uint8_t of[MX_MAX_EPILOGUES + 1]; /* mx_epilogue, in the order in which they are done */
} mx_epilogues;
#define MX_EPILOGUES(...) ((mx_epilogues){{__VA_ARGS__}})
static inline bool mx_epilogues_equal(mx_epilogues a, mx_epilogues b)
{
    for (int i = 0; i < MX_MAX_EPILOGUES; i++)
        if (a.of[i] != b.of[i])
            return false;
    return true;
}

typedef struct {
    char spec[48]; /* notation of all inputs and outputs */
    mx_dtype out;
    bool has_out; /* the result's dtype is `out`, not the first input's */
    bool one_path; /* the bits of a row do not depend on how many there are; the graph's (infer) */
    bool panels;   /* input 1, (n, k), lies in this machine's panels (ops/panels.h) */
    mx_epilogues epilogues;
} mx_matmul_attr;

/* C (m, n) = op(A) op(B) [+ C], row-major, batched; offsets and strides in elements. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    int a, b;                    /* which inputs A and B are: they may be swapped */
    int64_t a_at, b_at, c_at;
    int64_t batch, a_step, b_step, c_step;
} mx_matmul_gemm;

/* Input 0's rows times the whole of input 1, both packed, and so is the result. */
static inline bool mx_matmul_gemm_is_dense(const mx_matmul_gemm *p)
{
    return p->batch <= 1 && !p->accumulate && !p->trans_a && p->lda == p->k && p->ldc == p->n &&
           p->ldb == (p->trans_b ? p->k : p->n) && p->a == 0 && p->b == 1 && p->a_at == 0 &&
           p->b_at == 0 && p->c_at == 0;
}

typedef mx_status (*mx_matmul_gemm_fn)(void *ctx, const mx_matmul_gemm *p);
/* Calls `each` for the GEMMs of a matmul node with these attributes and types, in order. */
mx_status mx_matmul_gemms(const void *attr, const mx_type *a, const mx_type *b, const mx_type *c,
                          mx_matmul_gemm_fn each, void *ctx) MX_MUST_USE;

/* --- the graph side --- */

/* Is this a matmul with just these epilogues? */
bool mx_matmul_has(const mx_node *n, mx_epilogues list);
/* Rows times a matrix in bfloat16, with one result: what large epilogues are made for. */
bool mx_matmul_is_of_rows(const mx_node *n);

/* --- epilogues, for matmul.c (matmul_epilogue.c) --- */

/* Of one kind: letters of what it reads and gives beside C: b as factor 2, c as the result, n as
 * the result's last dim. */
typedef struct {
    const char *name, *in, *out;
    /* in, out: its own inputs and outputs; C is c->out[0]. */
    void (*cpu)(const mx_call *c, const mx_tensor *in, const mx_tensor *out);
    /* From d, the gradient of what C becomes: the gradient of C (out: the number of its own
     * output), and of its input x. Both NULL: it is made after autodiff. */
    mx_node *(*grad)(mx_graph *g, mx_node *n, mx_node *d, int out);
    mx_node *(*grad_in)(mx_graph *g, mx_node *d, const mx_node *x);
} mx_epilogue_kind;
extern const mx_epilogue_kind mx_epilogue_kinds[MX_EPILOGUE_COUNT];

/* The notation of a contraction "a,b->c", or of one with epilogues, with these epilogues instead.
 * Summed letters must stay whole then: halves of the sum would each have the epilogue. */
void mx_matmul_notation(const char *spec, mx_epilogues list, char *out, size_t cap);
/* The contraction alone: factor 1 of the call with b, to y. */
void mx_matmul_contract(const mx_call *c, const mx_tensor *b, mx_tensor *y);

#endif
