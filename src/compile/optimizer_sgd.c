/* optimizer_sgd.c - the gradient itself, or its running sum m <- momentum m + scale d. */
#include "compile/optimizer.h"

#include "ops.h"

static const void *configure(const mx_config *cfg, mx_arena *a)
{
    mx_sgd_rates r = {.momentum = mx_config_float(cfg, "sgd_momentum")};
    return mx_arena_copy(a, &r, sizeof r);
}

static mx_node *update(mx_graph *g, const mx_update *u)
{
    const mx_sgd_rates *r = u->o->own;
    if (!r || r->momentum <= 0)
        return mx_sgd(g, (mx_node *[]){u->w, u->d, u->hyper, u->copy}, u->decay);
    mx_node *m = mx_update_state(g, u, "momentum", u->o->mu_dtype);
    m = mx_momentum(g, m, u, r->momentum, 1);
    return mx_step_along(g, u, m, 1, u->decay);
}

const mx_optimizer_rule mx_optimizer_rule_sgd = {
    .name = "sgd",
    .doc = "the gradient, with or without momentum",
    .moments = 1,
    .configure = configure,
    .update = update,
};
