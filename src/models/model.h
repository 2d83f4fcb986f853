/* model.h - what a model family is: one file, one const struct.
 *
 * The table mx_model_table is scanned out of src/models at build time. A family's field table is
 * the only list of its configuration: it reads config.json, takes overrides by name, prints help
 * and errors, and writes config.json again.
 */
#ifndef MX_MODELS_MODEL_H
#define MX_MODELS_MODEL_H

#include "models/range.h"
#include "nn/nn.h"
#include <jansson.h>

typedef enum {
    MX_CFG_WHOLE, /* int64_t; in tables MX_CFG_INT(min, max) */
    MX_CFG_REAL,  /* double; MX_CFG_F64(min, max) */
    MX_CFG_BOOL, /* bool */
    MX_CFG_ACT,  /* mx_act, by its name */
    MX_CFG_TEXT, /* char[24] */
    MX_CFG_LAYER_TYPES, /* mx_layer_types, from a list of strings */
    MX_CFG_WHOLES, /* mx_int_list; MX_CFG_INTS(min, max) */
} mx_cfg_kind;

enum { MX_MAX_LAYERS = 256 };

/* One small number per layer: 1 + index into the family's layer type names. */
typedef struct {
    int n; /* 0: not given */
    unsigned char type[MX_MAX_LAYERS];
} mx_layer_types;

typedef struct {
    int n;
    int64_t v[MX_MAX_LAYERS];
} mx_int_list;

/* A field of a family's configuration. `key` may list alternatives,
 * "rope_parameters.rope_theta|rope_theta"; dots enter objects; the first that is present and not
 * null counts, and the first is the one written. */
typedef struct {
    const char *key; /* NULL ends the table */
    mx_cfg_kind kind;
    size_t offset;
    double min, max;      /* of a number, and of each number of a list: range.h */
    double fallback;      /* when absent (numbers, BOOL, ACT); may lie outside: "not given" */
    bool required;        /* absence is an error */
    const char *maxtext;  /* the same thing in MaxText's configurations; NULL: none */
    const char *text;     /* fallback of TEXT; the type names of LAYER_TYPES, comma-separated */
    bool own;             /* MaxText's keys say nothing about it: the fallback stands */
    bool none;            /* null says 0, not the fallback */
    const char *run;      /* a key that, given for a run, wins over a checkpoint's config.json */
} mx_cfg_field;

enum { MX_MAX_MTP = 4 };

/* What a model ends in: everything but the vocabulary projection, so that the loss can be fused. */
typedef struct {
    mx_node *hidden; /* (B, S, d) after the final norm */
    mx_node *weight; /* (vocab, d) */
    double softcap;  /* of the logits; 0: none */
    double scale;    /* of the logits; 0 means 1 */
    /* Multi-token prediction, in training and where one is evaluated: hidden states of the MTP
     * layers, which predict the token after next, the one after that..., and the loss's weight. */
    mx_node *mtp[MX_MAX_MTP];
    int n_mtp;
    double mtp_weight;
} mx_head;

/* A piece of a weight as another spelling of the checkpoint has it. With its last two dims
 * exchanged if `transposed`, the tensor has the weight's dims except for dim `cut`, of which it has
 * `of`; its indices from, ..., from + count - 1 there are the weight's to, ..., to + count - 1. */
typedef struct {
    char name[256]; /* of a tensor, or with `*` of a stack of them */
    bool transposed;
    int cut;
    int64_t of, from, to, count;
} mx_weight_part;
enum { MX_MAX_PARTS = 4 };

/* What the rest of the program asks of any family. Filled by `summary`. */
typedef struct {
    int64_t vocab, d_model, n_layers, max_positions;
    double init_scale;
    bool tied;
} mx_model_summary;

/* What the images of a family are. Filled by `images`. A picture becomes one image or, where it may
 * be cut, tiles and then itself as a whole, each an image to the model. Where pictures keep their
 * proportions (size is 0), each of a picture's pieces (nn/vision.h) is an image to the model. */
typedef struct {
    int64_t channels, size; /* one is (channels, size, size) */
    int64_t token, tokens;  /* the id that stands for a piece of an image; how many an image has */
    int64_t patch, side;    /* of a piece: pixels along a patch, patches along the piece */
    int64_t frames;         /* each patch is repeated this often, like frames of a film */
    bool channels_last;     /* a patch is (y, x, channel), else (channel, frame, y, x) */
    int64_t max_grid;       /* patches along a picture at most; 0: any number */
    /* What the family's processor does where the checkpoint does not say: */
    int64_t max_tiles;      /* tiles of a picture at most; 1: it is not cut */
    bool in_bf16;           /* pixels are scaled in that precision */
    bool bicubic;           /* pictures are resized so, else bilinear */
    bool plain;             /* pixels are 0 to 1, else -1 to 1 */
    int64_t min_pixels, max_pixels; /* of a picture in pieces; min 0: as many as the most allow */
    bool places;            /* its tokens have M-RoPE positions: time, height, width (mx_build) */
    bool both_ways;         /* the tokens of an image see each other, those after them too */
    /* A picture in a prompt is `mark`, which becomes: begin, the rows of its tiles, each tile's
     * pieces followed by `between` or, at the end of its row, `row_end`; whole, the pieces of the
     * whole picture, end. A text without marks gets `alone` before it, the mark if it is NULL. */
    const char *mark, *begin, *piece, *between, *row_end, *whole, *end, *alone;
    /* A long picture may be shown once more in crops (do_pan_and_scan), each an image: what is
     * before the whole picture, before the first crop and between crops. NULL: it may not. */
    const char *crop_texts[3];
} mx_image_spec;

typedef struct mx_model mx_model;
struct mx_model {
    const char *name, *doc;
    const char *model_types;   /* comma-separated, as in config.json */
    const char *architecture;  /* written as architectures[0] */
    size_t config_size;
    const mx_cfg_field *fields;
    /* The family of the language part. Its fields are read from the object "text_config", or from
     * the document itself, into the front of the configuration, and it is finished first. */
    const mx_model *text;
    /* Derived values and checks, after the fields have been read. NULL: none. */
    mx_status (*finish)(void *config, const json_t *json);
    void (*summary)(const void *config, mx_model_summary *out); /* NULL: the language part's */
    void (*images)(const void *config, mx_image_spec *out);     /* NULL: text only */
    mx_head (*build)(mx_graph *g, const void *config, mx_build *b);
    /* The name a tensor has in some checkpoints, when it is not there under its own. NULL: none. */
    const char *(*other_name)(const char *name, char *buf, size_t cap);
    /* The same for a weight that is split or fused there (experts): gives the number of parts, at
     * most MX_MAX_PARTS; 0: no such spelling. NULL: none. */
    int (*other_parts)(const char *name, const mx_type *type, mx_weight_part *out);
    const char *unused;        /* patterns of tensors that checkpoints may carry without a use */
    const char *not_built;     /* the same for a part that is never built; loading says so */
    const char *limits;        /* patterns of weights that may be infinite */
    /* What precedes the number of a layer in names, "model.layers.", where checkpoints may have
     * MTP layers after the last. NULL: none. */
    const char *layer_prefix;
    bool drafts; /* the first of them can draft tokens in the engine (mx_model_shape.draft) */
    const char *no_decay;      /* patterns of weights without weight decay by default */
    const char *vision;        /* one line on images; NULL: text only */
    const char *tower;         /* patterns of the image encoder's weights; NULL: none */
    const char *decoder_block; /* MaxText's names for the family, comma-separated */
    /* Values of MaxText's keys that tell families of one decoder_block apart,
     * "key=value,key=value"; NULL: none are needed. */
    const char *decoder_keys;
    /* What MaxText's keys say of the family whatever its sizes, "key=value,key=value": such a key
     * may be given with this value and no other. The value may be another key's, or the quotient of
     * two keys; `*`: a model's file may give any, which has no part in the model, an argument none.
     * A key of the model that is neither read nor stands here is the family's only with its
     * default. NULL: none. */
    const char *fixed_keys;
};

extern const mx_model *const mx_model_table[];
extern const int mx_model_count;

/* A family with a configuration: what is opened, built, trained. */
typedef struct {
    const mx_model *family;
    void *config;      /* in the arena */
    json_t *json;      /* owns: the configuration as read, written back on save */
    mx_model_summary summary;
    mx_arena arena;
} mx_model_spec;

/* From a config.json document (borrowed). All problems are reported at once;
 * `where` names the file. */
mx_status mx_model_from_json(mx_model_spec *m, const json_t *json, const char *where) MX_MUST_USE;
void mx_model_spec_fini(mx_model_spec *m);

/* Inputs of a training or evaluation graph: tokens (B, S), with packing segments and positions,
 * with images pixels (images, channels, size, size) in the order of their tokens, or (B, pieces of
 * a row, floats of a piece). */
typedef struct {
    int64_t batch, seq;
    int64_t images;    /* in the whole batch; 0: text only */
    int64_t images_per_row; /* instead: in each of its rows at most */
    bool images_by_row;     /* those of a row lie at its own place: on a mesh, which cuts rows */
    int64_t image_width; /* instead, over pages: of what a tower has given for a token (mx_build) */
    bool packed;
    bool places;       /* tokens have places (mx_image_spec) */
    bool training;     /* a step that updates weights */
    bool one_path;     /* a token's bits are those of a training step, however it is fed */
    bool draft;        /* over pages: the first MTP layer alone, as a program that drafts tokens */
    bool keep_hidden;  /* MX_STEP_NEXT gives the last layer's hidden states, which that reads */
    int64_t mtp_eval;  /* the MTP layer whose acceptance is measured; 0: none */
    bool balances;     /* as in mx_build */
    int64_t fixed_pad; /* as in mx_build, in training */
    double qk_clip;    /* the threshold of QK-clip; 0: none */
    int64_t cache_len; /* 0: no cache */
    int64_t pages, page, page_rows; /* a cache in pages: as in mx_build */
    bool drawn;                     /* tokens may be those sampled before (ops/feed_sampled.c) */
    int64_t last;      /* rows whose logits MX_STEP_NEXT gives; 0: one for each of the batch */
    int64_t max_run;   /* with a cache: most tokens that a program on it feeds at once */
    mx_dtype cache_dtype;
    mx_dtype cache_quant; /* as in mx_build */
    bool cache_by_token;
} mx_model_shape;
/* The numbers of one image to the model. */
int64_t mx_image_floats(const mx_image_spec *s);
/* Declares the inputs, builds the model, gives its head. */
mx_head mx_model_build(mx_graph *g, const mx_model_spec *m, mx_model_shape shape, mx_build *b);
/* How many weights it has, those that are not trained and its image encoder included. */
mx_status mx_model_weights(const mx_model_spec *m, int64_t *out) MX_MUST_USE;
/* (B, S, vocab) logits in float32. */
mx_node *mx_model_logits(mx_graph *g, const mx_head *h);

/* --- what families share --- */

/* lm_head.weight (vocab, d), or the embedding itself when tied. */
mx_node *mx_head_weight(mx_graph *g, const mx_build *b, int64_t vocab, int64_t d, bool tied);
/* The same where the language part is model.language_model. */
mx_node *mx_head_weight_of_part(mx_graph *g, const mx_build *b, int64_t vocab, int64_t d,
                                bool tied);
/* Fills kv_heads (all heads) and head_dim (d / heads) where they are 0,
 * and checks that they divide. */
mx_status mx_check_heads(int64_t d, int64_t heads, int64_t *kv_heads,
                         int64_t *head_dim) MX_MUST_USE;
/* Fills what the scaling types need from the family's length, and refuses unknown types. */
mx_status mx_check_rope(mx_rope *r, int64_t max_positions) MX_MUST_USE;

/* A list of layer types must name every layer. */
mx_status mx_check_layer_types(const mx_layer_types *t, int64_t layers) MX_MUST_USE;

#define MX_CFG(T, member, key_, kind_, ...)                                                        \
    {.key = key_, .kind = kind_, .offset = offsetof(T, member), __VA_ARGS__}

/* Rows for an mx_vit member called `vit`, except for what towers name differently. */
#define MX_CFG_VIT(T, d_, d_ff_, layers_, heads_, size_, patch_)                                   \
    MX_CFG(T, vit.d, "vision_config.hidden_size", MX_IS_WIDTH, .fallback = d_,                     \
               .maxtext = "hidden_size_for_vit"),                                                  \
        MX_CFG(T, vit.d_ff, "vision_config.intermediate_size", MX_IS_WIDTH, .fallback = d_ff_,     \
               .maxtext = "intermediate_size_for_vit"),                                            \
        MX_CFG(T, vit.layers, "vision_config.num_hidden_layers", MX_IS_LAYERS,                     \
               .fallback = layers_, .maxtext = "num_hidden_layers_for_vit"),                       \
        MX_CFG(T, vit.heads, "vision_config.num_attention_heads", MX_IS_HEADS, .fallback = heads_, \
               .maxtext = "num_attention_heads_for_vit"),                                          \
        MX_CFG(T, vit.channels, "vision_config.num_channels", MX_IS_CHANNELS, .fallback = 3,       \
               .maxtext = "num_channels_for_vit"),                                                 \
        MX_CFG(T, vit.image_size, "vision_config.image_size", MX_IS_PIXELS, .fallback = size_,     \
               .maxtext = "image_size_for_vit"),                                                   \
        MX_CFG(T, vit.patch, "vision_config.patch_size", MX_IS_PATCH, .fallback = patch_,          \
               .maxtext = "patch_size_for_vit")

/* Rows for members vocab, d, d_ff, layers, heads; where every layer has experts, the key of d_ff is
 * theirs. */
#define MX_CFG_SIZES(T) MX_CFG_SIZES_BY(T, "base_mlp_dim")
#define MX_CFG_SIZES_BY(T, d_ff_key_)                                                              \
    MX_CFG(T, vocab, "vocab_size", MX_IS_VOCAB, .required = true, .maxtext = "vocab_size"),        \
        MX_CFG(T, d, "hidden_size", MX_IS_WIDTH, .required = true, .maxtext = "base_emb_dim"),     \
        MX_CFG(T, d_ff, "intermediate_size", MX_IS_WIDTH, .required = true, .maxtext = d_ff_key_), \
        MX_CFG(T, layers, "num_hidden_layers", MX_IS_LAYERS, .required = true,                     \
               .maxtext = "base_num_decoder_layers"),                                              \
        MX_CFG(T, heads, "num_attention_heads", MX_IS_HEADS, .required = true,                     \
               .maxtext = "base_num_query_heads")

/* The same for a family whose configurations leave out what is as transformers has it. */
#define MX_CFG_SIZES_OR(T, vocab_, d_, d_ff_, layers_, heads_)                                     \
    MX_CFG(T, vocab, "vocab_size", MX_IS_VOCAB, .fallback = vocab_, .maxtext = "vocab_size"),      \
        MX_CFG(T, d, "hidden_size", MX_IS_WIDTH, .fallback = d_, .maxtext = "base_emb_dim"),       \
        MX_CFG(T, d_ff, "intermediate_size", MX_IS_WIDTH, .fallback = d_ff_,                       \
               .maxtext = "base_mlp_dim"),                                                         \
        MX_CFG(T, layers, "num_hidden_layers", MX_IS_LAYERS, .fallback = layers_,                  \
               .maxtext = "base_num_decoder_layers"),                                              \
        MX_CFG(T, heads, "num_attention_heads", MX_IS_HEADS, .fallback = heads_,                   \
               .maxtext = "base_num_query_heads")

/* Rows for an mx_rope member called `rope`, in both spellings that exist on the hub. */
#define MX_CFG_ROPE(T, theta_)                                                                     \
    MX_CFG(T, rope.type, "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type",     \
           MX_CFG_TEXT, .text = "default"),                                                        \
        MX_CFG(T, rope.theta, "rope_parameters.rope_theta|rope_theta|rotary_emb_base",             \
               MX_IS_THETA, .fallback = theta_, .maxtext = "rope_max_timescale"),                  \
        MX_CFG(T, rope.factor, "rope_parameters.factor|rope_scaling.factor", MX_IS_FACTOR,         \
               .fallback = 1),                                                                     \
        MX_CFG(T, rope.low_freq_factor,                                                            \
               "rope_parameters.low_freq_factor|rope_scaling.low_freq_factor", MX_IS_FACTOR,       \
               .fallback = 1),                                                                     \
        MX_CFG(T, rope.high_freq_factor,                                                           \
               "rope_parameters.high_freq_factor|rope_scaling.high_freq_factor", MX_IS_FACTOR,     \
               .fallback = 4),                                                                     \
        MX_CFG(T, rope.beta_fast, "rope_parameters.beta_fast|rope_scaling.beta_fast",              \
               MX_IS_FACTOR, .fallback = 32),                                                      \
        MX_CFG(T, rope.beta_slow, "rope_parameters.beta_slow|rope_scaling.beta_slow",              \
               MX_IS_FACTOR, .fallback = 1),                                                       \
        MX_CFG(T, rope.mscale, "rope_parameters.mscale|rope_scaling.mscale", MX_IS_FACTOR_OR_0),   \
        MX_CFG(T, rope.mscale_all_dim,                                                             \
               "rope_parameters.mscale_all_dim|rope_scaling.mscale_all_dim", MX_IS_FACTOR_OR_0),   \
        MX_CFG(T, rope.truncate, "rope_parameters.truncate|rope_scaling.truncate", MX_CFG_BOOL,    \
               .fallback = 1),                                                                     \
        MX_CFG(T, rope.attention_factor,                                                           \
               "rope_parameters.attention_factor|rope_scaling.attention_factor",                   \
               MX_IS_FACTOR_OR_0),                                                                 \
        MX_CFG(T, rope.original_length,                                                            \
               "rope_parameters.original_max_position_embeddings|"                                 \
               "rope_scaling.original_max_position_embeddings|original_max_position_embeddings",   \
               MX_IS_REAL_LENGTH_OR_0),                                                            \
        MX_CFG(T, rope.partial,                                                                    \
               "rope_parameters.partial_rotary_factor|partial_rotary_factor", MX_IS_SHARE)

#endif
