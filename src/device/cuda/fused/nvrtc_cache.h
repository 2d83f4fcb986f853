/* nvrtc_cache.h - generated kernels: source text to machine code, compiled once per machine.
 *
 * NVRTC needs no GPU, so every generated kernel can be compiled where there is none (CI, planning)
 * for any architecture. Compiled cubins are kept on disk under a 128-bit hash of everything that
 * decides them: source, architecture, NVRTC version, options. A file is written under a temporary
 * name and renamed, so readers never see half of one, and carries its own checksum; a damaged file
 * is compiled again.
 *
 *     <dir>/<32 hex digits>.cubin = "MXCUBIN1" | XXH3-64 of the rest, 8 bytes | cubin
 *
 * Sources include no headers: mx_nvrtc_prelude gives generated code its few types and helpers, so
 * no CUDA toolkit need be installed where maxc runs.
 */
#ifndef MX_DEVICE_CUDA_NVRTC_CACHE_H
#define MX_DEVICE_CUDA_NVRTC_CACHE_H

#include "device/cuda/core/libs.h"
#include <stdint.h>

typedef struct {
    const char *name;           /* for messages: "fused_17.cu" */
    const char *source;         /* without the prelude */
    const char *arch;           /* "sm_90a" */
    const char *const *options; /* NULL-terminated extra options, or NULL */
    const char *cache_dir;      /* made when absent; NULL: no cache */
} mx_nvrtc_job;

typedef struct {
    void *cubin; /* owns; mx_free */
    size_t bytes;
    bool cached;
} mx_nvrtc_result;

extern const char mx_nvrtc_prelude[];

/* The error holds the compiler's log with the source's line numbers. */
mx_status mx_nvrtc_compile(mx_nvrtc_result *out, mx_cuda_libs *libs,
                           const mx_nvrtc_job *job) MX_MUST_USE;

/* Loading and launching; these need a device. */
mx_status mx_nvrtc_load(cudaLibrary_t *out, const mx_nvrtc_result *r, const char *name) MX_MUST_USE;
mx_status mx_nvrtc_kernel(cudaKernel_t *out, cudaLibrary_t lib, const char *kernel) MX_MUST_USE;

#endif
