/* run_lock.h - one process per run folder.
 *
 * RUN/run.lock is locked (flock) for as long as the run lives; the kernel lets go of it when the
 * process dies, however it dies. The file says who holds it: {"host", "pid", "started"}. Where
 * locks do not reach other hosts (some network file systems), the file's time is the heartbeat: a
 * lock held by another host and touched in the last two minutes is taken as held.
 */
#ifndef MX_STORE_RUN_LOCK_H
#define MX_STORE_RUN_LOCK_H

#include "base/status.h"

typedef struct {
    int fd;
    bool held;
} mx_run_lock;

mx_status mx_run_lock_take(mx_run_lock *l, const char *run_dir) MX_MUST_USE;
void mx_run_lock_beat(mx_run_lock *l);    /* call it every half minute or so; cheap */
void mx_run_lock_release(mx_run_lock *l); /* a lock not held is a no-op */

#endif
