/* rules.h - the rules there are. A device lists those it has kernels for (device_traits.h). */
#ifndef MX_COMPILE_RULES_H
#define MX_COMPILE_RULES_H

#include "compile/rewrite.h"

/* Before autodiff, whose gradients follow from what they make. */
extern const mx_rule mx_rule_merge_qkv;        /* merge.c */
extern const mx_rule mx_rule_bias;             /* epilogues.c, like those below */
extern const mx_rule mx_rule_bias_before_gelu; /* for devices that have mx_rule_gelu */

/* After remat, when it is known what the backward pass reads. */
extern const mx_rule mx_rule_gelu;
extern const mx_rule mx_rule_gelu_grad; /* after mx_rule_gelu */
extern const mx_rule mx_rule_swiglu;
extern const mx_rule mx_rule_swiglu_grad; /* after mx_rule_swiglu */
extern const mx_rule mx_rule_expert_sums, mx_rule_expert_bias_sums; /* expert_sums.c */

#endif
