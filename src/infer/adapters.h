/* adapters.h - an adapter in one of the slots beside a served model (compile/lora_slots.c). */
#ifndef MX_INFER_ADAPTERS_H
#define MX_INFER_ADAPTERS_H

#include "store/adapter.h"

/* Puts the adapter into a slot, in place of what was there; NULL: empties it. Refused before
 * anything changes: modules that have no slots, other shapes, larger ranks, DoRA, whole modules. */
mx_status mx_adapters_set(mx_session *s, int64_t slot, int64_t rank,
                          const mx_adapter *a) MX_MUST_USE;

#endif
