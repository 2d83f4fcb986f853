/* optimizer_adamw8bit.c - AdamW whose moments have 8 bits, in bitsandbytes' form (ops/adamw.c).
 *
 * The state of X: codes X.exp_avg and X.exp_avg_sq, and the largest magnitudes of blocks of 256,
 * X.exp_avg.absmax and X.exp_avg_sq.absmax. Small weights (biases, norms) are AdamW's, as there.
 * A block would be cut on a mesh, so that is refused.
 */
#include "compile/optimizer.h"

#include "base/rng.h"
#include "ops.h"
#include "ops/adamw8.h"
#include <stdio.h>

enum { LEAST = 4096 }; /* elements, as bitsandbytes */

/* The largest magnitudes of a moment's blocks. */
static mx_node *block_most(mx_graph *g, const mx_update *u, const char *suffix)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s.absmax", u->like->name, suffix);
    int64_t n = (mx_type_count(&u->like->type) + MX_ADAMW8_BLOCK - 1) / MX_ADAMW8_BLOCK;
    return mx_variable(g, name, mx_type_of(MX_F32, MX_SHAPE(n)),
                       (mx_var_attr){.kind = MX_VAR_OPTIMIZER, .on_host = u->o->on_host});
}

static mx_node *code_maps(mx_graph *g)
{
    double map[2 * MX_ADAMW8_CODES];
    mx_adamw8_map(true, map);
    mx_adamw8_map(false, map + MX_ADAMW8_CODES);
    return mx_table(g, MX_SHAPE(2, MX_ADAMW8_CODES), MX_F32, map);
}

static mx_node *update(mx_graph *g, const mx_update *u)
{
    const mx_optimizer *o = u->o;
    if (mx_type_count(&u->like->type) < LEAST)
        return mx_optimizer_rule_adamw.update(g, u);
    if (u->on)
        mx_graph_fail(g, "opt_type=adamw8bit keeps its state on one device; use adamw with "
                      "mu_dtype=bfloat16 nu_dtype=bfloat16 on a mesh");
    mx_node *m = mx_update_state(g, u, "exp_avg", MX_U8);
    mx_node *v = mx_update_state(g, u, "exp_avg_sq", MX_U8);
    return mx_adamw8(g, (mx_node *[]){u->w, u->d, m, v, block_most(g, u, "exp_avg"),
                                      block_most(g, u, "exp_avg_sq"), u->hyper, code_maps(g),
                                      u->copy},
                     (mx_adamw_rates){o->b1, o->b2, o->eps, o->eps_root, u->decay,
                                      (int64_t)mx_stream_of(u->like->name), u->like->box, false});
}

const mx_optimizer_rule mx_optimizer_rule_adamw8bit = {
    .name = "adamw8bit",
    .doc = "AdamW with moments of 8 bits, as bitsandbytes",
    .alias = "adamw_8bit",
    .moments = 2,
    .moment_bytes = 1 + 4.0 / MX_ADAMW8_BLOCK,
    .rounds = true,
    .by_shard = true,
    .update = update,
};
