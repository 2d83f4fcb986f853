/* ranks.c - see ranks.h. */
#include "ranks.h"

#include "../test.h"
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

void ranks_run(int size, int (*run)(int rank, void *ctx), void *ctx)
{
    pid_t pids[RANKS_MAX];
    int status[RANKS_MAX];
    ranks_start(size, run, ctx, pids);
    ranks_wait(size, pids, status);
    for (int r = 0; r < size; r++)
        MX_CHECK(status[r] == 0, "rank %d of %d ended with %d", r, size, status[r]);
}
