/* lora_experts.h - adapters on the weights of experts: lora_experts.c has the two forms. */
#ifndef MX_COMPILE_LORA_EXPERTS_H
#define MX_COMPILE_LORA_EXPERTS_H

#include "ir/graph.h"

/* Where a weight of experts lies in the parameter that transformers 5 has for it. */
typedef struct {
    char module[512]; /* X.experts.gate_up_proj or X.experts.down_proj */
    int64_t experts, in, out;
    int64_t rows, from; /* of each expert's matrix there, and the first of this weight's */
} mx_expert_stack;

/* false: the weight is no experts'. */
bool mx_expert_stack_of(const char *name, const mx_type *type, bool in_out, mx_expert_stack *out);

/* y, a grouped_matmul of such a weight, again with the adapter's part added. */
mx_node *mx_lora_beside_experts(mx_graph *g, mx_node *y, mx_node *a, mx_node *b,
                                const mx_expert_stack *s, double scale);

#endif
