/* reward_command.c - see reward_command.h.
 *
 * Worker w gets answers w, w + W, ...: one at a time, the next when the last came back, so that no
 * pipe can fill up on both sides. A worker that failed is killed with its whole process group.
 */
#include "post/reward_command.h"

#include "base/clock.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORKERS = 64, MAX_LINE = 1 << 16, ERROR_BYTES = 400 };

typedef struct {
    pid_t pid;
    int io, err; /* a socket for its input and output; its standard error, not blocking */
    int64_t at;  /* the answer it works on; -1: none */
    bool asked;  /* at least once */
    double deadline;
    char line[MAX_LINE];
    size_t n;
} worker;

struct mx_reward_command {
    const char *command;
    double timeout;
    bool sandbox;
    worker *w;
    int n;
};

/* In the child: no network, no new rights. Where the system refuses a namespace, the rest holds. */
static void enter_sandbox(void)
{
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)unshare(CLONE_NEWUSER | CLONE_NEWNET);
}

static mx_status start(mx_reward_command *r, worker *w)
{
    int io[2], err[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, io))
        return mx_fail_errno(MX_DEVICE, "reward_command: no socket");
    if (pipe2(err, O_CLOEXEC)) {
        close(io[0]), close(io[1]);
        return mx_fail_errno(MX_DEVICE, "reward_command: no pipe");
    }
    w->pid = fork();
    if (w->pid == 0) {
        setpgid(0, 0);
        dup2(io[1], 0);
        dup2(io[1], 1);
        dup2(err[1], 2);
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (r->sandbox)
            enter_sandbox();
        execl("/bin/sh", "sh", "-c", r->command, (char *)NULL);
        _exit(127);
    }
    close(io[1]);
    close(err[1]);
    w->io = io[0];
    w->err = err[0];
    w->at = -1;
    w->n = 0;
    (void)fcntl(w->err, F_SETFL, O_NONBLOCK);
    if (w->pid < 0)
        return mx_fail_errno(MX_DEVICE, "reward_command: could not be started");
    return MX_OK;
}

static void stop(worker *w)
{
    if (w->pid <= 0)
        return;
    kill(-w->pid, SIGKILL);
    kill(w->pid, SIGKILL);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(w->io);
    close(w->err);
    w->pid = 0;
}

mx_status mx_reward_command_open(mx_reward_command **out, const mx_config *c)
{
    mx_reward_command *r = mx_realloc(NULL, sizeof *r);
    *r = (mx_reward_command){.command = mx_config_text(c, "reward_command"),
                             .timeout = mx_config_float(c, "reward_timeout"),
                             .sandbox = mx_config_bool(c, "reward_sandbox"),
                             .n = (int)mx_config_int(c, "reward_workers")};
    r->w = mx_realloc(NULL, sizeof *r->w * (size_t)r->n);
    memset(r->w, 0, sizeof *r->w * (size_t)r->n);
    *out = r;
    for (int i = 0; i < r->n; i++)
        MX_TRY(start(r, &r->w[i]));
    return MX_OK;
}

void mx_reward_command_close(mx_reward_command *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++)
        stop(&r->w[i]);
    mx_free(r->w);
    mx_free(r);
}

/* --- one answer --- */

static mx_status give_up(const mx_reward_command *r, worker *w, const char *what)
{
    char said[ERROR_BYTES + 1] = "", end[64] = "";
    int code = 0;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* its last words, its end */
    ssize_t n = read(w->err, said, ERROR_BYTES);
    said[n > 0 ? n : 0] = 0;
    if (waitpid(w->pid, &code, WNOHANG) == w->pid) {
        snprintf(end, sizeof end, WIFSIGNALED(code) ? " (killed by signal %d)" : " (it ended with "
                 "status %d)", WIFSIGNALED(code) ? WTERMSIG(code) : WEXITSTATUS(code));
        kill(-w->pid, SIGKILL);
        close(w->io), close(w->err);
        w->pid = 0;
    }
    stop(w);
    return mx_fail(MX_INPUT, "reward_command=%s: %s%s%s%s; nothing was updated", r->command, what,
                   end, *said ? "; it said: " : "", said);
}

/* A line that nobody asked for would pass for the next answer's, and every later one too. */
static bool has_said_more(worker *w)
{
    char c;
    bool more = w->asked && recv(w->io, &c, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
    w->asked = true;
    return more;
}

static mx_status ask(mx_reward_command *r, worker *w, const mx_reward_input *j, int64_t i)
{
    if (has_said_more(w))
        return give_up(r, w, "wrote more lines than it was asked for");
    json_t *o = json_copy((json_t *)j->record);
    o = o ? o : json_object();
    json_object_set_new(o, "prompt", json_string(j->prompt));
    json_object_set_new(o, "completion", json_stringn(j->answer, j->n_answer));
    json_object_set_new(o, "tokens", json_integer(j->tokens));
    json_object_set_new(o, "truncated", json_boolean(j->truncated));
    char *line = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    size_t n = line ? strlen(line) : 0;
    mx_status st = MX_OK;
    if (line)
        line[n++] = '\n'; /* over its end */
    w->at = i;
    w->n = 0;
    w->deadline = mx_clock_now() + r->timeout;
    for (size_t done = 0; done < n && !st;) {
        struct pollfd f = {w->io, POLLOUT, 0};
        int ready = poll(&f, 1, (int)(1000 * r->timeout) + 1);
        ssize_t k = ready > 0 ? send(w->io, line + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : -1;
        if (k > 0)
            done += (size_t)k;
        else if (ready == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            st = give_up(r, w, ready == 0 ? "does not read its input" : "has ended");
    }
    mx_free(line);
    return st;
}

/* The line as a message can hold it: printable, without its end. */
static void show_line(const worker *w, char *out, size_t cap)
{
    size_t n = 0;
    for (; n + 1 < cap && n < w->n && w->line[n] != '\n'; n++)
        out[n] = w->line[n] >= ' ' && w->line[n] < 127 ? w->line[n] : '?';
    out[n] = 0;
}

static mx_status read_score(const mx_reward_command *r, worker *w, double *score)
{
    char what[200], line[61];
    json_error_t error;
    json_t *v = json_loadb(w->line, w->n, JSON_DECODE_ANY, &error);
    const json_t *x = json_is_object(v) ? json_object_get(v, "reward") : v;
    mx_status st = MX_OK;
    *score = json_is_number(x) ? json_number_value(x) : NAN;
    if (!x || (!json_is_number(x) && !json_is_null(x))) {
        show_line(w, line, sizeof line);
        snprintf(what, sizeof what, "expected a line with a number, null or {\"reward\": number}, "
                 "found \"%s\"", line);
        st = give_up(r, w, what);
    }
    json_decref(v);
    return st;
}

/* Reads what is there; *done: a whole line. */
static mx_status read_line(const mx_reward_command *r, worker *w, bool *done)
{
    ssize_t k = recv(w->io, w->line + w->n, MAX_LINE - 1 - w->n, MSG_DONTWAIT);
    *done = false;
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return MX_OK;
    if (k <= 0)
        return give_up(r, w, "has ended before it judged every answer");
    w->n += (size_t)k;
    w->line[w->n] = 0;
    char *end = memchr(w->line, '\n', w->n);
    *done = end != NULL;
    if (end && end + 1 != w->line + w->n)
        return give_up(r, w, "wrote more lines than it was asked for");
    if (!end && w->n == MAX_LINE - 1)
        return give_up(r, w, "wrote a line without an end");
    return MX_OK;
}

static double nearest_deadline(const mx_reward_command *r)
{
    double least = INFINITY;
    for (int i = 0; i < r->n; i++)
        if (r->w[i].at >= 0 && r->w[i].deadline < least)
            least = r->w[i].deadline;
    return least;
}

/* Waits until some worker has written, or is late. */
static mx_status wait_for(mx_reward_command *r)
{
    struct pollfd f[MAX_WORKERS];
    for (int i = 0; i < r->n; i++)
        f[i] = (struct pollfd){r->w[i].at >= 0 ? r->w[i].io : -1, POLLIN, 0};
    double left = nearest_deadline(r) - mx_clock_now();
    if (poll(f, (nfds_t)r->n, left > 0 ? (int)(1000 * left) + 1 : 0) != 0)
        return MX_OK;
    for (int i = 0; i < r->n; i++)
        if (r->w[i].at >= 0 && mx_clock_now() >= r->w[i].deadline) {
            char what[100];
            snprintf(what, sizeof what, "took longer than reward_timeout=%g s for an answer",
                     r->timeout);
            return give_up(r, &r->w[i], what);
        }
    return MX_OK;
}

mx_status mx_reward_command_judge(mx_reward_command *r, const mx_reward_input *answers, int64_t n,
                                  double *score, int64_t stride)
{
    int64_t next = 0, done = 0;
    while (done < n) {
        for (int i = 0; i < r->n && next < n; i++)
            if (r->w[i].at < 0) {
                MX_TRY(ask(r, &r->w[i], &answers[next], next));
                next++;
            }
        MX_TRY(wait_for(r));
        for (int i = 0; i < r->n; i++) {
            bool whole = false;
            worker *w = &r->w[i];
            if (w->at >= 0)
                MX_TRY(read_line(r, w, &whole));
            if (!whole)
                continue;
            MX_TRY(read_score(r, w, &score[w->at * stride]));
            w->at = -1;
            done++;
        }
    }
    return MX_OK;
}
