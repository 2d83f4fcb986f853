/* passes.h - graph to graph. Each pass is one file with a const struct that says where in the order
 * it stands; tools/scan finds them, and the driver (compile.c) runs them. docs/extending.md adds
 * one.
 *
 *   precision   float32 model -> bfloat16 activations and weight copies
 *   partition   global shapes -> those of one rank, with collectives (mesh/partition.h)
 *   stages      which chunk of a pipeline a node belongs to (mesh/stages.h)
 *   merge       rules that the device asks for: one matmul for q, k and v (rules.h)
 *   tile_mlp    dense MLPs in pieces of the sequence
 *   quantize    matmuls of weights in 8 bits (quantize.h)
 *   panels      served weights as the CPU's GEMM reads them (panels.h)
 *   rewrites    rules that the device asks for: biases as epilogues (rules.h)
 *   autodiff    gradient nodes, from each op's gradient builder
 *   optimizer   clip, update, state in place
 *   tile_sums   gradients of MLPs in pieces are added up in place
 *   remat       which forward values the backward pass keeps, which it computes again
 *   epilogues   rules that the device asks for: GELU, SwiGLU and their gradients (rules.h)
 *   offload     which of those it keeps in host memory, and when they go and come
 *   overlap     collectives that go on beside other nodes
 *   fuse        elementwise chains and row ops -> one kernel
 *   waits       waits for collectives come right before what needs them
 *   schedule    = mx_graph_order on (seq, id)
 *   memory      liveness and offsets (memory.c)
 *
 * The last two make a program of a graph and are no entries of the table.
 */
#ifndef MX_COMPILE_PASSES_H
#define MX_COMPILE_PASSES_H

#include "ir/graph.h"

struct mx_compile_options;
struct mx_optimizer;
typedef enum {
    MX_GRADS_KEEP,       /* roots named "grad:NAME" */
    MX_GRADS_APPLY,      /* clip and update */
    MX_GRADS_ACCUMULATE, /* added to variables "NAME.grad"; the input `first` starts a new sum */
} mx_grads_use;

typedef struct {
    const char *policy;         /* what is kept (keys/remat_policies.h), or custom */
    const char *save, *offload; /* comma-separated names of tensors to keep; NULL: none */
} mx_remat;
/* What passes hand on beside the graph. */
typedef struct mx_compilation {
    const struct mx_compile_options *o;
    const struct mx_device_traits *device;
    mx_remat remat;
    bool training;                  /* there is a loss, a root of that name, to be differentiated */
    mx_node *loss;                  /* NULL: none */
    mx_grads_use use;               /* of the gradients */
    const struct mx_optimizer *opt; /* with MX_GRADS_APPLY */
    mx_node **var, **grad;          /* trainable weights, from autodiff on; a NULL gradient: none */
    int n;
} mx_compilation;

/* Programs that a pass has a part in. */
enum {
    MX_IN_FORWARD = 1,  /* graphs that only run forwards */
    MX_IN_TRAINING = 2, /* graphs with a loss */
    MX_IN_UPDATE = 4,   /* the update by accumulated gradients, a graph of its own */
    MX_IN_ALL = 8,      /* every graph once the others are through with it */
};

typedef struct {
    const char *name, *doc; /* dump_ir=NAME prints the graph after it */
    const char *after;      /* the pass that it follows; NULL: the first */
    const char *before;     /* and one that must come later; NULL: any */
    unsigned programs;
    mx_status (*run)(mx_graph *g, mx_compilation *c);
} mx_compile_pass;

extern const mx_compile_pass *const mx_compile_pass_table[]; /* scanned; ends with NULL */
extern const int mx_compile_pass_count;

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

/* A policy with the tensors it names. */
bool mx_remat_find(const char *name, mx_remat *out);
mx_status mx_pass_remat(mx_graph *g, mx_remat how) MX_MUST_USE;
/* Does the policy keep the result of this matmul for the backward pass? */
bool mx_remat_keeps_gemm(mx_remat how, const mx_node *gemm);

/* What remat has kept and `names` names lies in host memory between the passes, of the first
 * `layers` layers; 0: of all. */
mx_status mx_pass_offload(mx_graph *g, const char *names, int64_t layers) MX_MUST_USE;

/* merge = false: every elementwise node becomes a group of its own (for comparison). */
void mx_pass_fuse(mx_graph *g, bool merge);

#endif
