/* attr.c - attributes by name: the plug-in does not know the structs of the graph's ops. */
#include "device/cuda/core/context.h"

#include <string.h>

const void *mx_attr(const mx_exec_step *s, const char *name)
{
    for (const mx_attr_field *f = s->op->fields; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return (const char *)s->call.attr + f->offset;
    MX_ASSERT(false, "%s has no attribute %s", s->op->name, name);
}

int64_t mx_attr_int(const mx_exec_step *s, const char *name)
{
    return *(const int64_t *)mx_attr(s, name);
}

double mx_attr_f64(const mx_exec_step *s, const char *name)
{
    return *(const double *)mx_attr(s, name);
}
