/* fuzz_replay_test.c - the fuzz targets' corpora, replayed: whole, and each cut at every byte. */
#include "../test.h"

#include "../fuzz/corpus.h"

#define LLVMFuzzerTestOneInput mx_fuzz_safetensors
#include "../fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput mx_fuzz_config_json
#include "../fuzz/fuzz_config_json.c"
#undef LLVMFuzzerTestOneInput

typedef int target_fn(const uint8_t *p, size_t n);

static void cut_everywhere(void *ctx, uint8_t *p, size_t n)
{
    for (size_t k = 0; k <= n; k++) {
        uint8_t *copy = mx_realloc(NULL, k ? k : 1); /* exact size: an overrun is seen */
        memcpy(copy, p, k);
        (*(target_fn **)ctx)(copy, k);
        mx_free(copy);
    }
}

static int replay(const char *folder, target_fn *target)
{
    return corpus_each(folder, cut_everywhere, &target);
}

MX_TEST(fuzz_corpus_safetensors)
{
    MX_CHECK(replay("tests/fuzz/corpus/safetensors", mx_fuzz_safetensors) >= 10);
}

MX_TEST(fuzz_corpus_config_json)
{
    MX_CHECK(replay("tests/fuzz/corpus/config_json", mx_fuzz_config_json) >= 8);
}
