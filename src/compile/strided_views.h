/* strided_views.h - which values lie inside others, and which splits and concats are therefore
 * free. */
#ifndef MX_COMPILE_STRIDED_VIEWS_H
#define MX_COMPILE_STRIDED_VIEWS_H

#include "compile/program.h"

/* Runs of `run` elements, `pitch` apart, from element `at` of the output of node `of`. */
typedef struct {
    mx_node *of; /* NULL: memory of its own */
    int64_t at, run, pitch;
} mx_strided_view;

typedef struct {
    mx_strided_view *inside; /* of output k of node i: [i * MX_MAX_OUT + k]: inputs of a concat */
    bool *copies_nothing;    /* by node id */
    mx_node **over; /* by node id: the input in whose place a group leaves its first output */
} mx_strided_views;

/* Fills the tables, which are zero. */
void mx_strided_views_find(mx_strided_views *views, const mx_program *p);

#endif
