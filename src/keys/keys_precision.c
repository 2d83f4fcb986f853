/* keys_precision.c - keys of storage and arithmetic types, and of quantization. The columns are
 * those of mx_key (base/key.h). */
#include "keys/key_row.h"

#define FLOATS "bfloat16~bf16|float32~f32~fp32~float|!float16=f16=fp16=half"
#define BY_CACHE "bench generate serve chat"
#define STORED "float32~f32~fp32~float|bfloat16~bf16"

const mx_key mx_keys_precision[] = {
    {"dtype", ENUM, PRECISION, "bfloat16", FLOATS, "arithmetic and activations",
     "compute_dtype torch_dtype precision bf16", 0,
     "train plan bench generate verify serve chat eval", "dtype=float32"},
    {"weight_dtype", ENUM, PRECISION, "float32", STORED, "storage of master weights",
     "param_dtype master_dtype", FIXED, MX_BY_STEP, "weight_dtype=bfloat16"},
    {"grad_dtype", ENUM, PRECISION, "float32", STORED, "storage of gradients", 0, 0, MX_BY_STEP,
     "grad_dtype=bfloat16"},
    {"quantization", ENUM, PRECISION, "",
     "|fp8|fp8_tensorwise|fp8_rowwise|fp8_rowwise_gw_hp|fp8_blockwise|fp8_blockwise_hybrid|int8|"
     "int8_rowwise|int8_tensorwise|fp8_e4m3|fp8_e5m2|fp8_full|fp8_gpu|te_fp8_delayedscaling|"
     "te_fp8_currentscaling|te_fp8_blockscaling|int4|qat_int8|qat_fp8|qat_w8a8|nf4|!intmp|!fp4|"
     "!te_mxfp8|!te_nvfp4|!te_nvfp4_no_rht|!nanoo_fp8|!fp8_nanoo",
     "recipe by which matmuls of layers' weights are quantized; empty for none", "quant", 0,
     MX_BY_STEP " generate chat serve quantize", "quantization=fp8_rowwise",
     .seen_by = "tests/cli/quantization.sh",
     .instead = "fp4, mxfp8 and nvfp4 need a Blackwell chip and nanoo_fp8 AMD's: use fp8_blockwise "
                "or fp8; quant_cfg_path=FILE says what intmp would"},
    {"quantization_pattern", TEXT, PRECISION, "*", 0, "weights whose matmuls are quantized", 0, 0,
     MX_BY_STEP, "quantization_pattern=*.mlp.* quantization=fp8_rowwise",
     .seen_by = "tests/cli/quantization.sh"},
    {"weight_quantization_calibration_method", TEXT, PRECISION, "absmax", 0,
     "range of weights: absmax or fixed,-a,a", 0, PLANNED},
    {"act_quantization_calibration_method", TEXT, PRECISION, "absmax", 0, "range of activations", 0,
     PLANNED},
    {"bwd_quantization_calibration_method", TEXT, PRECISION, "absmax", 0, "range of gradients", 0,
     PLANNED},
    {"matmul_precision", ENUM, PRECISION, "default", "default|highest|!high",
     "float32 matmuls: default and highest are exact, high allows TF32", "tf32 allow_tf32",
     PLANNED},
    {"logits_dot_in_fp32", BOOL, PRECISION, "false", 0, "matmul with the output head in float32",
     0, PLANNED},
    {"float32_qk_product", BOOL, PRECISION, "false", 0, "attention scores from float32 q and k", 0,
     PLANNED},
    {"quantize_kvcache", BOOL, PRECISION, "false", 0, "store the KV cache in 8 bits", 0, 0,
     BY_CACHE, "quantize_kvcache=true", .seen_by = "tests/cli/kv_cache.sh"},
    {"kv_quant_axis", ENUM, PRECISION, "heads_and_dkv", "dkv|heads_and_dkv",
     "scales of the cache: one for each head of a token, or one for a token", 0, 0, BY_CACHE,
     "kv_quant_axis=dkv quantize_kvcache=true", .seen_by = "tests/cli/kv_cache.sh"},
    {"kv_quant_dtype", ENUM, PRECISION, "int8", "int8|fp8|!int4", "elements of the cache", 0, 0,
     BY_CACHE, "kv_quant_dtype=fp8 quantize_kvcache=true", .seen_by = "tests/cli/kv_cache.sh"},

    {"constant_bound_config", TEXT, PRECISION, "", 0, "static bounds of quantized operands", 0,
     PLANNED},
    {"quant_cfg_path", TEXT, PRECISION, "", 0,
     "JSON file of recipes by pattern of weights' names, before `quantization`", 0, PATH,
     MX_BY_STEP, "quant_cfg_path=recipes.json", .seen_by = "tests/cli/quantization.sh"},
    {"checkpoint_is_quantized", BOOL, PRECISION, "false", 0,
     "the checkpoint holds quantized weights", 0, PLANNED,
     .instead = "leave it out: quantized Hugging Face directories are recognised"},
    {"save_quantized_params_path", TEXT, PRECISION, "", 0,
     "write weights that were quantized on loading", 0, PLANNED | PATH,
     .instead = "maxc quantize MODEL output=DIR writes them"},
    {"experimental_sa_quant_q_fp8", BOOL, PRECISION, "false", 0, "queries in fp8 inside attention",
     0, PLANNED},
    {"experimental_sa_quant_k_fp8", BOOL, PRECISION, "false", 0, "keys in fp8 inside attention", 0,
     PLANNED},
    {0},
};
