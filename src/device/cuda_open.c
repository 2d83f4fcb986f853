/* cuda_open.c - the CUDA plug-in, opened when it is asked for.
 *
 * libmaxc_cuda.so is where MX_CUDA_PLUGIN says, beside the program (build tree), or in
 * ../lib/maxc (installed). The CPU build never needs it; without it, device=cuda says what to do.
 */
#include "device/device.h"

#include "base/library.h"
#include "interface.h"
#include "ops/gpu_work.h"
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
static bool has_driver(void)
{
    void *so = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (so)
        dlclose(so);
    return so != NULL;
}

static mx_status open_plugin(const mx_plugin **out)
{
    char path[4096];
    mx_device_cuda_plugin(path, sizeof path);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return mx_fail(MX_DEVICE,
                       "the CUDA plug-in cannot be opened (%s); build it with `make cuda` where "
                       "nvcc is installed, or use device=cpu",
                       dlerror());
    const mx_plugin *p = *out = dlsym(so, "mx_plugin_table");
    if (!p)
        return mx_fail(MX_DEVICE, "%s is not a plug-in of this maxc; build it again with `make "
                       "cuda`", path);
    if (strcmp(p->interface, MX_INTERFACE) != 0)
        return mx_fail(MX_DEVICE,
                       "%s was built for another version of maxc (its interface is %s, this "
                       "program's %s); build it again with `make cuda`",
                       path, p->interface, MX_INTERFACE);
    return MX_OK;
}

/* CUDA's own list is cut to one: the GPU is then the first for every thread and library. */
mx_status mx_device_choose_gpu(int place)
{
    const char *all = getenv("CUDA_VISIBLE_DEVICES"), *at = all;
    char one[256];
    if (!all)
        snprintf(one, sizeof one, "%d", place);
    else if (!strchr(all, ','))
        return MX_OK;
    for (int i = 0; all && i < place; i++) {
        at = strchr(at, ',');
        if (!at)
            return mx_fail(MX_USAGE, "this is rank %d of its machine, counted from 0, and "
                           "CUDA_VISIBLE_DEVICES=%s names %d GPUs; start no more ranks than GPUs",
                           place, all, i + 1);
        at++;
    }
    if (all)
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
    setenv("CUDA_VISIBLE_DEVICES", one, 1);
    return MX_OK;
}

static const mx_rule *const before_quantize[] = {&mx_rule_merge_qkv, NULL};
static const mx_rule *const before_autodiff[] = {&mx_rule_bias, &mx_rule_bias_before_gelu, NULL};
static const mx_rule *const after_remat[] = {&mx_rule_gelu, &mx_rule_gelu_grad, &mx_rule_swiglu,
                                              &mx_rule_swiglu_grad, NULL};

static size_t work_bytes(const mx_node *n, size_t most)
{
    return n->op->gpu_work_bytes ? n->op->gpu_work_bytes(n, most) : 0;
}

const mx_device_traits mx_cuda_traits = {
    .name = "cuda",
    .before_quantize = before_quantize,
    .before_autodiff = before_autodiff,
    .after_remat = after_remat,
    .strided_views = true,
    .overlaps = true,
    .work_bytes = work_bytes,
    .gemm_work_bytes = MX_GPU_GEMM_WORK,
    .linger = 16,
    .pad_rows = 8, /* a GEMM over a vocabulary that is no multiple of 8 reads the rows after it */
};

static mx_status open_cuda(mx_device **out)
{
    const mx_plugin *p = NULL;
    *out = NULL;
    MX_TRY(mx_status_wrap(open_plugin(&p), "device=cuda"));
    return p->open(&mx_cuda_traits, out);
}

const mx_device_kind mx_device_kind_cuda = {
    .traits = &mx_cuda_traits,
    .doc = "an NVIDIA GPU, through the CUDA plug-in",
    .preference = 10,
    .is_likely = has_driver,
    .open = open_cuda,
};

mx_status mx_device_compile_kernels(const mx_program *p, const char *arch, const char *dir,
                                    int *n_kernels)
{
    const mx_plugin *plugin = NULL;
    MX_TRY(open_plugin(&plugin));
    return plugin->compile_kernels(p, arch, dir, n_kernels);
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
