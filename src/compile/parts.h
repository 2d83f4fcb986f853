/* parts.h - which values lie inside others, and which splits and concats are therefore free. */
#ifndef MX_COMPILE_PARTS_H
#define MX_COMPILE_PARTS_H

#include "compile/program.h"

/* Runs of `run` elements, `pitch` apart, from element `at` of the output of node `of`. */
typedef struct {
    mx_node *of; /* NULL: no part */
    int64_t at, run, pitch;
} mx_part;

typedef struct {
    mx_part *inside;      /* of output k of node i: [i * MX_MAX_OUT + k]: inputs of a concat */
    bool *copies_nothing; /* by node id */
    mx_node **over;       /* by node id: the input in whose place a group leaves its first output */
} mx_parts;

/* Fills the tables, which are zero. */
void mx_parts_find(mx_parts *parts, const mx_program *p, mx_arena *scratch);

#endif
