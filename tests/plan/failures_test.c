/* failures_test.c - the share of a run that is progress: the formula against dice. */
#include "../test.h"
#include "plan/failures.h"
#include <math.h>

MX_TEST(goodput_by_formula_and_by_dice)
{
    static const mx_failures cases[] = {
        {3 * 3600, 20, 600}, {24 * 3600, 5, 120}, {1800, 60, 300}, {600, 30, 60}};
    for (int i = 0; i < 4; i++) {
        mx_goodput_forecast g = mx_failures_goodput(&cases[i]);
        double dice = mx_failures_simulate(&cases[i], g.interval, 2e4 * cases[i].between, 1);
        MX_CHECK(fabs(g.goodput - dice) < 0.01, "case %d: %.4f by the formula, %.4f by dice", i,
                 g.goodput, dice);
        MX_CHECK(g.lost > 0 && g.goodput < 1 && g.goodput > 0.4, "case %d: %.3f lost of %.3f", i,
                 g.lost, g.goodput);
        /* Young's interval is near the best: half and twice of it are no better */
        for (double by = 0.5; by <= 2; by *= 4) {
            double other =
                mx_failures_simulate(&cases[i], by * g.interval, 2e4 * cases[i].between, 1);
            MX_CHECK(other < dice + 0.005, "case %d: %g of the interval gives %.4f", i, by, other);
        }
    }
}
