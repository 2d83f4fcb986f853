/* checkpoint_read.h - which checkpoints a run has, which is the newest whole one, and opening it.
 *
 *     RUN/checkpoints/300/          a committed checkpoint: its name is its step
 *     RUN/checkpoints/.tmp-400-PID/ one being written, or left by a killed process: never read
 *     RUN/checkpoints/.trash-100/   one being removed
 * Order is by step, never by time. Nothing here writes.
 */
#ifndef MX_STORE_CHECKPOINT_READ_H
#define MX_STORE_CHECKPOINT_READ_H

#include "store/hf_dir.h"
#include "store/manifest.h"

typedef struct {
    int64_t step;
    const char *path; /* in the caller's arena */
} mx_ckpt_entry;

/* The committed checkpoints under `root` (RUN/checkpoints), by rising step; none when the directory
 * does not exist. They are not checked. */
mx_status mx_ckpt_list(const char *root, mx_arena *a, mx_ckpt_entry **out, int *n) MX_MUST_USE;

/* The newest checkpoint that passes the check. Each newer one that does not is described in `notes`
 * ("checkpoint 300 is damaged...; using 200"). out->path is NULL when there are none at all; it is
 * an error when there are some and none is whole, since starting afresh would hide the damage. */
mx_status mx_ckpt_newest(const char *root, mx_check_level level, int n_threads, mx_arena *a,
                         mx_ckpt_entry *out, mx_str *notes) MX_MUST_USE;

/* The manifest, and the directory against it. */
mx_status mx_ckpt_verify(const char *path, mx_check_level level, int n_threads) MX_MUST_USE;

/* An open checkpoint. While it is open, retention in another process leaves it alone (a shared lock
 * on its manifest). Close on a zero object is a no-op. */
typedef struct {
    mx_manifest_head head;
    json_t *manifest, *state; /* owns */
    mx_hf_dir model;
    mx_hf_dir optimizer; /* no tensors when has_optimizer is false */
    bool has_optimizer;
    int lease_fd;
    bool has_lease;
} mx_ckpt_view;

/* Verifies first, so that nothing of a damaged checkpoint reaches the caller. */
mx_status mx_ckpt_open(mx_ckpt_view *v, const char *path, mx_check_level level,
                       int n_threads) MX_MUST_USE;
void mx_ckpt_close(mx_ckpt_view *v);

#endif
