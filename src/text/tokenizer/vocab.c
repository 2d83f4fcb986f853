/* vocab.c - open addressing with linear probing, at most half full. */
#include "text/tokenizer/vocab.h"

void mx_vocab_init(mx_vocab *v, int32_t n_ids)
{
    *v = (mx_vocab){.n_ids = n_ids};
    v->piece = mx_realloc(NULL, sizeof *v->piece * (size_t)n_ids);
    for (int32_t i = 0; i < n_ids; i++)
        v->piece[i] = (mx_piece){NULL, MX_NO_PIECE};
    uint32_t size = 64;
    while (size < (uint64_t)n_ids * 2)
        size *= 2;
    v->mask = size - 1;
    v->slot = mx_realloc(NULL, sizeof *v->slot * size);
    memset(v->slot, 0, sizeof *v->slot * size);
}

void mx_vocab_fini(mx_vocab *v)
{
    mx_free(v->piece);
    mx_free(v->slot);
    *v = (mx_vocab){0};
}

static uint32_t probe(const mx_vocab *v, const uint8_t *s, size_t n)
{
    uint32_t k = (uint32_t)mx_hash_bytes(s, n) & v->mask;
    for (; v->slot[k]; k = (k + 1) & v->mask) {
        const mx_piece *p = &v->piece[v->slot[k] - 1];
        if ((size_t)p->n == n && memcmp(p->s, s, n) == 0)
            break;
    }
    return k;
}

void mx_vocab_set(mx_vocab *v, int32_t id, const uint8_t *s, size_t n, bool find)
{
    MX_ASSERT(id >= 0 && id < v->n_ids && n <= INT32_MAX, "id=%d of %d", id, v->n_ids);
    v->piece[id] = (mx_piece){s, (int32_t)n};
    if (!find)
        return;
    uint32_t k = probe(v, s, n);
    if (!v->slot[k])
        v->slot[k] = (uint32_t)id + 1;
}

int32_t mx_vocab_find(const mx_vocab *v, const uint8_t *s, size_t n)
{
    return v->n_ids ? (int32_t)v->slot[probe(v, s, n)] - 1 : -1;
}
