/* layout.c - see layout.h. */
#include "plan/layout.h"

#define AXIS(a) (1u << MX_AXIS_##a)

static const struct {
    const char *name;
    mx_axis_set axes;
} groups[MX_GROUPS] = {
    [MX_GROUP_TENSOR] = {"tensor", AXIS(TENSOR) | AXIS(SEQUENCE)},
    [MX_GROUP_CONTEXT] = {"context", AXIS(CONTEXT) | AXIS(CONTEXT_ULYSSES)},
    [MX_GROUP_SHARD] = {"fsdp", AXIS(FSDP) | AXIS(FSDP_TRANSPOSE) | AXIS(CONTEXT) |
                                    AXIS(CONTEXT_ULYSSES) | AXIS(EXPERT)},
    [MX_GROUP_REPLICA] = {"data", AXIS(DATA) | AXIS(DILOCO)},
    [MX_GROUP_STAGE] = {"stage", AXIS(STAGE)},
    [MX_GROUP_EXPERT] = {"expert", AXIS(EXPERT)},
    [MX_GROUP_EXPERT_TENSOR] = {"expert tensor", AXIS(TENSOR) | AXIS(SEQUENCE)},
    [MX_GROUP_EXPERT_SHARD] = {"expert fsdp", AXIS(FSDP) | AXIS(FSDP_TRANSPOSE) | AXIS(CONTEXT) |
                                                  AXIS(CONTEXT_ULYSSES)},
    [MX_GROUP_EXPERT_REPLICA] = {"expert data", AXIS(DATA) | AXIS(DILOCO)},
};

/* `size` ranks that lie `stride` apart. */
static mx_group_span span(const mx_layout *l, int64_t size, int64_t stride)
{
    int64_t inside = l->per_node / stride;
    inside = inside < 1 ? 1 : inside > size ? size : inside;
    while (size % inside)
        inside--;
    return (mx_group_span){(double)size, (double)inside};
}

static mx_group_span span_of_mesh(const mx_mesh *m, mx_axis_set axes)
{
    mx_group_span s = {1, 1};
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (axes >> a & 1) {
            s.size *= mx_mesh_degree(m, (mx_axis)a);
            s.inside *= m->ici[a] > 1 ? m->ici[a] : 1;
        }
    return s;
}

mx_group_span mx_layout_span(const mx_layout *l, mx_plan_group g)
{
    int64_t stage = l->tensor * l->context * l->data;
    int64_t experts = l->expert * l->expert_tensor;
    if (l->mesh)
        return span_of_mesh(l->mesh, groups[g].axes);
    switch (g) {
    case MX_GROUP_TENSOR:
        return span(l, l->tensor, 1);
    case MX_GROUP_CONTEXT:
        return span(l, l->context, l->tensor);
    case MX_GROUP_SHARD:
        return span(l, l->shard, l->tensor);
    case MX_GROUP_REPLICA:
        return span(l, l->data * l->context / l->shard, l->tensor * l->shard);
    case MX_GROUP_STAGE:
        return span(l, l->stage, stage);
    case MX_GROUP_EXPERT:
        return span(l, l->expert, l->expert_tensor);
    case MX_GROUP_EXPERT_TENSOR:
        return span(l, l->expert_tensor, 1);
    case MX_GROUP_EXPERT_SHARD:
        return span(l, l->expert_shard, experts);
    default:
        return span(l, stage / (experts * l->expert_shard), experts * l->expert_shard);
    }
}

static int64_t size_of(const mx_mesh *m, mx_plan_group g)
{
    return mx_mesh_size(m, groups[g].axes);
}

void mx_layout_of_mesh(mx_layout *l, const mx_mesh *m)
{
    int64_t inside = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        inside *= m->ici[a] > 1 ? m->ici[a] : 1;
    *l = (mx_layout){.chips = mx_mesh_ranks(m),
                     .per_node = inside,
                     .tensor = size_of(m, MX_GROUP_TENSOR),
                     .context = size_of(m, MX_GROUP_CONTEXT),
                     .stage = size_of(m, MX_GROUP_STAGE),
                     .shard = size_of(m, MX_GROUP_SHARD),
                     .expert_shard = size_of(m, MX_GROUP_EXPERT_SHARD),
                     .expert = size_of(m, MX_GROUP_EXPERT),
                     .expert_tensor = size_of(m, MX_GROUP_TENSOR),
                     .chunks = 1,
                     .microbatch = 1,
                     .n_microbatches = 1,
                     .mesh = m};
    l->data = l->chips / (l->tensor * l->context * l->stage);
}
