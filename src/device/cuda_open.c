/* cuda_open.c - the CUDA plug-in, opened when it is asked for.
 *
 * libmaxc_cuda.so lies beside the program, or where MX_CUDA_PLUGIN says. The CPU build never
 * needs it; without it, device=cuda says what to do.
 */
#include "device/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void plugin_path(char *path, size_t cap)
{
    const char *given = getenv("MX_CUDA_PLUGIN");
    if (given && *given) {
        snprintf(path, cap, "%s", given);
        return;
    }
    char self[3000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    snprintf(path, cap, "%.*slibmaxc_cuda.so", slash ? (int)(slash - self + 1) : 0, self);
}

/* NVIDIA's driver brings this library; opening it is quick, and on most machines without a GPU it
 * is not there. */
bool mx_device_has_driver(void)
{
    void *so = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (so)
        dlclose(so);
    return so != NULL;
}

mx_status mx_device_open_cuda_plugin(mx_device **out)
{
    char path[4096];
    plugin_path(path, sizeof path);
    *out = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return mx_fail(MX_DEVICE,
                       "device=cuda: the CUDA plug-in cannot be opened (%s); build it with "
                       "`make cuda` where nvcc is installed, or use device=cpu",
                       dlerror());
    mx_status (*open_device)(mx_device **);
    *(void **)&open_device = dlsym(so, "mx_device_open_cuda");
    if (!open_device)
        return mx_fail(MX_DEVICE, "%s is not a maxc plug-in; build it again with `make cuda`",
                       path);
    return open_device(out);
}
