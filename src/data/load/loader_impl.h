/* loader_impl.h - what loader.c (threads, batches) and loader_position.c (JSON) share. */
#ifndef MX_DATA_LOADER_IMPL_H
#define MX_DATA_LOADER_IMPL_H

#include "data/load/loader.h"
#include "data/load/token_cache.h"
#include <pthread.h>

/* Where the packer stands: the state before the window's first document, and the row to give next.
 */
typedef struct {
    int64_t step, window, row,
        skip; /* skip: tokens of the first document used by the last window */
    mx_mixture_position docs;
} mx_loader_at;

enum { MX_CHUNK_RECORDS = 32, MX_CHUNK_BYTES = 1 << 20 };

typedef struct {
    mx_record record;
    int which;         /* dataset */
    mx_cursor after;   /* its cursor once this record is used */
    mx_document docs[2];
    int n_docs;
    bool cached;
    mx_status bad;     /* owned */
} mx_loader_item;

typedef enum { MX_CHUNK_FREE, MX_CHUNK_READ, MX_CHUNK_BUSY, MX_CHUNK_DONE } mx_chunk_state;
typedef struct {
    mx_chunk_state state;
    int n, taken; /* items; how many of them the packer has used */
    bool end;     /* no records follow */
    mx_loader_item items[MX_CHUNK_RECORDS];
} mx_loader_chunk;

typedef struct {
    mx_batch batch;
    mx_loader_at after; /* position once this batch is used */
    mx_loader_counts counts; /* up to and with this batch */
} mx_loader_slot;

struct mx_loader {
    mx_loader_options o;
    mx_arena arena;
    mx_mixture mixture;
    mx_packer *packer;
    mx_token_cache *cache; /* NULL: none */
    mx_data_sample *samples; /* of the datasets; NULL: none */
    uint64_t hash;         /* of the data and everything that shapes documents and rows */

    pthread_mutex_t lock; /* guards everything below, not the contents of chunks and slots in use */
    pthread_cond_t changed;
    pthread_t *threads;
    int n_running;
    _Atomic bool stop;
    _Atomic int64_t most_bytes, most_ids; /* room that the largest record and document have had */
    mx_loader_chunk *chunks;
    int n_chunks;
    int64_t n_read, n_packed; /* chunks begun by the reader; finished by the packer */
    mx_loader_slot *slots;
    int n_slots;
    int64_t n_made, n_given; /* batches finished; handed to the caller (the last is still in use) */
    bool ended;
    mx_status error;          /* first one; stays */
    int64_t records, bad_records, cache_hits;
    double wait_seconds;
    mx_str first_bad;
    mx_loader_counts end_counts, given_counts; /* of all data; up to the batch given last */

    /* the packer thread's own */
    mx_loader_at at;          /* current window */
    mx_cursor *window_after;  /* (n_window) cursor after each document of the window */
    int *window_which;
    int64_t n_window, cap_window_after, cap_window_which;
    bool exhausted;           /* no more documents will come */
    bool in_batch;            /* the batch that is being made has rows */
    bool epoch_turned;        /* and the next record is of another epoch than its last */
    int64_t last_epoch;       /* of the last record that was added; -1: there was none */
    int32_t *scratch;         /* (4 S) rows of other ranks */
    mx_loader_at given;       /* position after the last batch given: what is saved */
};

/* Stops, goes to `at`, starts again. */
mx_status mx_loader_restart(mx_loader *l, const mx_loader_at *at) MX_MUST_USE;
void mx_loader_at_copy(mx_loader_at *to, const mx_loader_at *from); /* cursors are copied */
void *mx_loader_packer(void *loader); /* a thread's main */

#endif
