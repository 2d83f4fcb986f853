/* retention.c - the policy, and removal that a crash cannot turn into half a checkpoint. */
#include "store/retention.h"

#include "base/str.h"
#include "store/checkpoint_read.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

typedef struct {
    int64_t step;
    double metric;
    bool whole; /* its manifest can be read */
    bool keep;
} candidate;

/* A reader holds the shared lock that mx_ckpt_open takes. */
static bool is_being_read(const char *root, int64_t step)
{
    mx_str path = {0};
    mx_str_addf(&path, "%s/%" PRId64 "/manifest.json", root, step);
    int fd = open(path.text, O_RDONLY | O_CLOEXEC);
    bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    mx_str_fini(&path);
    return busy;
}

mx_status mx_retention_remove(const mx_io *io, const char *root, int64_t step)
{
    io = io ? io : &mx_io_system;
    mx_str from = {0}, to = {0};
    mx_str_addf(&from, "%s/%" PRId64, root, step);
    mx_str_addf(&to, "%s/.trash-%" PRId64, root, step);
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_io_remove_tree(io, to.text)); /* an earlier removal that was cut short */
    if (io->rename(io->ctx, from.text, to.text))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: cannot remove the checkpoint", from.text));
    st = mx_io_remove_tree(io, to.text);
out:
    mx_str_fini(&from);
    mx_str_fini(&to);
    return st;
}

static void keep_newest(candidate *c, int n, int count)
{
    for (int i = n - 1; i >= 0 && count > 0; i--)
        if (c[i].whole) {
            c[i].keep = true;
            count--;
        }
}

static void keep_best(candidate *c, int n, int count, bool max)
{
    for (; count > 0; count--) {
        candidate *best = NULL;
        for (int i = 0; i < n; i++) {
            if (!c[i].whole || isnan(c[i].metric) || c[i].keep)
                continue;
            if (!best || (max ? c[i].metric > best->metric : c[i].metric < best->metric))
                best = &c[i];
        }
        if (!best)
            return;
        best->keep = true;
    }
}

static void look(const mx_ckpt_entry *e, candidate *c)
{
    json_t *manifest;
    mx_manifest_head head;
    *c = (candidate){.step = e->step, .metric = NAN};
    mx_status st = mx_manifest_read(e->path, &manifest);
    if (!st) {
        mx_manifest_get_head(manifest, &head);
        c->metric = head.metric;
        c->whole = true;
        json_decref(manifest);
    }
    mx_status_free(st);
}

mx_status mx_retention_apply(const mx_io *io, const char *root, const mx_retention *policy)
{
    if (policy->keep_last <= 0)
        return MX_OK;
    mx_arena a = {0};
    mx_ckpt_entry *list;
    int n;
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_ckpt_list(root, &a, &list, &n));
    candidate *c = MX_NEW_N(&a, candidate, n + 1);
    for (int i = 0; i < n; i++)
        look(&list[i], &c[i]);
    /* The best are chosen among all, before the last ones claim their places. */
    keep_best(c, n, policy->keep_best, policy->best_is_max);
    keep_newest(c, n, policy->keep_last);
    for (int i = 0; i < n; i++) {
        bool periodic = policy->keep_every > 0 && c[i].step % policy->keep_every == 0;
        if (c[i].keep || periodic || !c[i].whole || is_being_read(root, c[i].step))
            continue;
        MX_TRY_OUT(st, mx_retention_remove(io, root, c[i].step));
    }
out:
    mx_arena_fini(&a);
    return st;
}

mx_status mx_retention_sweep(const mx_io *io, const char *root)
{
    DIR *d = opendir(root);
    if (!d)
        return errno == ENOENT ? MX_OK : mx_fail_errno(MX_DEVICE, "%s: cannot list", root);
    mx_str path = {0};
    mx_status st = MX_OK;
    for (struct dirent *e; !st && (e = readdir(d));) {
        if (!mx_starts_with(e->d_name, ".tmp-") && !mx_starts_with(e->d_name, ".trash-"))
            continue;
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", root, e->d_name);
        st = mx_io_remove_tree(io, path.text);
    }
    mx_str_fini(&path);
    closedir(d);
    return st;
}
