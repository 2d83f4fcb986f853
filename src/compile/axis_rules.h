/* axis_rules.h - from logical names of dims to mesh axes (MaxText's logical_axis_rules).
 *
 * Rules are walked in order. A rule applies to a dim of its name that has nothing yet when none of
 * its axes is used by the tensor; otherwise the whole rule is passed over. Axes of degree 1 are
 * then left out, and so is, inside a dim, an axis that does not divide what is left of it.
 */
#ifndef MX_COMPILE_AXIS_RULES_H
#define MX_COMPILE_AXIS_RULES_H

#include "ir/graph.h"
#include "ir/mesh.h"

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
/* "mlp=fsdp_transpose tensor": a user's rules of a name replace the defaults of that name, the
 * first of them; `more` adds behind those that are there. */
mx_status mx_axis_rules_set(mx_axis_rules *r, const char *text, bool more) MX_MUST_USE;

/* Sequence dims, by their names, get chunks of equal work where they are cut by `context`. */
void mx_axis_rules_zigzag(const char *axes, const mx_mesh *m, const mx_type *t, mx_placement *p);

/* What a dim was not cut by although its rule says so. */
typedef struct {
    int dim;
    mx_axis axis;
    int64_t size; /* that the axis's degree does not divide */
} mx_axis_dropped;
enum { MX_MAX_DROPPED = 8 };

typedef struct {
    mx_axis_dropped dropped[MX_MAX_DROPPED];
    int n_dropped;
} mx_axis_report;

/* The placement of a tensor whose dims have these names, "embed,mlp". A name with a unit,
 * "heads*64", is cut between units only. "vocab" and "activation_vocab" need not divide. False when
 * the names do not fit the type or one occurs twice. */
bool mx_axis_rules_place(const mx_axis_rules *r, const mx_mesh *m, const char *axes,
                         const mx_type *t, mx_placement *out, mx_axis_report *report);

#endif
