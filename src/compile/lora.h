/* lora.h - low-rank adapters beside frozen weights (LoRA, rsLoRA, DoRA).
 *
 *     y = W x + s B (A x)      A (r, in)  B (out, r)  s = alpha / r, rsLoRA: alpha / sqrt(r)
 *     DoRA: y (m / |W + s B A|), row by row; m (out) is trained, the rows' lengths are constants in
 *     the backward pass
 *
 * A new A is uniform in +-1/sqrt(in), a new B zero: training begins with the model as it is.
 * Variables are called as PEFT's files call their tensors.
 */
#ifndef MX_COMPILE_LORA_H
#define MX_COMPILE_LORA_H

#include "ir/graph.h"

#define MX_LORA_PREFIX "base_model.model."

/* Rank and alpha of the modules of a pattern; 0: those of the whole. */
typedef struct {
    const char *module;
    int64_t rank;
    double alpha;
} mx_lora_rule;

typedef struct mx_lora {
    /* Comma-separated: last parts of names (q_proj), or patterns of whole names (with `*`).
     * "": every matrix of the layers but embeddings, heads and routers. Not with `only`. */
    const char *targets;
    int64_t rank;
    double alpha;
    bool rslora, dora;
    double dropout;    /* of what A reads, in training */
    const char *save;  /* modules that are trained whole, by the same rules; "": none */
    const mx_lora_rule *rules; /* the first that matches counts */
    int n_rules;
    const mx_lora_rule *only; /* exactly these modules: of an adapter's file */
    int n_only;
} mx_lora;

/* Adds adapters to a graph whose loss or logits are built, and freezes everything but them and
 * what `save` names. With `training` there is dropout: the input dropout_seed, one int64. An error
 * when nothing matches. */
void mx_pass_lora(mx_graph *g, const mx_lora *l, bool training);

/* Is this module named by a list such as `targets`? */
bool mx_lora_names(const char *list, const char *module);
/* The scale of a module's B A. */
double mx_lora_scale(const mx_lora *l, const char *module);

#endif
