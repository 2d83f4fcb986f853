/* llama4.h - Llama 4's decoder, for the text model and for what has it as a part. */
#ifndef MX_MODELS_LLAMA4_H
#define MX_MODELS_LLAMA4_H

#include "models/mixture.h"

typedef struct {
    int64_t vocab, d, d_ff, layers, heads, kv_heads, head_dim, max_positions;
    mx_act act;
    double eps, init_scale;
    bool tied, bias, qk_norm;
    mx_rope rope;
    int64_t chunk;                 /* of the chunked layers; 0: none */
    mx_layer_types layer_types;    /* chunked_attention, full_attention; n = 0: by rope */
    mx_int_list rope_layers;       /* 1: rotated, 0: not; n = 0: by the interval */
    int64_t no_rope_interval;      /* every n-th layer is not rotated */
    bool tune;                     /* queries of layers without rope grow with the position: */
    double floor_scale, attn_scale; /* 1 + attn_scale ln(1 + floor((p + 1) / floor_scale)) */
    mx_int_list moe_layers;        /* n = 0: by the step */
    int64_t moe_step;
    mx_moe moe;
} mx_llama4;

/* Under the current scope ("model", or a vision model's language part). */
mx_node *mx_llama4_layers(mx_graph *g, const mx_llama4 *c, mx_build *b, mx_node *x);
extern const mx_model mx_model_llama4;

#endif
