/* topology.h - the machine that a plan is for, by name.
 *
 *     h100x1024   this many of a chip of configs/chips.yml
 *     v5p-128     a TPU slice as Cloud and MaxText call it: v5e and v6e count chips, v4 and v5p
 *                 cores, of which a chip has two
 */
#ifndef MX_PLAN_TOPOLOGY_H
#define MX_PLAN_TOPOLOGY_H

#include "plan/chips.h"

enum { MX_TOPOLOGY_MAX_CHIPS = 1 << 20 };

typedef struct {
    mx_plan_chip chip;
    mx_network network;
    int64_t chips;    /* of all slices */
    int64_t per_node; /* that share the innermost links */
} mx_topology;

/* Where the tables are, and files that come before them; "" for none. */
typedef struct {
    const char *home, *chip_file, *network_file, *network;
    int64_t slices; /* of that name; 1 for one */
} mx_topology_tables;

mx_status mx_topology_open(mx_topology *t, const char *name,
                           const mx_topology_tables *from) MX_MUST_USE;

#endif
