/* tokenizer_fuzz_test.c - the corpus of fuzz_tokenizer.c, replayed whole and with damage. */
#include "../test.h"

#include "base/file.h"
#include <dirent.h>

#define LLVMFuzzerTestOneInput mx_fuzz_tokenizer
#include "../fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput

static void damage(const char *text, size_t n)
{
    mx_arena a = {0};
    uint8_t *copy = mx_arena_copy(&a, text, n);
    uint64_t x = 99;
    mx_fuzz_tokenizer(copy, n);
    for (int i = 0; i < 60; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(x >> 20) % n;
        uint8_t old = copy[at];
        copy[at] = (uint8_t)(x >> 56);
        mx_fuzz_tokenizer(copy, i % 3 ? n : at);
        copy[at] = old;
    }
    mx_arena_fini(&a);
}

MX_TEST(fuzz_corpus_tokenizer)
{
    static const char folder[] = "tests/fuzz/corpus/tokenizer";
    DIR *d = opendir(folder);
    int n_files = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        mx_arena a = {0};
        char *text;
        size_t n;
        const char *path = mx_arena_printf(&a, "%s/%s", folder, e->d_name);
        if (mx_file_exists(path)) {
            MX_CHECK_OK(mx_file_read(&a, path, 1 << 20, &text, &n));
            damage(text, n);
            n_files++;
        }
        mx_arena_fini(&a);
    }
    if (d)
        closedir(d);
    MX_CHECK(n_files >= 8, "%d files", n_files);
}
