/* profile.h - a model as layers of a few kinds, each a short list of work, independent of the mesh.
 *
 * A model has the same layer many times. Its graph is built once, at global shapes: every layer
 * gives its GEMMs with the way that tensor parallelism cuts them (the logical axes of their
 * weights), its attention and its weights; equal layers become one kind. A compiled one-device
 * program adds what only the passes know: bytes that elementwise kernels stream, bytes that wait
 * for the backward pass, FLOPs that are computed again. Everything is per token of a sequence of
 * `length` tokens, so that a mesh divides and a microbatch multiplies it (cost.h).
 */
#ifndef MX_PLAN_PROFILE_H
#define MX_PLAN_PROFILE_H

#include "compile/program.h"
#include "models/model.h"

enum { MX_PROFILE_GEMMS = 24, MX_PROFILE_KINDS = 16, MX_PROFILE_ATTENTIONS = 4 };

typedef enum { MX_GEMM_WHOLE, MX_GEMM_COLUMN, MX_GEMM_ROW } mx_gemm_cut;

/* (rows x tokens, k) x (k, n). Dense ones that read one input are one GEMM, as the program merges
 * them. */
typedef struct {
    double rows, n, k; /* rows per token: 1, or how many experts a token goes to */
    double experts;    /* 0: dense */
    mx_gemm_cut cut;   /* the dim that the tensor axis cuts: n, k or neither */
} mx_profile_gemm;

typedef struct {
    double heads, kv_heads, d_qk, d_v;
    double keys;  /* that a query sees, on average */
    double flops; /* per token, forward */
} mx_profile_attention;

typedef struct {
    mx_profile_gemm gemm[MX_PROFILE_GEMMS];
    int n_gemm;
    mx_profile_attention attention[MX_PROFILE_ATTENTIONS];
    int n_attention;
    double recurrent_flops, recurrent_bytes;           /* delta rule and convolution, forward */
    double weights_cut, weights_whole, weights_expert; /* numbers of parameters */
    double top_k, experts;                             /* 0: dense */
} mx_profile_work;

/* From a compiled program; per token. */
typedef struct {
    double stream[2];  /* bytes, forward, backward: read and written by elementwise kernels */
    double saved;      /* bytes waiting for the backward pass */
    double saved_rows; /* of those, rows of experts */
    double kernels[2]; /* per layer and microbatch */
    double again[2];   /* computed again, share of the forward pass: GEMMs, attention */
    double narrow[2];  /* in 8 bits, share of the forward pass's GEMMs: dense, of experts */
    /* of the bytes, those of kernels that draw random bits for each number, and the numbers */
    double random_stream[2], random[2];
    /* per microbatch, not token: bytes of kernels that read weights, as those that quantize them,
     * and of their results that wait for the backward pass */
    double weight_stream[2], weight_saved;
} mx_profile_passes;

typedef struct {
    mx_profile_work work;
    mx_profile_passes passes;
    int layers; /* of this kind */
} mx_layer_kind;

typedef struct {
    mx_layer_kind kind[MX_PROFILE_KINDS];
    int n_kinds;
    unsigned char of[MX_MAX_LAYERS]; /* the kind of each layer */
    int n_layers;
    mx_profile_passes ends; /* what is in no layer */
    double width, vocab, length;
    double tokens;          /* of the compiled program */
    double embedding, head; /* numbers of parameters; a tied head is counted once, as embedding */
    bool tied;
    double parameters;
    double working; /* bytes per token, alive beside the saved ones when memory is fullest */
} mx_profile;

/* Layers, GEMMs and weights of a model that is built for sequences of `length`. */
mx_status mx_profile_model(mx_profile *p, const mx_model_spec *m, int64_t length) MX_MUST_USE;
/* Adds what a program of the model shows, compiled for some sequences of that length, which adds up
 * gradients (MX_STEP_ACCUMULATE) and so has no optimizer in it. More than one: with one, what is
 * the same for all sequences (learned positions) looks like a value of each. */
void mx_profile_program(mx_profile *p, const mx_program *program, int64_t sequences);

/* FLOPs of one token, forward, without what is computed again; attention counts what is seen. */
double mx_profile_flops(const mx_profile *p);

#endif
