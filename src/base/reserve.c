/* reserve.c - see reserve.h. Blocks are cut off one after the other; each begins with its size. */
#include "base/reserve.h"

#include "base/arena.h"
#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 64, RESERVE_BYTES = 16 << 20 };

/* Memory belongs to the process, and so does this. */
static struct {
    pthread_mutex_t lock;
    size_t used;
    int live; /* blocks that are in use */
    _Alignas(ALIGN) char bytes[RESERVE_BYTES];
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local size_t missed; /* bytes this thread asked for in vain; 0: none */

void mx_reserve_exhausted(size_t bytes)
{
    static const char text[] =
        "Close other programs, or make the model or batch smaller. Nothing that was committed is "
        "lost: run the same command again.\n";
    char line[160];
    int n = snprintf(line, sizeof line,
                     "maxc: out of memory: %zu more bytes were needed and the system has none.\n",
                     bytes);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(MX_MEMORY);
}

void *mx_reserve_take(size_t bytes)
{
    size_t need = ALIGN + (bytes + ALIGN - 1) / ALIGN * ALIGN;
    missed = bytes ? bytes : 1;
    pthread_mutex_lock(&reserve.lock);
    char *p = need <= RESERVE_BYTES - reserve.used ? reserve.bytes + reserve.used : NULL;
    if (p) {
        reserve.used += need;
        reserve.live++;
    }
    pthread_mutex_unlock(&reserve.lock);
    if (!p)
        mx_reserve_exhausted(bytes);
    memcpy(p, &bytes, sizeof bytes);
    return p + ALIGN;
}

bool mx_reserve_holds(const void *p)
{
    uintptr_t at = (uintptr_t)p, first = (uintptr_t)reserve.bytes;
    return at >= first && at < first + RESERVE_BYTES;
}

size_t mx_reserve_size(void *p)
{
    size_t bytes;
    if (!mx_reserve_holds(p))
        return malloc_usable_size(p);
    memcpy(&bytes, (char *)p - ALIGN, sizeof bytes);
    return bytes;
}

bool mx_reserve_give(void *p)
{
    if (!mx_reserve_holds(p))
        return false;
    pthread_mutex_lock(&reserve.lock);
    if (--reserve.live == 0)
        reserve.used = 0;
    pthread_mutex_unlock(&reserve.lock);
    return true;
}

mx_status mx_memory_check(void)
{
    size_t bytes = missed;
    missed = 0;
    if (!bytes)
        return MX_OK;
    mx_status st = mx_fail(MX_MEMORY,
                           "out of memory: %zu bytes for a small object could not be had; close "
                           "other programs, or make the model or batch smaller",
                           bytes);
    missed = 0; /* the message itself may have come from the reserve */
    return st;
}

static void *json_alloc(size_t bytes)
{
    return mx_realloc(NULL, bytes);
}

void mx_memory_install(void)
{
    json_set_alloc_funcs(json_alloc, mx_free);
}
