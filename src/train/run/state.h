/* state.h - a run's state between a session and its checkpoints. */
#ifndef MX_TRAIN_STATE_H
#define MX_TRAIN_STATE_H

#include "data/load/loader.h"
#include "device/device.h"
#include "models/model.h"
#include "store/passthrough.h"
#include "store/checkpoint.h"
#include "store/checkpoint_read.h"
#include "train/input/model_files.h"
#include "train/run/spikes.h"

/* What a checkpoint holds besides tensors. */
typedef struct {
    int64_t step;    /* updates done */
    int64_t tokens;  /* trained on so far */
    int64_t inputs;  /* tokens fed so far, those that are not trained included; 0: not counted */
    int64_t skipped; /* steps among them that changed nothing */
    int64_t skipped_in_row, rollbacks;
    mx_spikes *spikes; /* borrows; NULL: no such statistics */
    mx_passthrough *passthrough; /* borrows: tensors saved besides the session's; NULL: none */
    int ranks;   /* that the run used; bits depend on it as well */
    int threads;       /* part of a run's identity: bits may depend on it */
    char *loader;      /* position in the data, JSON; NULL: none */
    size_t loader_bytes;
    const struct mx_lora *lora; /* borrows: adapters are saved, not the model; NULL: none */
    const char *base;           /* of adapters: the model they are for */
    const char *config; /* borrows: goes along as maxc_config.yml; NULL: none */
} mx_run_state;

/* Saves weights, optimizer state and `st` as checkpoint st->step. `files` go along (NULL: none).
 * The write goes on in the background. */
mx_status mx_state_save(mx_ckpt *c, mx_session *s, const mx_model_spec *m, const mx_run_state *st,
                        double metric, const mx_model_files *files) MX_MUST_USE;
/* Gets the snapshot's memory, so that the first save takes no longer than the others. */
mx_status mx_state_reserve(mx_ckpt *c, mx_session *s, const mx_model_spec *m,
                           const mx_run_state *st, const mx_model_files *files) MX_MUST_USE;
/* Everything back; st->spikes, where given, is filled. The caller frees st->loader with mx_free. */
mx_status mx_state_restore(const char *checkpoint, mx_session *s, const mx_model_spec *m,
                           mx_run_state *st) MX_MUST_USE;

#endif
