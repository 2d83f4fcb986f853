/* config_entry.h - what config.c, config_load.c and config_files.c share: the inside of an
 * mx_config, and the settings that it is resolved from. */
#ifndef MX_BASE_CONFIG_ENTRY_H
#define MX_BASE_CONFIG_ENTRY_H

#include "base/config.h"

/* The sources, lowest first. base_config files and the user's file are one layer: read in order. */
typedef enum {
    MX_LAYER_DEFAULT,
    MX_LAYER_BASE,
    MX_LAYER_OWN_BASE, /* a base.yml of the user's, where it differs from the default */
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
    bool asked; /* its value has been read */
} mx_config_entry;

struct mx_config {
    mx_arena arena; /* owns everything, this struct too */
    const mx_schema *schema;
    const mx_key *extra;
    const char *user, *like;
    const char *notes;
    mx_config_entry *entries; /* sorted by name */
    int n;
};

mx_config_entry *mx_config_entry_find(const mx_config *cfg,
                                      const char *name); /* NULL when absent */

/* ---- while it is loaded ---- */

/* What one source says of one key. */
typedef struct {
    const mx_key *key;        /* NULL when there is none: `problem` says so */
    const char *problem;      /* found while reading; reported in the order of the sources */
    const mx_yaml_node *node; /* from a file; NULL: text counts */
    const char *text;
    mx_layer layer;
    const char *where;
    bool whole; /* the file says every key: what it repeats was not set by it */
} mx_setting;

typedef struct {
    const mx_config_request *req;
    mx_config *cfg;
    mx_setting *list; /* owns */
    int n, cap;
    mx_problems problems;
    mx_str notes, foreign;
    mx_status failed; /* an unreadable file: reported with the problems; owns */
} mx_settings;

void mx_settings_add(mx_settings *s, mx_setting setting);
void mx_settings_add_problem(mx_settings *s, mx_layer layer, const char *where,
                             const char *problem);
const mx_key *mx_settings_key(const mx_settings *s, const char *name); /* NULL: there is none */
void mx_settings_unknown(mx_settings *s, mx_layer layer, const char *where, const char *name);
/* The last setting of a text key among what was read so far, or its default. */
const char *mx_settings_peek(const mx_settings *s, const char *name, const char **where);

/* The program's base.yml, the user's file with those it names, the model's file (last: any source
 * may name the model). */
void mx_settings_add_base(mx_settings *s);
void mx_settings_add_file(mx_settings *s);
void mx_settings_add_model(mx_settings *s);

#endif
