/* group_plan.h - how the CPU evaluates a fused group: what a tile is, where values lie in scratch
 * memory and in which order things happen. Between group_plan.c, which decides, and group_run.c,
 * which does it. */
#ifndef MX_OPS_GROUP_PLAN_H
#define MX_OPS_GROUP_PLAN_H

#include "ops/group.h"

enum {
    MX_GROUP_TILE = 1024, /* elements of a tile, about */
    MX_GROUP_BLOCK = 64,  /* rows that a column sum adds up before it goes on with the next ones */
    MX_GROUP_VALUES = MX_MAX_IN + MX_GROUP_STEPS,
    MX_GROUP_NO_SLOT = -1,
    MX_GROUP_SPARE = 4 /* pieces of scratch for operands of a step that are spread */
};

/* How a value lies over the space. */
typedef struct {
    const mx_tensor *tensor;     /* NULL: scratch */
    int64_t stride[MX_MAX_DIMS]; /* of the leading dims, in elements */
    bool narrow;                 /* one number per row */
    bool even;                   /* row r + 1 begins where row r ends */
    int64_t repeat;              /* rows in succession that are the same one */
    bool direct;                 /* used where it lies */
    int slot;                    /* its piece of scratch */
} mx_group_view;

/* The work of a tile, in order. */
typedef struct {
    enum { MX_GROUP_ASK, MX_GROUP_LOAD, MX_GROUP_STEP, MX_GROUP_SUM, MX_GROUP_STORE } kind;
    int value; /* of a step its result */
} mx_group_act;

typedef struct {
    const mx_group *g;
    int64_t rows, cols; /* of a flat space: pieces of MX_GROUP_TILE elements */
    int64_t total;      /* elements */
    int64_t tile_rows, tile_cols;
    bool flat, wide_type; /* wide_type: double arithmetic */
    size_t item;          /* bytes of the arithmetic type */
    mx_group_view v[MX_GROUP_VALUES];
    mx_group_act act[3 * MX_GROUP_VALUES];
    int n_acts, n_slots;
    int sibling[MX_GROUP_STEPS]; /* the later step that step s makes as well; 0: none */
} mx_group_plan;

/* Everything but the tensors. */
void mx_group_plan_make(mx_group_plan *p, const mx_group *g);

size_t mx_group_slot_bytes(const mx_group_plan *p);   /* a piece of scratch */
size_t mx_group_narrow_bytes(const mx_group_plan *p); /* a value of one number per row */
size_t mx_group_row_bytes(const mx_group_plan *p);
size_t mx_group_thread_bytes(const mx_group_plan *p);
size_t mx_group_sum_bytes(const mx_group_plan *p); /* partial sums of all column sums */

#endif
