/* lora_config.h - the adapters that a configuration asks for. */
#ifndef MX_EXEC_LORA_CONFIG_H
#define MX_EXEC_LORA_CONFIG_H

#include "base/config.h"
#include "compile/quantize_frozen.h"
#include "compile/lora.h"

/* NULL: none. From lora.lora_restore_path, if that is set, which knows its own ranks and modules;
 * else from the keys. In the arena. */
mx_status mx_lora_from_config(const mx_config *c, mx_arena *a, const mx_lora **out) MX_MUST_USE;
/* How the weights that it leaves alone lie; NULL: in the compute dtype. In the arena. */
mx_status mx_frozen_quant_from_config(const mx_config *c, const mx_lora *l, mx_arena *a,
                                      const mx_frozen_quant **out) MX_MUST_USE;

#endif
