/* adapter.h - adapters as PEFT writes them: a directory with adapter_config.json and
 * adapter_model.safetensors, whose tensors are called base_model.model.MODULE.lora_A.weight.
 */
#ifndef MX_STORE_ADAPTER_H
#define MX_STORE_ADAPTER_H

#include "compile/lora.h"
#include "device/device.h"
#include "store/hf_dir.h"

#define MX_ADAPTER_TIED_HEAD "base_model.model.lm_head.weight"

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_lora lora;     /* what the files say: `only` has the modules and ranks of the tensors */
    const char *base; /* base_model_name_or_path; "" when it is not said */
    bool ties;        /* ensure_weight_tying: a tied head follows a saved embedding */
    mx_hf_dir dir;
    mx_arena arena;
} mx_adapter;

/* Is there an adapter_config.json? */
bool mx_adapter_in_dir(const char *path);
mx_status mx_adapter_open(mx_adapter *a, const char *path) MX_MUST_USE;
void mx_adapter_close(mx_adapter *a);

/* The session's adapters, and weights that are trained whole, from the directory's tensors. What is
 * missing, misshapen or belongs to no module of the model is listed. */
mx_status mx_adapter_load(mx_session *s, mx_hf_dir *dir) MX_MUST_USE;
/* Is it an embedding that is the language head too? */
bool mx_adapter_is_tied(mx_session *s, const char *weight);
/* The embedding that is trained whole and that the head is tied to. That is PEFT's with
 * ensure_weight_tying only: another adapter is refused. */
const mx_var *mx_adapter_saves_tied(mx_session *s); /* NULL: none */
mx_status mx_adapter_check_tied(mx_session *s, const mx_adapter *a) MX_MUST_USE;
/* Once weights are loaded: DoRA's lengths that were not loaded become those of the weights' rows.
 * `ranks`: those that share the weights, which all call; NULL: none. */
struct mx_comm;
mx_status mx_adapter_begin(mx_session *s, struct mx_comm *ranks) MX_MUST_USE;
/* Adds every adapter to its weight; the adapters themselves become zero. In the host's memory. */
mx_status mx_adapter_merge(mx_session *s, const mx_lora *l) MX_MUST_USE;

/* The name of a variable in adapter_model.safetensors, in the arena. */
const char *mx_adapter_tensor_name(mx_session *s, mx_arena *a, const mx_var *v);
/* adapter_config.json for the session's adapters; free with mx_free. */
char *mx_adapter_config(mx_session *s, const mx_lora *l, const char *base);

#endif
