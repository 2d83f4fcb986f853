/* fuzz_ranks_test.c - the inputs of the fuzz target, as they are and with bytes changed. */
#define LLVMFuzzerTestOneInput fuzz_ranks_once
#include "../fuzz/fuzz_ranks.c"

#include "../test.h"
#include "base/io.h"
#include "base/rng.h"
#include <dirent.h>

enum { CHANGED = 150, MOST_BYTES = 4096 };

static void change(uint8_t *p, size_t n, uint64_t file, uint64_t i)
{
    mx_random4 u = mx_philox(file, 1, i);
    for (uint32_t k = 0; k < 1 + u.v[0] % 3; k++) {
        mx_random4 v = mx_philox(file, 2 + k, i);
        p[v.v[0] % n] = v.v[1] % 2 ? (uint8_t)v.v[2] : (uint8_t)(1 << v.v[2] % 8);
    }
}

MX_TEST(ranks_survive_whatever_other_ranks_send)
{
    static const char folder[] = "tests/fuzz/corpus/ranks";
    struct dirent **file;
    int files = scandir(folder, &file, NULL, alphasort);
    MX_CHECK(files > 20, "%d files in %s", files, folder);
    for (int k = 0; k < files; k++) {
        char path[512], *text = NULL;
        size_t n = 0;
        snprintf(path, sizeof path, "%s/%.255s", folder, file[k]->d_name);
        free(file[k]);
        mx_status st = mx_io_read_file(NULL, path, MOST_BYTES, &text, &n);
        mx_status_free(st); /* "." and ".." */
        if (st || !n)
            continue;
        uint8_t *p = malloc(n);
        fuzz_ranks_once((const uint8_t *)text, n);
        for (uint64_t i = 0; i < CHANGED; i++) {
            memcpy(p, text, n);
            change(p, n, (uint64_t)k, i);
            fuzz_ranks_once(p, n);
        }
        free(p);
        mx_free(text);
    }
    free(file);
}
