/* name_map.c - see name_map.h. At most half of the slots are used. */
#include "ir/name_map.h"

#include "base/arena.h"
#include "base/rng.h"
#include <string.h>

static struct mx_named *slot_of(const mx_name_map *m, const char *name)
{
    for (uint64_t h = mx_stream_of(name);; h++) {
        struct mx_named *s = &m->slot[h & (uint64_t)(m->cap - 1)];
        if (!s->name || strcmp(s->name, name) == 0)
            return s;
    }
}

void *mx_name_map_find(const mx_name_map *m, const char *name)
{
    return m->cap ? slot_of(m, name)->thing : NULL;
}

static void grow(mx_name_map *m)
{
    mx_name_map old = *m;
    m->cap = old.cap ? 2 * old.cap : 256;
    m->slot = mx_realloc(NULL, sizeof *m->slot * (size_t)m->cap);
    memset(m->slot, 0, sizeof *m->slot * (size_t)m->cap);
    for (int i = 0; i < old.cap; i++)
        if (old.slot[i].name)
            *slot_of(m, old.slot[i].name) = old.slot[i];
    mx_free(old.slot);
}

bool mx_name_map_add(mx_name_map *m, const char *name, void *thing)
{
    if (2 * (m->n + 1) > m->cap)
        grow(m);
    struct mx_named *s = slot_of(m, name);
    if (s->name)
        return false;
    *s = (struct mx_named){name, thing};
    m->n++;
    return true;
}

void mx_name_map_fini(mx_name_map *m)
{
    mx_free(m->slot);
    *m = (mx_name_map){0};
}
