/* config_entry.h - what config.c and config_load.c share: the inside of an mx_config. */
#ifndef MX_BASE_CONFIG_ENTRY_H
#define MX_BASE_CONFIG_ENTRY_H

#include "base/config.h"

/* The sources, lowest first. base_config files and the user's file are one layer: read in order. */
typedef enum {
    MX_LAYER_DEFAULT,
    MX_LAYER_BASE,
    MX_LAYER_MODEL,
    MX_LAYER_FILE,
    MX_LAYER_ENVIRONMENT,
    MX_LAYER_ARGUMENT,
} mx_layer;

typedef struct {
    const mx_key *key;
    mx_value value;
    mx_layer layer;
    const char *where;
    bool asked; /* somebody wanted to know its value */
    bool watched; /* the same, since mx_config_watch */
} mx_config_entry;

struct mx_config {
    mx_arena arena; /* owns everything, this struct too */
    const mx_schema *schema;
    const mx_key *extra;
    unsigned sections;
    mx_config_entry *entries; /* sorted by name */
    int n;
};

mx_config_entry *mx_config_entry_find(const mx_config *cfg,
                                      const char *name); /* NULL when absent */

#endif
