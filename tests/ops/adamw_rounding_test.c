/* adamw_rounding_test.c - bfloat16 weights move by less than their last place, on average by the
 * right amount. */
#include "../compile/graph_run.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <string.h>

enum { N = 4096 };

/* One step of size lr on weights of 1, whose last place is 1/128; gives the new weights. */
static void step(double lr, double number, int64_t salt, double *w)
{
    static double one[N], zero[N];
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *in[6] = {mx_input(g, "w", MX_SHAPE(N), MX_BF16), mx_input(g, "g", MX_SHAPE(N), MX_F32),
                      mx_input(g, "m", MX_SHAPE(N), MX_F32), mx_input(g, "v", MX_SHAPE(N), MX_F32),
                      mx_input(g, "hyper", MX_SHAPE(4), MX_F32), NULL};
    mx_graph_root(g, "new", mx_adamw(g, in, (mx_adamw_rates){0, 0, 0, 0, 0, salt}));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    for (int i = 0; i < N; i++)
        one[i] = 1;
    mx_graph_run_write(&r, "w", one);
    mx_graph_run_write(&r, "g", one); /* without moments a step goes by lr whatever the gradient */
    mx_graph_run_write(&r, "m", zero);
    mx_graph_run_write(&r, "v", zero);
    mx_graph_run_write(&r, "hyper", (double[]){-lr, 1, number, 0});
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "new", w);
    mx_graph_run_fini(&r);
}

MX_TEST(adamw_rounds_bfloat16_weights_at_random)
{
    static double w[N], again[N], other[N];
    double sum = 0;
    step(1.0 / 1024, 7, 1, w); /* an eighth of the last place */
    for (int i = 0; i < N; i++) {
        MX_CHECK(w[i] == 1 || w[i] == 1 + 1.0 / 128, "a weight of 1 became %g", w[i]);
        sum += w[i] - 1;
    }
    /* One in eight goes up: 512 of 4,096, give or take four standard deviations of 21. */
    MX_CHECK(fabs(sum * 128 - N / 8) < 85, "%g of %d weights went up", sum * 128, N);
    step(1.0 / 1024, 7, 1, again);
    MX_CHECK(memcmp(w, again, sizeof w) == 0, "the same step rounds another way");
    step(1.0 / 1024, 8, 1, other);
    MX_CHECK(memcmp(w, other, sizeof w) != 0, "two steps round alike");
    step(1.0 / 1024, 7, 2, other);
    MX_CHECK(memcmp(w, other, sizeof w) != 0, "two weights round alike");
}
