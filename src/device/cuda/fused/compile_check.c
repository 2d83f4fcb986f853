/* compile_check.c - every kernel a program would have generated, compiled for an architecture.
 *
 * Needs NVRTC and no GPU: `maxc plan kernels_for=sm_90a` warms the cache on a machine without one,
 * and the tests compile what every family generates. Kernels that differ in nothing are compiled
 * once; the cache on disk sees to that.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/fused/fused_source.h"

#include "ops.h"

static mx_status compile_one(mx_cuda_libs *libs, const mx_node *n, const char *arch,
                             const char *cache_dir)
{
    mx_str source = {0};
    mx_fused_launch launch;
    mx_nvrtc_result r = {0};
    mx_status st = mx_fused_source(((const mx_fused_attr *)n->attr)->group, NULL, NULL, &source,
                                   &launch);
    mx_nvrtc_job job = {.name = "fused.cu", .source = mx_str_text(&source), .arch = arch,
                        .cache_dir = cache_dir};
    if (st) { /* no CUDA form: the device runs it on the CPU and says so */
        mx_status_free(st);
        st = MX_OK;
    } else {
        st = mx_nvrtc_compile(&r, libs, &job);
    }
    mx_free(r.cubin);
    mx_str_fini(&source);
    return st ? mx_status_wrap(st, "the kernel of %s", n->scope) : MX_OK;
}

mx_status mx_cuda_compile_kernels(const mx_program *p, const char *arch, const char *cache_dir,
                                  int *n_kernels)
{
    mx_cuda_libs libs = {0};
    mx_status st = mx_cuda_libs_open_rtc(&libs);
    for (int i = 0; i < p->n && !st; i++) {
        if (p->order[i]->op != &mx_op_fused)
            continue;
        st = compile_one(&libs, p->order[i], arch, cache_dir);
        ++*n_kernels;
    }
    mx_cuda_libs_close(&libs);
    return st;
}
