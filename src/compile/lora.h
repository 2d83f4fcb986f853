/* lora.h - low-rank adapters beside frozen weights (LoRA, rsLoRA, DoRA).
 *
 *     y = W x + s B (A x)      A (r, in)  B (out, r)  s = alpha / r, rsLoRA: alpha / sqrt(r)
 *     DoRA: y (m / |W + s B A|), row by row; m (out) is trained, the rows' lengths are constants in
 *     the backward pass
 *
 *     an embedding: y = W[x] + s A^T[x] B^T      A (r, vocab)  B (dim, r)
 *
 *     experts: an A and a B each (lora_experts.c)
 *
 * A new A is uniform in +-1/sqrt(in), a new B zero: training begins with the model as it is. For an
 * embedding A is zero and B normal.
 * Variables have the names of the tensors in PEFT's files.
 */
#ifndef MX_COMPILE_LORA_H
#define MX_COMPILE_LORA_H

#include "ir/graph.h"

#define MX_LORA_PREFIX "base_model.model."

/* Rank and alpha of the modules that a pattern matches; 0: as for all others. */
typedef struct {
    const char *module;
    int64_t rank; /* of stacked experts, the sum of theirs */
    double alpha;
} mx_lora_rule;

typedef struct mx_lora {
    /* Comma-separated: last parts of names (q_proj), or patterns of whole names (with `*`).
     * "": every matrix of the layers but embeddings, heads and routers. Not with `only`. */
    const char *targets;
    const char *parameters; /* stacks of experts (target_parameters), likewise; NULL: none */
    int64_t rank;
    double alpha;
    bool rslora, dora;
    double dropout;    /* of what A reads, in training */
    const char *save;  /* modules that are trained whole, by the same rules; "": none */
    const mx_lora_rule *rules; /* the first that matches counts */
    int n_rules;
    int64_t slots; /* slots among which each row chooses an adapter (lora_slots.c); 0: one
                    * adapter */
    const mx_lora_rule *only; /* exactly these modules: of an adapter's file */
    int n_only;
} mx_lora;

/* Adds adapters to a graph whose loss or logits are built, and freezes everything but them and
 * what `save` names. With `training` there is dropout: the input dropout_seed, one int64. An error
 * when nothing matches. */
void mx_pass_lora(mx_graph *g, const mx_lora *l, bool training);

/* Places for `slots` adapters of a rank up to `rank` beside a model that serves (lora_slots.c): the
 * variables MODULE + MX_LORA_SLOTS_A and _B, and the input MX_LORA_MASK (B, S, slots rank). */
#define MX_LORA_SLOTS_A ".adapters_A"
#define MX_LORA_SLOTS_B ".adapters_B"
#define MX_LORA_MASK "adapter_mask"
void mx_pass_lora_slots(mx_graph *g, int64_t slots, int64_t rank);

/* Embeddings, heads and routers are no linear layers to an adapter; a module's or weight's name. */
bool mx_lora_is_linear(const char *name);
/* Is this module named by a list such as `targets`? */
bool mx_lora_names(const char *list, const char *module);
/* By modules_to_save: names end so, whatever stands before it, as PEFT has it ("norm" is every
 * layer's input_layernorm too). */
bool mx_lora_saves(const char *list, const char *module);
/* The name of a module in transformers 5, and so in PEFT: Mixtral's router is mlp.gate. */
const char *mx_lora_peft_name(const char *name, char *buf, size_t cap);
/* The scale of a module's B A; `experts`: how many a stacked parameter is of, else 0. */
double mx_lora_scale(const mx_lora *l, const char *module, int64_t experts);

#endif
