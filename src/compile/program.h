/* program.h - a compiled graph: nodes in order, and an address for every byte.
 *
 * A storage is memory that one or more values live in. Views, projections and updates in place
 * share the storage of what they refer to. Variables have storage of their own that outlives the
 * program (the session's); everything else lies in one buffer, the program's scratch memory, at
 * offsets chosen so that values alive at the same time do not overlap. Inputs and constants lie in
 * front, the rest is free between two runs. What waits in host memory for the backward pass
 * (offload.c) lies in a second such buffer there. The workspace of kernels is used by one node at a
 * time, so the programs of a session share one.
 */
#ifndef MX_COMPILE_PROGRAM_H
#define MX_COMPILE_PROGRAM_H

#include "compile/device_traits.h"
#include "ir/source.h"

typedef struct {
    mx_node *root; /* the node that owns the storage */
    int out;       /* which of its outputs */
    int64_t offset; /* into the scratch memory; -1: a variable, see the session */
    bool hosted;    /* into the host's instead */
    bool kept;      /* into the slot that the program runs on (mx_kept) */
    int64_t at, run, pitch; /* a strided view of it, in elements; all 0: the whole */
    int first, last; /* of the owner's own place: where in the order the storage begins and ends */
} mx_place;

/* Where the bytes go, for reports: the plan before step 0 and `maxc plan`. */
typedef struct {
    double variables[MX_VAR_KIND_COUNT];
    double on_host; /* of the variables, what is kept in host memory */
    double inputs, activations, workspace; /* activations: high-water mark of everything alive;
                                              workspace: with that of the device's GEMMs */
    double offloaded; /* of activations in host memory, beside those */
    double flops;                          /* of one run, recomputation not counted */
} mx_plan_bytes;

typedef struct {
    mx_graph *graph; /* borrows */
    mx_arena arena;
    mx_node **order;
    int n;
    mx_place *place; /* of output k of node i: [i * MX_MAX_OUT + k] */
    bool *updates; /* by node id: a variable that a node of the program writes */
    bool *copies_nothing; /* by node id: a split or concat of strided views */
    size_t value_bytes;   /* the buffer */
    size_t given_bytes;     /* of that, inputs and constants, in front */
    size_t work_bytes; /* the largest workspace of a launch, on the device it was compiled for */
    size_t host_work_bytes; /* the same on the CPU */
    size_t beside_at; /* in the device's, where that of collectives beside others begins */
    size_t scratch_bytes;   /* the buffer and the workspace */
    size_t host_bytes; /* a second buffer, in host memory (ops with `hosted` outputs) */
    mx_plan_bytes bytes;
    int64_t align; /* of every value, in bytes */
    int linger;    /* nodes after its last reader for which a small value keeps its memory */
    int n_threads;
} mx_program;

/* A value that other programs write or read as well: it lies in memory that they share, a slot,
 * which is given when the program is added to a session. */
typedef struct {
    mx_node *input; /* an input, or NULL: */
    int root;       /* a root, by its number in the graph; it has memory of its own */
    int64_t at;     /* bytes into the slot */
} mx_kept;
typedef struct {
    const mx_kept *v;
    int n;
} mx_kept_list;

/* Orders and places, for this device. The graph must not change afterwards. */
mx_status mx_program_init(mx_program *p, mx_graph *g, int n_threads,
                          const mx_device_traits *device) MX_MUST_USE;
/* The same with values in a slot. */
mx_status mx_program_init_kept(mx_program *p, mx_graph *g, int n_threads,
                               const mx_device_traits *device, mx_kept_list kept) MX_MUST_USE;
/* The two ends of that, for one whose order and places are known (program_file.h): room for
 * places; what follows from places and the sizes of the buffers. */
void mx_program_begin(mx_program *p, mx_graph *g, int n_threads, const mx_device_traits *device);
void mx_program_count(mx_program *p, const mx_device_traits *device);
/* Has a kernel to run: not a source, a view, or a split or concat in place. */
bool mx_program_runs(const mx_program *p, const mx_node *n);
void mx_program_fini(mx_program *p);

const mx_place *mx_program_place(const mx_program *p, const mx_node *n, int k);
/* A named root or input of the program, or NULL. */
mx_node *mx_program_find(const mx_program *p, const char *name);

#endif
