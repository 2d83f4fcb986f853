/* adapters.c - see adapters.h. */
#include "serve/adapters.h"

#include <pthread.h>
#include <string.h>

typedef struct {
    char *name;    /* NULL: none */
    int64_t calls; /* that hold it */
} slot;

struct mx_adapter_names {
    mx_engine *engine;
    const char *model;
    slot *slot;
    int64_t n;
    pthread_mutex_t lock;
};

void mx_adapter_names_open(mx_adapter_names **out, mx_engine *e, int64_t slots, const char *model)
{
    mx_adapter_names *n = mx_realloc(NULL, sizeof *n);
    *n = (mx_adapter_names){.engine = e, .model = model, .n = slots};
    n->slot = mx_realloc(NULL, sizeof *n->slot * (size_t)(slots + 1));
    memset(n->slot, 0, sizeof *n->slot * (size_t)(slots + 1));
    pthread_mutex_init(&n->lock, NULL);
    *out = n;
}

void mx_adapter_names_close(mx_adapter_names *n)
{
    if (!n)
        return;
    for (int64_t i = 0; i < n->n; i++)
        mx_free(n->slot[i].name);
    mx_free(n->slot);
    pthread_mutex_destroy(&n->lock);
    mx_free(n);
}

static int64_t find(const mx_adapter_names *n, const char *name)
{
    for (int64_t i = 0; i < n->n; i++)
        if (n->slot[i].name && strcmp(n->slot[i].name, name) == 0)
            return i + 1;
    return 0;
}

int64_t mx_adapter_names_hold(mx_adapter_names *n, const char *name)
{
    pthread_mutex_lock(&n->lock);
    int64_t i = find(n, name);
    if (i)
        n->slot[i - 1].calls++;
    pthread_mutex_unlock(&n->lock);
    return i;
}

void mx_adapter_names_release(mx_adapter_names *n, int64_t i)
{
    if (!i)
        return;
    pthread_mutex_lock(&n->lock);
    n->slot[i - 1].calls--;
    pthread_mutex_unlock(&n->lock);
}

/* A slot for a new name; 0: `why` says why there is none. */
static int64_t choose(const mx_adapter_names *n, const char *name, mx_status *why)
{
    if (!*name || strcmp(name, n->model) == 0 || find(n, name)) {
        *why = mx_fail(MX_USAGE, "the name `%s` %s", name, *name ? "is taken" : "is empty");
        return 0;
    }
    for (int64_t i = 0; i < n->n; i++)
        if (!n->slot[i].name && !n->slot[i].calls)
            return i + 1;
    *why = mx_fail(MX_USAGE, "all %lld places for adapters are taken; unload one, or start with "
                   "max_loras=%lld", (long long)n->n, (long long)n->n + 1);
    return 0;
}

mx_status mx_adapter_names_load(mx_adapter_names *n, const char *name, const mx_adapter *a)
{
    mx_status st = MX_OK;
    pthread_mutex_lock(&n->lock);
    int64_t i = choose(n, name, &st);
    pthread_mutex_unlock(&n->lock);
    if (!st)
        st = mx_engine_adapt(n->engine, i, a);
    if (st)
        return st;
    pthread_mutex_lock(&n->lock);
    n->slot[i - 1].name = mx_strdup(name);
    pthread_mutex_unlock(&n->lock);
    return MX_OK;
}

mx_status mx_adapter_names_unload(mx_adapter_names *n, const char *name)
{
    pthread_mutex_lock(&n->lock);
    int64_t i = find(n, name);
    if (i) {
        mx_free(n->slot[i - 1].name);
        n->slot[i - 1].name = NULL;
    }
    pthread_mutex_unlock(&n->lock);
    return i ? MX_OK : mx_fail(MX_USAGE, "there is no adapter `%s`", name);
}

int64_t mx_adapter_names_slots(const mx_adapter_names *n)
{
    return n->n;
}

void mx_adapter_names_each(mx_adapter_names *n,
                           void (*each)(void *ctx, const char *name, int64_t calls), void *ctx)
{
    pthread_mutex_lock(&n->lock);
    for (int64_t i = 0; i < n->n; i++)
        if (n->slot[i].name)
            each(ctx, n->slot[i].name, n->slot[i].calls);
    pthread_mutex_unlock(&n->lock);
}
