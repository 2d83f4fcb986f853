/* passes.h - graph to graph. Each pass is one file; the driver (compile.c) runs them in order.
 *
 *   precision   float32 model -> bfloat16 activations and weight copies; before autodiff
 *   stages      which chunk of a pipeline a node belongs to (stages.h); before autodiff
 *   join        for a GPU: q, k and v come from one product; before autodiff
 *   bias        for a GPU: a bias, or it and a GELU, join the product before; before autodiff
 *   autodiff    gradient nodes, from each op's gradient builder
 *   optimizer   clip, update, state in place
 *   remat       which forward values the backward pass keeps, which it computes again
 *   offload     which of those it keeps in host memory, and when they go and come
 *   slope       for a GPU: the slope of a GELU joins the product beside it
 *   swiglu      for a GPU: a SwiGLU and its gradient join the products beside them
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
void mx_pass_narrow_weights(mx_graph *g);

void mx_pass_join(mx_graph *g);
/* After autodiff: the backward pass joins its weights itself, so that they are not kept for it. */
void mx_pass_join_backward(mx_graph *g);
/* gelu: a GELU behind it may join too; where nothing is computed again. */
void mx_pass_bias(mx_graph *g, bool gelu);

/* Gradients of a scalar with respect to variables: grad[i] belongs to var[i] (NULL: no dependence).
 * Sets g->n_forward, by which later passes tell the two sides apart. */
void mx_pass_autodiff(mx_graph *g, mx_node *loss, mx_node *const *var, int n, mx_node **grad);
/* The gradient of any node with respect to any nodes; dy seeds it (NULL: 1).
 * For tests and losses. */
void mx_gradients(mx_graph *g, mx_node *y, mx_node *dy, mx_node *const *x, int n, mx_node **dx);

typedef struct {
    const char *policy; /* none, elementwise, minimal, full, custom */
    const char *save, *offload; /* comma-separated names of tensors to keep; NULL: none */
} mx_remat;
mx_status mx_pass_remat(mx_graph *g, mx_remat how) MX_MUST_USE;

/* What remat has kept and `names` names lies in host memory between the passes. */
mx_status mx_pass_offload(mx_graph *g, const char *names) MX_MUST_USE;

void mx_pass_slope(mx_graph *g);
void mx_pass_swiglu(mx_graph *g);

/* merge = false: every elementwise node becomes a group of its own (for comparison). */
void mx_pass_fuse(mx_graph *g, bool merge);

#endif
