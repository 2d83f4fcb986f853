/* fuzz_config_json.c - any bytes as config.json: parsed within its limits, and written again. */
#include "base/arena.h"
#include "base/json_doc.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *v, *again;
    mx_status st = mx_json_parse((const char *)data, n, "fuzz", NULL, &v);
    if (!st) {
        char *text = mx_json_text(v, 2);
        mx_status back = mx_json_parse(text, strlen(text), "again", NULL, &again);
        if (back || !json_equal(v, again))
            abort();
        json_decref(again);
        mx_free(text);
        json_decref(v);
    }
    mx_status_free(st);
    return 0;
}
