/* fuzz_replay_test.c - the fuzz target's corpus, as it is and with bytes changed and cut. */
#include "../test.h"

#include "../fuzz/fuzz_data.c"
#include "files.h"

MX_TEST(fuzz_data_corpus)
{
    int files = replay_corpus("tests/fuzz/corpus/data/", 150, LLVMFuzzerTestOneInput);
    MX_CHECK(files >= 15, "%d files in the corpus", files);
}
