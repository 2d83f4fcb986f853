/* quantize.h - which matmuls are quantized, and how: settings of the quantize pass. */
#ifndef MX_COMPILE_QUANTIZE_H
#define MX_COMPILE_QUANTIZE_H

#include "ops/quantize.h"

/* The first rule whose pattern matches a weight's name holds for its matmuls. */
typedef struct {
    const char *pattern;           /* comma-separated shell patterns */
    const mx_quant_recipe *recipe; /* NULL: left as it is */
} mx_quant_rule;

/* What a pass has done, for the user to read. */
typedef struct {
    int n_quantized, n_high; /* matmuls with a layer's weight; those left as they are by a rule */
    char kept[2048];         /* lines: those that a recipe cannot quantize, and why */
} mx_quant_report;

typedef struct {
    const mx_quant_rule *rule;
    int n_rules;
    mx_quant_report *report; /* of the last program; NULL: none */
} mx_quantization;

/* A recipe by its name or one of MaxText's; NULL: there is none. */
const mx_quant_recipe *mx_quant_recipe_find(const char *name);
/* "fp8, fp8_tensorwise, ...": for messages. */
void mx_quant_recipe_list(mx_str *out);
bool mx_quantization_is_delayed(const mx_quantization *q); /* does a rule keep histories? */

/* The weight of a matmul of activations and a weight, "*d,fd->*f" or "*d,df->*f"; NULL: it is none.
 * in_out: the second. */
const mx_node *mx_weight_of_matmul(const mx_node *n, bool *in_out);
/* The weight (h rows, k) that n multiplies by as (h, rows, k), over k: MLA's kv_b_proj. */
const mx_node *mx_weight_by_heads(const mx_node *n);
/* After autodiff: tensors that several matmuls quantize or transpose alike are made once. */
void mx_pass_quantize_share(mx_graph *g);

#endif
