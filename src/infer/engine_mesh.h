/* engine_mesh.h - an engine opened, used and closed, on one device or on the virtual ranks of the
 * mesh that the keys ask for. */
#ifndef MX_INFER_ENGINE_MESH_H
#define MX_INFER_ENGINE_MESH_H

#include "base/config.h"
#include "infer/engine.h"

/* Opens the engine, calls `use`, closes it. On a mesh o->session is NULL; `use` is called once, in
 * the thread of rank 0. what: names the caller in errors. */
typedef struct {
    const mx_config *c;
    const mx_engine_options *o;
    const char *what;
    mx_status (*use)(void *ctx, mx_engine *e);
    void *ctx;
} mx_engine_use;
mx_status mx_engine_run(const mx_engine_use *u) MX_MUST_USE;

#endif
