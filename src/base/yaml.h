/* yaml.h - configuration files as a small tree.
 *
 * What is read is the part of YAML that people write in configuration files: maps, lists and
 * scalars, in block or flow style, with comments. Refused, each with file:line: anchors and aliases
 * (the "billion laughs" needs them), tags, a second document, keys that are not plain text,
 * duplicate keys, nesting beyond MX_YAML_MAX_DEPTH, files above MX_YAML_MAX_BYTES. Scalars stay
 * text: what `no`, `1e3` or `null` means is for the schema to say, because only it knows the type
 * of the key.
 */
#ifndef MX_BASE_YAML_H
#define MX_BASE_YAML_H

#include "base/arena.h"
#include "base/status.h"

enum {
    MX_YAML_MAX_BYTES = 1 << 20,
    MX_YAML_MAX_DEPTH = 8,
    MX_YAML_MAX_NODES = 20000, /* duplicates are found by comparison with all before */
};

typedef enum { MX_YAML_SCALAR, MX_YAML_LIST, MX_YAML_MAP } mx_yaml_kind;

typedef struct mx_yaml_node mx_yaml_node;
struct mx_yaml_node {
    mx_yaml_kind kind;
    const char *key;            /* inside a map: the key; NULL inside a list */
    const char *text;           /* of a scalar; "" for a list or map; never contains NUL */
    bool quoted;                /* the scalar was written in quotes (or as a block of text) */
    int line;                   /* 1-based, of the key when there is one */
    int n;                      /* children */
    mx_yaml_node *first, *next; /* children in the order of the file; the next sibling */
};

/* Parses `n` bytes. `name` stands for the file in messages. The root is always a map (an empty text
 * is an empty map). All duplicate keys are reported together, and then *root is there as well, so
 * that the rest can be checked; any other error ends the parse and leaves *root NULL. */
mx_status mx_yaml_parse(mx_arena *a, const char *name, const char *text, size_t n,
                        mx_yaml_node **root) MX_MUST_USE;
/* The same with the text of a file. */
mx_status mx_yaml_read(mx_arena *a, const char *path, mx_yaml_node **root) MX_MUST_USE;
/* A single value, `[a, b]` for example, as it stands on a command line. */
mx_status mx_yaml_parse_value(mx_arena *a, const char *name, const char *text,
                              mx_yaml_node **value) MX_MUST_USE;

const char *mx_yaml_kind_name(mx_yaml_kind kind); /* "a value", "a list", "a map" */

#endif
