/* bench.c - maxc bench NAME: the measurements behind docs/performance.md that the program can make
 * by itself. Without a name, what there is. */
#include "cmd/bench.h"
#include "exec/mesh_config.h"

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
    for (int i = 0; i < mx_bench_count; i++) {
        const mx_bench *b = mx_bench_table[i];
        if (strcmp(b->name, inv->args[0]) != 0)
            continue;
        if (!b->meshes)
            MX_TRY(mx_mesh_refuse(inv->config, "this measurement is of"));
        return b->run(inv);
    }
    return mx_fail(MX_USAGE, "there is no measurement \"%s\"; `maxc bench` lists them",
                   inv->args[0]);
}

static const mx_key keys[] = {
    {"megabytes", MX_KEY_INT, 0, "64", "1..100000", "size of generated data",
     .example = "megabytes=1", .seen_by = "tests/cli/keys.sh"},
    {"table", MX_KEY_STRING, 0, "bench/layouts.csv", 0, "plan: the published runs",
     .flags = MX_KEY_PATH, .example = "table=bench/own_rows.csv",
     .seen_by = "tests/cli/plan_mesh.sh"},
    {"models", MX_KEY_STRING, 0, "bench/layout_models.yml", 0,
     "plan: models of the table that configs/models lacks", .flags = MX_KEY_PATH,
     .example = "models=mine.yml",
     .seen_by = "tests/cli/plan_mesh.sh"},
    {"systems", MX_KEY_STRING, 0, "bench/layout_systems.yml", 0,
     "plan: what is known of the systems that published them", .flags = MX_KEY_PATH,
     .example = "systems=mine.yml",
     .seen_by = "tests/cli/plan_mesh.sh"},
    {"output", MX_KEY_STRING, 0, "", 0, "calibrate: the file to write",
     .flags = MX_KEY_PATH, .example = "output=mine.yml", .seen_by = "tests/cli/plan_mesh.sh"},
    {"name", MX_KEY_STRING, 0, "mine", 0, "calibrate: what the chip is called there",
     .example = "name=laptop", .seen_by = "tests/cli/plan_mesh.sh"},
    {"seconds", MX_KEY_FLOAT, 0, "0.3", ">0", "calibrate: of each measurement",
     .example = "seconds=1", .seen_by = "tests/cli/plan_mesh.sh"},
    {"chip_file", MX_KEY_STRING, 0, "", 0, "plan: chips of the user's own, over configs/chips.yml",
     .flags = MX_KEY_PATH, .example = "chip_file=mine.yml", .seen_by = "tests/cli/plan_mesh.sh"},
    {"network_file", MX_KEY_STRING, 0, "", 0, "plan: links likewise, over configs/networks.yml",
     .flags = MX_KEY_PATH, .example = "network_file=mine.yml", .seen_by = "tests/cli/plan_mesh.sh"},
#define SEEN .seen_by = "tests/cli/serve.sh"
    {"requests", MX_KEY_INT, 0, "64", "1..1000000", "serve: how many", .example = "requests=8",
     SEEN},
    {"concurrency", MX_KEY_INT, 0, "32", "1..4096", "serve: at a time",
     .example = "concurrency=4", SEEN},
    {"input_tokens", MX_KEY_INT, 0, "128", "1..1000000", "serve: of a prompt",
     .example = "input_tokens=20", SEEN},
    {"output_tokens", MX_KEY_INT, 0, "128", "1..1000000", "serve: of an answer",
     .example = "output_tokens=10", SEEN},
    {"request_rate", MX_KEY_FLOAT, 0, "0", "0..", "serve: requests a second, at random; 0: all at "
     "once", .example = "request_rate=100", SEEN},
    {"lengths", MX_KEY_ENUM, 0, "fixed", "fixed|sharegpt", "serve: of prompts and answers",
     .example = "lengths=sharegpt", SEEN},
#undef SEEN
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
