/* traffic.h - the collectives of a compiled program: what a rank sends, by op and mesh axes. */
#ifndef MX_PLAN_TRAFFIC_H
#define MX_PLAN_TRAFFIC_H

#include "compile/program.h"
#include "ir/mesh.h"
#include "plan/kernels.h"

enum { MX_TRAFFIC_ROWS = 48 };

typedef struct {
    const char *name; /* of the op */
    mx_axis_set axes;
    double times;           /* per update */
    double sent[MX_LEVELS]; /* bytes, by level of the network */
} mx_traffic_row;

typedef struct {
    mx_traffic_row row[MX_TRAFFIC_ROWS];
    int n;
    double sent[MX_LEVELS];
} mx_traffic_table;

/* Adds those of a program of one rank that runs `times` in an update. */
void mx_traffic_add(mx_traffic_table *t, const mx_program *p, const mx_mesh *m, double times);
/* Messages to the next stage of a pipeline and back. */
void mx_traffic_add_messages(mx_traffic_table *t, const mx_mesh *m, double bytes, double times);
/* Values that are alive when the scratch memory is fullest, and of those results of collectives. */
typedef struct {
    double alive, collectives; /* bytes */
} mx_peak;
mx_peak mx_program_peak(const mx_program *p);
/* Bytes alive at `n` moments, equally far apart in the order of nodes: at each the most around it.
 */
void mx_program_curve(const mx_program *p, double *out, int n);

#endif
