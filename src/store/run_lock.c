/* run_lock.c - flock with an owner's note and a heartbeat. */
#include "store/run_lock.h"

#include "base/arena.h"
#include "base/json_doc.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STALE_S = 120, MAX_NOTE = 1024 };

typedef struct {
    char host[256];
    long pid;
    char started[32];
    long age_s; /* since the last heartbeat */
} owner;

/* False when the file is empty (released cleanly) or says nothing that can be understood. */
static bool read_owner(int fd, owner *o)
{
    char text[MAX_NOTE];
    struct stat s;
    ssize_t n = pread(fd, text, sizeof text, 0);
    json_t *v = NULL;
    *o = (owner){0};
    if (n <= 0 || fstat(fd, &s))
        return false;
    mx_status st = mx_json_parse(text, (size_t)n, "run.lock", NULL, &v);
    const char *host = json_string_value(json_object_get(v, "host"));
    const char *started = json_string_value(json_object_get(v, "started"));
    bool known = !st && host && started;
    if (known) {
        snprintf(o->host, sizeof o->host, "%s", host);
        snprintf(o->started, sizeof o->started, "%s", started);
        o->pid = (long)json_integer_value(json_object_get(v, "pid"));
        o->age_s = (long)(time(NULL) - s.st_mtime);
    }
    mx_status_free(st);
    json_decref(v);
    return known;
}

static mx_status refuse(const char *path, const owner *o, bool known)
{
    if (!known)
        return mx_fail(MX_USAGE,
                       "%s is locked: another process is using this run folder; stop it, or "
                       "choose another run_name",
                       path);
    return mx_fail(MX_USAGE,
                   "%s is locked by process %ld on %s, started %s, last seen %ld s ago; stop "
                   "it, or choose another run_name",
                   path, o->pid, o->host, o->started, o->age_s);
}

static mx_status sign(int fd, const char *path, const char *host)
{
    time_t t = time(NULL);
    struct tm tm;
    char started[32];
    gmtime_r(&t, &tm);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *v =
        json_pack("{s:s, s:I, s:s}", "host", host, "pid", (json_int_t)getpid(), "started", started);
    char *text = v ? mx_json_text(v, 0) : NULL;
    bool bad =
        !text || ftruncate(fd, 0) || pwrite(fd, text, strlen(text), 0) != (ssize_t)strlen(text);
    mx_free(text);
    json_decref(v);
    return bad ? mx_fail_errno(MX_DEVICE, "%s: cannot write the owner's note", path) : MX_OK;
}

mx_status mx_run_lock_take(mx_run_lock *l, const char *run_dir)
{
    *l = (mx_run_lock){.fd = -1};
    mx_str path = {0};
    mx_str_addf(&path, "%s/run.lock", run_dir);
    mx_status st = MX_OK;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    l->fd = open(path.text, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (l->fd < 0)
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: cannot open", path.text));
    owner o;
    bool locked = flock(l->fd, LOCK_EX | LOCK_NB) == 0;
    bool held_elsewhere = !locked && errno == EWOULDBLOCK;
    bool known = read_owner(l->fd, &o);
    /* flock may be local to this host, or missing (ENOLCK, EOPNOTSUPP): then the note decides. */
    bool alive = known && o.age_s < STALE_S && strcmp(o.host, host) != 0;
    if (held_elsewhere || alive)
        MX_TRY_OUT(st, refuse(path.text, &o, known));
    MX_TRY_OUT(st, sign(l->fd, path.text, host));
    l->held = true;
out:
    if (st && l->fd >= 0)
        close(l->fd);
    mx_str_fini(&path);
    return st;
}

void mx_run_lock_beat(mx_run_lock *l)
{
    if (l->held)
        (void)futimens(l->fd, NULL); /* a missed beat is not worth a failure */
}

void mx_run_lock_release(mx_run_lock *l)
{
    if (!l->held)
        return;
    if (ftruncate(l->fd, 0) == 0)
        (void)flock(l->fd, LOCK_UN);
    close(l->fd);
    *l = (mx_run_lock){.fd = -1};
}
