/* op_chain.c - what chains of steps (op.h) ask of the steps they are made of. */
#include "device/cuda/core/op.h"

#include <string.h>

const mx_group *mx_chain_group(const mx_exec_step *s, const char *const *ops, int n)
{
    const mx_group *g =
        strcmp(s->op->name, "fused") == 0 ? ((const mx_fused_attr *)s->call.attr)->group : NULL;
    if (!g || g->n_steps != n)
        return NULL;
    for (int i = 0; i < n; i++)
        if (strcmp(g->step[i].op->name, ops[i]) != 0)
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
