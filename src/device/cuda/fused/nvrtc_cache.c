/* nvrtc_cache.c - see nvrtc_cache.h. */
#include "device/cuda/fused/nvrtc_cache.h"
#include "device/cuda/core/op.h"

#include "base/arena.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

const char mx_nvrtc_prelude[] =
    "typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;\n"
    "typedef int i32; typedef long long i64;\n"
    "struct __align__(16) vec16 { u32 w[4]; };\n"
    "__device__ __forceinline__ float bf_lo(u32 w) { return __uint_as_float(w << 16); }\n"
    "__device__ __forceinline__ float bf_hi(u32 w) { return __uint_as_float(w & 0xffff0000u); }\n"
    "__device__ __forceinline__ float bf_get(u16 x) { return __uint_as_float((u32)x << 16); }\n"
    "__device__ __forceinline__ u32 bf_pack(float lo, float hi) {\n"
    "  u32 r; asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(hi), \"f\"(lo)); return r; "
    "}\n"
    "__device__ __forceinline__ u16 bf_put(float x) { return (u16)bf_pack(x, 0.f); }\n"
    "__device__ __forceinline__ void bf_open8(float f[8], vec16 v) {\n"
    "  for (int i = 0; i < 4; i++) { f[2*i] = bf_lo(v.w[i]); f[2*i+1] = bf_hi(v.w[i]); } }\n"
    "__device__ __forceinline__ void bf_load8(float f[8], const u16 *p) {\n"
    "  bf_open8(f, *(const vec16 *)p); }\n"
    "__device__ __forceinline__ void bf_store8(u16 *p, const float f[8]) {\n"
    "  vec16 v; for (int i = 0; i < 4; i++) v.w[i] = bf_pack(f[2*i], f[2*i+1]); *(vec16 *)p = v; "
    "}\n"
    "__device__ __forceinline__ float warp_sum(float x) {\n"
    "  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o); return x; }\n"
    "__device__ __forceinline__ float warp_max(float x) {\n"
    "  for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o)); return x; }\n";

static const char magic[8] = {'M', 'X', 'C', 'U', 'B', 'I', 'N', '1'};
enum { HEADER_BYTES = 16 };

/* --- the cache --- */

static void job_path(char *path, size_t cap, const mx_nvrtc_job *job, int major, int minor)
{
    XXH3_state_t st;
    char version[32];
    XXH3_128bits_reset(&st);
    int n = snprintf(version, sizeof version, "nvrtc %d.%d", major, minor);
    /* every part ends in its NUL, so parts cannot run into each other */
    XXH3_128bits_update(&st, version, (size_t)n + 1);
    XXH3_128bits_update(&st, job->arch, strlen(job->arch) + 1);
    for (const char *const *o = job->options; o && *o; o++)
        XXH3_128bits_update(&st, *o, strlen(*o) + 1);
    XXH3_128bits_update(&st, "", 1);
    XXH3_128bits_update(&st, mx_nvrtc_prelude, sizeof mx_nvrtc_prelude);
    XXH3_128bits_update(&st, job->source, strlen(job->source) + 1);
    XXH128_hash_t h = XXH3_128bits_digest(&st);
    snprintf(path, cap, "%s/%016llx%016llx.cubin", job->cache_dir, (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}

static bool cache_read(mx_nvrtc_result *out, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    char head[HEADER_BYTES];
    struct stat sb;
    void *p = NULL;
    uint64_t sum;
    bool ok = fread(head, 1, sizeof head, f) == sizeof head && !memcmp(head, magic, 8) &&
              fstat(fileno(f), &sb) == 0 && sb.st_size > HEADER_BYTES;
    size_t bytes = ok ? (size_t)sb.st_size - HEADER_BYTES : 0;
    if (ok) {
        mx_status st = mx_alloc(&p, bytes, "a compiled kernel");
        ok = !st;
        mx_status_free(st);
    }
    ok = ok && fread(p, 1, bytes, f) == bytes;
    if (ok) {
        memcpy(&sum, head + 8, 8);
        ok = sum == XXH3_64bits(p, bytes);
    }
    fclose(f);
    if (!ok) {
        mx_free(p);
        return false;
    }
    *out = (mx_nvrtc_result){.cubin = p, .bytes = bytes, .cached = true};
    return true;
}

/* Failure costs only the next run's compile time, so it is not an error. */
static void cache_write(const mx_nvrtc_result *r, const char *dir, const char *path)
{
    char temp[4200];
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return;
    /* Ranks that are threads compile the same kernels at the same time. */
    snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)gettid());
    FILE *f = fopen(temp, "wb");
    if (!f)
        return;
    uint64_t sum = XXH3_64bits(r->cubin, r->bytes);
    bool ok = fwrite(magic, 1, 8, f) == 8 && fwrite(&sum, 1, 8, f) == 8 &&
              fwrite(r->cubin, 1, r->bytes, f) == r->bytes;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(temp, path) != 0)
        unlink(temp);
}

/* --- the compiler --- */

static mx_status check(const mx_cuda_libs *libs, nvrtcResult r, const char *what)
{
    return r == NVRTC_SUCCESS
               ? MX_OK
               : mx_fail(MX_DEVICE, "NVRTC: %s failed: %s", what, libs->rtc.nvrtcGetErrorString(r));
}

static mx_status compile_failed(const mx_cuda_libs *libs, nvrtcProgram prog,
                                const mx_nvrtc_job *job)
{
    size_t n = 0;
    void *log = NULL;
    if (libs->rtc.nvrtcGetProgramLogSize(prog, &n) == NVRTC_SUCCESS && n > 0) {
        MX_TRY(mx_alloc(&log, n + 1, "a compiler log"));
        libs->rtc.nvrtcGetProgramLog(prog, log);
    }
    mx_status st = mx_fail(MX_DEVICE,
                           "the generated kernel %s does not compile for %s; this is a bug, "
                           "please report it with this text:\n%.4000s",
                           job->name, job->arch, log ? (char *)log : "(no log)");
    mx_free(log);
    return st;
}

static mx_status take_cubin(mx_nvrtc_result *out, const mx_cuda_libs *libs, nvrtcProgram prog)
{
    MX_TRY(
        check(libs, libs->rtc.nvrtcGetCUBINSize(prog, &out->bytes), "asking for the cubin's size"));
    MX_TRY(mx_alloc(&out->cubin, out->bytes, "a compiled kernel"));
    return check(libs, libs->rtc.nvrtcGetCUBIN(prog, out->cubin), "reading the cubin");
}

static mx_status compile(mx_nvrtc_result *out, const mx_cuda_libs *libs, const mx_nvrtc_job *job)
{
    mx_str text = {0};
    char arch[64];
    const char *options[32] = {"-std=c++17", arch, "--device-as-default-execution-space"};
    int n = 3;
    snprintf(arch, sizeof arch, "-arch=%s", job->arch);
    for (const char *const *o = job->options; o && *o && n < 32; o++)
        options[n++] = *o;
    mx_str_add(&text, mx_nvrtc_prelude);
    mx_str_add(&text, "#line 1\n");
    mx_str_add(&text, job->source);
    nvrtcProgram prog = NULL;
    mx_status st = check(
        libs, libs->rtc.nvrtcCreateProgram(&prog, mx_str_text(&text), job->name, 0, NULL, NULL),
        "making a program");
    if (!st) {
        nvrtcResult r = libs->rtc.nvrtcCompileProgram(prog, n, options);
        st = r == NVRTC_SUCCESS ? take_cubin(out, libs, prog) : compile_failed(libs, prog, job);
        libs->rtc.nvrtcDestroyProgram(&prog);
    }
    mx_str_fini(&text);
    if (st) {
        mx_free(out->cubin);
        *out = (mx_nvrtc_result){0};
    }
    return st;
}

mx_status mx_nvrtc_compile(mx_nvrtc_result *out, mx_cuda_libs *libs, const mx_nvrtc_job *job)
{
    *out = (mx_nvrtc_result){0};
    MX_TRY(mx_cuda_libs_open_rtc(libs));
    int major = 0, minor = 0;
    MX_TRY(check(libs, libs->rtc.nvrtcVersion(&major, &minor), "asking for the version"));
    char path[4096];
    if (job->cache_dir) {
        job_path(path, sizeof path, job, major, minor);
        if (cache_read(out, path))
            return MX_OK;
    }
    MX_TRY(compile(out, libs, job));
    if (job->cache_dir)
        cache_write(out, job->cache_dir, path);
    return MX_OK;
}

mx_status mx_nvrtc_load(cudaLibrary_t *out, const mx_nvrtc_result *r, const char *name)
{
    cudaError_t e = cudaLibraryLoadData(out, r->cubin, NULL, NULL, 0, NULL, NULL, 0);
    return mx_status_wrap(mx_cuda_check(e, "loading a compiled kernel"), "%s", name);
}

mx_status mx_nvrtc_kernel(cudaKernel_t *out, cudaLibrary_t lib, const char *kernel)
{
    return mx_cuda_check(cudaLibraryGetKernel(out, lib, kernel), kernel);
}
