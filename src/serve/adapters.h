/* adapters.h - the adapters of a server by name, each in a slot of the engine.
 *
 * Calls hold the adapter they use. One that is unloaded has no name any more at once; its slot is
 * free when the last call that holds it is over. Loading is for the engine's thread, the rest for
 * any.
 */
#ifndef MX_SERVE_ADAPTERS_H
#define MX_SERVE_ADAPTERS_H

#include "infer/engine.h"
#include <jansson.h>

typedef struct mx_adapter_names mx_adapter_names;

void mx_adapter_names_open(mx_adapter_names **out, mx_engine *e, int64_t slots, const char *model);
void mx_adapter_names_close(mx_adapter_names *n); /* NULL is a no-op */

/* The slot of this adapter, held; 0: there is none of this name. */
int64_t mx_adapter_names_hold(mx_adapter_names *n, const char *name);
void mx_adapter_names_release(mx_adapter_names *n, int64_t slot); /* 0 is a no-op */
/* Refused: a name that is taken, no free slot, what mx_engine_adapt refuses. */
mx_status mx_adapter_names_load(mx_adapter_names *n, const char *name,
                                const mx_adapter *a) MX_MUST_USE;
mx_status mx_adapter_names_unload(mx_adapter_names *n, const char *name) MX_MUST_USE;
/* Calls `each` for every adapter that has a name, with how many calls hold it. */
void mx_adapter_names_each(mx_adapter_names *n,
                           void (*each)(void *ctx, const char *name, int64_t calls), void *ctx);
int64_t mx_adapter_names_slots(const mx_adapter_names *n);

#endif
