/* nvrtc_test.cu - run-time compilation and its cache. Needs NVRTC, no GPU.
 *     nvrtc_test [cache directory]
 */
#include "gpu.cuh"
#include <unistd.h>
extern "C" {
#include "base/arena.h"
#include "device/cuda/fused/nvrtc_cache.h"
}

static const char source[] =
    "extern \"C\" __global__ void silu_mul(u16 *y, const u16 *a, const u16 *b, i64 n8) {\n"
    "  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i >= n8) return;\n"
    "  float f[8], g[8]; bf_load8(f, a + 8 * i); bf_load8(g, b + 8 * i);\n"
    "  for (int j = 0; j < 8; j++) f[j] = f[j] / (1.f + __expf(-f[j])) * g[j];\n"
    "  bf_store8(y + 8 * i, f);\n"
    "}\n";

static int bad;
static void expect(bool ok, const char *what)
{
    if (!ok) {
        printf("FAIL nvrtc: %s\n", what);
        bad++;
    }
}

int main(int argc, char **argv)
{
    mx_cuda_libs libs = {};
    mx_status st = mx_cuda_libs_open_rtc(&libs);
    if (st) {
        printf("skipped: %s\n", mx_status_text(st));
        mx_status_free(st);
        return 0;
    }
    char dir[] = "/tmp/maxc-nvrtc-XXXXXX";
    const char *cache = argc > 1 ? argv[1] : mkdtemp(dir);
    mx_nvrtc_job job = {"silu_mul.cu", source, "sm_90a", NULL, cache};
    mx_nvrtc_result r = {};
    for (const char *arch : {"sm_80", "sm_90a", "sm_100"}) {
        job.arch = arch;
        OK(mx_nvrtc_compile(&r, &libs, &job));
        expect(r.bytes > 500 && !memcmp(r.cubin, "\177ELF", 4), "the result is an ELF image");
        expect(!r.cached, "a fresh cache does not answer");
        mx_nvrtc_result again = {};
        OK(mx_nvrtc_compile(&again, &libs, &job));
        expect(again.cached && again.bytes == r.bytes && !memcmp(again.cubin, r.cubin, r.bytes),
               "the second time comes from the cache, byte for byte");
        mx_free(r.cubin);
        mx_free(again.cubin);
    }
    std::string damage = "for f in " + std::string(cache) +
                         "/*.cubin; do printf X | dd of=$f bs=1 seek=99 "
                         "conv=notrunc 2>/dev/null; done";
    expect(system(damage.c_str()) == 0, "damaging the cache");
    OK(mx_nvrtc_compile(&r, &libs, &job));
    expect(!r.cached, "a damaged file is compiled again");
    mx_free(r.cubin);
    job.source = "extern \"C\" __global__ void k() { nonsense; }\n";
    st = mx_nvrtc_compile(&r, &libs, &job);
    expect(st && strstr(mx_status_text(st), "nonsense"),
           "a wrong source's error shows the compiler's log");
    mx_status_free(st);
    if (argc < 2 && system(("rm -rf " + std::string(cache)).c_str()) != 0)
        bad++;
    printf("nvrtc: %s\n", bad ? "failed" : "passed");
    return bad != 0;
}
