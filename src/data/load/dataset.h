/* dataset.h - files as one long sequence of records, and several of them mixed.
 *
 * A dataset is the files that one list of patterns names, all of one kind. Its records come in an
 * order that is a pure function of (seed, epoch, index), by the files' kind of access (source.h):
 * one global permutation; shuffled blocks; or, for streams, shuffled files and a shuffle inside
 * windows. Where one is in it is an mx_cursor: four integers. Moving there reads only what the next
 * record needs: one record, one block, or for a stream the file up to the window.
 *
 * A share of the records may be held out. Which ones depends on their places in the files alone, so
 * that the two sets are disjoint whatever the order. The share is exact where records are counted,
 * and approximate for a stream.
 *
 * A mixture interleaves datasets by weight, each going through its own epochs.
 */
#ifndef MX_DATA_DATASET_H
#define MX_DATA_DATASET_H

#include "data/load/order.h"
#include "data/formats/source.h"

typedef struct {
    int64_t epoch;
    int64_t index;  /* of the next record in this epoch's order; for streams: inside the window */
    int64_t file;   /* streams: position in the epoch's order of files */
    int64_t record; /* streams: number of the window's first record in that file */
} mx_cursor;

/* The epoch of the record before it: random access counts on once the last is read. */
static inline int64_t mx_cursor_epoch_before(const mx_cursor *c)
{
    return c->epoch - (c->index == 0);
}

typedef struct {
    const char *paths;   /* files, patterns or directories, separated by ',' */
    const char *kind;    /* name of a source kind; NULL or "": found from the files */
    double weight;       /* in the mixture; 0 means 1 */
    mx_source_options source;
    bool shuffle;
    uint64_t seed;
    int64_t n_epochs;        /* 0: without end */
    int64_t shuffle_window;  /* streams: records shuffled together; default 1024 */
    double held_share;       /* of the records are held out for evaluation; 0: none */
    bool held_out;           /* give those, else the others */
} mx_dataset_options;

typedef struct mx_dataset mx_dataset;
mx_status mx_dataset_open(mx_dataset **out, const mx_dataset_options *o) MX_MUST_USE;
/* The record at the cursor, which moves to the next one; *end when all epochs are over. The cursor
 * moves past a record that could not be read too: the caller may report the error or go on. */
mx_status mx_dataset_next(mx_dataset *d, mx_cursor *c, mx_record *r, bool *end) MX_MUST_USE;
/* Records in one epoch, of a stream from what was read so far; 0: without end, or nothing is
 * known. */
double mx_dataset_guess(const mx_dataset *d);
int mx_dataset_files(const mx_dataset *d);
uint64_t mx_dataset_hash(const mx_dataset *d);   /* of file names, sizes and order settings */
/* A hash of bytes at some places in the files, the same places every time; from any thread. */
mx_status mx_dataset_sample(const mx_dataset *d, uint64_t *hash) MX_MUST_USE;
void mx_dataset_close(mx_dataset *d);            /* NULL is a no-op */

/* --- mixtures --- */
typedef struct {
    int64_t t;           /* records given so far */
    mx_cursor *cursors;  /* one per dataset */
    int n;
} mx_mixture_position;

typedef struct {
    mx_arena arena;
    mx_mix mix;
    mx_dataset **sets;
    int n;
    int open; /* how many of sets are */
    mx_mixture_position at;
} mx_mixture;

mx_status mx_mixture_open(mx_mixture *m, const mx_dataset_options *o, int n) MX_MUST_USE;
/* Ends when a dataset whose turn it is has given its n_epochs. *which: the dataset it came from. */
mx_status mx_mixture_next(mx_mixture *m, mx_record *r, int *which, bool *end) MX_MUST_USE;
void mx_mixture_close(mx_mixture *m);

/* --- records that cannot be read --- */
typedef struct {
    bool skip;     /* bad_record_policy=skip: leave them out */
    double budget; /* the largest share of bad ones; 10 are always allowed */
    int64_t records, bad; /* so far */
} mx_bad_records;
/* Takes what is wrong with a record and counts it; OK where it is left out. */
mx_status mx_bad_records_judge(mx_bad_records *b, mx_status st) MX_MUST_USE;

/* Files that a comma-separated list of paths, patterns and directories names, sorted, in the arena.
 */
mx_status mx_paths_expand(const char *paths, mx_arena *a, char ***out, int *n) MX_MUST_USE;

#endif
