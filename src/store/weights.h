/* weights.h - a model's weights between a Hugging Face directory and a session. */
#ifndef MX_STORE_WEIGHTS_H
#define MX_STORE_WEIGHTS_H

#include "device/device.h"
#include "models/model.h"
#include "store/hf_dir.h"
#include "store/hf_save.h"

typedef struct {
    bool allow_nonfinite; /* load weights with NaN or infinity all the same */
    mx_str *notes;        /* gets a line on every layer that was passed over; NULL: not asked */
} mx_load_options;

/* Every weight of the session from the directory. All missing, extra and misshapen tensors are
 * listed at once, by name; NaN and infinity are refused unless allowed. */
mx_status mx_weights_load(mx_session *s, const mx_model_spec *m, mx_hf_dir *dir,
                          mx_load_options o) MX_MUST_USE;

/* The session's weights as a Hugging Face directory that transformers loads: config.json and
 * safetensors. */
mx_status mx_weights_save(mx_session *s, const mx_model_spec *m, const char *dir,
                          mx_dtype dtype) MX_MUST_USE;

/* config.json as it was read, with the dtype the weights are written in. Free with mx_free. */
char *mx_weights_config(const mx_model_spec *m, mx_dtype dtype);

#endif
