/* fuzz_json_tree.c - any bytes as JSON: never a crash, and the same verdict as jansson wherever the
 * two are meant to agree (jansson refuses integers beyond 64 bits; the tree refuses depth beyond
 * 128).
 *
 *     make MODE=fuzz build/fuzz/fuzz_json_tree
 */
#include "base/json_tree.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mx_arena a = {0};
    const mx_json_node *v;
    json_error_t error;
    mx_status st = mx_json_tree_parse(&v, &a, (const char *)data, n, "fuzz");
    json_t *j = json_loadb((const char *)data, n,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    bool nul = n && memchr(data, 0, n);
    if (j && st && !nul && !strstr(mx_status_text(st), "levels deep") &&
        !strstr(mx_status_text(st), "too large"))
        abort();
    /* jansson has no object keys with NUL, no large integers, and calls a tiny real a failure. */
    if (!j && !st && !nul && json_error_code(&error) == json_error_invalid_syntax)
        abort();
    mx_status_free(st);
    json_decref(j);
    mx_arena_fini(&a);
    return 0;
}
