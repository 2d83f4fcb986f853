/* fuzz_replay_test.c - the fuzz targets' corpora, replayed: whole, and each cut at every byte. */
#include "../test.h"
#include "base/arena.h"
#include "test_dir.h"
#include <dirent.h>
#include <stdio.h>

#define LLVMFuzzerTestOneInput mx_fuzz_safetensors
#include "../fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput mx_fuzz_config_json
#include "../fuzz/fuzz_config_json.c"
#undef LLVMFuzzerTestOneInput

static int replay(const char *dir, int (*target)(const uint8_t *, size_t))
{
    DIR *d = opendir(dir);
    int n_files = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        char path[512];
        size_t n;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        uint8_t *text = (uint8_t *)test_get(path, &n);
        for (size_t k = 0; k <= n; k++) {
            uint8_t *copy = mx_realloc(NULL, k + 1); /* exact size: an overrun is seen */
            for (size_t i = 0; i < k; i++)
                copy[i] = text[i];
            copy = mx_realloc(copy, k ? k : 1);
            target(copy, k);
            mx_free(copy);
        }
        mx_free(text);
        n_files++;
    }
    if (d)
        closedir(d);
    return n_files;
}

MX_TEST(fuzz_corpus_safetensors)
{
    MX_CHECK(replay("tests/fuzz/corpus/safetensors", mx_fuzz_safetensors) >= 10);
}

MX_TEST(fuzz_corpus_config_json)
{
    MX_CHECK(replay("tests/fuzz/corpus/config_json", mx_fuzz_config_json) >= 8);
}
