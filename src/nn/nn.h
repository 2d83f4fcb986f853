/* nn.h - blocks that models call. Shapes: B batch, S sequence, d model, H heads, K key heads, D
 * head dim.
 *
 * A block declares its weights where it uses them, under the current scope, with the names of the
 * Hugging Face checkpoint. Blocks take arguments, not a struct of flags; a family that differs
 * writes its own lines.
 */
#ifndef MX_NN_NN_H
#define MX_NN_NN_H

#include "ir/attention.h"
#include "ir/graph.h"
#include "ir/source.h"

/* What the routers of all layers enter for the losses that keep experts even (router.c). */
typedef struct {
    mx_node *load, *share; /* (E): entries per token, mean probability */
    mx_node *there;        /* (N, 1): 1 of tokens that count, else 0; NULL: all do */
    mx_node *z;
    int n; /* layers entered */
    double balance_weight, z_weight;
    mx_node *most, *least; /* training: of the layers' loads, relative to an even one, (1) */
} mx_router_sums;

/* A scalar that a training step reports beside its loss, as the root "metric:NAME". Nothing is
 * trained by it. */
#define MX_METRIC_ROOT "metric:"

/* What a model is built for: a batch of sequences, or a decode step with a cache. */
typedef struct {
    int64_t batch, seq;
    mx_node *tokens;    /* (B, S) int32 */
    mx_node *positions; /* (B, S) int32; NULL: 0, 1, 2, ... in every row */
    mx_node *places;    /* (3, B, S) int32: M-RoPE, in time, height and width; NULL: positions */
    mx_node *segments;  /* (B, S) int32; NULL: one document per row */
    mx_node *spans;     /* (B, S) int32, over pages the last position to see; NULL: no spans */
    mx_node *pixels;    /* images, as the family's processor gives them; NULL: none */
    mx_node *image;     /* over pages, in place of pixels: (B, S, n d), what a tower has given for
                           each token (nn/vision.h); tokens of images are -1 then. NULL: none */
    int64_t image_room; /* tokens of the images of a row of the batch, which have a table of their
                           own: on a mesh. 0: all images follow each other */
    mx_node *features;  /* what the tower gives, (rows, n d): set by a model that has pixels */
    double init_scale;  /* standard deviation of new weights (initializer_range) */
    int64_t cache_len;  /* 0: no cache. Otherwise positions below this can be decoded */
    /* pages 0: caches are rows of slots. Otherwise a token is a row of the batch, and page_rows
     * sequences share caches of so many pages of `page` slots (ops/paged_attention.c). */
    int64_t pages, page, page_rows;
    mx_node *drawn;     /* (1, page_rows): the last token drawn of each; NULL: not kept */
    int64_t max_run;    /* most tokens that any program on these caches feeds at once */
    mx_dtype cache_dtype;
    mx_dtype cache_quant; /* keys and values lie in these, with scales; MX_F32: in cache_dtype */
    bool cache_by_token;  /* one scale for a token's heads together */
    bool training;      /* blocks may update state of their own (router biases) */
    mx_node *before;    /* in a program of an MTP layer alone: (B, S, d), the hidden states that it
                           reads beside the tokens that follow them; NULL: the whole model */
    mx_node *after;     /* (B, S, d) hidden states of the last layer, for an MTP layer: set by
                           models that have such layers */
    int64_t mtp_eval;   /* the MTP layer whose acceptance is measured; 0: none */
    bool balances;      /* the balance loss counts whatever output_router_logits says, over tokens
                           that are no padding, and its unweighted value is logged as aux_loss */
    int64_t fixed_pad;  /* 1 + the padding token, whose embedding no lookup trains (padding_idx of
                           torch); 0: there is none */
    double qk_clip;     /* in training: attention scores above this rescale q and k; 0: none do */
    mx_node *max_logit; /* the largest of them so far, (1); NULL: none looked at (qk_clip.h) */
    mx_node *aux_loss;  /* sum of auxiliary losses that blocks add (load balancing); NULL: none */
    mx_node *index_loss; /* of sparse attention's indexers, for aux_loss; NULL: none */
    mx_router_sums routers;
    int64_t row_ranks;  /* ranks that share the rows of the batch; 0: one has them all */
} mx_build;

/* Adds a loss to b->aux_loss; in training it is a metric of this root's name. */
void mx_add_aux_loss(mx_graph *g, mx_build *b, const char *metric, mx_node *loss);

typedef enum { MX_ACT_SILU, MX_ACT_GELU_TANH, MX_ACT_GELU_ERF, MX_ACT_RELU, MX_ACT_COUNT } mx_act;
/* By the names Hugging Face configurations use; false when unknown. */
bool mx_act_parse(const char *name, mx_act *out);
const char *mx_act_names(void); /* for error messages */
mx_node *mx_activation(mx_graph *g, mx_node *x, mx_act act);

/* x (*, in) -> (*, out) with NAME.weight (out, in) and, if asked, NAME.bias (out). `axes` are the
 * logical axes of the weight, "mlp,embed"; the result lies as mx_result_axes says. */
mx_node *mx_linear(mx_graph *g, const mx_build *b, mx_node *x, const char *name, int64_t out,
                   const char *axes, bool bias);

/* Logical axes of a result (B, S, f), from the name of the weight's dim f: "mlp". */
const char *mx_result_axes(mx_graph *g, const char *name);
/* Those of the weights of an attention whose heads lie in one dim, D each: of queries, of keys and
 * values, and of the projection back. */
typedef struct {
    const char *q, *kv, *out;
} mx_head_axes;
mx_head_axes mx_attention_axes(mx_graph *g, int64_t head_dim);
/* Between blocks: what is added to the residual stream. */
#define MX_RESIDUAL_AXES "activation_batch,activation_norm_length,activation_embed"

/* Variables declared since there were n nodes get neither gradient nor optimizer state. */
void mx_freeze_since(mx_graph *g, int n);
/* A weight of the checkpoint that is never trained (torch's buffers). */
mx_node *mx_buffer(mx_graph *g, const char *name, mx_shape shape, mx_init init);

/* x / rms(x) * w. plus_one: the weight is stored as w - 1 (Gemma). */
mx_node *mx_rms_norm(mx_graph *g, mx_node *x, const char *name, double eps, bool plus_one);
/* x / rms(x) with no weight. */
mx_node *mx_rms_scale(mx_graph *g, mx_node *x, double eps);
mx_node *mx_layer_norm(mx_graph *g, mx_node *x, const char *name, double eps);

/* tokens -> (B, S, d) from NAME.weight (vocab, d). */
mx_node *mx_embedding(mx_graph *g, const mx_build *b, const char *name, int64_t vocab, int64_t d);

/* down(act(gate(x)) * up(x)) under the current scope: gate_proj, up_proj, down_proj. */
mx_node *mx_gated_mlp(mx_graph *g, const mx_build *b, mx_node *x, int64_t d_ff, mx_act act,
                      bool bias);

enum { MX_MAX_HEAD_DIM = 1024 };

/* --- rotary embeddings (rope.c) --- */

typedef struct {
    char type[24];  /* default, linear, llama3, yarn, dynamic, proportional */
    double theta;
    double factor;  /* of the scaling types */
    double low_freq_factor, high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    bool truncate;                                       /* yarn: whole-numbered correction range */
    double attention_factor;                             /* 0: as the type computes it */
    double original_length;                              /* positions it was first trained on */
    double partial;                                      /* share of the head rotated; 0: all */
    int64_t sections[3]; /* pairs rotated by time, height and width, interleaved; 0: all by time */
} mx_rope;

typedef struct {
    mx_node *cos, *sin; /* (B or 1, S, 1, D) */
    int64_t dims;       /* rotated dims */
    bool interleaved;
} mx_rope_table;

mx_rope_table mx_rope_tables(mx_graph *g, const mx_build *b, const mx_rope *r, int64_t head_dim,
                             bool interleaved);
mx_node *mx_rope_apply(mx_graph *g, mx_node *x, const mx_rope_table *t); /* x (B, S, H, D) */
/* Factor on the scale of the scores that DeepSeek's YaRN has besides, by mscale_all_dim. */
double mx_rope_score_factor(const mx_rope *r);

/* --- attention (attention.c) --- */

/* Keys and values as a layer keeps them. */
typedef struct {
    mx_node *k, *v;
    mx_node *positions; /* of the keys, with a cache; NULL: none */
    mx_node *k_scale, *v_scale; /* (1, slots, heads), of codes in pages; NULL: they are numbers */
} mx_kv;

/* Slots that the cache of such an attention has: what a query can still see, and a run. */
int64_t mx_cache_span(const mx_build *b, const mx_attention_attr *a);
/* The input that says where each token of a run goes in caches of this many slots; host-written. */
mx_node *mx_cache_slots(mx_graph *g, const mx_build *b, int64_t slots);
/* Enters x (B, S, heads, dims), one entry a token, into the cache WHAT of the current scope and
 * gives the whole of it, (B, slots, heads, dims). Only where b->cache_len > 0. */
mx_node *mx_cache_enter(mx_graph *g, const mx_build *b, const char *what, mx_node *x,
                        int64_t slots);
/* The positions that slots of such a cache hold, with this run's tokens: (B, slots), -1 empty. */
mx_node *mx_cache_positions(mx_graph *g, const mx_build *b, int64_t slots);
/* A state of the current scope that lives from run to run, zero at first. */
mx_node *mx_cache_state(mx_graph *g, const char *what, mx_shape shape, mx_dtype dtype);
/* A state of this size for each sequence, where decoding keeps any; its name has ".state_". */
mx_node *mx_page_rows(mx_graph *g, const mx_build *b); /* with pages, (B): each token's sequence */
mx_recurrent mx_cache_recurrent(mx_graph *g, const mx_build *b, const char *what, mx_shape each,
                                mx_dtype dtype);
/* Attention to keys and values that mx_cache_enter has given, in pages; v NULL: a value is the
 * first v_dim elements of its key. */
mx_node *mx_attend_paged(mx_graph *g, const mx_build *b, mx_node *q, mx_kv kv, int64_t v_dim,
                         mx_attention_attr a, mx_node *sinks);
/* Where keys lie that mx_cache_enter has given: the inputs of select_keys. */
mx_select_extra mx_select_cached(mx_graph *g, const mx_build *b);
/* Attention to the positions that it has chosen, of keys in pages whose first v_dim elements are
 * the values. */
mx_node *mx_attend_selected(mx_graph *g, const mx_build *b, mx_node *q, mx_node *keys,
                            int64_t v_dim, double scale, mx_node *selected);

/* q (B, S, H, D), k and v (B, S, K, D) -> (B, S, H D): through the cache when there is one. */
mx_node *mx_attend(mx_graph *g, mx_build *b, mx_node *q, mx_node *k, mx_node *v,
                   mx_attention_attr a, mx_node *sinks);

/* The same in two halves, for layers that attend to another layer's keys and values (Gemma 4):
 * these as the layer of the current scope keeps them, and attention to what was kept. */
mx_kv mx_kv_keep(mx_graph *g, mx_build *b, mx_node *k, mx_node *v, mx_attention_attr a);
/* Keys that are the values too: one cache. */
mx_kv mx_kv_keep_one(mx_graph *g, mx_build *b, mx_node *kv, mx_attention_attr a);
mx_node *mx_attend_kept(mx_graph *g, mx_build *b, mx_node *q, mx_kv kv, mx_attention_attr a,
                        mx_node *sinks);

#endif
