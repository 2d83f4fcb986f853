/* order_test.c - permutations are bijections that look random; mixtures hold their shares at any
 * time. */
#include "../test.h"

#include "data/load/order.h"
#include "data/load/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

MX_TEST(permutation_is_a_bijection)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097};
    static uint8_t seen[5000];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (uint64_t key = 0; key < 20; key++) {
            int64_t n = sizes[k];
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t j = mx_permute(n, key, i);
                MX_CHECK(j >= 0 && j < n && !seen[j], "n=%d i=%d j=%d", (int)n, (int)i, (int)j);
                seen[j < 0 || j >= n ? 0 : j] = 1;
            }
        }
}

MX_TEST(permutation_is_uniform)
{
    /* each of 8 items in each of 8 places about equally often over keys: chi-squared, 49 degrees */
    enum { N = 8, KEYS = 20000 };
    double count[N][N] = {{0}}, chi = 0;
    int neighbours = 0;
    for (uint64_t key = 0; key < KEYS; key++)
        for (int i = 0; i < N; i++)
            count[i][mx_permute(N, mx_mix_key(5, key), i)]++;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            chi += (count[i][j] - KEYS / N) * (count[i][j] - KEYS / N) / (KEYS / N);
    MX_CHECK(chi < 95, "chi-squared %.1f of 49", chi);
    for (int64_t i = 0; i + 1 < 100000; i++)
        neighbours += llabs(mx_permute(100000, 3, i) - mx_permute(100000, 3, i + 1)) == 1;
    MX_CHECK(neighbours < 15, "%d neighbours stayed together", neighbours);
}

MX_TEST(permutation_of_many_items_is_immediate)
{
    int64_t n = ((int64_t)1 << 61) + 12345, sum = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t j = mx_permute(n, 9, n - 1 - i * 1000003);
        MX_CHECK(j >= 0 && j < n);
        sum += j >> 40;
    }
    MX_CHECK(fabs((double)sum / 1000 / (double)(n >> 41) - 1) < 0.1);
}

MX_TEST(mixture_holds_its_shares_at_every_prefix)
{
    static const double cases[][5] = {
        {1, 1}, {0.9, 0.1}, {0.5, 0.3, 0.2}, {100, 10, 1, 0.5, 3}, {7}};
    static const int sizes[] = {2, 2, 3, 5, 1};
    for (int c = 0; c < 5; c++) {
        mx_arena a = {0};
        mx_mix m;
        double total = 0, worst = 0;
        int64_t count[5] = {0};
        for (int k = 0; k < sizes[c]; k++)
            total += cases[c][k];
        MX_CHECK_OK(mx_mix_init(&m, &a, cases[c], sizes[c]));
        for (int64_t t = 0; t < 40000; t++) {
            count[mx_mix_at(&m, t)]++;
            for (int k = 0; k < sizes[c]; k++) {
                double share = (double)m.per_cycle[k] / MX_MIX_CYCLE;
                double off = fabs((double)count[k] - share * (double)(t + 1));
                worst = off > worst ? off : worst;
                MX_CHECK(fabs(share - cases[c][k] / total) <= 1.0 / MX_MIX_CYCLE);
            }
        }
        MX_CHECK(worst < 1, "case %d: %.3f items off", c, worst);
        mx_arena_fini(&a);
    }
    mx_arena a = {0};
    mx_mix m;
    MX_CHECK_ERROR(mx_mix_init(&m, &a, (double[]){1, 0}, 2), "above 0");
    MX_CHECK_ERROR(mx_mix_init(&m, &a, (double[]){1, NAN}, 2), "above 0");
    mx_arena_fini(&a);
}
