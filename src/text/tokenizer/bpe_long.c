/* bpe_long.c - merging a word of any length in near-linear time.
 *
 * Merges happen in the order (rank, position). A single heap of all pairs would spend its time in
 * cache misses. Here each rank has its own queue of positions, and a small heap holds the ranks
 * that have any. Positions nearly always arrive in increasing order, because a pass over one rank
 * goes from left to right and creates pairs of another rank as it goes; late-comers use a per-rank
 * heap, so the worst case is n log n.
 *
 * A queued position is stale when the rank stored for its pair has changed since; it is skipped.
 */
#include "text/tokenizer/bpe_long.h"

static void heap_push(uint32_t **heap, size_t *n, size_t *cap, uint32_t v)
{
    MX_GROW(*heap, *n, *cap);
    uint32_t *h = *heap;
    size_t i = (*n)++;
    while (i && h[(i - 1) / 2] > v) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = v;
}

static uint32_t heap_pop(uint32_t *h, size_t *n)
{
    uint32_t top = h[0], v = h[--*n];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= *n)
            break;
        if (c + 1 < *n && h[c + 1] < h[c])
            c++;
        if (h[c] >= v)
            break;
        h[i] = h[c];
        i = c;
    }
    if (*n)
        h[i] = v;
    return top;
}

static void reserve(mx_bpe_long *w, const mx_bpe *b, int64_t n)
{
    if (n > w->cap) {
        size_t bytes = (size_t)n * sizeof(uint32_t);
        w->prev = mx_realloc(w->prev, bytes);
        w->next = mx_realloc(w->next, bytes);
        w->rank = mx_realloc(w->rank, bytes);
        w->to = mx_realloc(w->to, bytes);
        w->cap = n;
    }
    if (b->n_ranks > w->n_ranks) {
        w->bucket_of = mx_realloc(w->bucket_of, b->n_ranks * sizeof *w->bucket_of);
        memset(w->bucket_of, 0, b->n_ranks * sizeof *w->bucket_of);
        w->n_ranks = b->n_ranks;
    }
}

static mx_bpe_bucket *bucket_for(mx_bpe_long *w, uint32_t rank)
{
    if (!w->bucket_of[rank]) {
        MX_GROW(w->bucket, w->n_buckets, w->cap_buckets);
        w->bucket[w->n_buckets++] = (mx_bpe_bucket){.rank = rank};
        w->bucket_of[rank] = (uint32_t)w->n_buckets;
    }
    return &w->bucket[w->bucket_of[rank] - 1];
}

static void bucket_push(mx_bpe_long *w, uint32_t rank, uint32_t pos)
{
    mx_bpe_bucket *k = bucket_for(w, rank);
    if (k->head < k->n_run && k->run[k->n_run - 1] > pos) {
        heap_push(&k->heap, &k->n_heap, &k->cap_heap, pos);
    } else {
        MX_GROW(k->run, k->n_run, k->cap_run);
        k->run[k->n_run++] = pos;
    }
    if (!k->active) {
        k->active = true;
        heap_push(&w->ranks, &w->n_active, &w->cap_active, rank);
    }
}

static uint32_t bucket_pop(mx_bpe_bucket *k)
{
    bool from_heap = k->n_heap && (k->head == k->n_run || k->heap[0] < k->run[k->head]);
    uint32_t pos = from_heap ? heap_pop(k->heap, &k->n_heap) : k->run[k->head++];
    if (k->head == k->n_run)
        k->head = k->n_run = 0;
    return pos;
}

static void set_pair(const mx_bpe *b, mx_bpe_long *w, const int32_t *sym, uint32_t pos, uint32_t n)
{
    uint32_t right = w->next[pos];
    w->rank[pos] = right < n ? mx_merge_find(b, sym[pos], sym[right], &w->to[pos]) : MX_NO_RANK;
    if (w->rank[pos] != MX_NO_RANK)
        bucket_push(w, w->rank[pos], pos);
}

static void merge_at(const mx_bpe *b, mx_bpe_long *w, int32_t *sym, uint32_t pos, uint32_t n)
{
    uint32_t right = w->next[pos], after = w->next[right];
    sym[pos] = w->to[pos];
    w->rank[right] = MX_NO_RANK;
    w->next[pos] = after;
    if (after < n)
        w->prev[after] = pos;
    if (w->prev[pos] < n)
        set_pair(b, w, sym, w->prev[pos], n);
    set_pair(b, w, sym, pos, n);
}

int64_t mx_bpe_merge_long(const mx_bpe *b, mx_bpe_long *w, int32_t *sym, int64_t count)
{
    MX_ASSERT(count < UINT32_MAX, "a word of %lld symbols", (long long)count);
    uint32_t n = (uint32_t)count;
    reserve(w, b, count);
    for (uint32_t i = 0; i < n; i++) {
        w->prev[i] = i - 1; /* UINT32_MAX at the start */
        w->next[i] = i + 1;
    }
    for (uint32_t i = 0; i < n; i++)
        set_pair(b, w, sym, i, n);
    while (w->n_active) {
        uint32_t rank = w->ranks[0];
        mx_bpe_bucket *k = &w->bucket[w->bucket_of[rank] - 1];
        if (k->head == k->n_run && !k->n_heap) {
            k->active = false;
            heap_pop(w->ranks, &w->n_active);
            continue;
        }
        uint32_t pos = bucket_pop(k);
        if (w->rank[pos] == rank)
            merge_at(b, w, sym, pos, n);
    }
    int64_t left = 0;
    for (uint32_t i = 0; i < n; i = w->next[i])
        sym[left++] = sym[i];
    for (size_t i = 0; i < w->n_buckets; i++) {
        w->bucket_of[w->bucket[i].rank] = 0;
        mx_free(w->bucket[i].run);
        mx_free(w->bucket[i].heap);
    }
    w->n_buckets = 0;
    return left;
}

void mx_bpe_long_fini(mx_bpe_long *w)
{
    mx_free(w->prev);
    mx_free(w->next);
    mx_free(w->rank);
    mx_free(w->to);
    mx_free(w->bucket_of);
    mx_free(w->bucket);
    mx_free(w->ranks);
    *w = (mx_bpe_long){0};
}
