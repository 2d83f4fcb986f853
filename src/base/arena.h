/* arena.h - memory by lifetime.
 *
 * An arena gives zeroed, 64-byte-aligned memory that is freed all at once: one per run, graph or
 * file. A zero-initialised mx_arena is ready to use; closing it is always safe. Memory whose size
 * the user chooses (tensors, files) goes through mx_alloc, which returns a status; small objects
 * are never refused (reserve.h says what happens when the system has no memory).
 */
#ifndef MX_BASE_ARENA_H
#define MX_BASE_ARENA_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct mx_arena_chunk mx_arena_chunk;
typedef struct {
    mx_arena_chunk *head;   /* owns the list */
    size_t used_bytes;      /* given out so far, for reports */
} mx_arena;

void *mx_arena_alloc(mx_arena *a, size_t bytes);                   /* zeroed; never NULL */
void *mx_arena_copy(mx_arena *a, const void *p, size_t bytes);
char *mx_arena_strdup(mx_arena *a, const char *s);
char *mx_arena_printf(mx_arena *a, const char *fmt, ...) MX_PRINTF(2, 3);
void mx_arena_fini(mx_arena *a);

#define MX_NEW(arena, T) ((T *)mx_arena_alloc((arena), sizeof(T)))
#define MX_NEW_N(arena, T, n) ((T *)mx_arena_alloc((arena), sizeof(T) * (size_t)(n)))

/* User-sized memory, zeroed and 64-byte aligned. `what` appears in the error. */
mx_status mx_alloc(void **out, size_t bytes, const char *what) MX_MUST_USE;
void mx_free(void *p);

/* Small heap objects that outgrow an arena (growing arrays); never NULL. */
void *mx_realloc(void *p, size_t bytes);
/* One small object, 64-byte aligned, not zeroed; never NULL. */
void *mx_small_alloc(size_t bytes);
/* A copy of a text; never NULL. What these three give is released with mx_free. */
char *mx_strdup(const char *s);

/* How often mx_alloc, mx_realloc or an arena asked the system for memory, in this process. The
 * tests assert that it stands still after the first training step. */
int64_t mx_alloc_count(void);

#ifdef MX_TEST_BUILD
/* The n-th request of the system from now on fails (0: none), and all after it with `for_ever`. */
void mx_alloc_fail_at(int64_t n, bool for_ever);
int64_t mx_alloc_failed(void); /* how many have failed since */
#endif

/* Growing array: MX_GROW(v, n, cap) makes room for one more element. */
#define MX_GROW(v, n, cap)                                                                         \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (cap) = (cap) ? (cap)*2 : 16;                                                          \
            (v) = mx_realloc((v), sizeof *(v) * (size_t)(cap));                                    \
        }                                                                                          \
    } while (0)

#endif
