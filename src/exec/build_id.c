/* build_id.c - which build of the program this is: the linker's build ID, from its note. */
#include "exec/build_id.h"

#include "base/version.h"
#include <link.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    mx_arena *arena;
    char *text; /* NULL: not found yet */
} search;

/* Does this loaded object hold the code that asks? */
static bool holds(const struct dl_phdr_info *o, uintptr_t address)
{
    for (int i = 0; i < o->dlpi_phnum; i++) {
        uintptr_t from = o->dlpi_addr + o->dlpi_phdr[i].p_vaddr;
        if (o->dlpi_phdr[i].p_type == PT_LOAD && address >= from &&
            address < from + o->dlpi_phdr[i].p_memsz)
            return true;
    }
    return false;
}

static char *hex(mx_arena *a, const unsigned char *p, size_t n)
{
    char *text = mx_arena_alloc(a, 2 * n + 1);
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = "0123456789abcdef"[p[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    return text;
}

static void read_notes(search *s, const char *p, const char *end)
{
    while (p + sizeof(ElfW(Nhdr)) <= end && !s->text) {
        const ElfW(Nhdr) *n = (const void *)p;
        const char *name = p + sizeof *n, *desc = name + ((n->n_namesz + 3) & ~3u);
        if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && memcmp(name, "GNU", 4) == 0)
            s->text = hex(s->arena, (const unsigned char *)desc, n->n_descsz);
        p = desc + ((n->n_descsz + 3) & ~3u);
    }
}

static int look(struct dl_phdr_info *o, size_t size, void *ctx)
{
    search *s = ctx;
    (void)size;
    if (!holds(o, (uintptr_t)&mx_build_id))
        return 0;
    for (int i = 0; i < o->dlpi_phnum; i++) {
        const char *p = (const char *)o->dlpi_addr + o->dlpi_phdr[i].p_vaddr;
        if (o->dlpi_phdr[i].p_type == PT_NOTE)
            read_notes(s, p, p + o->dlpi_phdr[i].p_memsz);
    }
    return 1;
}

const char *mx_build_id(mx_arena *a)
{
    search s = {.arena = a};
    dl_iterate_phdr(look, &s);
    return mx_arena_printf(a, "%s %s", MX_VERSION, s.text ? s.text : "without a build ID");
}
