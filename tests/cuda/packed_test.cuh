/* packed_test.cuh - attention over packed documents: short rows against float64 on the host, long
 * ones by Hopper's kernels against those without its instructions, and every launch bit by bit. */
#ifndef MX_TESTS_PACKED_CUH
#define MX_TESTS_PACKED_CUH

#include "packed.cuh"
#include "attention_test.cuh"

static std::string packed_name(const packed_case &c, const char *what)
{
    char name[160];
    snprintf(name, sizeof name, "packed %s b%d s%d h%d/%d d%d/%d window %d cap %.0f%s: %s",
             packing_name[c.how], c.b, c.s, c.hq, c.hk, c.d, c.dv, c.window, c.cap,
             c.full ? " full" : "", what);
    return name;
}
static void check_grads(const packed_case &c, const packed_data &p, const attention_ref &r,
                        const char *kind)
{
    int64_t q = (int64_t)c.hq * c.d, k = (int64_t)c.hk * c.d, v = (int64_t)c.hk * c.dv;
    std::string what = std::string(kind) + " d";
    check(packed_name(c, (what + "q").c_str()).c_str(), rel_error(p.columns(p.y, 0, q), r.dq),
          1e-2);
    check(packed_name(c, (what + "k").c_str()).c_str(), rel_error(p.columns(p.y, q, k), r.dk),
          1e-2);
    check(packed_name(c, (what + "v").c_str()).c_str(), rel_error(p.columns(p.y, q + k, v), r.dvv),
          1e-2);
}
/* Against float64: with tables and without, by mma and by whatever the machine has. */
static void test_packed_short(const packed_case &c)
{
    packed_data p(c, 77 + c.s);
    int64_t q = (int64_t)c.hq * c.d, k = (int64_t)c.hk * c.d, v = (int64_t)c.hk * c.dv;
    attention_ref r;
    r.b = c.b, r.sq = r.sk = c.s, r.hq = c.hq, r.hk = c.hk, r.d = c.d, r.dv = c.dv;
    r.scale = p.s.scale, r.cap = c.cap;
    r.keep = [&](int b, int i, int j) {
        return p.host_ids[b * c.s + i] == p.host_ids[b * c.s + j] && (c.full || j <= i) &&
               (!c.window || (i - j < c.window && (!c.full || j - i < c.window)));
    };
    r.run(p.columns(p.x, 0, q), p.columns(p.x, q, k), p.columns(p.x, q + k, v), host(p.dout, p.no));
    p.forward(true);
    check(packed_name(c, "mma o, no tables").c_str(), rel_error(host(p.o, p.no), r.o), 6e-3);
    p.backward(true);
    check_grads(c, p, r, "mma, no tables");
    p.find_tables();
    p.forward(true);
    check(packed_name(c, "mma o").c_str(), rel_error(host(p.o, p.no), r.o), 6e-3);
    p.backward(true);
    check_grads(c, p, r, "mma");
    p.forward(false);
    check(packed_name(c, "o").c_str(), rel_error(host(p.o, p.no), r.o), 6e-3);
    check(packed_name(c, "stats").c_str(), rel_error(host(p.lse, p.nl), r.lse), 1e-4);
    if (!mx_flash_hopper_backward_can(&p.s, &p.a))
        return;
    p.backward(false);
    check_grads(c, p, r, "hopper");
}
/* Long rows: the same numbers as mma's, the same bits in every launch. */
static void test_packed_long(const packed_case &c, int launches)
{
    packed_data p(c, 5 + c.s);
    p.find_tables();
    p.forward(true);
    vec o = host(p.o, p.no), lse = host(p.lse, p.nl);
    p.backward(true);
    vec grads = host(p.y, p.all);
    std::vector<mx_bf16> first(p.all), again(p.all), first_o(p.no), again_o(p.no);
    int differing = 0;
    for (int i = 0; i < launches; i++) {
        p.forward(false);
        CU(cudaMemcpy((i ? again_o : first_o).data(), p.o, p.no * 2, cudaMemcpyDeviceToHost));
        if (mx_flash_hopper_backward_can(&p.s, &p.a))
            p.backward(false);
        CU(cudaMemcpy((i ? again : first).data(), p.y, p.all * 2, cudaMemcpyDeviceToHost));
        differing += i && (memcmp(first.data(), again.data(), p.all * 2) != 0 ||
                           memcmp(first_o.data(), again_o.data(), p.no * 2) != 0);
    }
    check(packed_name(c, "o as mma's").c_str(), rel_error(host(p.o, p.no), o), 5e-3);
    check(packed_name(c, "stats as mma's").c_str(), rel_error(host(p.lse, p.nl), lse), 1e-5);
    check(packed_name(c, "gradients as mma's").c_str(), rel_error(host(p.y, p.all), grads), 6e-3);
    check(packed_name(c, "launches of other bits").c_str(), differing, 0);
}

static void test_packed()
{
    const packed_case few[] = {
        {2, 200, 2, 1, 64, 64, PACK_MIXED}, {1, 450, 4, 1, 64, 64, PACK_MIXED},
        {2, 333, 2, 2, 64, 64, PACK_SCATTERED}, {1, 320, 2, 1, 64, 64, PACK_TINY},
        {1, 400, 2, 1, 64, 64, PACK_MIXED, 60}, {1, 300, 2, 1, 64, 64, PACK_MIXED, 0, 0, true},
        {2, 200, 2, 1, 128, 128, PACK_MIXED}, {1, 600, 4, 1, 128, 128, PACK_MIXED},
        {2, 333, 2, 2, 128, 128, PACK_SCATTERED}, {1, 320, 2, 1, 128, 128, PACK_TINY},
        {1, 700, 2, 1, 128, 128, PACK_MIXED, 60}, {1, 600, 2, 1, 128, 128, PACK_ONE},
        {1, 300, 2, 1, 128, 128, PACK_MIXED, 0, 0, true}, {1, 300, 2, 1, 64, 64, PACK_MIXED, 0, 15},
        {1, 300, 2, 2, 192, 128, PACK_MIXED}, {1, 300, 2, 1, 256, 256, PACK_MIXED, 100},
        {1, 200, 2, 1, 40, 24, PACK_MIXED},
    };
    for (const packed_case &c : few)
        test_packed_short(c);
    const packed_case many[] = { /* more items than the chip has places */
        {8, 1024, 6, 6, 64, 64, PACK_MIXED}, {4, 2048, 8, 2, 64, 64, PACK_MIXED},
        {3, 4096, 16, 4, 64, 64, PACK_MIXED}, {2, 4096, 8, 2, 64, 64, PACK_SCATTERED},
        {1, 8192, 8, 2, 64, 64, PACK_TINY}, {1, 32768, 4, 1, 64, 64, PACK_MIXED},
        {12, 1000, 4, 4, 128, 128, PACK_MIXED}, {3, 4096, 8, 2, 128, 128, PACK_MIXED},
        {2, 4096, 8, 2, 128, 128, PACK_SCATTERED}, {1, 8192, 8, 2, 128, 128, PACK_TINY},
        {1, 16384, 4, 2, 128, 128, PACK_MIXED, 700}, {1, 32768, 4, 1, 128, 128, PACK_MIXED},
        {2, 3000, 8, 2, 128, 128, PACK_ONE}, {2, 3000, 8, 2, 64, 64, PACK_ONE},
    };
    for (const packed_case &c : many)
        test_packed_long(c, 5);
}

#endif
