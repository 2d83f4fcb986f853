/* name_map.h - things by name: a hash table that borrows both the names and the things. */
#ifndef MX_IR_NAME_MAP_H
#define MX_IR_NAME_MAP_H

#include <stdbool.h>

/* Zero-initialised is empty. */
typedef struct mx_name_map {
    struct mx_named {
        const char *name; /* NULL: a free slot */
        void *thing;
    } * slot; /* owns; open addressing, a power of two of them */
    int n, cap;
} mx_name_map;

void *mx_name_map_find(const mx_name_map *m, const char *name); /* NULL: not there */
/* False: the name is taken; the map stays as it is. */
bool mx_name_map_add(mx_name_map *m, const char *name, void *thing);
void mx_name_map_fini(mx_name_map *m); /* empties it */

#endif
