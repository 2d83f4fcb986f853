/* checkpoint_impl.h - what the two halves of saving share: checkpoint.c takes the copy and owns the
 * thread, checkpoint_write.c puts it on the disk. */
#ifndef MX_STORE_CHECKPOINT_IMPL_H
#define MX_STORE_CHECKPOINT_IMPL_H

#include "base/arena.h"
#include "store/checkpoint.h"
#include <pthread.h>

typedef struct {
    mx_arena arena; /* names, texts, file contents */
    int64_t step;
    double metric;
    const char *stem;
    mx_st_source *weights, *optimizer;
    int64_t n_weights, n_optimizer;
    mx_hf_extra *extras; /* state.json is the last */
    int n_extras;
    uint64_t n_bytes;  /* of everything */
    mx_st_writer from; /* fetch, for tensors that could not be copied */
} mx_ckpt_snapshot;

typedef enum { MX_CKPT_IDLE, MX_CKPT_READY, MX_CKPT_WRITING } mx_ckpt_phase;

struct mx_ckpt {
    mx_arena arena;
    mx_ckpt_opts opts;
    const char *root; /* RUN/checkpoints */
    mx_ckpt_snapshot snap;
    void *memory; /* owns: the snapshot's tensors; kept between saves */
    char *buffer; /* in it, on a disk block */
    int64_t writer_id; /* in the names of folders being written: rank 0's process */
    size_t buffer_bytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stopping;
    mx_ckpt_phase phase;
    double write_began;
    mx_ckpt_status status;
};

/* Rank 0 makes the folder, writes the small files and commits. */
bool mx_ckpt_leads(const mx_ckpt *c);
/* An error where any rank has one; takes `st`. */
mx_status mx_ckpt_agree(const mx_ckpt *c, mx_status st) MX_MUST_USE;
/* The snapshot as a folder under the root; durable when it returns without an error. */
mx_status mx_ckpt_write(const mx_ckpt *c) MX_MUST_USE;

#endif
