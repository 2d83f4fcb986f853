/* kernels.h - how long one kernel or collective takes, from a chip's figures and its curves. */
#ifndef MX_PLAN_KERNELS_H
#define MX_PLAN_KERNELS_H

#include "plan/chips.h"

/* `groups` GEMMs of one size in one kernel, each (m, k) x (k, n), in operands of `bytes` each.
 *
 * The sustained rate, less what is lost at the edges: prologue and epilogue of the loop over k, and
 * the last wave of tiles of 128 x 256, which fills half of the idle SMs on average
 * since libraries choose among tiles. Never faster than its operands come from memory. Where the
 * chip has measured points, of one GEMM or of groups, their ratio to this formula, weighted by
 * nearness in the logarithms of m, n, k and groups, corrects it. */
typedef struct {
    double m, n, k, groups;
    mx_rate rate;
} mx_plan_gemm;
double mx_gemm_seconds(const mx_plan_chip *c, const mx_plan_gemm *g);
/* Of that, where operands are int8, what follows the GEMM: int32 sums are read and scaled. */
double mx_int8_sums_seconds(const mx_plan_chip *c, double results);

/* Attention of one pass over `flops`, at sequences of `length`. backward: its own rate, which
 * counts 2.5 times the forward pass's FLOPs. By head size: between the curves of 64, 128 and 256.
 */
double mx_attention_seconds(const mx_plan_chip *c, double flops, double length, double head_dim,
                            bool backward);

/* One pass of the delta rule and the like; backward counts 2.5 times the forward pass's FLOPs. */
double mx_recurrence_seconds(const mx_plan_chip *c, double flops, double bytes, bool backward);

/* What a kernel with so many thread instructions a number takes beside moving `bytes`. */
double mx_issue_seconds(const mx_plan_chip *c, double numbers, double instructions, double bytes);
/* The same of rounding with random bits, a hash for each. */
double mx_random_seconds(const mx_plan_chip *c, double numbers, double bytes);

/* Kernels that together stream `bytes`. */
double mx_stream_seconds(const mx_plan_chip *c, double bytes, double kernels);

/* A group of `size` ranks, of which `inside` at a time share the innermost links. */
typedef struct {
    double size, inside;
} mx_group_span;

typedef enum { MX_ALL_GATHER, MX_REDUCE_SCATTER, MX_ALL_REDUCE, MX_ALL_TO_ALL, MX_SEND } mx_traffic;
enum { MX_TRAFFICS = MX_SEND + 1 };

/* Bytes that one rank sends at each level of the network. `bytes`: of the whole tensor for gathers
 * and reductions, of what a rank has for all_to_all and send. */
void mx_traffic_bytes(mx_traffic kind, double bytes, mx_group_span s, double out[MX_LEVELS]);
/* Both levels work at once: the slower one, and the steps of a ring through it. */
double mx_traffic_seconds(const mx_network *w, mx_traffic kind, double bytes, mx_group_span s);

#endif
