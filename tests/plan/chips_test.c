/* chips_test.c - the tables of chips and links, topologies, and what is refused of them. */
#include "../test.h"
#include "plan/topology.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const mx_topology_tables tables = {"configs", "", "", "", 1};

MX_TEST(every_chip_and_its_links_are_read)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    MX_CHECK_OK(mx_yaml_read(&a, "configs/chips.yml", &root));
    for (const mx_yaml_node *n = root->first; n; n = n->next) {
        mx_plan_chip c;
        mx_network w;
        MX_CHECK_OK(mx_plan_chip_read(&c, "configs", "", n->key));
        MX_CHECK_OK(mx_network_read(&w, "configs", "", c.network));
        MX_CHECK(c.sustained[MX_RATE_BF16] > 0.3 * c.peak[MX_RATE_BF16], "%s", n->key);
        MX_CHECK(w.level[w.n - 1].bytes_per_second > 0, "%s", n->key);
    }
    mx_arena_fini(&a);
}

MX_TEST(topologies_by_name)
{
    static const struct {
        const char *name, *chip;
        int64_t chips, per_node;
    } good[] = {{"h100x1024", "h100", 1024, 8},  {"h100x4", "h100", 4, 4},
                {"gb200x144", "gb200", 144, 72}, {"v5e-256", "v5e", 256, 256},
                {"v5litepod-16", "v5e", 16, 16}, {"v5p-128", "v5p", 64, 64},
                {"v6e-256", "v6e", 256, 256},    {"a100-40gbx16", "a100-40gb", 16, 8},
                {"mi300x", NULL, 0, 0},          {"mi300xx64", "mi300x", 64, 8}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        mx_topology t;
        mx_status st = mx_topology_open(&t, good[i].name, &tables);
        MX_CHECK(!st == (good[i].chip != NULL), "%s: %s", good[i].name, mx_status_text(st));
        MX_CHECK(st || (strcmp(t.chip.name, good[i].chip) == 0 && t.chips == good[i].chips &&
                        t.per_node == good[i].per_node),
                 "%s: %lld x %s in nodes of %lld", good[i].name, (long long)t.chips, t.chip.name,
                 (long long)t.per_node);
        mx_status_free(st);
    }
}

MX_TEST(topologies_that_are_refused)
{
    mx_topology t;
    MX_CHECK_ERROR(mx_topology_open(&t, "h101x8", &tables), "the nearest are h100");
    MX_CHECK_ERROR(mx_topology_open(&t, "h100", &tables), "expected CHIPxNUMBER");
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x0", &tables), "expected CHIPxNUMBER");
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x-8", &tables), "expected CHIPxNUMBER");
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x99999999999", &tables), "expected CHIPxNUMBER");
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x12", &tables), "not whole nodes of 8");
    MX_CHECK_ERROR(mx_topology_open(&t, "v7x-64", &tables), "expected CHIPxNUMBER");
    MX_CHECK_ERROR(mx_topology_open(&t, "v7x-64", &tables), "no TPU `v7x`; the nearest are v4");
    MX_CHECK_ERROR(mx_topology_open(&t, "v5p-7", &tables), "the nearest is v5p-8");
    MX_CHECK_ERROR(mx_topology_open(&t, "", &tables), "expected CHIPxNUMBER");
    mx_topology_tables w = tables;
    w.network = "nvlink4 x 8, infiband-400";
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x8", &w), "no link `infiband-400`; the nearest are "
                                                       "infiniband-400");
    w.network = "nvlink4, infiniband-400";
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x8", &w), "every level but the last");
    w.network = "nvlink4 x 8, nvlink5 x 4";
    MX_CHECK_ERROR(mx_topology_open(&t, "h100x8", &w), "more chips than the one inside");
}

/* A chip out of a file with this text. */
static mx_status chip_of(const char *text, mx_plan_chip *c)
{
    char path[] = "/tmp/mx-chips-XXXXXX";
    int fd = mkstemp(path);
    MX_CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
    mx_status st = mx_plan_chip_read(c, "configs", path, "mine");
    unlink(path);
    return st;
}

MX_TEST(tables_of_the_users_own)
{
    mx_plan_chip c;
    MX_CHECK_OK(chip_of("mine: {memory_gib: 80, memory_gbs: 3000, tflops: {bfloat16: 900}}\n", &c));
    MX_CHECK(c.sustained[MX_RATE_BF16] == 0.75 * 900e12 && c.memory_bytes == 80 * 0x1p30, "%g",
             c.sustained[MX_RATE_BF16]);
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: 80, tflops: {bfloat16: 900}}\n", &c),
                   ":1: mine: a chip needs memory_gib, memory_gbs and tflops");
    MX_CHECK_ERROR(chip_of("\nmine: {memory_gib: 80, memory_gbs: 0, tflops: {bfloat16: 9}}\n", &c),
                   ":2: memory_gbs: expected a number from 0.1 to 1e+06, found 0");
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: many}\n", &c), "expected a number");
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: 8, memory_gbs: 9, tflops: {bf16: 9}}\n", &c),
                   "no rate for `bf16`");
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: 8, memory_gbs: 9, tflops: {bfloat16: 9}, "
                           "sustained: {bfloat16: 10}}\n",
                           &c),
                   "more than the peak");
    MX_CHECK_ERROR(chip_of("mine: {megabytes: 8}\n", &c), "a chip has no `megabytes`");
    MX_CHECK_ERROR(chip_of("mine: [1, 2]\n", &c), "expected the figures of a chip");
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: 8, memory_gbs: 9, tflops: {bfloat16: 9}, gemm: "
                           "[[1, 2, 3]]}\n",
                           &c),
                   "expected [m, n, k, TFLOP/s]");
    MX_CHECK_ERROR(chip_of("mine: {attention: {length: [2, 1], forward: [1, 1], backward: [1, "
                           "1]}}\n",
                           &c),
                   "lengths must grow");
    MX_CHECK_ERROR(chip_of("mine: {memory_gib: nan}\n", &c), "expected a number");
}

MX_TEST(a_row_like_another_differs_in_what_it_says)
{
#define BASE "base: {memory_gib: 80, memory_gbs: 3000, tflops: {bfloat16: 900}, units: 7}\n"
    mx_plan_chip c;
    MX_CHECK_OK(chip_of("mine: {units: 9, like: base}\n" BASE, &c));
    MX_CHECK(c.units == 9 && c.peak[MX_RATE_BF16] == 900e12, "%g units", c.units);
    MX_CHECK_ERROR(chip_of(BASE "mine: {like: bass}\n", &c),
                   ":2: like: expected the name of another row of this file");
    MX_CHECK_ERROR(chip_of("mine: {like: mine}\n", &c), "itself like none; found mine");
    MX_CHECK_ERROR(chip_of("mine: {like: [1]}\n", &c), ":1: like: expected");
    MX_CHECK_ERROR(chip_of(BASE "other: {like: base}\nmine: {like: other}\n", &c),
                   "itself like none; found other");
    MX_CHECK_ERROR(chip_of("base: {memory_gib: 0}\nmine: {like: base}\n", &c),
                   ":1: memory_gib: expected a number");
}

MX_TEST(links_without_bandwidth_are_refused)
{
    char path[] = "/tmp/mx-links-XXXXXX";
    static const char text[] = "slow: {gbs: 0, share: 1}\n";
    mx_network w;
    int fd = mkstemp(path);
    MX_CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
    MX_CHECK_ERROR(mx_network_read(&w, "configs", path, "slow"), ":1: gbs: expected a number from");
    unlink(path);
}
