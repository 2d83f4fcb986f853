/* checkpoint.h - saving a run's state while the run goes on.
 *
 * mx_ckpt_save copies the tensors (the snapshot), hands the copy to a writer thread and returns.
 * The thread writes RUN/checkpoints/.tmp-STEP-PID/ - a Hugging Face directory, the optimizer's
 * tensors, state.json - makes each file durable, writes the manifest last, renames the directory to
 * STEP and makes the rename durable. What can be seen under a step's name is therefore always
 * whole.
 *
 * A write that fails (disk full, EIO, read-only...) is reported by mx_ckpt_poll and never stops the
 * run: its half-written folder is removed, every older checkpoint stays. The next save tries
 * again. mx_ckpt_wait returns the last write's failure, for the save a run ends with.
 *
 * Several ranks save together (opts.comm): every rank calls with the same tensors, each writes its
 * share of the files into one folder, and rank 0 commits it when all have succeeded; when one has
 * not, all report its failure and nothing is committed. Ranks of a mesh write their parts of every
 * tensor into the same files (st_boxes.c). The files do not depend on the number of
 * ranks. A rank that dies before the commit leaves a folder nobody reads, swept at the next start.
 *
 * Back-pressure: there is one snapshot. A save that comes while the one before is being written
 * waits for it. When there is no memory for the snapshot, or no thread, the save is written at
 * once, from the caller's own buffers.
 */
#ifndef MX_STORE_CHECKPOINT_H
#define MX_STORE_CHECKPOINT_H

#include "dist/comm.h"
#include "store/hf_save.h"
#include "store/retention.h"

typedef struct mx_ckpt mx_ckpt;

typedef struct {
    const char *run_dir;
    const char *run_id;
    mx_retention retention;
    uint64_t max_shard_bytes; /* 0: MX_HF_SHARD_BYTES */
    int n_threads;            /* for copying and writing; 2 when 0 */
    bool synchronous;         /* write inside mx_ckpt_save */
    const mx_io *io;          /* NULL: the system's */
    mx_comm *comm;            /* the ranks that save together; used for nothing else. NULL: alone */
    bool boxes;               /* they have parts of the tensors, and each writes its own */
} mx_ckpt_opts;

typedef struct {
    int64_t step;
    double metric;               /* NAN: none; for keep_best */
    const char *stem;            /* of the weights' files; "model" when NULL */
    const mx_st_source *weights; /* stacks are split, see mx_hf_split_stacks */
    int64_t n_weights;
    const mx_st_source *optimizer;
    int64_t n_optimizer;
    const char *state_json;    /* an object: step, RNG, loader position... as the caller likes */
    const mx_hf_extra *extras; /* config.json, tokenizer files */
    int n_extras;
    /* Gives bytes [at, at + n) of a tensor without data (it lies on a device): see mx_st_writer.
     * Called before mx_ckpt_save returns, from the calling thread. */
    mx_status (*fetch)(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n);
    void *fetch_ctx;
} mx_ckpt_request;

typedef struct {
    bool writing;
    int64_t writing_step;
    double writing_s;  /* how long the present write has taken, for a watchdog */
    int64_t last_step; /* the newest made durable by this object; -1: none */
    int64_t n_written;
    int n_failed;        /* in a row */
    uint64_t last_bytes; /* of the last durable write */
    double last_write_s;
    double last_stall_s; /* how long the last save kept its caller */
    double total_stall_s;
    char error[600];   /* of the last failure, "" after a success */
    char warning[600]; /* e.g. retention could not remove an old one; "" when none */
} mx_ckpt_status;

/* Makes RUN/checkpoints and removes what killed processes left there; the run's lock must be held.
 */
mx_status mx_ckpt_new(mx_ckpt **out, const mx_ckpt_opts *opts) MX_MUST_USE;
/* Fails only for a request that cannot be written at all (state_json is not an object, a name
 * twice). Everything it is given may change or go away after it returns, except files that extras
 * name by `from`: the writer reads those. */
mx_status mx_ckpt_save(mx_ckpt *c, const mx_ckpt_request *r) MX_MUST_USE;
/* Gets the snapshot's memory beforehand, for requests like this one (its data is not looked at). */
mx_status mx_ckpt_reserve(mx_ckpt *c, const mx_ckpt_request *r) MX_MUST_USE;
/* Waits until nothing is being written; gives the last write's failure. */
mx_status mx_ckpt_wait(mx_ckpt *c) MX_MUST_USE;
mx_ckpt_status mx_ckpt_poll(mx_ckpt *c);
void mx_ckpt_free(mx_ckpt *c); /* waits; NULL is a no-op */

#endif
