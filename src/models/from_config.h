/* from_config.h - a model out of the configuration: MaxText's keys to the family's config.json.
 *
 * A family's field table is the only list of its configuration (model.h). A model that is described
 * by YAML keys instead of a config.json gets one made here: the family is the one whose
 * decoder_block names it, and every field that has a MaxText name takes that key's value. What is
 * not one to one is derived:
 *
 *   sizes            base_* keys times their share of global_parameter_scale (mx_scale_shares)
 *   layers           decoder_block gemma2 counts pairs
 *   activation       the first of mlp_activations; "gelu" there is the tanh form
 *   layer types      in cycles of inhomogeneous_layer_cycle_interval, the last of the other type
 *   rotary scaling   rope_type default (with rope_linear_scaling_factor), llama3.1, yarn
 *   rotary bases     local and global ones that are -1 are rope_max_timescale
 *   positions        max_target_length where the model's file says no number
 *   images           with use_multimodal=true the family that has images and this
 *                    vision_encoder_block, where it is built; the decoder is its text_config
 *
 * Everything else is left out and so takes the family's own default.
 */
#ifndef MX_MODELS_FROM_CONFIG_H
#define MX_MODELS_FROM_CONFIG_H

#include "base/config.h"
#include "models/model.h"

/* Powers of two by which global_parameter_scale enlarges each size. */
typedef struct {
    int width, heads, mlp, layers;
} mx_scale_shares;
mx_scale_shares mx_scale_split(int64_t scale);

/* config.json for the model that the keys describe; gives it to the caller. */
mx_status mx_model_config_json(const mx_config *cfg, json_t **out) MX_MUST_USE;
/* The same, read by the family. */
mx_status mx_model_from_config(mx_model_spec *m, const mx_config *cfg) MX_MUST_USE;
/* config_fit.c: do the keys have these values, "key=value,key=value" (NULL: none are asked for)? */
bool mx_model_keys_agree(const mx_config *cfg, const char *pairs);
/* config_fit.c: all keys of the model's shape that the family has read nothing of, or that
 * contradict it, as one status. To be called once the family has been read from the keys. */
mx_status mx_model_check_keys(const mx_config *cfg, const mx_model *family) MX_MUST_USE;
/* A checkpoint's model, `json` its config.json: keys that say how a run trains it (the fields'
 * `run`: weights of router losses, capacity, MTP layers) win over the file where
 * the configuration sets them. `where` names the file. */
mx_status mx_model_from_checkpoint(mx_model_spec *m, const mx_config *cfg, const json_t *json,
                                   const char *where) MX_MUST_USE;

#endif
