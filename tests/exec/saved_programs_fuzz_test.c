/* saved_programs_fuzz_test.c - a short, repeatable run of the fuzz target over files of compiled
 * programs. */
#include "../test.h"

#define LLVMFuzzerTestOneInput mx_fuzz_saved_programs
#include "../fuzz/fuzz_saved_programs.c"
#undef LLVMFuzzerTestOneInput

MX_TEST(fuzz_bytes_of_saved_programs)
{
    const char *more = getenv("MX_FUZZ_INPUTS");
    static const uint8_t no_input[] = {0x2e, 6, 0x6c, 0x69, 0, 0xa}; /* a matmul of nothing */
    mx_fuzz_saved_programs(no_input, sizeof no_input);
    int inputs = more ? (int)strtol(more, NULL, 10) : 400;
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < inputs; i++) {
        uint8_t data[13];
        for (size_t at = 0; at < sizeof data; at++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            data[at] = (uint8_t)(x >> 56);
        }
        mx_fuzz_saved_programs(data, 1 + 4 * (size_t)(1 + i % 3));
    }
    mx_config_free(whole.cfg);
    mx_model_spec_fini(&whole.model);
    mx_arena_fini(&whole.arena);
    memset(&whole, 0, sizeof whole);
}
