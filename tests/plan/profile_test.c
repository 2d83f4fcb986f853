/* profile_test.c - what the recipes of 8 bits move, against what can be counted by hand. */
#include "../test.h"
#include "keys/keys.h"
#include "models/from_config.h"
#include "plan/model_profile.h"
#include <math.h>

/* Llama 3.2 1B: numbers of a token that the GEMMs of a layer read, and that their gradients have
 * (q, k and v and gate and up are one GEMM each); and weights. */
static const double INPUTS = 3 * 2048 + 8192, GRADS = 3072 + 2048 + 2 * 8192 + 2048;
static const double WEIGHTS = 2048.0 * (3072 + 2048 + 3 * 8192);

static mx_profile_passes passes_of(const char *recipe)
{
    const char *args[] = {"model_name=llama3.2-1b", "base_num_decoder_layers=4",
                          "max_target_length=512", "dtype=bfloat16", recipe};
    mx_config_request r = {.schema = &mx_keys, .home = "configs", .args = args, .n_args = 5};
    mx_config *c;
    mx_model_spec m = {0};
    mx_arena a = {0};
    mx_profile *p = MX_NEW(&a, mx_profile);
    MX_CHECK_OK(mx_config_load(&c, &r));
    MX_CHECK_OK(mx_model_from_config(&m, c));
    MX_CHECK_OK(mx_profile_of(p, c, &m, "none"));
    mx_profile_passes out = p->kind[0].passes;
    mx_model_spec_fini(&m);
    mx_config_free(c);
    mx_arena_fini(&a);
    return out;
}

static void about(double got, double want, const char *what)
{
    MX_CHECK(fabs(got - want) <= 0.01 * fabs(want), "%s: %.0f, expected %.0f", what, got, want);
}

/* One scale for a tensor that is known from earlier steps: a pass. From the tensor itself: two. */
MX_TEST(scales_of_whole_tensors_are_a_pass_of_their_own)
{
    mx_profile_passes known = passes_of("quantization=fp8");
    mx_profile_passes own = passes_of("quantization=fp8_tensorwise");
    about(own.stream[0] - known.stream[0], 2 * INPUTS, "forward");
    about(own.stream[1] - known.stream[1], 2 * GRADS, "backward");
    about(own.weight_stream[0] - known.weight_stream[0], 2 * WEIGHTS, "weights");
}

/* Rows and columns have scales of their own: inputs are quantized again in the backward pass, and
 * gradients twice, all of them in two passes of two bytes, one byte out, and by columns that byte
 * and the transposed one. A known scale is one pass with both out, of inputs forward alone. */
MX_TEST(scales_of_rows_quantize_twice)
{
    mx_profile_passes known = passes_of("quantization=fp8");
    mx_profile_passes rows = passes_of("quantization=fp8_rowwise");
    about(rows.stream[0] - known.stream[0], (5 - 4) * INPUTS, "forward");
    about(rows.stream[1] - known.stream[1], 6 * INPUTS + (5 + 6 - 4) * GRADS, "backward");
}

/* Blocks of 128 lie in a tile, which waits in registers: one pass. */
MX_TEST(scales_of_blocks_are_found_on_the_way)
{
    mx_profile_passes rows = passes_of("quantization=fp8_rowwise");
    mx_profile_passes blocks = passes_of("quantization=fp8_blockwise");
    about(rows.stream[0] - blocks.stream[0], 2 * INPUTS - 4 * INPUTS / 128, "forward");
}

MX_TEST(gradients_of_int8_draw_random_bits)
{
    mx_profile_passes random = passes_of("quantization=int8");
    mx_profile_passes nearest = passes_of("quantization=int8_rowwise");
    about(random.random[1], 2 * GRADS, "numbers");
    about(random.random_stream[1], (3 + 4) * GRADS, "bytes");
    MX_CHECK(random.random[0] == 0 && nearest.random[1] == 0, "%g %g", random.random[0],
             nearest.random[1]);
}
