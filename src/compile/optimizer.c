/* optimizer.c - the optimizer pass: global-norm clip and one update node per trainable weight.
 *
 * Adds the inputs `lr` and `step` and the roots `grad_norm` (before clipping). The clip scale is
 * min(1, threshold / (norm + 1e-6)), as torch's clip_grad_norm_; with no threshold it is norm * 0 +
 * 1, so that a gradient that is not finite makes the scale not finite, and the update is skipped.
 * With `skips_spikes` a norm above the input norm_limit, or a loss above loss_limit where the loss
 * is in this graph, makes the scale NaN as well: the same way out, so no update op knows of spikes.
 * Weight decay applies by name: `no_decay` is a list of shell patterns.
 *
 * Steps that change nothing do not count in the bias correction of the moments. They are counted
 * here, in the variable skipped_steps, and not by the host: a step may then be started before it is
 * known whether the one before it was skipped. The input `step` counts all of them.
 *
 * With on_host the state of every weight lies in host memory: only updates touch it, once a step.
 * The arithmetic is the same, to the bit.
 *
 * A root row_scale:NAME multiplies the rows of NAME after its update, in place: w - w (1 - s),
 * which leaves rows alone whose factor is 1.
 *
 * The root param_norm is the norm of the trained weights after the update, which AdamW sums up as
 * it goes.
 */
#include "compile/compile.h"

#include "compile/norms.h"
#include "compile/update_shard.h"
#include "ops.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const mx_optimizer_rule *mx_optimizer_rule_find(const char *name)
{
    for (const mx_optimizer_rule *const *r = mx_optimizer_rule_table; *r; r++)
        if (strcmp((*r)->name, name) == 0 || ((*r)->alias && strcmp((*r)->alias, name) == 0))
            return *r;
    return NULL;
}

const mx_optimizer_rule *mx_optimizer_rule_of(const mx_optimizer *o)
{
    return o->rule ? o->rule : &mx_optimizer_rule_adamw;
}

mx_node *mx_update_state(mx_graph *g, const mx_update *u, const char *suffix, mx_dtype dtype)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s", u->like->name, suffix);
    mx_type t = mx_type_of(dtype, mx_shape_of(&u->like->type));
    mx_var_attr attr = {.kind = MX_VAR_OPTIMIZER, .on_host = u->o->on_host};
    mx_node *n = mx_variable(g, name, t, attr);
    n->axes = u->like->axes;
    n->box = u->like->box;
    return n;
}

static mx_node *hyper(mx_graph *g, mx_node *rate, mx_node *scale)
{
    mx_node *zero = mx_constant(g, MX_SHAPE(1), MX_F32, 0);
    mx_node *part[4] = {mx_reshape(g, rate, MX_SHAPE(1)), mx_reshape(g, scale, MX_SHAPE(1)), zero,
                        zero};
    return mx_concat(g, 4, part, 0);
}

mx_node *mx_momentum(mx_graph *g, mx_node *m, const mx_update *u, double keep, double take)
{
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *h = hyper(g, one, mx_affine(g, u->scale, -take, 0));
    return mx_sgd(g, (mx_node *[]){m, u->d, h, NULL}, 1 - keep);
}

mx_node *mx_step_along(mx_graph *g, const mx_update *u, mx_node *direction, double factor,
                       double decay)
{
    /* 0 * scale: NaN where the step must be skipped. */
    mx_node *h = hyper(g, u->lr, mx_affine(g, u->scale, 0, factor));
    return mx_sgd(g, (mx_node *[]){u->w, direction, h, u->copy}, decay);
}

mx_node **mx_first_casts(const mx_graph *g, mx_arena *arena)
{
    mx_node **cast = MX_NEW_N(arena, mx_node *, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *c = g->node[i];
        if (c->op == &mx_op_cast && !c->forward && !cast[c->in[0]->id])
            cast[c->in[0]->id] = c;
    }
    return cast;
}

mx_node *mx_weight_copy(mx_graph *g, const mx_node *w, mx_node *cast)
{
    if (!cast)
        return NULL;
    char name[512];
    snprintf(name, sizeof name, "%s.copy", w->name);
    const mx_node *twin = mx_graph_find(g, name); /* another stage has the weight too */
    mx_var_attr a = {.kind = MX_VAR_COPY, .copy_of = w->name};
    mx_node *v = twin ? mx_node_copy(g, twin, NULL) : mx_variable(g, name, cast->type, a);
    v->stage = w->stage;
    v->axes = w->axes;
    v->box = w->box;
    mx_node_forward(cast, v);
    return v;
}

static mx_node *update(mx_graph *g, const mx_update *step, const mx_update_shard *p, mx_node *copy)
{
    mx_update u = *step;
    u.w = p->w;
    u.d = p->d;
    u.like = p->like;
    u.copy = p->cut ? NULL : copy;
    u.decay = mx_glob_any(u.o->no_decay, p->like->name) ? 0 : u.o->weight_decay;
    mx_node *made = mx_optimizer_rule_of(u.o)->update(g, &u);
    if (p->cut)
        mx_update_shard_gather(g, p, made, copy, u.on);
    return mx_graph_root(g, NULL, made);
}

const char *mx_row_scale_of(const mx_node *root)
{
    static const char prefix[] = MX_ROW_SCALE_ROOT;
    return root->name && mx_starts_with(root->name, prefix) ? root->name + sizeof prefix - 1 : NULL;
}

mx_node *mx_row_scale_variable(mx_graph *g, const mx_node *root)
{
    char name[512];
    snprintf(name, sizeof name, "%s.row_scale", mx_row_scale_of(root));
    return mx_variable(g, name, root->type,
                       (mx_var_attr){.kind = MX_VAR_GRADIENT, .minimum = true});
}

/* The weight as an update has made it, its rows rescaled where a root says so. */
static mx_node *rescale(mx_graph *g, const mx_node *w, mx_node *u, const mx_update *step)
{
    /* the output that is the copy, and the input that it overwrites */
    int copies = u->op == &mx_op_adamw ? 3 : u->op == &mx_op_adamw8 ? 5 : 1;
    const mx_node *has = u->in[u->op->alias[copies] - 1];
    mx_node *s = NULL;
    for (int i = 0; i < g->n_roots; i++) {
        const char *of = mx_row_scale_of(g->root[i]);
        s = of && strcmp(of, w->name) == 0 ? g->root[i] : s;
    }
    if (!s)
        return u;
    if (w->type.ndim == 2)
        s = mx_reshape(g, s, MX_SHAPE(w->type.dim[0], 1));
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *copy = has ? mx_output(g, u, copies) : NULL;
    mx_update again = {.w = u, .copy = copy, .lr = one, .scale = step->scale};
    u = mx_step_along(g, &again, mx_mul(g, u, mx_affine(g, s, -1, 1)), 1, 0);
    return mx_graph_root(g, NULL, u);
}

/* The sum of the squares of the weight that an update has made. */
static mx_node *squares_of(mx_graph *g, mx_node *u, const mx_partition *on)
{
    return u->op == &mx_op_adamw ? mx_output(g, u, 4) : mx_squares(g, u, on);
}

/* The scale, or NaN where x is above the limit. */
static mx_node *stop_above(mx_graph *g, mx_node *scale, mx_node *x, const char *limit)
{
    mx_node *most = mx_input(g, limit, MX_SCALAR, MX_F32);
    mx_node *nothing = mx_constant(g, MX_SCALAR, MX_F32, NAN);
    return mx_where(g, mx_greater(g, x, most), nothing, scale);
}

/* The number of this update among those that changed something; one that does not is counted. */
static mx_node *update_number(mx_graph *g, mx_node *scale)
{
    mx_node *none = mx_constant(g, MX_SCALAR, MX_F32, 0);
    mx_node *skipped = mx_variable(g, MX_SKIPPED_STEPS, mx_type_of(MX_F32, MX_SCALAR),
                                   (mx_var_attr){.kind = MX_VAR_OPTIMIZER});
    mx_node *number = mx_sub(g, mx_input(g, "step", MX_SCALAR, MX_F32), skipped);
    mx_node *stands = mx_equal(g, scale, scale); /* NaN does not equal itself */
    mx_graph_root(g, NULL, mx_accumulate(g, skipped, mx_affine(g, stands, -1, 1), none));
    return number;
}

/* The clip scale, NaN where the step must be skipped. */
static mx_node *clip_scale(mx_graph *g, const mx_optimizer *o, mx_node *norm)
{
    mx_node *scale, *loss = mx_graph_find_root(g, "loss");
    if (o->clip > 0) {
        mx_node *limit = mx_constant(g, MX_SCALAR, MX_F32, o->clip);
        scale = mx_div(g, limit, mx_affine(g, norm, 1, 1e-6));
        scale = mx_where(g, mx_greater(g, scale, mx_constant(g, MX_SCALAR, MX_F32, 1)),
                         mx_constant(g, MX_SCALAR, MX_F32, 1), scale);
    } else {
        scale = mx_affine(g, norm, 0, 1);
    }
    /* 0 for a finite norm, NaN for an infinite one: then the update is skipped. */
    scale = mx_add(g, scale, mx_affine(g, norm, 0, 0));
    if (o->skips_spikes)
        scale = stop_above(g, scale, norm, "norm_limit");
    if (o->skips_spikes && loss)
        scale = stop_above(g, scale, loss, "loss_limit");
    return scale;
}

/* An update with this scale. */
static mx_update with_scale(mx_graph *g, mx_update u, mx_node *scale)
{
    mx_node *lr = u.lr, *step = u.step;
    mx_node *zero = mx_constant(g, MX_SHAPE(1), MX_F32, 0);
    mx_node *part[4] = {mx_reshape(g, lr, MX_SHAPE(1)), mx_reshape(g, scale, MX_SHAPE(1)),
                        mx_reshape(g, step, MX_SHAPE(1)), zero};
    u.scale = scale;
    u.hyper = mx_concat(g, 4, part, 0);
    return u;
}

/* The inputs of every update. They come after the clip scale, which does not depend on them. */
static mx_update read_rates(mx_graph *g, const mx_optimizer *o, mx_node *norm,
                            const mx_partition *on)
{
    mx_node *scale = clip_scale(g, o, norm);
    mx_node *lr = mx_input(g, "lr", MX_SCALAR, MX_F32);
    mx_update u = {.o = o, .lr = lr, .step = update_number(g, scale), .on = on};
    return with_scale(g, u, scale);
}

/* The same where each weight has a scale of its own; every step counts. They come first in the
 * order, since an update cannot run before what it reads. */
static mx_update early_rates(mx_graph *g, const mx_optimizer *o, const mx_partition *on)
{
    g->seq = 0;
    mx_node *lr = mx_input(g, "lr", MX_SCALAR, MX_F32);
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_update u = {.o = o, .lr = lr, .step = update_number(g, one), .on = on};
    u = with_scale(g, u, one);
    g->seq = -1;
    return u;
}

/* Updates in the backward pass: weight i is changed as soon as its gradient is there, whose memory
 * then serves the next one. Nothing is known of the other gradients yet, so there is no clip, and
 * of a step with a gradient that is not finite only the weights with such a gradient stay. squares:
 * of the gradients; then the weights as they have become. */
static void update_early(mx_graph *g, const mx_update *all, const mx_update_shard *shard, int n,
                         mx_node *const *cast, mx_node **squares)
{
    for (int i = 0; i < n; i++) {
        mx_node *w = shard[i].weight;
        g->seq = shard[i].d->seq;
        mx_node *finite = mx_cast(g, squares[i], MX_F32); /* wide on a mesh */
        mx_update own = with_scale(g, *all, mx_affine(g, finite, 0, 1));
        squares[i] = update(g, &own, &shard[i], mx_weight_copy(g, w, cast[w->id]));
        g->seq = -1;
    }
}

/* grad[i] is the gradient of var[i]; NULL leaves the weight alone. `on`: the mesh that they are cut
 * over; NULL: one device. */
static void pass_optimizer(mx_graph *g, const mx_optimizer *o, mx_node *const *var,
                       mx_node *const *grad, int n, const mx_partition *on)
{
    mx_arena scratch = {0};
    mx_node **made = MX_NEW_N(&scratch, mx_node *, n + 1);
    const mx_node **of = MX_NEW_N(&scratch, const mx_node *, n + 1);
    int m = 0;
    bool sharded = mx_optimizer_rule_of(o)->by_shard;
    mx_update_shard *shard = MX_NEW_N(&scratch, mx_update_shard, n + 1);
    for (int i = 0; i < n; i++)
        if (grad[i]) {
            shard[m] = mx_update_shard_of(g, var[i], grad[i], sharded ? on : NULL);
            of[m] = shard[m].like;
            g->seq = o->in_backward ? shard[m].d->seq : -1;
            made[m] = mx_squares(g, shard[m].d, on);
            g->seq = -1;
            m++;
        }
    mx_node *norm = mx_norm_of(g, made, of, m, on);
    mx_graph_root(g, "grad_norm", norm);
    mx_node **cast = mx_first_casts(g, &scratch);
    mx_update step = o->in_backward ? early_rates(g, o, on) : read_rates(g, o, norm, on);
    if (o->in_backward)
        update_early(g, &step, shard, m, cast, made);
    for (int i = 0; i < m && !o->in_backward; i++) {
        mx_node *w = shard[i].weight;
        made[i] = update(g, &step, &shard[i], mx_weight_copy(g, w, cast[w->id]));
    }
    for (int i = 0; i < m; i++) /* a loop of its own: consecutive updates are one kernel on a GPU */
        made[i] = rescale(g, of[i], made[i], &step);
    for (int i = 0; i < m; i++)
        made[i] = squares_of(g, made[i], on);
    mx_graph_root(g, "param_norm", mx_norm_of(g, made, of, m, on));
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    if (c->use == MX_GRADS_APPLY)
        pass_optimizer(g, c->opt, c->var, c->grad, c->n, c->o->partition);
    else
        mx_keep_gradients(g, c);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_optimizer = {
    .name = "optimizer",
    .doc = "clip, update, state in place",
    .after = "autodiff",
    .programs = MX_IN_TRAINING | MX_IN_UPDATE,
    .run = run,
};
