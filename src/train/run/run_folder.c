/* run_folder.c - the folder of a run: made, locked, compared, accepted; or left as it was found.
 *
 * What is in it may only be what a run has really begun with. So config.yml, command.txt and
 * plan.txt are written when everything else is open and the first step can begin (accept). A start
 * that fails before leaves no trace where the folder was new, and changes nothing where it was not;
 * the next start, with the mistake mended, has no other configuration to be compared with.
 */
#include "train/run/run_state.h"

#include "train/run/run_config.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASH_THREADS = 2 };

/* Remembers the first folder of the path that was not there. */
static mx_status make_folder(mx_run *r, const char *path)
{
    struct stat s;
    if (!r->claim.made && stat(path, &s) != 0)
        r->claim.made = mx_arena_strdup(&r->arena, path);
    return mx_io_make_dir(NULL, path);
}

static mx_status make_folders(mx_run *r)
{
    char *path = mx_arena_strdup(&r->arena, r->folder);
    for (char *p = path + 1; *p; p++)
        if (*p == '/' && p[-1] != '/') {
            *p = 0;
            MX_TRY(make_folder(r, path));
            *p = '/';
        }
    return make_folder(r, path);
}

static mx_status compare(mx_run *r)
{
    mx_str report = {0};
    mx_status st = mx_run_config_compare(r->c, r->folder, &report);
    if (!st && report.len)
        mx_progress_say(&r->report.progress, "changed since the run was last started:\n%.*s",
                        (int)report.len - 1, mx_str_text(&report));
    mx_str_fini(&report);
    return st;
}

mx_status mx_run_folder_open(mx_run *r)
{
    MX_TRY(make_folders(r));
    MX_TRY(mx_run_lock_take(&r->claim.lock, r->folder));
    MX_TRY(mx_run_check_crashes(r));
    mx_run_log_open(r);
    return compare(r);
}

/* The newest whole checkpoint, where there is one at or beyond the last step. */
static mx_status find_end(mx_run *r, mx_ckpt_entry *end)
{
    const char *root = mx_arena_printf(&r->arena, "%s/checkpoints", r->folder);
    mx_ckpt_entry *all;
    int n;
    *end = (mx_ckpt_entry){.step = -1};
    MX_TRY(mx_ckpt_list(root, &r->arena, &all, &n));
    if (!n || all[n - 1].step < r->steps)
        return MX_OK;
    mx_progress_doing(&r->report.progress, "checking the last checkpoint");
    mx_str notes = {0}; /* said when the run goes on from an older one */
    mx_status st = mx_ckpt_newest(root, MX_CHECK_HASHES, HASH_THREADS, &r->arena, end, &notes);
    mx_str_fini(&notes);
    if (!st && end->step < r->steps)
        end->step = -1;
    return st;
}

mx_status mx_run_check_finished(mx_run *r)
{
    mx_ckpt_entry end = {.step = -1};
    if (!mx_config_bool(r->c, "enable_checkpointing"))
        return MX_OK;
    MX_TRY(mx_comm_agree(r->ranks.comm, r->ranks.leads ? find_end(r, &end) : MX_OK));
    int64_t at = end.step;
    MX_TRY(mx_comm_max(r->ranks.comm, &at, 1));
    r->claim.finished = at >= 0;
    if (r->claim.finished)
        mx_progress_say(&r->report.progress,
                        "already finished at step %lld (steps=%lld): %s. A larger steps= goes on "
                        "from there, another run_name begins anew",
                        (long long)at, (long long)r->steps, r->ranks.leads ? end.path : "");
    return MX_OK;
}

mx_status mx_run_folder_accept(mx_run *r, const char *command_line)
{
    MX_TRY(mx_run_config_save(r->c, r->folder, command_line, NULL));
    MX_TRY(mx_run_write_plan(r));
    r->claim.accepted = true;
    return MX_OK;
}

void mx_run_folder_leave(mx_run *r)
{
    if (!r->claim.made || r->claim.accepted)
        return;
    mx_status_free(mx_io_remove_tree(NULL, r->folder)); /* the error that matters is the start's */
    char *path = mx_arena_strdup(&r->arena, r->folder);
    size_t least = strlen(r->claim.made);
    for (char *slash; (slash = strrchr(path, '/')) && (size_t)(slash - path) >= least;) {
        *slash = 0;
        if (rmdir(path) != 0) /* others are in it */
            return;
    }
}
