/* op_chain.c - what chains of steps (op.h) ask of the steps they are made of. */
#include "device/cuda/core/op.h"

#include "ops.h"

const mx_group *mx_chain_group(const mx_exec_step *s, const mx_op *const *ops, int n)
{
    const mx_group *g =
        s->op == &mx_op_fused ? ((const mx_fused_attr *)s->call.attr)->group : NULL;
    if (!g || g->n_steps != n)
        return NULL;
    for (int i = 0; i < n; i++)
        if (g->step[i].op != ops[i])
            return NULL;
    return g;
}

bool mx_chain_is_dense(const mx_tensor *t, mx_dtype dtype)
{
    return t->data && !t->pitch && t->type.dtype == dtype && (uintptr_t)t->data % 16 == 0;
}

bool mx_chain_apart(const mx_tensor *a, const mx_tensor *b)
{
    const char *x = a->data, *y = b->data;
    return x + mx_type_bytes(&a->type) <= y || y + mx_type_bytes(&b->type) <= x;
}
