/* cuda_open.c - the CUDA plug-in, opened when it is asked for.
 *
 * libmaxc_cuda.so is where MX_CUDA_PLUGIN says, beside the program (build tree), or in
 * ../lib/maxc (installed). The CPU build never needs it; without it, device=cuda says what to do.
 */
#include "device/device.h"

#include "base/library.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void mx_device_cuda_plugin(char *path, size_t cap)
{
    mx_plugin_path("MX_CUDA_PLUGIN", "libmaxc_cuda.so", path, cap);
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

static mx_status find_in_plugin(const char *symbol, void **out)
{
    char path[4096];
    mx_device_cuda_plugin(path, sizeof path);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return mx_fail(MX_DEVICE,
                       "the CUDA plug-in cannot be opened (%s); build it with `make cuda` where "
                       "nvcc is installed, or use device=cpu",
                       dlerror());
    *out = dlsym(so, symbol);
    return *out ? MX_OK
                : mx_fail(MX_DEVICE, "%s is not a maxc plug-in; build it again with `make cuda`",
                          path);
}

mx_status mx_device_open_cuda_plugin(mx_device **out)
{
    mx_status (*open_device)(mx_device **);
    *out = NULL;
    MX_TRY(mx_status_wrap(find_in_plugin("mx_device_open_cuda", (void **)&open_device),
                          "device=cuda"));
    return open_device(out);
}

mx_status mx_device_compile_kernels(const mx_program *p, const char *arch, int *n_kernels)
{
    char dir[512];
    mx_status (*compile)(const mx_program *, const char *, const char *, int *);
    MX_TRY(find_in_plugin("mx_cuda_compile_kernels", (void **)&compile));
    mx_device_cache_dir(dir, sizeof dir);
    return compile(p, arch, dir, n_kernels);
}

void mx_device_cache_dir(char *path, size_t cap)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && *xdg)
        snprintf(path, cap, "%s/maxc", xdg);
    else
        snprintf(path, cap, "%s/.cache/maxc", home && *home ? home : "/tmp");
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0755);
            *p = '/';
        }
    mkdir(path, 0755);
}
