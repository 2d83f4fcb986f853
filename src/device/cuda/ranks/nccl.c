/* nccl.c - see nccl.h. */
#include "device/cuda/ranks/nccl.h"

#include "base/library.h"
#include <dlfcn.h>

#define RESOLVE(name, ...)                                                                         \
    if (!st)                                                                                       \
        st = mx_library_find(MX_LIBRARY_NCCL, n->so, #name, &n->name);

mx_status mx_nccl_open(mx_cuda *c)
{
    if (c->nccl)
        return MX_OK;
    mx_nccl *n = mx_realloc(NULL, sizeof *n);
    *n = (mx_nccl){0};
    mx_status st = mx_library_open(MX_LIBRARY_NCCL, &n->so);
    MX_NCCL_FUNCTIONS(RESOLVE)
    RESOLVE(ncclGetErrorString)
    if (!st)
        *(void **)&n->ncclGetLastError = dlsym(n->so, "ncclGetLastError");
    if (st)
        mx_free(n);
    else
        c->nccl = n;
    return st;
}

mx_status mx_nccl_check(const mx_nccl *n, ncclResult_t r, ncclComm_t comm, const char *what)
{
    if (r == NCCL_SUCCESS)
        return MX_OK;
    const char *more = n->ncclGetLastError ? n->ncclGetLastError(comm) : NULL;
    return mx_fail(MX_DEVICE, "NCCL: %s: %s%s%s; NCCL_DEBUG=WARN in the environment makes it say "
                   "more", what, n->ncclGetErrorString(r), more && *more ? ": " : "",
                   more ? more : "");
}
