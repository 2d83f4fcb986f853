/* json_doc.c - jansson behind caps.
 *
 * jansson allocates 50 to 400 bytes a value, so one pass over the text counts depth and values
 * first. The pass understands strings and brackets only; everything else is jansson's to judge.
 */
#include "base/json_doc.h"

#include "base/arena.h"
#include "base/io.h"
#include <stdlib.h>
#include <string.h>

const mx_json_limits mx_json_limits_default = {
    .max_bytes = (size_t)64 << 20, .max_depth = 64, .max_values = 2000000};

static mx_status check_limits(const char *text, size_t n, const char *where,
                              const mx_json_limits *lim)
{
    if (n > lim->max_bytes)
        return mx_fail(MX_INPUT, "%s: %zu bytes of JSON, and at most %zu are accepted", where, n,
                       lim->max_bytes);
    int depth = 0, line = 1;
    int64_t values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        line += c == '\n';
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        values += c == ',' || c == '{' || c == '[';
        if (depth > lim->max_depth)
            return mx_fail(MX_INPUT, "%s:%d: JSON nested more than %d deep", where, line,
                           lim->max_depth);
        if (values > lim->max_values)
            return mx_fail(MX_INPUT,
                           "%s:%d: more than %lld JSON values, and no real file has that "
                           "many",
                           where, line, (long long)lim->max_values);
    }
    return MX_OK;
}

/* Reals that are whole numbers become integers again. */
static json_t *with_integers(const json_t *v)
{
    double x = json_number_value(v);
    if (json_is_real(v) && x > -0x1p53 && x < 0x1p53 && x == (double)(json_int_t)x)
        return json_integer((json_int_t)x);
    json_t *out = json_is_object(v) ? json_object() : json_is_array(v) ? json_array() : NULL;
    const char *key;
    json_t *item;
    size_t i;
    json_object_foreach((json_t *)v, key, item) json_object_set_new(out, key, with_integers(item));
    json_array_foreach(v, i, item) json_array_append_new(out, with_integers(item));
    return out ? out : json_incref((json_t *)v);
}

/* A document with an integer beyond 64 bits: transformers writes "model_max_length": 10^30 for "no
 * limit". The rest of the document keeps its integers. */
static json_t *parse_large(const char *text, size_t n, json_error_t *e)
{
    json_t *reals = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, e);
    json_t *out = reals ? with_integers(reals) : NULL;
    json_decref(reals);
    return out;
}

mx_status mx_json_parse(const char *text, size_t n, const char *where, const mx_json_limits *limits,
                        json_t **out)
{
    *out = NULL;
    MX_TRY(check_limits(text, n, where, limits ? limits : &mx_json_limits_default));
    json_error_t e;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!*out && json_error_code(&e) == json_error_numeric_overflow)
        *out = parse_large(text, n, &e);
    if (!*out)
        return mx_fail(MX_INPUT, "%s:%d:%d: not valid JSON: %s", where, e.line, e.column, e.text);
    return MX_OK;
}

mx_status mx_json_load(const char *path, const mx_json_limits *limits, json_t **out)
{
    char *text;
    size_t n;
    *out = NULL;
    const mx_json_limits *lim = limits ? limits : &mx_json_limits_default;
    MX_TRY(mx_io_read_file(NULL, path, lim->max_bytes, &text, &n));
    mx_status st = mx_json_parse(text, n, path, lim, out);
    mx_free(text);
    return st;
}

const char *mx_json_kind(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

char *mx_json_compact(const json_t *v)
{
    static const size_t how = JSON_ENCODE_ANY | JSON_COMPACT;
    char *s = json_dumps(v, how | JSON_REAL_PRECISION(15));
    json_t *back = s ? json_loads(s, JSON_DECODE_ANY, NULL) : NULL;
    if (s && !json_equal(v, back)) {
        mx_free(s);
        s = json_dumps(v, how | JSON_REAL_PRECISION(17));
    }
    json_decref(back);
    return s;
}

char *mx_json_text(const json_t *v, int indent)
{
    char *s = json_dumps(v, JSON_SORT_KEYS | JSON_ENCODE_ANY |
                                (indent ? JSON_INDENT((size_t)indent) : JSON_COMPACT));
    MX_ASSERT(s, "a JSON document could not be written: invalid UTF-8 or out of memory");
    return s; /* jansson's default allocator is malloc, which is what mx_free frees */
}
