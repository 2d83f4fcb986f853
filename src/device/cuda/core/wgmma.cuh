/* wgmma.cuh - wgmma, Hopper's tensor cores: four warps multiply tiles that lie in shared memory.
 *
 * An operand lies in slabs of 128-byte rows with the 128-byte swizzle (16-byte piece ^ row % 8),
 * groups of 8 rows one after the other. K-major ("k inside"): a row holds 64 of k, and the next 16
 * of k are 32 bytes on. MN-major ("k outside"): a slab has 64 columns, a row for each k, and the
 * next 16 of k are 2048 bytes on. Accumulators: lane l of warp w has rows 16 w + l / 4 and 8 below,
 * and of each 8 columns 2 (l % 4) and the next: d[4 j] and d[4 j + 1] of one row, d[4 j + 2] and
 * d[4 j + 3] of the other. To be compiled for sm_90a alone.
 *
 * `wgmma` is 256 columns wide; wgmma_n64 and wgmma_n128 are narrower. The `held` forms take A (64,
 * 16) from registers: four a lane, two bf16 in each (columns 2 (l % 4) and the next), of row l / 4,
 * of the row 8 below, and of both with columns 8 further on. Sums rounded to pairs have that very
 * layout, 16 of their columns for each step of k. What a wgmma in flight reads or writes must not
 * be touched before wgmma_wait; ptxas says so (C7510 - C7519) where it cannot prove it, and then
 * makes every wgmma wait.
 */
#ifndef MX_DEVICE_CUDA_WGMMA_CUH
#define MX_DEVICE_CUDA_WGMMA_CUH

#include <cuda_runtime_api.h>
#include <stdint.h>

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* The row of a group's 64 that this lane has sums of; the other is 8 below. */
__device__ __forceinline__ int sum_row()
{
    int lane = threadIdx.x & 31;
    return (threadIdx.x / 32 & 3) * 16 + lane / 4;
}
/* v[i] of lane q of four becomes v[q] of lane i, in two steps: between neighbours (1) and between
 * pairs (2). What was two columns of each of four eights is then eight columns in a row. */
template <int STEP> __device__ __forceinline__ void exchange_part(uint32_t v[4])
{
    int q = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!(i & STEP)) {
            uint32_t got = __shfl_xor_sync(~0u, q & STEP ? v[i] : v[i + STEP], STEP);
            if (q & STEP)
                v[i] = got;
            else
                v[i + STEP] = got;
        }
}
__device__ __forceinline__ void exchange(uint32_t v[4])
{
    exchange_part<1>(v);
    exchange_part<2>(v);
}
/* Sums are not looked at before this: after the wait for the wgmma that makes them. */
template <int N> __device__ __forceinline__ void settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* The matrix descriptor of an operand at a multiple of 1024 in shared memory. */
__device__ __forceinline__ uint64_t describe_slab(uint32_t at, uint32_t slab_bytes)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(slab_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* The descriptor `bytes` further on. The address is a field of 14 bits in the lower word, which
 * this never fills: one instruction, where a new descriptor is four in the way of each wgmma. */
__device__ __forceinline__ uint64_t slab_on(uint64_t slab, uint32_t bytes)
{
    return (slab & 0xffffffff00000000ull) | (uint32_t)((uint32_t)slab + (bytes >> 4));
}
/* d (64, 256) += A (64, 16) B (16, 256); d is not read when `add` is 0. A_OUT, B_OUT:
 * MN-major. */
template <bool A_OUT, bool B_OUT>
__device__ __forceinline__ void wgmma(float d[128], uint64_t a, uint64_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "
        "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
        "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, %131, %132;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]),
          "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
          "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
          "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
          "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add), "n"(A_OUT), "n"(B_OUT));
}

/* Operands of the narrower forms. */
#define WGMMA_NAMES_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64                                                                             \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "      \
                   "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "        \
                   "%60, %61, %62, %63"
#define WGMMA_SUMS_8(d, i)                                                                         \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_SUMS_32(d, i)                                                                        \
    WGMMA_SUMS_8(d, i), WGMMA_SUMS_8(d, i + 8), WGMMA_SUMS_8(d, i + 16), WGMMA_SUMS_8(d, i + 24)

/* d (64, 64) += A (64, 16) B (16, 64), like wgmma. */
template <bool A_OUT, bool B_OUT>
__device__ __forceinline__ void wgmma_n64(float *d, uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_NAMES_32
                 "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
                 : WGMMA_SUMS_32(d, 0)
                 : "l"(a), "l"(b), "r"(add), "n"(A_OUT), "n"(B_OUT));
}
template <bool B_OUT>
__device__ __forceinline__ void wgmma_held_n64(float *d, const uint32_t a[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
                 : WGMMA_SUMS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_OUT));
}
/* d (64, 128) += A (64, 16) B (16, 128). */
template <bool A_OUT, bool B_OUT>
__device__ __forceinline__ void wgmma_n128(float *d, uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_NAMES_64
                 "}, %64, %65, p, 1, 1, %67, %68;\n}\n"
                 : WGMMA_SUMS_32(d, 0), WGMMA_SUMS_32(d, 32)
                 : "l"(a), "l"(b), "r"(add), "n"(A_OUT), "n"(B_OUT));
}
template <bool B_OUT>
__device__ __forceinline__ void wgmma_held_n128(float *d, const uint32_t a[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
                 : WGMMA_SUMS_32(d, 0), WGMMA_SUMS_32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_OUT));
}

/* Whether this device is a Hopper and the kernel's code that was loaded is the code made for it. */
template <class Kernel> static bool made_for_hopper(Kernel kernel)
{
    cudaFuncAttributes f;
    int major = 0, device = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess && major == 9 &&
           cudaFuncGetAttributes(&f, kernel) == cudaSuccess && f.ptxVersion >= 90;
}

#endif
