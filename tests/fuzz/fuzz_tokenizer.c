/* fuzz_tokenizer.c - any bytes as a tokenizer file: a tokenizer.json, a SentencePiece model or a
 * rank file (the first bytes decide which). What opens must encode any text, and decode what it
 * encoded.
 *
 *     make MODE=fuzz build/fuzz/fuzz_tokenizer
 */
#include "text/tokenizer/tokenizer.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void encode_and_back(const mx_tokenizer *t, const char *text, size_t n)
{
    for (int how = 0; how < 3; how++) {
        mx_encode_options o = {.add_special = how == 0, .special_in_text = (mx_special_in_text)how};
        mx_tokens ids = {0};
        mx_str out = {0};
        mx_status st = mx_tokenizer_encode(t, text, n, &o, &ids);
        if (!st)
            st = mx_tokenizer_decode(t, ids.ids, ids.n, NULL, &out);
        for (int64_t i = 0; i < ids.n; i++)
            if (ids.ids[i] < 0 || ids.ids[i] >= mx_tokenizer_vocab_size(t))
                abort();
        mx_status_free(st);
        mx_tokens_fini(&ids);
        mx_str_fini(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] =
        "Hello  world, it's 12345 \n\n caf\xC3\xA9 e\xCC\x81 <s> \xE6\x97\xA5\xE6\x9C\xAC "
        "\xF0\x9F\x99\x82\xFF\xC3 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "bababababababababababababababababababababababababababababababababababababa";
    mx_tokenizer *t;
    mx_tokenizer_options o = {.pattern = "gpt2"};
    mx_status st = mx_tokenizer_open_bytes(&t, "fuzz", (const char *)data, n, &o);
    if (!st) {
        encode_and_back(t, text, sizeof text - 1);
        encode_and_back(t, (const char *)data, n < 400 ? n : 400);
    }
    mx_status_free(st);
    mx_tokenizer_close(t);
    return 0;
}
