/* batch_ranks.c - see batch_ranks.h. */
#include "infer/batch_ranks.h"

#include <pthread.h>

struct mx_batch_ranks {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_others;
    int64_t pages;                   /* 0: not known yet */
    const mx_engine_batch_input *in; /* of the last batch, while it is handed over */
    int64_t sent, taken;             /* batches; by all the others together */
    bool ended, failed;
};

mx_batch_ranks *mx_batch_ranks_new(int n_ranks)
{
    mx_batch_ranks *r = mx_realloc(NULL, sizeof *r);
    *r = (mx_batch_ranks){.n_others = n_ranks - 1};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    return r;
}

void mx_batch_ranks_free(mx_batch_ranks *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mx_free(r);
}

void mx_batch_ranks_set_pages(mx_batch_ranks *r, int64_t pages)
{
    pthread_mutex_lock(&r->lock);
    r->pages = pages;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

mx_status mx_batch_ranks_send(mx_batch_ranks *r, const mx_engine_batch_input *in)
{
    pthread_mutex_lock(&r->lock);
    r->in = in;
    r->sent++;
    pthread_cond_broadcast(&r->changed);
    while (r->taken < r->sent * r->n_others && !r->failed)
        pthread_cond_wait(&r->changed, &r->lock);
    bool failed = r->failed;
    pthread_mutex_unlock(&r->lock);
    return failed ? mx_fail(MX_DEVICE, "another rank of the mesh has failed") : MX_OK;
}

void mx_batch_ranks_end(mx_batch_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int64_t mx_batch_ranks_pages(mx_batch_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->pages && !r->ended)
        pthread_cond_wait(&r->changed, &r->lock);
    int64_t pages = r->ended ? 0 : r->pages;
    pthread_mutex_unlock(&r->lock);
    return pages;
}

bool mx_batch_ranks_take(mx_batch_ranks *r, int64_t *done, mx_engine_batch *b)
{
    pthread_mutex_lock(&r->lock);
    while (r->sent == *done && !r->ended)
        pthread_cond_wait(&r->changed, &r->lock);
    bool there = r->sent > *done;
    if (there) {
        mx_engine_batch_copy_input(b, r->in);
        *done += 1;
        r->taken++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return there;
}

void mx_batch_ranks_fail(mx_batch_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    r->failed = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
