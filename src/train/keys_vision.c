/* keys_vision.c - keys of the vision encoder and the audio encoder. The columns are those of mx_key
 * (base/key.h). */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define INTS MX_KEY_INTS
#define VISION MX_SECTION_VISION
#define AUDIO MX_SECTION_AUDIO
#define FIXED MX_KEY_FIXED
#define OPTIONAL MX_KEY_OPTIONAL
#define PLANNED MX_KEY_PLANNED

const mx_key mx_keys_vision[] = {
    {"use_multimodal", BOOL, VISION, "false", 0, "images (and sound) as input", 0, FIXED,
     MX_BY_STEP, "use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"vision_encoder_block", ENUM, VISION, "",
     "|gemma3|gemma4|llama4|qwen3_vl|!qwen3_omni|!qwen3_5", "family of the vision encoder", 0,
     FIXED, "train plan", "vision_encoder_block=gemma3 use_multimodal=true decoder_block=gemma3"},
    {"freeze_vision_encoder_params", BOOL, VISION, "true", 0, "do not train it", 0, 0, "train plan",
     "freeze_vision_encoder_params=false use_multimodal=true vision_encoder_block=gemma3 "
     "decoder_block=gemma3"},
    {"max_num_images_per_example", INT, VISION, "-1", "-1|1..", "images of an example; -1: any", 0,
     0, "train plan",
     "max_num_images_per_example=1 packing=false use_multimodal=true vision_encoder_block=gemma3 "
     "decoder_block=gemma3"},
    {"image_size_for_vit", INTS, VISION, "896", "1..", "side, or height and width, of the image", 0,
     FIXED, "train plan",
     "image_size_for_vit=56 use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"hidden_size_for_vit", INT, VISION, "1408", "1..", "width", 0, FIXED, "train plan",
     "hidden_size_for_vit=64 use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"intermediate_size_for_vit", INT, VISION, "5632", "1..", "hidden size of the MLP", 0, FIXED,
     "train plan",
     "intermediate_size_for_vit=64 use_multimodal=true vision_encoder_block=gemma3 "
     "decoder_block=gemma3"},
    {"num_attention_heads_for_vit", INT, VISION, "16", "1..", "heads", 0, FIXED, "train plan",
     "num_attention_heads_for_vit=2 use_multimodal=true vision_encoder_block=gemma3 "
     "decoder_block=gemma3"},
    {"num_hidden_layers_for_vit", INT, VISION, "34", "1..", "layers", 0, FIXED, "train plan",
     "num_hidden_layers_for_vit=2 use_multimodal=true vision_encoder_block=gemma3 "
     "decoder_block=gemma3"},
    {"num_channels_for_vit", INT, VISION, "3", "1..", "channels of the image", 0, FIXED,
     "train plan",
     "num_channels_for_vit=1 use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"tile_size_for_vit", INT, VISION, "336", "1..", "side of a tile", 0, FIXED | PLANNED,
     .instead = "image_size_for_vit is the side of a tile"},
    {"patch_size_for_vit", INT, VISION, "14", "1..", "side of a patch", 0, FIXED, "train plan",
     "patch_size_for_vit=28 use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"conv_stride_for_vit", INT, VISION, "14", "1..", "stride of the patch embedding", 0,
     FIXED | PLANNED, .instead = "patches do not overlap: the stride is patch_size_for_vit"},
    {"projector_input_dim_for_vit", INT, VISION, "4096", "1..", "width into the projector", 0,
     FIXED, "train plan",
     "projector_input_dim_for_vit=32 use_multimodal=true vision_encoder_block=llama4 "
     "decoder_block=llama4 num_experts=4"},
    {"projector_output_dim_for_vit", INT, VISION, "4096", "1..", "width out of the projector", 0,
     FIXED, "train plan",
     "projector_output_dim_for_vit=32 use_multimodal=true vision_encoder_block=llama4 "
     "decoder_block=llama4 num_experts=4"},
    {"vision_output_length", INT, VISION, "-1", "-1|1..", "tokens of an image; -1: as the family",
     0, FIXED, "train plan",
     "vision_output_length=1 use_multimodal=true vision_encoder_block=gemma3 decoder_block=gemma3"},
    {"rope_theta_for_vit", INT, VISION, "10000", "1..", "base of its RoPE", 0, FIXED, "train plan",
     "rope_theta_for_vit=100 use_multimodal=true vision_encoder_block=gemma4 decoder_block=gemma4 "
     "base_num_decoder_layers=6"},
    {"pixel_shuffle_ratio_for_vit", FLOAT, VISION, "0.5", "0..1", "downsampling by pixel shuffle",
     0, FIXED, "train plan",
     "pixel_shuffle_ratio_for_vit=1 use_multimodal=true vision_encoder_block=llama4 "
     "decoder_block=llama4 num_experts=4"},
    {"spatial_merge_size_for_vit", INT, VISION, "2", "1..", "patches merged per side", 0, FIXED,
     "train plan",
     "spatial_merge_size_for_vit=1 use_multimodal=true vision_encoder_block=qwen3_vl "
     "decoder_block=qwen3"},
    {"temporal_patch_size_for_vit", INT, VISION, "2", "1..", "frames of a patch", 0, FIXED,
     "train plan",
     "temporal_patch_size_for_vit=1 use_multimodal=true vision_encoder_block=qwen3_vl "
     "decoder_block=qwen3"},
    {"out_hidden_size_for_vit", INT, VISION, "512", "1..", "width handed to the decoder", 0, FIXED,
     "train plan",
     "out_hidden_size_for_vit=64 use_multimodal=true vision_encoder_block=qwen3_vl "
     "decoder_block=qwen3"},
    {"num_position_embeddings_for_vit", INT, VISION, "1024", "1..", "learned positions", 0, FIXED,
     "train plan",
     "num_position_embeddings_for_vit=16 use_multimodal=true vision_encoder_block=qwen3_vl "
     "decoder_block=qwen3"},
    {"deepstack_visual_indexes_for_vit", INTS, VISION, "", "0..", "layers also fed to the decoder",
     0, FIXED, "train plan",
     "deepstack_visual_indexes_for_vit=0 use_multimodal=true vision_encoder_block=qwen3_vl "
     "decoder_block=qwen3"},

    {"video_placeholder", TEXT, VISION, "<|video|>", 0, "stands for a film in a prompt", 0,
     PLANNED},
    {"video_max_grid_t", INT, VISION, "0", "0..", "patches of a film over time", 0,
     PLANNED | OPTIONAL},
    {"video_max_grid_h", INT, VISION, "0", "0..", "patches of a film over height", 0,
     PLANNED | OPTIONAL},
    {"video_max_grid_w", INT, VISION, "0", "0..", "patches of a film over width", 0,
     PLANNED | OPTIONAL},
    {"projector_dropout_for_vit", FLOAT, VISION, "0", "0..1", "dropout of the projector", 0,
     PLANNED},

    {"use_audio", BOOL, AUDIO, "false", 0, "sound as input", 0, FIXED | PLANNED},
    {"freeze_audio_encoder_params", BOOL, AUDIO, "true", 0, "do not train the encoder", 0, PLANNED},
    {"d_model_for_audio", INT, AUDIO, "256", "1..", "width", 0, FIXED | PLANNED},
    {"encoder_attention_heads_for_audio", INT, AUDIO, "4", "1..", "heads", 0, FIXED | PLANNED},
    {"encoder_ffn_dim_for_audio", INT, AUDIO, "512", "1..", "hidden size of the MLP", 0,
     FIXED | PLANNED},
    {"encoder_layers_for_audio", INT, AUDIO, "2", "1..", "layers", 0, FIXED | PLANNED},
    {"attention_dropout_for_audio", FLOAT, AUDIO, "0", "0..1", "dropout of attention", 0, PLANNED},
    {"num_mel_bins_for_audio", INT, AUDIO, "128", "1..", "mel bins", 0, FIXED | PLANNED},
    {"max_source_positions_for_audio", INT, AUDIO, "1500", "1..", "positions", 0, FIXED | PLANNED},
    {"n_window_for_audio", INT, AUDIO, "50", "1..", "window in training", 0, FIXED | PLANNED},
    {"n_window_infer_for_audio", INT, AUDIO, "800", "1..", "window in decoding", 0,
     FIXED | PLANNED},
    {"conv_chunksize_for_audio", INT, AUDIO, "500", "1..", "chunk of the convolutions", 0,
     FIXED | PLANNED},
    {"downsample_hidden_size_for_audio", INT, AUDIO, "256", "1..", "width of the convolutions", 0,
     FIXED | PLANNED},
    {"output_dim_for_audio", INT, AUDIO, "512", "1..", "width handed to the decoder", 0,
     FIXED | PLANNED},
    {"num_conv_layers_for_audio", INT, AUDIO, "3", "1..", "convolutions", 0, FIXED | PLANNED},
    {"max_timescale_for_audio", FLOAT, AUDIO, "10000", ">0", "timescale of the positions", 0,
     FIXED | PLANNED},
    {"max_sample_len_for_audio", INT, AUDIO, "10000", "1..", "longest sound, in frames", 0,
     PLANNED},
    {"audio_placeholder", TEXT, AUDIO, "<|audio|>", 0, "stands for a sound in a prompt", 0,
     PLANNED},
    {"use_audio_in_video", BOOL, AUDIO, "false", 0, "a film's sound is input as well", 0, PLANNED},
    {"activation_dropout_for_audio", FLOAT, AUDIO, "0", "0..1", "dropout of activations", 0,
     PLANNED},
    {"activation_function_for_audio", TEXT, AUDIO, "gelu", 0, "activation", 0, PLANNED},
    {"scale_embedding_for_audio", BOOL, AUDIO, "true", 0,
     "scale embeddings by the root of the width", 0, PLANNED},
    {0},
};
