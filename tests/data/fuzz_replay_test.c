/* fuzz_replay_test.c - the fuzz target's corpus, as it is and with bytes changed and cut. */
#include "../test.h"

#include "../fuzz/fuzz_data.c"
#include "files.h"
#include <dirent.h>

MX_TEST(fuzz_data_corpus)
{
    DIR *d = opendir("tests/fuzz/corpus/data");
    int files = 0;
    MX_CHECK(d != NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "tests/fuzz/corpus/data/%s", e->d_name);
        char *p = read_whole(path, &n);
        LLVMFuzzerTestOneInput((const uint8_t *)p, n);
        for (size_t i = 1; i < n; i += 1 + n / 150) {
            char old = p[i];
            p[i] = (char)(old ^ (1 << i % 8));
            LLVMFuzzerTestOneInput((const uint8_t *)p, n);
            p[i] = (char)0xff;
            LLVMFuzzerTestOneInput((const uint8_t *)p, n);
            p[i] = old;
            LLVMFuzzerTestOneInput((const uint8_t *)p, i);
        }
        mx_free(p);
        files++;
    }
    if (d)
        closedir(d);
    MX_CHECK(files >= 15, "%d files in the corpus", files);
}
