/* json_put.h - a value into a JSON document, by the first path of a field's key. */
#ifndef TESTS_MODELS_JSON_PUT_H
#define TESTS_MODELS_JSON_PUT_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* "a.b|c": the value becomes b of a; objects on the way are made. Takes it. */
static inline void json_put(json_t *at, const char *keys, json_t *value)
{
    char path[256];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(keys, "|"), keys);
    char *part = path;
    for (char *dot; (dot = strchr(part, '.')); part = dot + 1) {
        *dot = 0;
        if (!json_is_object(json_object_get(at, part)))
            json_object_set_new(at, part, json_object());
        at = json_object_get(at, part);
    }
    json_object_set_new(at, part, value);
}

#endif
