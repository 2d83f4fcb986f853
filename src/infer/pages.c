/* pages.c - see pages.h. Known pages are in a hash table of chains; those that no sequence holds
 * are a list, the least recently used first. */
#include "infer/pages.h"

#include <string.h>
#include <xxhash.h>

enum { NONE = -1 };

typedef struct {
    int32_t held;       /* how many sequences hold it */
    int32_t prev, next; /* in the list of pages that no sequence holds */
    int32_t chain;      /* next known page of the same bucket */
    mx_page_name name;  /* 0: not known */
    mx_page_name before;
} page;

struct mx_pages {
    int64_t n, size, n_held;
    uint64_t n_buckets; /* a power of two */
    page *page;
    int32_t *tokens;     /* (n, size), of known pages */
    int32_t *bucket;     /* (n_buckets) */
    int32_t first, last; /* of the list */
    mx_page_name n_names;
};

static void unlink_free(mx_pages *p, int32_t i)
{
    page *x = &p->page[i];
    *(x->prev == NONE ? &p->first : &p->page[x->prev].next) = x->next;
    *(x->next == NONE ? &p->last : &p->page[x->next].prev) = x->prev;
}

/* Pages without known entries go to the front, to be taken first. */
static void link_free(mx_pages *p, int32_t i)
{
    page *x = &p->page[i];
    bool front = !x->name;
    x->prev = front ? NONE : p->last;
    x->next = front ? p->first : NONE;
    *(x->prev == NONE ? &p->first : &p->page[x->prev].next) = i;
    *(x->next == NONE ? &p->last : &p->page[x->next].prev) = i;
}

mx_status mx_pages_open(mx_pages **out, int64_t n, int64_t size)
{
    mx_pages *p = mx_realloc(NULL, sizeof *p);
    *out = p;
    *p = (mx_pages){.n = n, .size = size, .first = NONE, .last = NONE, .n_buckets = 64};
    while (p->n_buckets < 2 * (uint64_t)n)
        p->n_buckets *= 2;
    MX_TRY(mx_alloc((void **)&p->page, sizeof *p->page * (size_t)n, "the list of cache pages"));
    MX_TRY(mx_alloc((void **)&p->tokens, sizeof(int32_t) * (size_t)(n * size), "cached tokens"));
    MX_TRY(mx_alloc((void **)&p->bucket, sizeof(int32_t) * p->n_buckets, "the table of pages"));
    for (uint64_t i = 0; i < p->n_buckets; i++)
        p->bucket[i] = NONE;
    for (int64_t i = n; i-- > 0;)
        link_free(p, (int32_t)i);
    return MX_OK;
}

void mx_pages_close(mx_pages *p)
{
    if (!p)
        return;
    mx_free(p->page);
    mx_free(p->tokens);
    mx_free(p->bucket);
    mx_free(p);
}

int64_t mx_pages_count(const mx_pages *p)
{
    return p->n;
}

int64_t mx_pages_held(const mx_pages *p)
{
    return p->n_held;
}

static int32_t *bucket_of(const mx_pages *p, mx_page_name before, const int32_t *tokens)
{
    uint64_t h = XXH3_64bits_withSeed(tokens, sizeof *tokens * (size_t)p->size, before);
    return &p->bucket[h & (p->n_buckets - 1)];
}

static int32_t *tokens_of(const mx_pages *p, int32_t i)
{
    return p->tokens + i * p->size;
}

static int32_t look_up(const mx_pages *p, mx_page_name before, const int32_t *tokens)
{
    size_t bytes = sizeof *tokens * (size_t)p->size;
    int32_t i = *bucket_of(p, before, tokens);
    while (i != NONE &&
           (p->page[i].before != before || memcmp(tokens_of(p, i), tokens, bytes) != 0))
        i = p->page[i].chain;
    return i;
}

static void forget(mx_pages *p, int32_t i)
{
    page *x = &p->page[i];
    int32_t *at = bucket_of(p, x->before, tokens_of(p, i));
    while (*at != i)
        at = &p->page[*at].chain;
    *at = x->chain;
    x->name = 0;
}

int32_t mx_pages_take(mx_pages *p)
{
    int32_t i = p->first;
    if (i == NONE)
        return NONE;
    unlink_free(p, i);
    if (p->page[i].name)
        forget(p, i);
    p->page[i].held = 1;
    p->n_held++;
    return i;
}

void mx_pages_release(mx_pages *p, int32_t i)
{
    MX_ASSERT(i >= 0 && i < p->n && p->page[i].held > 0, "page %d", i);
    if (--p->page[i].held)
        return;
    p->n_held--;
    link_free(p, i);
}

int32_t mx_pages_find(mx_pages *p, mx_page_name before, const int32_t *tokens, mx_page_name *name)
{
    int32_t i = look_up(p, before, tokens);
    if (i == NONE)
        return NONE;
    if (!p->page[i].held++) {
        unlink_free(p, i);
        p->n_held++;
    }
    *name = p->page[i].name;
    return i;
}

mx_page_name mx_pages_publish(mx_pages *p, int32_t i, mx_page_name before, const int32_t *tokens)
{
    page *x = &p->page[i];
    int32_t same = look_up(p, before, tokens);
    if (same != NONE)
        return p->page[same].name;
    MX_ASSERT(x->held > 0 && !x->name, "page %d is known already", i);
    memcpy(tokens_of(p, i), tokens, sizeof *tokens * (size_t)p->size);
    int32_t *at = bucket_of(p, before, tokens);
    x->chain = *at;
    *at = i;
    x->before = before;
    return x->name = ++p->n_names;
}

/* Names that are counted stay below these. */
mx_page_name mx_pages_salted(const char *salt, size_t n)
{
    return XXH3_64bits(salt, n) | (mx_page_name)1 << 63;
}
