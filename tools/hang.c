/* hang.c - holds one thread of a process still, its first, until this program ends: hang PID. The
 * process then hangs, though its other threads go on. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    pid_t pid = argc > 1 ? (pid_t)strtol(argv[1], NULL, 10) : 0;
    if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL) ||
        ptrace(PTRACE_INTERRUPT, pid, NULL, NULL)) {
        perror("hang");
        return 1;
    }
    waitpid(pid, NULL, __WALL);
    pause();
    return 0;
}
