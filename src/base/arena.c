/* arena.c - chunks of at least 64 KiB, bump allocation, freed together. */
#include "base/arena.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 64, CHUNK = 64 * 1024, HUGE_BYTES = 2 << 20 };

struct mx_arena_chunk {
    mx_arena_chunk *next;
    size_t used, size; /* bytes after the header */
    _Alignas(ALIGN) char data[];
};

/* A counter, not a state anything depends on: read only by tests and reports. */
static atomic_llong n_allocs;

static _Noreturn void out_of_memory(size_t bytes)
{
    fprintf(stderr, "maxc: out of memory: %zu more bytes were needed and the system has none.\n"
                    "Close other programs, or make the model or batch smaller.\n", bytes);
    _exit(MX_MEMORY);
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void *mx_arena_alloc(mx_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        out_of_memory(bytes);
    size_t need = round_up(bytes ? bytes : 1);
    mx_arena_chunk *c = a->head;
    if (!c || c->size - c->used < need) {
        size_t size = need > CHUNK ? need : CHUNK;
        c = aligned_alloc(ALIGN, round_up(sizeof *c) + size);
        if (!c)
            out_of_memory(bytes);
        atomic_fetch_add(&n_allocs, 1);
        c->used = 0;
        c->size = size;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used_bytes += need;
    return memset(p, 0, need);
}

void *mx_arena_copy(mx_arena *a, const void *p, size_t bytes)
{
    void *q = mx_arena_alloc(a, bytes);
    return bytes ? memcpy(q, p, bytes) : q;
}

char *mx_arena_strdup(mx_arena *a, const char *s)
{
    return mx_arena_copy(a, s, strlen(s) + 1);
}

char *mx_arena_printf(mx_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    MX_ASSERT(n >= 0);
    char *s = mx_arena_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return s;
}

void mx_arena_fini(mx_arena *a)
{
    for (mx_arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (mx_arena){0};
}

/* Large buffers sit on huge pages where the system grants them: a tensor is swept row by row, and a
 * page table walk per 4 KiB costs matrix products several per cent. */
static void *alloc_aligned(size_t bytes)
{
    if (bytes < 4 * HUGE_BYTES)
        return aligned_alloc(ALIGN, round_up(bytes ? bytes : 1));
    void *p = aligned_alloc(HUGE_BYTES, (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    if (p)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice: refusal changes nothing but speed */
    return p;
}

mx_status mx_alloc(void **out, size_t bytes, const char *what)
{
    *out = bytes > SIZE_MAX / 2 ? NULL : alloc_aligned(bytes);
    if (!*out)
        return mx_fail(MX_MEMORY, "%s needs %.2f GiB of host memory and the system has none left; "
                       "make the model, batch or length smaller", what, (double)bytes / (1 << 30));
    atomic_fetch_add(&n_allocs, 1);
    memset(*out, 0, bytes);
    return MX_OK;
}

void mx_free(void *p)
{
    free(p);
}

void *mx_realloc(void *p, size_t bytes)
{
    void *q = bytes > SIZE_MAX / 2 ? NULL : realloc(p, bytes ? bytes : 1);
    if (!q)
        out_of_memory(bytes);
    atomic_fetch_add(&n_allocs, 1);
    return q;
}

int64_t mx_alloc_count(void)
{
    return atomic_load(&n_allocs);
}
