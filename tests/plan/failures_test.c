/* failures_test.c - the share of a run that is progress: the formula against dice. */
#include "../test.h"
#include "base/rng.h"
#include "plan/failures.h"
#include <math.h>

/* The share of progress by Monte Carlo: a run of `seconds` of progress, event by event. */
static double simulate(const mx_failures *f, double interval, double seconds, int seed)
{
    double clock = 0, done = 0;
    for (uint64_t i = 0; done < seconds; i++) {
        double u = ((double)mx_philox((uint64_t)seed, 0, i).v[0] + 0.5) / 0x1p32;
        double alive = -f->between * log(u); /* until the next failure */
        double each = interval + f->checkpoint;
        double saved = floor(alive / each);
        double need = ceil((seconds - done) / interval);
        if (saved >= need)
            return seconds / (clock + need * each);
        done += saved * interval;
        clock += alive + f->restart;
    }
    return seconds / clock;
}

MX_TEST(goodput_by_formula_and_by_dice)
{
    static const mx_failures cases[] = {
        {3 * 3600, 20, 600}, {24 * 3600, 5, 120}, {1800, 60, 300}, {600, 30, 60}};
    for (int i = 0; i < 4; i++) {
        mx_goodput_forecast g = mx_failures_goodput(&cases[i]);
        double dice = simulate(&cases[i], g.interval, 2e4 * cases[i].between, 1);
        MX_CHECK(fabs(g.goodput - dice) < 0.01, "case %d: %.4f by the formula, %.4f by dice", i,
                 g.goodput, dice);
        MX_CHECK(g.lost > 0 && g.goodput < 1 && g.goodput > 0.4, "case %d: %.3f lost of %.3f", i,
                 g.lost, g.goodput);
        /* Young's interval is near the best: half and twice of it are no better */
        for (double by = 0.5; by <= 2; by *= 4) {
            double other =
                simulate(&cases[i], by * g.interval, 2e4 * cases[i].between, 1);
            MX_CHECK(other < dice + 0.005, "case %d: %g of the interval gives %.4f", i, by, other);
        }
    }
}
