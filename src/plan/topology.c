/* topology.c - see topology.h. */
#include "plan/topology.h"

#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_status malformed(const char *name)
{
    return mx_fail(MX_USAGE,
                   "compile_topology=%s: expected CHIPxNUMBER (h100x1024), or a TPU slice "
                   "(v5e-256, v5p-128, v6e-256), of 1 to %d chips",
                   name, MX_TOPOLOGY_MAX_CHIPS);
}

/* Slices of TPUs, and their numbers: chips, or cores where a chip has two. */
typedef struct {
    const char *slice, *chip;
    int64_t cores;   /* that the number counts, per chip */
    int64_t of, max; /* sizes: multiples, or powers of two (and 1) where 0; the largest */
} tpu;

static const tpu tpus[] = {{"v4", "v4", 2, 8, 8192},
                           {"v5e", "v5e", 1, 0, 256},
                           {"v5litepod", "v5e", 1, 0, 256},
                           {"v5p", "v5p", 2, 8, 17920},
                           {"v6e", "v6e", 1, 0, 256}};
enum { N_TPUS = sizeof tpus / sizeof *tpus };

static bool is_slice(const tpu *t, int64_t n)
{
    bool some = t->of ? n % t->of == 0 : (n & (n - 1)) == 0 && n != 2;
    return n >= 1 && n <= t->max && some;
}

static mx_status no_such_slice(const char *name, const tpu *t, int64_t n)
{
    int64_t near = 0;
    for (int64_t k = 1; k <= t->max; k++)
        if (is_slice(t, k) && (!near || llabs(k - n) < llabs(near - n)))
            near = k;
    if (t->of)
        return mx_fail(MX_USAGE,
                       "compile_topology=%s: slices of %s are named by their cores, a multiple of "
                       "%lld up to %lld; the nearest is %s-%lld",
                       name, t->slice, (long long)t->of, (long long)t->max, t->slice,
                       (long long)near);
    return mx_fail(MX_USAGE,
                   "compile_topology=%s: slices of %s have 1, 4, 8, 16, 32, 64, 128 or %lld chips; "
                   "the nearest is %s-%lld (compile_topology_num_slices takes several)",
                   name, t->slice, (long long)t->max, t->slice, (long long)near);
}

/* NAME-NUMBER, where NAME is no chip with a dash. */
static mx_status find_slice(const char *name, char *chip, size_t cap, int64_t *chips)
{
    const char *names[N_TPUS];
    for (int i = 0; i < N_TPUS; i++) {
        names[i] = tpus[i].slice;
        if (strcmp(tpus[i].slice, chip) != 0)
            continue;
        if (!is_slice(&tpus[i], *chips))
            return no_such_slice(name, &tpus[i], *chips);
        snprintf(chip, cap, "%s", tpus[i].chip);
        *chips /= tpus[i].cores;
        return MX_OK;
    }
    return mx_status_wrap(mx_nearest_names("TPU", chip, names, N_TPUS),
                          "compile_topology=%s: expected CHIPxNUMBER (h100x1024) or a TPU slice",
                          name);
}

/* "h100x1024", "v5p-128" into the chip's name and a number of chips. */
static mx_status split_name(const char *name, char *chip, size_t cap, int64_t *chips)
{
    const char *x = strrchr(name, 'x'), *dash = strrchr(name, '-');
    const char *at = x && x[1] >= '0' && x[1] <= '9' && (!dash || x > dash) ? x : dash;
    if (!at || at == name || (size_t)(at - name) >= cap || !mx_parse_i64(at + 1, chips))
        return malformed(name);
    snprintf(chip, cap, "%.*s", (int)(at - name), name);
    if (*at == '-')
        return find_slice(name, chip, cap, chips);
    return *chips < 1 || *chips > MX_TOPOLOGY_MAX_CHIPS ? malformed(name) : MX_OK;
}

/* The links: as asked for, or as the chip's row has them. */
static mx_status open_network(mx_topology *t, const char *name, const mx_topology_tables *from)
{
    bool asked = *from->network || !*t->chip.network_at;
    const char *text = *from->network ? from->network : t->chip.network;
    MX_TRY(mx_status_wrap(mx_network_read(&t->network, from->home, from->network_file, text), "%s",
                          asked ? "network" : t->chip.network_at));
    const mx_level *last = &t->network.level[t->network.n - 1];
    if (last->chips && last->chips < t->chips)
        return mx_fail(MX_USAGE,
                       "compile_topology=%s: network=%s joins %lld chips, and there are %lld; add "
                       "the links between nodes (network=\"%s, infiniband-400\")",
                       name, text, (long long)last->chips, (long long)t->chips, text);
    return MX_OK;
}

/* Names the machines next to it, and nodes of another size that it would be. */
static mx_status not_whole_nodes(const mx_topology *t, const char *name)
{
    int64_t less = t->chips / t->per_node * t->per_node, node = t->per_node;
    while (t->chips % node)
        node--;
    return mx_fail(MX_USAGE,
                   "compile_topology=%s: %lld chips are not whole nodes of %lld (%s): expected "
                   "%lld or %lld chips, or the size of your nodes, network=\"%s x %lld, %s\"",
                   name, (long long)t->chips, (long long)t->per_node, t->network.level[0].name,
                   (long long)less, (long long)(less + t->per_node), t->network.level[0].name,
                   (long long)node, t->network.level[t->network.n - 1].name);
}

mx_status mx_topology_open(mx_topology *t, const char *name, const mx_topology_tables *from)
{
    char chip[32];
    *t = (mx_topology){0};
    MX_TRY(split_name(name, chip, sizeof chip, &t->chips));
    MX_TRY(mx_status_wrap(mx_plan_chip_read(&t->chip, from->home, from->chip_file, chip),
                          "compile_topology=%s", name));
    t->chips *= from->slices > 1 ? from->slices : 1;
    if (t->chips > MX_TOPOLOGY_MAX_CHIPS)
        return malformed(name);
    MX_TRY(open_network(t, name, from));
    int64_t inner = t->network.n > 1 ? t->network.level[0].chips : t->chips;
    inner = from->slices > 1 && t->chips / from->slices < inner ? t->chips / from->slices : inner;
    t->per_node = inner < t->chips ? inner : t->chips;
    return t->chips % t->per_node ? not_whole_nodes(t, name) : MX_OK;
}
