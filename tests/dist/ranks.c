/* ranks.c - see ranks.h. */
#include "ranks.h"

#include "../test.h"
#include "base/clock.h"
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int ranks_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MX_CHECK(bind(fd, (struct sockaddr *)&a, n) == 0 &&
             getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    close(fd);
    return ntohs(a.sin_port);
}

void ranks_be(int rank, int size, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

void ranks_start(int size, int (*run)(int rank, void *ctx), void *ctx, pid_t *pids)
{
    int port = ranks_port();
    fflush(stdout);
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* not longer than the test */
            ranks_be(r, size, port);
            int bad = run(r, ctx);
            fflush(stdout);
            exit(bad); /* not _exit: the leak check runs at exit */
        }
    }
}

void ranks_wait(int size, const pid_t *pids, int *status)
{
    for (int r = 0; r < size; r++) {
        int st = 0;
        waitpid(pids[r], &st, 0);
        status[r] = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
    }
}

bool ranks_wait_for(double seconds, int size, const pid_t *pids, int *status)
{
    double until = mx_clock_now() + seconds;
    bool in_time = true;
    for (int r = 0; r < size; r++) {
        siginfo_t info = {0};
        while (waitid(P_PID, (id_t)pids[r], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               !info.si_pid && mx_clock_now() < until)
            usleep(5000);
        if (!info.si_pid) {
            in_time = false;
            kill(pids[r], SIGKILL);
        }
        ranks_wait(1, pids + r, status + r);
    }
    return in_time;
}

mx_coord_options ranks_options(double heartbeat_s, double call_s)
{
    return (mx_coord_options){.join_timeout_s = 60,
                              .heartbeat_timeout_s = heartbeat_s,
                              .call_timeout_s = call_s,
                              .secret = "only the tests know this"};
}

mx_coord *ranks_meet(double heartbeat_s, double call_s)
{
    mx_coord *coord = NULL;
    mx_launch l;
    mx_coord_options o = ranks_options(heartbeat_s, call_s);
    mx_status st = mx_launch_find(&l, getenv);
    if (!st)
        st = mx_coord_open(&coord, &l, &o);
    if (st)
        printf("    %s\n", mx_status_text(st));
    mx_status_free(st);
    return coord;
}

mx_comm *ranks_join(mx_coord **coord, double heartbeat_s, double call_s)
{
    mx_comm *c = NULL;
    *coord = ranks_meet(heartbeat_s, call_s);
    mx_status st = *coord ? mx_comm_open(&c, *coord, &(mx_comm_choice){.how = "tcp"}) : MX_OK;
    if (st)
        printf("    %s\n", mx_status_text(st));
    mx_status_free(st);
    return c;
}

void ranks_leave(mx_coord *coord, mx_comm *comm)
{
    mx_comm_close(comm);
    mx_coord_close(coord);
}

void ranks_run(int size, int (*run)(int rank, void *ctx), void *ctx)
{
    pid_t pids[RANKS_MAX];
    int status[RANKS_MAX];
    ranks_start(size, run, ctx, pids);
    ranks_wait(size, pids, status);
    for (int r = 0; r < size; r++)
        MX_CHECK(status[r] == 0, "rank %d of %d ended with %d", r, size, status[r]);
}
