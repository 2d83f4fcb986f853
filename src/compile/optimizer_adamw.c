/* optimizer_adamw.c - AdamW, as one op that writes weight, moments and copy in place.
 *
 * adam_pax keeps its moments divided by their bias corrections, m / (1 - b^t); the update is the
 * same function of the gradients, eps_root included, so it is the same op here.
 */
#include "compile/optimizer.h"

#include "base/rng.h"
#include "ops.h"

static mx_node *update(mx_graph *g, const mx_update *u)
{
    const mx_optimizer *o = u->o;
    mx_node *m = mx_update_state(g, u, "exp_avg", o->mu_dtype);
    mx_node *v = mx_update_state(g, u, "exp_avg_sq", o->nu_dtype);
    return mx_adamw(g, (mx_node *[]){u->w, u->d, m, v, u->hyper, u->copy},
                    (mx_adamw_rates){o->b1, o->b2, o->eps, o->eps_root, u->decay,
                                     (int64_t)mx_stream_of(u->like->name), u->like->box,
                                     u->on != NULL});
}

const mx_optimizer_rule mx_optimizer_rule_adamw = {
    .name = "adamw",
    .doc = "first and second moments, decay beside them",
    .alias = "adam_pax",
    .moments = 2,
    .rounds = true,
    .by_shard = true,
    .update = update,
};
