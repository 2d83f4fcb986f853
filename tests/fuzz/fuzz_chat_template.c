/* fuzz_chat_template.c - any bytes as a chat template: opened, and rendered under small limits.
 *
 *     make MODE=fuzz build/fuzz/fuzz_chat_template
 *
 * Whatever the template is, a render ends with text within the output limit or with an error.
 */
#include "text/jinja/chat_template.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
    "\"h\\u00e9 "
    "\\ud83d\\ude42\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
    "[{\"function\": {\"name\": \"f\", "
    "\"arguments\": {\"a\": [1, 2.5, true, null]}}}]}], \"tools\": [{\"name\": \"f\", \"n\": -1}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mx_chat_template *t;
    mx_str out = {0};
    mx_chat_spans spans = {0};
    json_t *doc = json_loads(conversation, 0, NULL);
    const mx_chat_options o = {
        .tools = json_object_get(doc, "tools"),
        .bos_token = "<s>",
        .now = 1,
        .limits = {.steps = 200000, .memory_bytes = 8 << 20, .output_bytes = 1 << 16}};
    mx_status st = mx_chat_template_open_n(&t, (const char *)data, n);
    if (!st)
        st = mx_chat_render(t, json_object_get(doc, "messages"), &o, &out, &spans);
    if (out.len > 1 << 17)
        abort();
    for (int i = 0; i < spans.n; i++)
        if (spans.v[i].begin > spans.v[i].end)
            abort();
    mx_status_free(st);
    mx_chat_template_close(t);
    mx_chat_spans_fini(&spans);
    mx_str_fini(&out);
    json_decref(doc);
    return 0;
}
