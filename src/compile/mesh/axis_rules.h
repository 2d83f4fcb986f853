/* axis_rules.h - from logical names of dims to mesh axes (MaxText's logical_axis_rules).
 *
 * Rules are walked in order. A rule applies to a dim of its name that has nothing yet when none of
 * its axes is used by the tensor; otherwise the whole rule is passed over. Axes of degree 1 are
 * then left out, and so is, inside a dim, an axis that does not divide what is left of it.
 *
 * Names of a tensor's dims are one text, "embed,mlp"; an empty name is a dim that stays whole.
 *     heads*64           cut between units of 64 only (heads that lie in one dim)
 *     heads(128*64+64)   blocks of 128, in units of 64, and of 64: each is cut separately
 *     vocab              and activation_vocab need not divide: the last pieces are rounded up
 */
#ifndef MX_COMPILE_AXIS_RULES_H
#define MX_COMPILE_AXIS_RULES_H

#include "ir/graph.h"
#include "ir/placement.h"

typedef struct {
    char name[48];
    mx_axis_set axes; /* none: the dim stays whole */
} mx_axis_rule;

typedef struct {
    mx_axis_rule *rule;
    int n, cap;
} mx_axis_rules;

/* MaxText's defaults. */
void mx_axis_rules_init(mx_axis_rules *r);
void mx_axis_rules_fini(mx_axis_rules *r);
/* "mlp=fsdp_transpose tensor": the first of a user's rules for a name replaces the defaults of that
 * name; `more` appends to what is there. */
mx_status mx_axis_rules_set(mx_axis_rules *r, const char *text, bool more) MX_MUST_USE;

/* --- placements (logical_axes.c) --- */

/* An axis that a rule gives a dim and the dim does not get. */
typedef struct {
    int dim;
    mx_axis axis;
    int64_t size, pieces; /* what does not divide, by what; 0: the rule was passed over, */
    mx_axis used;         /* because this axis of it is used by */
    int by;               /* another dim */
} mx_axis_loss;
enum { MX_MAX_LOSSES = 8 };

typedef struct {
    mx_axis_loss loss[MX_MAX_LOSSES];
    int n;
} mx_axis_report;

/* The placement of a tensor whose dims have these names. False when the names do not fit the type
 * or one occurs twice. */
bool mx_axis_rules_place(const mx_axis_rules *r, const mx_mesh *m, const char *axes,
                         const mx_type *t, mx_placement *out, mx_axis_report *report);
/* Sequence dims, by their names, get chunks of equal work where they are cut by `context` and no
 * axis outside it, whose ranks would have pieces of chunks. */
void mx_axis_rules_zigzag(const char *axes, const mx_mesh *m, const mx_type *t, mx_placement *p);
/* A line about a tensor's loss: "q_proj.weight: dim 0 (heads) is not cut by tensor=4: ...". */
void mx_axis_loss_print(mx_str *s, const char *tensor, const char *axes, const mx_mesh *m,
                        const mx_axis_loss *loss);

#endif
