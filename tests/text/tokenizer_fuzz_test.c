/* tokenizer_fuzz_test.c - the corpus of fuzz_tokenizer.c, replayed whole and with damage. */
#include "../test.h"

#include "../fuzz/corpus.h"

#define LLVMFuzzerTestOneInput mx_fuzz_tokenizer
#include "../fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput

static void damage(void *ctx, uint8_t *p, size_t n)
{
    uint64_t x = 99;
    (void)ctx;
    mx_fuzz_tokenizer(p, n);
    for (int i = 0; i < 60; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(x >> 20) % n;
        uint8_t old = p[at];
        p[at] = (uint8_t)(x >> 56);
        mx_fuzz_tokenizer(p, i % 3 ? n : at);
        p[at] = old;
    }
}

MX_TEST(fuzz_corpus_tokenizer)
{
    int files = corpus_each("tests/fuzz/corpus/tokenizer", damage, NULL);
    MX_CHECK(files >= 8, "%d files", files);
}
