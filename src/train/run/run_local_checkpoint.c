/* run_local_checkpoint.c - the fallback for a run whose checkpoints cannot be written.
 *
 *     local_checkpoint_directory (or /dev/shm)/maxc-RUN_NAME-ID/checkpoints/STEP/
 *
 * After max_checkpoint_failures failed saves in a row, or when the last save of a run fails, the
 * state is written there, in the format of every checkpoint, and the run ends with status 5. When
 * that fails, too, a run that is under way goes on: as long as it lives its state is not lost.
 *
 * ID is made of the run folder's path, inode and time of birth, so a folder that was deleted and
 * made again never finds the state of its predecessor. The next start of the run looks here: a
 * whole checkpoint newer than those in the run folder is what it goes on from. It saves at once, in
 * the run folder, and removes this checkpoint when that has succeeded.
 *
 * With several ranks rank 0 keeps the state, on its machine. Ranks of other machines cannot read it
 * there: copy it to where they can and name it as load_full_state_path.
 *
 * /dev/shm is shared by all users: what is found there counts only when it is ours and no other
 * user can write to it.
 */
#include "train/run/run_state.h"

#include "store/digest.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static const char IN_MEMORY[] = "/dev/shm";

static void name_local_dir(mx_run *r)
{
    char real[PATH_MAX], hex[MX_DIGEST_TEXT];
    struct statx s = {0};
    if (!realpath(r->folder, real) ||
        statx(AT_FDCWD, real, 0, STATX_INO | STATX_BTIME, &s)) /* no folder, nothing to keep */
        return;
    const char *chosen = mx_config_text(r->c, "local_checkpoint_directory");
    const char *who = mx_arena_printf(&r->arena, "%s %llu %lld.%u", real,
                                      (unsigned long long)s.stx_ino,
                                      (long long)s.stx_btime.tv_sec, s.stx_btime.tv_nsec);
    mx_digest_text(mx_digest_of(who, strlen(who)), hex);
    char *name = mx_arena_printf(&r->arena, "%.80s", mx_config_text(r->c, "run_name"));
    for (char *c = name; *c; c++)
        *c = isalnum((unsigned char)*c) || *c == '-' ? *c : '_';
    r->saving.local_dir =
        mx_arena_printf(&r->arena, "%s/maxc-%s-%.16s", *chosen ? chosen : IN_MEMORY, name, hex);
}

mx_status mx_run_local_checkpoint_open(mx_run *r)
{
    if (r->ranks.leads)
        name_local_dir(r);
    return mx_comm_share_path(r->ranks.comm, &r->arena, &r->saving.local_dir);
}

/* Ours alone? Any user who may write to /dev/shm could have made a folder of this name. */
static bool is_ours(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() &&
           (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static void find_kept(mx_run *r, int64_t newer_than, const char **path)
{
    if (!r->saving.local_dir || !is_ours(r->saving.local_dir))
        return;
    mx_ckpt_entry e = {0};
    mx_str notes = {0};
    const char *root = mx_arena_printf(&r->arena, "%s/checkpoints", r->saving.local_dir);
    mx_status st = mx_ckpt_newest(root, MX_CHECK_HASHES, mx_session_threads(r->session), &r->arena,
                                  &e, &notes);
    if (st || notes.len) /* nothing whole, or not the newest: the run folder's own may do */
        mx_progress_say(&r->report.progress, "note: %s",
                        st ? mx_status_text(st) : mx_str_text(&notes));
    if (!st && e.path && e.step > newer_than) {
        *path = e.path;
        r->saving.local_step = e.step;
        mx_progress_say(&r->report.progress,
                        "note: step %lld was kept in %s when checkpoints could not be written",
                        (long long)e.step, e.path);
    }
    mx_status_free(st);
    mx_str_fini(&notes);
}

mx_status mx_run_local_checkpoint_newest(mx_run *r, int64_t newer_than, const char **path)
{
    *path = NULL;
    if (r->ranks.leads)
        find_kept(r, newer_than, path);
    MX_TRY(mx_comm_broadcast(r->ranks.comm, &r->saving.local_step, sizeof r->saving.local_step, 0));
    return mx_comm_share_path(r->ranks.comm, &r->arena, path);
}

void mx_run_local_checkpoint_clear(mx_run *r, int64_t durable_step)
{
    if (r->saving.local_step < 0 || durable_step < r->saving.local_step)
        return;
    mx_status st = r->ranks.leads ? mx_io_remove_tree(NULL, r->saving.local_dir) : MX_OK;
    mx_progress_say(&r->report.progress, "step %lld is in the run folder; %s is %s",
                    (long long)durable_step, r->saving.local_dir,
                    st ? mx_status_text(st) : "cleared");
    mx_status_free(st);
    r->saving.local_step = -1;
}

static mx_status write_state(mx_run *r)
{
    mx_ckpt *c = NULL;
    const char *chosen = mx_config_text(r->c, "local_checkpoint_directory");
    if (!r->saving.local_dir)
        return mx_fail(MX_DEVICE, "the run folder had no path when the run began");
    if (*chosen)
        MX_TRY(mx_io_make_dir(NULL, chosen));
    if (mkdir(r->saving.local_dir, 0700) && errno != EEXIST)
        return mx_fail_errno(MX_DEVICE, "%s: cannot create the directory", r->saving.local_dir);
    if (!is_ours(r->saving.local_dir))
        return mx_fail(MX_DEVICE, "%s is there and belongs to another user", r->saving.local_dir);
    mx_ckpt_opts o = {.run_dir = r->saving.local_dir,
                      .run_id = mx_config_text(r->c, "run_name"),
                      .retention = {.keep_last = 1},
                      .synchronous = true,
                      .comm = r->mesh_rank ? r->ranks.comm : NULL,
                      .boxes = r->mesh_rank != NULL};
    MX_TRY(mx_ckpt_new(&c, &o));
    mx_status st = mx_run_save_to(r, c);
    if (!st)
        st = mx_ckpt_wait(c);
    mx_ckpt_free(c);
    if (st) { /* nothing is left of it, unless an older state is there */
        const char *root = mx_arena_printf(&r->arena, "%s/checkpoints", r->saving.local_dir);
        if (rmdir(root) == 0)
            (void)rmdir(r->saving.local_dir);
    }
    return st;
}

static bool in_memory(const char *path)
{
    struct statfs s;
    return statfs(path, &s) == 0 && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC);
}

mx_status mx_run_local_checkpoint_save(mx_run *r, const char *why, bool *kept)
{
    /* On a mesh every rank has a part of the state; else each has all of it and one copy is
     * enough. */
    mx_status st =
        mx_comm_agree(r->ranks.comm, r->ranks.leads || r->mesh_rank ? write_state(r) : MX_OK);
    *kept = !st;
    if (st) {
        r->saving.local_failed++;
        return mx_status_wrap(st, "%s; the state could not be kept elsewhere either", why);
    }
    const char *brief = " (in memory: it is gone when this machine restarts)";
    return mx_fail(MX_DEVICE,
                   "%s. The run has stopped at step %lld. Its whole state is kept in "
                   "%s/checkpoints/%lld%s. Make %s/checkpoints writable and run the same command: "
                   "it goes on from there, bit for bit. In another folder, "
                   "load_full_state_path=%s/checkpoints/%lld does the same",
                   why, (long long)r->at.step, r->saving.local_dir, (long long)r->at.step,
                   in_memory(r->saving.local_dir) ? brief : "", r->folder, r->saving.local_dir,
                   (long long)r->at.step);
}
