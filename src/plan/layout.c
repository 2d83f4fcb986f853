/* layout.c - see layout.h. */
#include "plan/layout.h"

const char *mx_group_name(mx_group g)
{
    static const char *const names[MX_GROUPS] = {[MX_GROUP_TENSOR] = "tensor",
                                                 [MX_GROUP_CONTEXT] = "context",
                                                 [MX_GROUP_SHARD] = "fsdp",
                                                 [MX_GROUP_REPLICA] = "data",
                                                 [MX_GROUP_STAGE] = "stage",
                                                 [MX_GROUP_EXPERT] = "expert",
                                                 [MX_GROUP_EXPERT_TENSOR] = "expert tensor",
                                                 [MX_GROUP_EXPERT_REPLICA] = "data of experts"};
    return names[g];
}

/* `size` ranks that lie `stride` apart. */
static mx_span span(const mx_layout *l, int64_t size, int64_t stride)
{
    int64_t inside = l->per_node / stride;
    inside = inside < 1 ? 1 : inside > size ? size : inside;
    while (size % inside)
        inside--;
    return (mx_span){(double)size, (double)inside};
}

mx_span mx_layout_span(const mx_layout *l, mx_group g)
{
    int64_t stage = l->tensor * l->context * l->data;
    switch (g) {
    case MX_GROUP_TENSOR:
        return span(l, l->tensor, 1);
    case MX_GROUP_CONTEXT:
        return span(l, l->context, l->tensor);
    case MX_GROUP_SHARD:
        return span(l, l->shard * l->context, l->tensor);
    case MX_GROUP_REPLICA:
        return span(l, l->data * l->context / (l->shard > 1 ? l->shard * l->context : 1),
                    l->tensor * (l->shard > 1 ? l->shard * l->context : 1));
    case MX_GROUP_STAGE:
        return span(l, l->stage, stage);
    case MX_GROUP_EXPERT:
        return span(l, l->expert, l->expert_tensor);
    case MX_GROUP_EXPERT_TENSOR:
        return span(l, l->expert_tensor, 1);
    default:
        return span(l, stage / (l->expert * l->expert_tensor), l->expert * l->expert_tensor);
    }
}

void mx_layout_print(const mx_layout *l, mx_str *out)
{
    const struct {
        const char *name;
        int64_t degree;
    } axes[] = {{"data", l->data / l->shard},
                {"stage", l->stage},
                {"fsdp", l->shard},
                {"context", l->context},
                {l->sequence ? "sequence" : "tensor", l->tensor},
                {"expert", l->expert}};
    bool first = true;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].degree > 1) {
            mx_str_addf(out, "%s%s=%lld", first ? "" : ",", axes[i].name,
                        (long long)axes[i].degree);
            first = false;
        }
    if (first)
        mx_str_add(out, "one chip");
}
