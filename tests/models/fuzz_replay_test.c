/* fuzz_replay_test.c - a short, repeatable run of the fuzz target over values of config.json: every
 * family, with a few inputs each. */
#include "../test.h"

#define LLVMFuzzerTestOneInput mx_fuzz_model_config
#include "../fuzz/fuzz_model_config.c"
#undef LLVMFuzzerTestOneInput

MX_TEST(fuzz_values_of_config_json)
{
    const char *more = getenv("MX_FUZZ_INPUTS"); /* of each family */
    int inputs = more ? (int)strtol(more, NULL, 10) : 2;
    load_models();
    MX_CHECK(models.n >= 30, "%d models", models.n);
    for (int i = 0; i < inputs; i++)
        for (int k = 0; k < models.n; k++) {
            uint64_t x = (uint64_t)(i * 1000 + k) * 6364136223846793005u + 1442695040888963407u;
            uint8_t data[48] = {(uint8_t)k};
            for (size_t at = 1; at < sizeof data; at++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                data[at] = (uint8_t)(x >> 56);
            }
            mx_fuzz_model_config(data, sizeof data);
        }
    for (int k = 0; k < models.n; k++)
        json_decref(models.config[k]);
}
