/* arena.c - chunks of at least 64 KiB, bump allocation, freed together; and the one place where the
 * system is asked for memory. */
#include "base/arena.h"

#include "base/reserve.h"
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

#ifdef MX_TEST_BUILD
static struct {
    atomic_llong left; /* requests until one fails; 0: none does */
    atomic_llong failed;
    atomic_bool for_ever;
} fault;

void mx_alloc_fail_at(int64_t n, bool for_ever)
{
    atomic_store(&fault.for_ever, for_ever);
    atomic_store(&fault.failed, 0);
    atomic_store(&fault.left, n);
}

int64_t mx_alloc_failed(void)
{
    return atomic_load(&fault.failed);
}

static bool must_fail(void)
{
    if (atomic_load(&fault.left) <= 0)
        return atomic_load(&fault.for_ever) && atomic_load(&fault.failed) > 0 &&
               atomic_fetch_add(&fault.failed, 1) > 0;
    if (atomic_fetch_sub(&fault.left, 1) != 1)
        return false;
    atomic_fetch_add(&fault.failed, 1);
    return true;
}
#else
static bool must_fail(void)
{
    return false;
}
#endif

/* What the system gives, or NULL. */
static void *from_system(size_t align, size_t bytes)
{
    if (bytes > SIZE_MAX / 2 || must_fail())
        return NULL;
    atomic_fetch_add(&n_allocs, 1);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void *mx_arena_alloc(mx_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        mx_reserve_exhausted(bytes);
    size_t need = round_up(bytes ? bytes : 1);
    mx_arena_chunk *c = a->head;
    if (!c || c->size - c->used < need) {
        size_t size = need > CHUNK ? need : CHUNK;
        c = from_system(ALIGN, round_up(sizeof *c) + size);
        if (!c) { /* no more than is needed: the reserve is small */
            size = need;
            c = mx_reserve_take(round_up(sizeof *c) + size);
        }
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

char *mx_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(mx_realloc(NULL, n), s, n);
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
        mx_free(c);
    }
    *a = (mx_arena){0};
}

/* Large buffers sit on huge pages where the system grants them: a tensor is swept row by row, and a
 * page table walk per 4 KiB slows GEMMs down. */
static void *alloc_aligned(size_t bytes)
{
    if (bytes < 4 * HUGE_BYTES)
        return from_system(ALIGN, bytes ? bytes : 1);
    void *p = from_system(HUGE_BYTES, bytes);
    if (p)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice: refusal changes nothing but speed */
    return p;
}

/* Whole pages of a large buffer are given back to the system, which gives them again, as zeros,
 * when they are first touched: a cache that is never full takes no time to clear and no memory. */
static void zero(char *p, size_t bytes)
{
    size_t pages = bytes < 4 * HUGE_BYTES ? 0 : bytes / HUGE_BYTES * HUGE_BYTES;
    if (pages && madvise(p, pages, MADV_DONTNEED) != 0)
        pages = 0;
    memset(p + pages, 0, bytes - pages);
}

mx_status mx_alloc(void **out, size_t bytes, const char *what)
{
    *out = NULL;
    MX_TRY(mx_memory_check());
    *out = bytes > SIZE_MAX / 2 ? NULL : alloc_aligned(bytes);
    if (!*out)
        return mx_fail(MX_MEMORY,
                       "out of memory: %s needs %.2f GiB (%zu bytes) and the system has none left; "
                       "make the model, batch or length smaller",
                       what, (double)bytes / (1 << 30), bytes);
    zero(*out, bytes);
    return MX_OK;
}

void *mx_small_alloc(size_t bytes)
{
    void *p = from_system(ALIGN, bytes ? bytes : 1);
    return p ? p : mx_reserve_take(bytes);
}

void mx_free(void *p)
{
    if (!mx_reserve_give(p))
        free(p);
}

void *mx_realloc(void *p, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        mx_reserve_exhausted(bytes);
    bool reserved = mx_reserve_holds(p);
    void *q = reserved || must_fail() ? NULL : realloc(p, bytes ? bytes : 1);
    if (!q) {
        q = reserved ? mx_small_alloc(bytes) : mx_reserve_take(bytes);
        size_t had = p ? mx_reserve_size(p) : 0;
        if (had)
            memcpy(q, p, had < bytes ? had : bytes);
        mx_free(p);
    }
    atomic_fetch_add(&n_allocs, 1);
    return q;
}

int64_t mx_alloc_count(void)
{
    return atomic_load(&n_allocs);
}
