/* bench.c - maxc bench NAME: the measurements behind docs/performance.md that the program can make
 * by itself. Without a name, what there is. */
#include "cmd/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mx_bench_print(const mx_invocation *inv, const char *name, double value, const char *unit)
{
    if (strcmp(mx_config_text(inv->config, "format"), "json") == 0)
        printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    else
        printf("%-44s %12.4g %s\n", name, value, unit);
    fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double mx_bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static mx_status run(mx_invocation *inv)
{
    if (inv->n_args == 0) {
        for (int i = 0; i < mx_bench_count; i++)
            printf("%-12s %s\n", mx_bench_table[i]->name, mx_bench_table[i]->doc);
        return MX_OK;
    }
    for (int i = 0; i < mx_bench_count; i++)
        if (strcmp(mx_bench_table[i]->name, inv->args[0]) == 0)
            return mx_bench_table[i]->run(inv);
    return mx_fail(MX_USAGE, "there is no measurement \"%s\"; `maxc bench` lists them",
                   inv->args[0]);
}

static const mx_key keys[] = {
    {"megabytes", MX_KEY_INT, 0, "64", "1..100000", "size of generated data",
     .example = "megabytes=1", .seen_by = "tests/cli/keys.sh"},
    {"format", MX_KEY_ENUM, 0, "text", "text|json", "how to print", .example = "format=json",
     .seen_by = "tests/cli/keys.sh"},
    {0},
};

const mx_verb mx_verb_bench = {
    .name = "bench",
    .doc = "the measurements behind docs/performance.md",
    .usage = "[NAME] [key=value ...]",
    .max_args = 1,
    .like = "train",
    .keys = keys,
    .run = run,
};
