/* image_table.c - files of pictures between their records and their batches: see encode_image.h.
 *
 * A number is given out when a document is encoded and taken back when its row is written, so the
 * table is as large as what is under way. Documents that are thrown away (a loader that seeks) take
 * their numbers with them: the table is then cleared.
 */
#include "data/image/encode_image.h"

#include "data/image/image_table.h"
#include <pthread.h>
#include <string.h>

struct mx_image_table {
    pthread_mutex_t lock;
    mx_picture *v; /* owns what they hold; name NULL: free */
    int64_t n, cap, first_free;
};

mx_image_table *mx_image_table_new(void)
{
    mx_image_table *t = mx_realloc(NULL, sizeof *t);
    *t = (mx_image_table){0};
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void mx_image_table_clear(mx_image_table *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        mx_free(t->v[i].name);
        mx_free(t->v[i].bytes);
    }
    t->n = t->first_free = 0;
}

void mx_image_table_free(mx_image_table *t)
{
    if (!t)
        return;
    mx_image_table_clear(t);
    pthread_mutex_destroy(&t->lock);
    mx_free(t->v);
    mx_free(t);
}

int32_t mx_image_table_add(mx_image_table *t, const mx_picture *p)
{
    size_t len = strlen(p->name) + 1;
    mx_picture copy = {.name = memcpy(mx_realloc(NULL, len), p->name, len), .n_bytes = p->n_bytes};
    if (p->bytes)
        copy.bytes = memcpy(mx_realloc(NULL, p->n_bytes + 1), p->bytes, p->n_bytes);
    pthread_mutex_lock(&t->lock);
    int64_t i = t->first_free;
    while (i < t->n && t->v[i].name)
        i++;
    if (i == t->n) {
        MX_GROW(t->v, t->n, t->cap);
        t->n++;
    }
    t->v[i] = copy;
    t->first_free = i + 1;
    pthread_mutex_unlock(&t->lock);
    return (int32_t)(-2 - i);
}

mx_picture mx_image_table_take(mx_image_table *t, int32_t number)
{
    int64_t i = -2 - (int64_t)number;
    pthread_mutex_lock(&t->lock);
    MX_ASSERT(i >= 0 && i < t->n && t->v[i].name, "picture %d is not in the table", number);
    mx_picture p = t->v[i];
    t->v[i] = (mx_picture){0};
    t->first_free = i < t->first_free ? i : t->first_free;
    pthread_mutex_unlock(&t->lock);
    return p;
}
