/* bench.h - a measurement of `maxc bench`: one const struct in src/cmd, found by tools/scan. */
#ifndef MX_CMD_BENCH_H
#define MX_CMD_BENCH_H

#include "cmd/verb.h"

typedef struct {
    const char *name, *doc;
    mx_status (*run)(mx_invocation *inv);
    bool meshes; /* it takes mesh= */
} mx_bench;
extern const mx_bench *const mx_bench_table[]; /* ends in NULL */
extern const int mx_bench_count;

/* One figure: "name: value unit", or one JSON object a line with format=json. */
void mx_bench_print(const mx_invocation *inv, const char *name, double value, const char *unit);
/* Sorts them. */
double mx_bench_median(double *v, int n);

#endif
