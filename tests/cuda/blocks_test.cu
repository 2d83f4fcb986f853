/* blocks_test.cu - the CUDA building blocks against double-precision references on the host.
 *
 *     blocks_test [-v] [PART]      gemms, kernels, moe, xent, attention, packed, paged, quantized,
 *                              codes or decode; all without a name
 * Fresh random inputs, outputs poisoned with NaN first. Last line: "N passed, N failed".
 */
#include "check.cuh"
#include "attention_test.cuh"
#include "codes_test.cuh"
#include "decode_test.cuh"
#include "kernels_test.cuh"
#include "moe_test.cuh"
#include "packed_test.cuh"
#include "paged_test.cuh"
#include "quantize_test.cuh"
#include "xent_test.cuh"

static void test_gemm(mx_gemm_lt *lt, void *ws, bool ta, bool tb, mx_gemm_type in, mx_gemm_type out,
                      int batch, float beta)
{
    const int m = 136, n = 264, k = 328;
    int64_t na = (int64_t)m * k, nb = (int64_t)n * k, nc = (int64_t)m * n;
    char name[128];
    snprintf(name, sizeof name, "gemm %c%c %s->%s batch %d beta %.0f", ta ? 'T' : 'N',
             tb ? 'T' : 'N', in == MX_GEMM_F32 ? "f32" : "bf16",
             out == MX_GEMM_F32 ? "f32" : "bf16", batch, beta);
    mx_gemm_shape s = {};
    s.m = m, s.n = n, s.k = k, s.trans_a = ta, s.trans_b = tb, s.in = in, s.out = out;
    s.batch = batch, s.stride_a = na, s.stride_b = nb, s.stride_c = nc, s.alpha = 0.5f,
    s.beta = beta;
    mx_gemm_plan *p;
    OK(mx_gemm_plan_new(&p, lt, &s));
    size_t wi = in == MX_GEMM_F32 ? 4 : 2, wo = out == MX_GEMM_F32 ? 4 : 2;
    char *a = device_alloc<char>(na * batch * wi), *b = device_alloc<char>(nb * batch * wi);
    char *c = device_alloc<char>(nc * batch * wo);
    vec ha, hb, hc, r(nc * batch);
    if (in == MX_GEMM_F32) {
        fill((float *)a, na * batch, 11, 1), fill((float *)b, nb * batch, 12, 1);
        ha = host((float *)a, na * batch), hb = host((float *)b, nb * batch);
    } else {
        fill((mx_bf16 *)a, na * batch, 11, 1), fill((mx_bf16 *)b, nb * batch, 12, 1);
        ha = host((mx_bf16 *)a, na * batch), hb = host((mx_bf16 *)b, nb * batch);
    }
    if (beta == 0)
        CU(cudaMemset(c, 0xff, nc * batch * wo));
    else if (out == MX_GEMM_F32)
        fill((float *)c, nc * batch, 13, 1);
    else
        fill((mx_bf16 *)c, nc * batch, 13, 1);
    if (beta != 0)
        hc = out == MX_GEMM_F32 ? host((float *)c, nc * batch) : host((mx_bf16 *)c, nc * batch);
    OK(mx_gemm_plan_launch(p, a, b, c, ws, 0));
    CU(cudaDeviceSynchronize());
    for (int z = 0; z < batch; z++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double x = 0;
                for (int l = 0; l < k; l++)
                    x += ha[z * na + (ta ? l * m + i : i * k + l)] *
                         hb[z * nb + (tb ? j * k + l : l * n + j)];
                r[z * nc + i * n + j] = 0.5 * x + (beta != 0 ? beta * hc[z * nc + i * n + j] : 0);
            }
    vec got = out == MX_GEMM_F32 ? host((float *)c, nc * batch) : host((mx_bf16 *)c, nc * batch);
    check(name, rel_error(got, r), in == MX_GEMM_F32 ? 2e-6 : out == MX_GEMM_F32 ? 1e-5 : 4e-3);
    mx_gemm_plan_free(p);
    cudaFree(a), cudaFree(b), cudaFree(c);
}

static void test_gemms(mx_cuda_libs *libs)
{
    mx_gemm_lt *lt;
    const size_t ws_bytes = 64u << 20;
    OK(mx_gemm_lt_open(&lt, libs, ws_bytes, NULL));
    void *ws = device_alloc<char>(ws_bytes);
    for (int t = 0; t < 4; t++) {
        test_gemm(lt, ws, t & 1, t & 2, MX_GEMM_BF16, MX_GEMM_BF16, 1, 0);
        test_gemm(lt, ws, t & 1, t & 2, MX_GEMM_BF16, MX_GEMM_F32, 3, 1);
        test_gemm(lt, ws, t & 1, t & 2, MX_GEMM_F32, MX_GEMM_F32, 2, 0);
    }
    cudaFree(ws);
    mx_gemm_lt_close(lt);
}

int main(int argc, char **argv)
{
    if (!device_present())
        return 0;
    const char *part = argc > 1 ? argv[argc - 1] : "-v"; /* a part's name, or options alone: all */
    checks.loud = argc > 1 && !strcmp(argv[1], "-v");
    mx_cuda_libs libs = {};
    const struct {
        const char *name;
        std::function<void()> run;
    } parts[] = {{"gemms", [&] { test_gemms(&libs); }},
                 {"kernels", test_kernels},
                 {"moe", test_moe},
                 {"xent", test_xent_exps},
                 {"attention", [&] { test_attention(&libs); }},
                 {"packed", test_packed},
                 {"paged", test_paged},
                 {"quantized", [&] { test_quantized(&libs); }},
                 {"codes", test_codes},
                 {"decode", test_decode_chains}};
    bool any = false;
    for (auto &p : parts)
        if (part[0] == '-' || !strcmp(part, p.name))
            p.run(), any = true;
    if (!any) {
        printf("there is no part %s; the parts are:", part);
        for (auto &p : parts)
            printf(" %s", p.name);
        printf("\n");
        return 2;
    }
    printf("%d passed, %d failed\n", checks.passed, checks.failed);
    return checks.failed != 0;
}
