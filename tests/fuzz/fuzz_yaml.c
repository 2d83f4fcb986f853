/* fuzz_yaml.c - any bytes as a configuration file: parsed, and every known key read by its type.
 *
 *     make MODE=fuzz build/fuzz/fuzz_yaml
 *
 * A value that is accepted must survive being written and read again.
 */
#include "base/key.h"
#include "keys/keys.h"
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_twice(mx_arena *a, const mx_key *key, const mx_yaml_node *node)
{
    mx_value v, again;
    mx_str why = {0}, text = {0};
    if (mx_value_read(a, key, node, &v, &why)) {
        mx_yaml_node *back = NULL;
        mx_str_addf(&text, "%s: ", key->name);
        mx_value_write(key, &v, &text);
        mx_status st = mx_yaml_parse(a, "again", text.text, text.len, &back);
        if (st || !mx_value_read(a, key, back->first, &again, &why) ||
            !mx_value_equal(key, &v, &again))
            abort();
    }
    mx_str_fini(&why);
    mx_str_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    mx_status st = mx_yaml_parse(&a, "fuzz", (const char *)data, n, &root);
    for (const mx_yaml_node *c = st ? NULL : root->first; c; c = c->next)
        for (const mx_key *const *t = mx_keys.tables; *t; t++) {
            const mx_key *key = mx_key_find(*t, c->key);
            if (key)
                read_twice(&a, key, c);
        }
    mx_status_free(st);
    mx_arena_fini(&a);
    return 0;
}
