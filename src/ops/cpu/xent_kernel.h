/* xent_kernel.h - the last linear layer and its cross entropy in one, without an (N, V) matrix.
 *
 *     x (N, d)   w (V, d)   labels (N) int32, negative: ignored   loss, lse, dloss (N)
 *     s = scale x w^T, then cap tanh(s/cap) when softcap > 0        logits
 *     lse = log sum exp s;   loss = lse - s[label] + z lse^2        0 and 0 where ignored
 *
 * mx_xent_forward gives loss and lse with a tile of logits in memory. mx_xent_backward forms the
 * logits of a chunk of rows once, turns them into their gradients in place and adds the chunk to
 * dx (N, d) and dw (V, d): with loss and lse asked for, it is forward and backward in one pass,
 * which is what training calls; given the lse of an earlier forward it saves one pass over each
 * row. Chunks whose labels are all ignored cost nothing.
 *
 * Numbers: x, w f32 or bf16 (then loss, lse, dloss, dw are f32, dx has the type of x, and the
 * gradients of logits are rounded to bf16 for the GEMMs), or everything f64. `work` is 64-byte
 * aligned, of mx_xent_work_bytes. Bits do not depend on the thread count.
 */
#ifndef MX_OPS_CPU_XENT_KERNEL_H
#define MX_OPS_CPU_XENT_KERNEL_H

#include "ops/cpu/gemm.h"
#include <stddef.h>

typedef struct {
    int64_t n, dim, vocab;
    mx_num type;
    const void *x, *w;
    const int32_t *labels;
    float scale;   /* of logits; 0 means 1 */
    float softcap; /* 0: none */
    float z_loss;  /* 0: none */
    int threads;   /* 0: all of OpenMP's */
    /* A slice of a larger vocabulary: w has the words from `first` on. Labels are numbers of all
     * words, and a row counts whether its label is here or not. In place of the loss stands the
     * label's logit, 0 where it is not here. */
    bool slice;
    int64_t first;
} mx_xent;

typedef struct {
    const void *dloss;  /* (N); of a slice: the gradient of the label's logit */
    const void *dlse;   /* (N), of a slice */
    const void *lse_in; /* (N) from a forward, or NULL: computed here */
    void *loss, *lse;   /* (N), or NULL */
    void *dx;           /* (N, d), overwritten; or NULL */
    void *dw;           /* (V, d); or NULL */
    bool add_dw;        /* dw += instead of dw = */
} mx_xent_grads;

/* The logits of a slice, kept for its gradient as e^(z - about), 0 at the label and beyond the last
 * word, times the derivative of the cap: exponentials keep their digits in 16 bits, logits do not.
 * about is the logit of the label, or of a word in its place modulo the words here, or, where that
 * is more than 50 away from lse, the largest. 0 in rows that are not counted. */
typedef struct {
    void *lse, *picked, *about; /* (N) */
    void *kept;                 /* (N, ld), of x's type */
    int64_t ld;
} mx_xent_kept;
void mx_xent_keep(const mx_xent *c, const mx_xent_kept *k, void *work);
/* dx and dw of a slice; kept becomes the gradient of the logits. */
void mx_xent_back(const mx_xent *c, const mx_xent_kept *k, const mx_xent_grads *g);

/* Logits per row of a tile in the forward pass; the most tiles of a row that is sampled from. */
enum { MX_XENT_TILE = 4096, MX_XENT_ROW_TILES = 256 };

/* A row of logits as mx_xent_forward reduces it. Afterwards logit i is e^(z_i - top[i / TILE]). The
 * log-probability of word i, to the bit of the forward pass, is (float)-(lse - z_i), z_i as it was.
 * */
typedef struct {
    double lse;
    float top[MX_XENT_ROW_TILES]; /* the largest logit up to the end of each tile */
    int n;
} mx_xent_row_facts;
void mx_xent_row(float *logits, int64_t n, mx_xent_row_facts *out);

size_t mx_xent_work_bytes(const mx_xent *c, bool backward);
void mx_xent_forward(const mx_xent *c, void *loss, void *lse, void *work);
void mx_xent_backward(const mx_xent *c, const mx_xent_grads *g, void *work);

#endif
