/* packing_lives_test.c - addresses of values with lives (src/compile/pack.c): nothing alive at the
 * same time overlaps, and the buffer is hardly larger than what is alive at the worst moment. */
#include "base/rng.h"
#include "compile/pack.h"
#include "../test.h"
#include <string.h>

enum { STEPS = 400, MOST = 1200 };

static int64_t high_water(const mx_life *life, int n)
{
    int64_t change[STEPS + 1] = {0}, alive = 0, most = 0;
    for (int i = 0; i < n; i++) {
        change[life[i].first] += life[i].bytes;
        change[life[i].last + 1] -= life[i].bytes;
    }
    for (int s = 0; s < STEPS; s++) {
        alive += change[s];
        most = alive > most ? alive : most;
    }
    return most;
}

/* Gives the buffer's size as a share of the high-water mark. */
static double check(mx_life *life, int n)
{
    mx_arena scratch = {0};
    int64_t end = mx_pack(life, n, &scratch), most = high_water(life, n);
    int bad = 0;
    for (int i = 0; i < n; i++) {
        bad += life[i].at < 0 || life[i].at + life[i].bytes > end;
        for (int k = 0; k < i; k++)
            bad += life[i].first <= life[k].last && life[k].first <= life[i].last &&
                   life[i].at < life[k].at + life[k].bytes &&
                   life[k].at < life[i].at + life[i].bytes;
    }
    MX_CHECK(!bad, "%d of %d values overlap others or the end", bad, n);
    MX_CHECK(end >= most, "%lld bytes for %lld", (long long)end, (long long)most);
    mx_arena_fini(&scratch);
    return (double)end / (double)most;
}

/* As in a step: what layer l makes is read by its mirror image, and much is read at once. */
static int like_a_step(mx_life *life, uint64_t seed)
{
    int n = 0;
    for (int s = 0; s < STEPS / 2; s++)
        for (int k = 0; k < 3; k++) {
            mx_random4 r = mx_philox(seed, 1, (uint64_t)(3 * s + k));
            int last = k == 0 ? STEPS - 1 - s : s + (int)(r.v[0] % 6);
            life[n++] = (mx_life){.bytes = 64 * (1 + (int64_t)(r.v[1] % 7)), s, last};
            int back = STEPS - 1 - s;
            if (k)
                life[n++] = (mx_life){.bytes = 64 * (1 + (int64_t)(r.v[2] % 7)), back,
                                      back + (int)(r.v[3] % (unsigned)(s < 5 ? s + 1 : 5))};
        }
    return n;
}

MX_TEST(lives_are_packed_without_overlap)
{
    static mx_life life[MOST];
    for (uint64_t seed = 1; seed <= 5; seed++) {
        int n = like_a_step(life, seed);
        double share = check(life, n);
        MX_CHECK(share < 1.05, "%g of the high-water mark", share);
        for (n = 0; n < MOST; n++) {
            mx_random4 r = mx_philox(seed, 2, (uint64_t)n);
            int first = (int)(r.v[0] % STEPS);
            life[n] = (mx_life){.bytes = (int64_t)(r.v[1] % 5000), first,
                                first + (int)(r.v[2] % (unsigned)(STEPS - first))};
        }
        check(life, n);
    }
}

MX_TEST(packing_takes_none_and_one)
{
    mx_arena scratch = {0};
    mx_life one = {.bytes = 128, 3, 3};
    MX_CHECK(mx_pack(NULL, 0, &scratch) == 0);
    MX_CHECK(mx_pack(&one, 1, &scratch) == 128 && one.at == 0);
    mx_arena_fini(&scratch);
}
