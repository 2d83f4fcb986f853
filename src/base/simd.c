/* simd.c - see simd.h.
 *
 * A process may use AMX's tiles only after it has asked the kernel (Linux 5.16): they enlarge the
 * state of a thread by 8 KiB. The kernel also refuses where a thread has a signal stack too small
 * for that state. The permission holds for all threads.
 */
#include "base/simd.h"

#include "base/str.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *name;
    mx_simd level;
} levels[] = {{"base", "baseline", MX_SIMD_BASE},
              {"avx2", "AVX2", MX_SIMD_V3},
              {"avx512", "AVX-512", MX_SIMD_V4},
              {"bf16", "AVX-512 BF16", MX_SIMD_BF16},
              {"amx", "AMX", MX_SIMD_AMX}};
enum { LEVELS = sizeof levels / sizeof *levels };

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* AMX with bf16 and int8, and the kernel's permission. */
static bool has_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static mx_simd find(void)
{
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq"))
        return has_tiles() ? MX_SIMD_AMX : MX_SIMD_BF16;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return MX_SIMD_V4;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? MX_SIMD_V3
                                                                           : MX_SIMD_BASE;
}
#else
static mx_simd find(void)
{
    return MX_SIMD_BASE;
}
#endif

static int index_of(const char *key)
{
    for (int i = 0; i < LEVELS; i++)
        if (strcmp(levels[i].key, key) == 0)
            return i;
    return -1;
}

mx_simd mx_simd_level(void)
{
    static atomic_int known; /* the level and one; threads that find it at once find the same */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is)
        return (mx_simd)(is - 1);
    mx_simd level = find();
    const char *asked = getenv(MX_SIMD_VARIABLE);
    int i = asked ? index_of(asked) : -1;
    if (i >= 0 && levels[i].level < level)
        level = levels[i].level;
    atomic_store_explicit(&known, (int)level + 1, memory_order_relaxed);
    return level;
}

const char *mx_simd_name(mx_simd level)
{
    int i = 0;
    while (i + 1 < LEVELS && levels[i + 1].level <= level)
        i++;
    return levels[i].name;
}

mx_status mx_simd_check(void)
{
    const char *asked = getenv(MX_SIMD_VARIABLE);
    int i = asked ? index_of(asked) : 0;
    mx_str all = {0};
    if (i >= 0 && (!asked || levels[i].level <= mx_simd_level()))
        return MX_OK;
    for (int l = 0; l < LEVELS && levels[l].level <= mx_simd_level(); l++)
        mx_str_addf(&all, "%s%s", l ? ", " : "", levels[l].key);
    mx_status st = mx_fail(MX_INPUT, "%s is %s, which %s; choose one of %s, or unset it",
                           MX_SIMD_VARIABLE, asked,
                           i < 0 ? "is no level of instructions" : "this machine does not have",
                           mx_str_text(&all));
    mx_str_fini(&all);
    return st;
}
