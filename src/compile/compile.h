/* compile.h - the passes in order: a built graph to a program with an address for every byte. */
#ifndef MX_COMPILE_COMPILE_H
#define MX_COMPILE_COMPILE_H

#include "compile/device_traits.h"
#include "compile/optimizer.h"
#include "compile/passes.h"
#include "compile/program.h"
#include "compile/quantize.h"
#include "compile/quantize_weights.h"

typedef struct mx_compile_options {
    const mx_device_traits *device; /* borrows; NULL: host memory, and nothing special */
    int n_threads;
    mx_dtype compute;          /* dtype of activations */
    mx_remat remat;            /* policy NULL: none */
    bool weights_fixed;        /* no update will come: weights are stored in the compute dtype */
    bool narrow_weights;       /* in the compute dtype, stochastic rounding, no master copy */
    bool narrow_frozen;        /* weights that are not trained are stored in the compute dtype */
    bool narrow_grads;         /* weight gradients in the compute dtype */
    bool reads_copies;         /* weights are read from the copies that a training step writes */
    mx_weight_quant quant;     /* with weights_fixed: quantized matrices */
    const struct mx_frozen_quant *frozen_quant; /* QLoRA (quantize_frozen.h); NULL: none */
    const mx_quantization *quantization; /* of matmuls; NULL: none. Borrows */
    int64_t mlp_tiles;         /* pieces of dense MLPs (tile_mlp.c); 0, 1: whole */
    int64_t offload_layers;    /* that have tensors in host memory, the first ones; 0: all */
    bool no_fuse;              /* every elementwise op alone, for comparison */
    const struct mx_partition *partition; /* for one rank of a mesh; NULL: one device */
    bool sum_late;             /* gradients are summed over ranks once an update, not each time they
                                  are added up; the update must then know `sums` */
    const mx_graph *sums;      /* of an update: the graph that adds up gradients; NULL: sum_late is
                                  not asked of it */
    const struct mx_stages *stages; /* chunks of a pipeline (stages.h); NULL: none */
    const char *dump_ir;       /* print the graph after this pass; "all": after each; NULL: none */
    const char *dump_prefix;   /* files PREFIX.PASS.txt and .dot; NULL: text to standard error */
} mx_compile_options;

/* Is the graph printed after this pass? */
bool mx_compile_dumps(const mx_compile_options *o, const char *pass);

/* Forward graph -> program. */
mx_status mx_compile_forward(mx_graph *g, const mx_compile_options *o, mx_program *out) MX_MUST_USE;

/* Forward graph with a scalar loss -> program that computes it and its gradients. */
mx_status mx_compile_training(mx_graph *g, mx_node *loss, mx_grads_use use, const mx_optimizer *opt,
                              const mx_compile_options *o, mx_program *out) MX_MUST_USE;
/* The same as far as a joint graph that mx_stage_cut takes; o->stages are its chunks. */
mx_status mx_compile_joint(mx_graph *g, mx_node *loss, mx_grads_use use,
                           const mx_compile_options *o) MX_MUST_USE;
/* The same of a graph without a loss to be differentiated. */
mx_status mx_compile_joint_forward(mx_graph *g, const mx_compile_options *o) MX_MUST_USE;
/* The programs of one chunk of it. */
struct mx_stage_chunk;
mx_status mx_compile_chunk(const mx_graph *joint, int k, const mx_compile_options *o,
                           struct mx_stage_chunk *out) MX_MUST_USE;
/* The update by accumulated gradients: a program of its own, for the weights of `model`, which has
 * been through the precision pass. */
mx_status mx_compile_apply(mx_graph *g, const mx_graph *model, const mx_optimizer *opt,
                           const mx_compile_options *o, mx_program *out) MX_MUST_USE;

/* Trainable weights of a graph, in the order of declaration, in the graph's arena. */
mx_node **mx_trainable(mx_graph *g, int *n);

#endif
