/* passes.h - graph to graph. Each pass is one file; the driver (compile.c) runs them in order.
 *
 *   precision   float32 model -> bfloat16 activations and weight copies; before autodiff
 *   stages      which chunk of a pipeline a node belongs to (stages.h); before autodiff
 *   rewrites    rules that the device asks for: merged q, k and v, biases (rules.h)
 *   autodiff    gradient nodes, from each op's gradient builder
 *   optimizer   clip, update, state in place
 *   remat       which forward values the backward pass keeps, which it computes again
 *   epilogues   rules that the device asks for: GELU, SwiGLU and their gradients (rules.h)
 *   offload     which of those it keeps in host memory, and when they go and come
 *   fuse        elementwise chains and row ops -> one kernel
 *   schedule    = mx_graph_order on (seq, id)
 *   memory      liveness and offsets (memory.h)
 */
#ifndef MX_COMPILE_PASSES_H
#define MX_COMPILE_PASSES_H

#include "ir/graph.h"

/* Casts what matmuls, attention and lookups read to `compute`; elementwise ops follow. */
void mx_pass_precision(mx_graph *g, mx_dtype compute);
/* Weights that are only read through those casts become variables of that dtype. */
void mx_pass_narrow_weights(mx_graph *g, bool trained_too);
/* In which dtype gradients of weights are summed: `narrow`, or MX_DTYPE_COUNT: each in its own. */
void mx_pass_grad_dtypes(mx_graph *g, mx_dtype narrow);

/* Gradients of a scalar with respect to variables: grad[i] belongs to var[i] (NULL: no dependence).
 * Every node from here on is marked `backward`. */
void mx_pass_autodiff(mx_graph *g, mx_node *loss, mx_node *const *var, int n, mx_node **grad);
/* The gradient of any node with respect to any nodes; dy seeds it (NULL: 1).
 * For tests and losses. */
void mx_gradients(mx_graph *g, mx_node *y, mx_node *dy, mx_node *const *x, int n, mx_node **dx);

typedef struct {
    const char *policy;         /* its keeping (keys/remat_policies.h), or custom */
    const char *save, *offload; /* comma-separated names of tensors to keep; NULL: none */
} mx_remat;
/* A policy with the tensors it names. */
bool mx_remat_find(const char *name, mx_remat *out);
mx_status mx_pass_remat(mx_graph *g, mx_remat how) MX_MUST_USE;
/* Does the policy keep the result of this matmul for the backward pass? */
bool mx_remat_keeps_gemm(mx_remat how, const mx_node *gemm);

/* What remat has kept and `names` names lies in host memory between the passes. */
mx_status mx_pass_offload(mx_graph *g, const char *names) MX_MUST_USE;

/* merge = false: every elementwise node becomes a group of its own (for comparison). */
void mx_pass_fuse(mx_graph *g, bool merge);

#endif
