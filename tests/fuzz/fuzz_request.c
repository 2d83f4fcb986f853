/* fuzz_request.c - bodies of requests, as clients may send them: read to the end or refused with an
 * error object. The first byte chooses the endpoint. */
#include "serve/api_call.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}";
    static mx_tokenizer *tokenizer;
    static mx_chat_template *chat;
    static mx_model_ref model;
    if (!tokenizer &&
        (mx_tokenizer_open(&tokenizer, NULL, NULL) || mx_chat_template_open(&chat, text)))
        abort();
    model.spec.summary.vocab = 259;
    mx_served served = {.model = &model,
                        .tokenizer = tokenizer,
                        .chat = chat,
                        .name = "m",
                        .max_length = 512,
                        .vocab = 259,
                        .usual = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    mx_api_call c;
    mx_str error = {0};
    int status = 0;
    if (!n)
        return 0;
    static const mx_api *const apis[] = {&mx_api_completions, &mx_api_chat, &mx_api_messages,
                                         &mx_api_embeddings};
    const mx_api *api = apis[data[0] % 4];
    if (mx_api_call_read(&c, &served, api, (const char *)data + 1, n - 1, &status, &error))
        mx_api_call_fini(&c);
    else if (status < 400 || !error.len)
        abort();
    mx_str_fini(&error);
    return 0;
}
