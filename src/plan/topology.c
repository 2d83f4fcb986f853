/* topology.c - see topology.h. */
#include "plan/topology.h"

#include "base/str.h"
#include <stdio.h>
#include <string.h>

static mx_status malformed(const char *name)
{
    return mx_fail(MX_USAGE,
                   "compile_topology=%s: expected CHIPxNUMBER (h100x1024), or a TPU slice "
                   "(v5e-256, v5p-128, v6e-256), of 1 to %d chips",
                   name, MX_TOPOLOGY_MAX_CHIPS);
}

/* "h100x1024", "v5p-128" into the chip's name and a number of chips. */
static mx_status split_name(const char *name, char *chip, size_t cap, int64_t *chips)
{
    static const struct {
        const char *slice, *chip;
        int64_t cores; /* that the number counts, per chip */
    } slices[] = {{"v4", "v4", 2},
                  {"v5e", "v5e", 1},
                  {"v5litepod", "v5e", 1},
                  {"v5p", "v5p", 2},
                  {"v6e", "v6e", 1}};
    const char *x = strrchr(name, 'x'), *dash = strrchr(name, '-');
    const char *at = x && x[1] >= '0' && x[1] <= '9' && (!dash || x > dash) ? x : dash;
    if (!at || at == name || (size_t)(at - name) >= cap || !mx_parse_i64(at + 1, chips))
        return malformed(name);
    snprintf(chip, cap, "%.*s", (int)(at - name), name);
    bool tpu = false;
    int64_t cores = 1;
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++)
        if (*at == '-' && strcmp(slices[i].slice, chip) == 0) {
            snprintf(chip, cap, "%s", slices[i].chip);
            cores = slices[i].cores;
            tpu = true;
            break;
        }
    if (*at == '-' && !tpu)
        return malformed(name);
    if (*chips < cores || *chips % cores || *chips / cores > MX_TOPOLOGY_MAX_CHIPS)
        return malformed(name);
    *chips /= cores;
    return MX_OK;
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
    MX_TRY(mx_network_read(&t->network, from->home, from->network_file,
                           *from->network ? from->network : t->chip.network));
    int64_t inner = t->network.n > 1 ? t->network.level[0].chips : t->chips;
    inner = from->slices > 1 && t->chips / from->slices < inner ? t->chips / from->slices : inner;
    t->per_node = inner < t->chips ? inner : t->chips;
    if (t->chips % t->per_node)
        return mx_fail(MX_USAGE, "compile_topology=%s: %lld chips are not whole nodes of %lld (%s)",
                       name, (long long)t->chips, (long long)t->per_node, t->network.level[0].name);
    return MX_OK;
}
