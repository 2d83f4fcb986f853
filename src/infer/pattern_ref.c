/* pattern_ref.c - where a reference within a schema leads: /$defs/Name, one step after the other.
 * In a name ~1 is / and ~0 is ~ (JSON pointers), %20 a space (fragments of URLs). */
#include "infer/pattern_json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* One character, coded or as it is; *s moves past it. */
static char take(const char **s)
{
    const char *at = *s;
    if (at[0] == '%' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2])) {
        char digits[3] = {at[1], at[2], 0};
        *s = at + 3;
        return (char)strtol(digits, NULL, 16);
    }
    bool tilde = at[0] == '~' && (at[1] == '0' || at[1] == '1');
    *s = at + 1 + tilde;
    return (char)(!tilde ? at[0] : at[1] == '1' ? '/' : '~');
}

const json_t *mx_schema_find(const json_t *root, const char *path)
{
    const json_t *at = root;
    while (*path == '/' && at) {
        char name[256];
        size_t n = 0;
        for (path++; *path && *path != '/';) {
            char c = take(&path);
            if (n + 1 < sizeof name)
                name[n++] = c;
        }
        name[n] = 0;
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10))
                               : json_object_get(at, name);
    }
    return *path ? NULL : at;
}
