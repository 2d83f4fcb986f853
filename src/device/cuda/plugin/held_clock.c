/* held_clock.c - the GPU's clock held at one frequency, through NVIDIA's management library.
 *
 * At its power limit a chip left alone runs kernels that wait for memory at its highest clock and
 * pays for that in the products after them. Holding the clock needs the administrator's rights and
 * outlives the program, so it is let go when the device is closed, and a shell that waits for the
 * end of a pipe lets it go if the program is killed.
 */
#include "device/cuda/plugin/held_clock.h"

#include "base/arena.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { SM_CLOCK = 1 }; /* as nvml.h numbers them */
typedef void *nvml_device;

struct mx_held_clock {
    void *so;
    nvml_device chip;
    char bus[32];
    int pipe; /* to the guard; -1: none */
    pid_t guard;
    int (*lock)(nvml_device, unsigned, unsigned);
    int (*unlock)(nvml_device);
    int (*clock)(nvml_device, int, unsigned *);
    int (*power)(nvml_device, unsigned *);
    int (*limit)(nvml_device, unsigned *);
    const char *(*text)(int);
};

static mx_status check(const mx_held_clock *h, int e, const char *what)
{
    return e == 0 ? MX_OK
                  : mx_fail(MX_DEVICE, "%s: %s; holding a GPU's clock needs the rights of root",
                            what, h->text(e));
}

static mx_status open_library(mx_held_clock *h)
{
    int (*init)(void), (*find)(const char *, nvml_device *);
    h->so = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"nvmlInit_v2", &init},
                  {"nvmlDeviceGetHandleByPciBusId_v2", &find},
                  {"nvmlDeviceSetGpuLockedClocks", &h->lock},
                  {"nvmlDeviceResetGpuLockedClocks", &h->unlock},
                  {"nvmlDeviceGetClockInfo", &h->clock},
                  {"nvmlDeviceGetPowerUsage", &h->power},
                  {"nvmlDeviceGetEnforcedPowerLimit", &h->limit},
                  {"nvmlErrorString", &h->text}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = h->so ? dlsym(h->so, wanted[i].name) : NULL;
        if (!found)
            return mx_fail(MX_DEVICE, "NVIDIA's management library (libnvidia-ml.so.1) %s",
                           h->so ? "is too old to hold a clock" : "was not found");
        *(void **)wanted[i].slot = found;
    }
    MX_TRY(mx_cuda_check(cudaDeviceGetPCIBusId(h->bus, sizeof h->bus, 0), "the GPU's address"));
    MX_TRY(check(h, init(), "opening NVIDIA's management library"));
    return check(h, find(h->bus, &h->chip), "finding the GPU");
}

mx_status mx_held_clock_open(mx_held_clock **out)
{
    *out = NULL;
    mx_held_clock *h = mx_realloc(NULL, sizeof *h);
    *h = (mx_held_clock){.pipe = -1};
    mx_status st = open_library(h);
    if (st)
        mx_held_clock_close(h);
    else
        *out = h;
    return st;
}

/* Reads a line when all is well, and nothing when this program is gone. Without it only a kill
 * leaves the clock held. */
static void start_guard(mx_held_clock *h)
{
    char line[96];
    int ends[2];
    if (h->pipe >= 0 || pipe2(ends, O_CLOEXEC) != 0)
        return;
    snprintf(line, sizeof line, "read x || exec nvidia-smi -i %s -rgc > /dev/null 2>&1", h->bus);
    char *argv[] = {"sh", "-c", line, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[0], 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID); /* Ctrl-C is not for it */
    bool runs = posix_spawnp(&h->guard, "sh", &files, &attr, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    close(ends[0]);
    if (runs)
        h->pipe = ends[1];
    else
        close(ends[1]);
}

static void dismiss_guard(mx_held_clock *h)
{
    if (h->pipe < 0)
        return;
    if (write(h->pipe, "\n", 1) == 1)
        waitpid(h->guard, NULL, 0);
    close(h->pipe);
    h->pipe = -1;
}

mx_status mx_held_clock_set(mx_held_clock *h, int mhz)
{
    if (mhz == 0) {
        MX_TRY(check(h, h->unlock(h->chip), "letting the GPU's clock go"));
        dismiss_guard(h);
        return MX_OK;
    }
    start_guard(h);
    return check(h, h->lock(h->chip, (unsigned)mhz, (unsigned)mhz), "holding the GPU's clock");
}

mx_status mx_held_clock_see(const mx_held_clock *h, int *mhz, double *power)
{
    unsigned clock, now, most;
    MX_TRY(check(h, h->clock(h->chip, SM_CLOCK, &clock), "the GPU's clock"));
    MX_TRY(check(h, h->power(h->chip, &now), "the GPU's power"));
    MX_TRY(check(h, h->limit(h->chip, &most), "the GPU's power limit"));
    *mhz = (int)clock;
    *power = most ? (double)now / most : 0;
    return MX_OK;
}

void mx_held_clock_close(mx_held_clock *h)
{
    if (h && h->pipe >= 0)
        mx_status_free(mx_held_clock_set(h, 0));
    mx_free(h);
}
