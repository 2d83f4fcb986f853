/* gemma4.h - Gemma 4's decoder, for the text model and for what has it as a part. */
#ifndef MX_MODELS_GEMMA4_H
#define MX_MODELS_GEMMA4_H

#include "models/mixture.h"

/* Kinds of layers. */
enum { MX_GEMMA4_SLIDING = 1, MX_GEMMA4_FULL = 2, MX_GEMMA4_KINDS };

typedef struct {
    int64_t vocab, d, d_ff, layers, heads, max_positions;
    int64_t kv_heads, head_dim;               /* of sliding layers */
    int64_t global_kv_heads, global_head_dim; /* of full ones */
    mx_act act;
    double eps, init_scale, logit_cap;
    bool tied, attention_bias;
    char bidirectional[24];     /* "", "all", "vision" */
    int64_t window;
    mx_layer_types layer_types; /* sliding_attention, full_attention */
    mx_rope rope, local;        /* of full layers, of sliding ones */
    bool k_eq_v; /* full layers have no v_proj: values are the keys before their norm */
    int64_t shared_layers;      /* this many last layers use an earlier layer's keys and values */
    bool double_wide;           /* and have an MLP of twice the width */
    int64_t d_input, vocab_input; /* per-layer input embeddings; 0: none */
    int64_t pad;                  /* the token whose per-layer inputs images take */
    bool mixture;
    mx_moe moe;
} mx_gemma4;

/* The decoder under the current scope ("model", or a vision model's language part). `image` (B, S,
 * d) stands for tokens of b->tokens that are -1; NULL: there are none. */
mx_node *mx_gemma4_layers(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *image);
extern const mx_model mx_model_gemma4;
mx_status mx_gemma4_finish(void *config, const json_t *json) MX_MUST_USE;

#endif
