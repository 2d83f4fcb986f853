/* device_rules.c - the three moments at which a device's rewrite rules are applied: each is a pass.
 * Which rules they are is in the device's traits.
 */
#include "compile/compile.h"

static mx_status merge(mx_graph *g, mx_compilation *c)
{
    mx_pass_grad_dtypes(g, c->o->narrow_grads ? c->o->compute : MX_DTYPE_COUNT);
    mx_rewrite(g, c->device->before_quantize, c->remat);
    return MX_OK;
}

static mx_status rewrites(mx_graph *g, mx_compilation *c)
{
    mx_rewrite(g, c->device->before_autodiff, c->remat);
    return MX_OK;
}

static mx_status epilogues(mx_graph *g, mx_compilation *c)
{
    mx_rewrite(g, c->device->after_remat, c->remat);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_merge = {
    .name = "merge",
    .doc = "the device's rules for GEMMs that become one",
    .after = "stages",
    .before = "quantize",
    .programs = MX_IN_TRAINING,
    .run = merge,
};

const mx_compile_pass mx_compile_pass_rewrites = {
    .name = "rewrites",
    .doc = "the device's rules whose gradients follow from what they make",
    .after = "quantize",
    .programs = MX_IN_TRAINING,
    .run = rewrites,
};

const mx_compile_pass mx_compile_pass_epilogues = {
    .name = "epilogues",
    .doc = "the device's rules that need to know what the backward pass reads",
    .after = "remat",
    .programs = MX_IN_TRAINING,
    .run = epilogues,
};
