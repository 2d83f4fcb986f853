/* pattern_schema.c - JSON schemas as patterns.
 *
 * Followed: type, enum, const, properties, required, additionalProperties, items, minItems,
 * maxItems, minLength, maxLength, pattern, anyOf, oneOf, $ref to a definition, minimum 0. What only
 * describes is passed over; any other keyword is an error, because a document would not be held to
 * it. Properties come in the order of the schema; others than those named are not written, as any
 * schema allows. A space may follow a colon or a comma.
 */
#include "infer/pattern.h"

#include "base/str.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 24, ANY_DEPTH = 5, MOST_ITEMS = 1000 };

typedef struct {
    mx_arena *a;
    const json_t *root;
    int depth;
    mx_status error;
} reader;

static mx_pattern *value(reader *r, const json_t *schema);

static mx_pattern *wrong(reader *r, const char *keyword, const char *what)
{
    if (!r->error)
        r->error = mx_fail(MX_USAGE, "the schema cannot be followed: \"%s\" %s", keyword, what);
    return NULL;
}

/* --- pieces of JSON --- */

static mx_pattern *text(mx_arena *a, const char *s)
{
    return mx_pattern_text(a, s, strlen(s));
}

static mx_pattern *regex(mx_arena *a, const char *s)
{
    mx_pattern *p = NULL;
    mx_status st = mx_pattern_regex(a, s, strlen(s), false, &p);
    MX_ASSERT(!st, "%s", s);
    return p;
}

#define CHAR "([^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u[0-9a-fA-F]{4}))"
#define INTEGER "(0|[1-9][0-9]{0,14})"
#define NUMBER INTEGER "(\\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?"

static mx_pattern *string_of(mx_arena *a, int least, int most)
{
    mx_pattern *inside = mx_pattern_repeat(a, regex(a, CHAR), least, most);
    return mx_pattern_then(a, text(a, "\""), mx_pattern_then(a, inside, text(a, "\"")));
}

static mx_pattern *after(mx_arena *a, const char *mark)
{
    return mx_pattern_then(a, text(a, mark), mx_pattern_repeat(a, text(a, " "), 0, 1));
}

/* open x (, x)* close, with `least` to `most` of them. */
static mx_pattern *list_of(mx_arena *a, const char *open, mx_pattern *x, const char *close,
                           int least, int most)
{
    mx_pattern *more = mx_pattern_then(a, after(a, ","), x);
    more = mx_pattern_repeat(a, more, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
    mx_pattern *all = most == 0 ? NULL : mx_pattern_then(a, x, more);
    if (least == 0 && all)
        all = mx_pattern_repeat(a, all, 0, 1);
    return mx_pattern_then(a, text(a, open), mx_pattern_then(a, all, text(a, close)));
}

static mx_pattern *any_value(mx_arena *a, int depth);

static mx_pattern *any_object(mx_arena *a, int depth)
{
    mx_pattern *pair = mx_pattern_then(a, string_of(a, 0, -1), after(a, ":"));
    return list_of(a, "{", mx_pattern_then(a, pair, any_value(a, depth - 1)), "}", 0, -1);
}

static mx_pattern *any_value(mx_arena *a, int depth)
{
    mx_pattern *p = mx_pattern_or(a, regex(a, "-?" NUMBER "|true|false|null"), string_of(a, 0, -1));
    if (depth <= 0)
        return p;
    p = mx_pattern_or(a, p, any_object(a, depth));
    return mx_pattern_or(a, p, list_of(a, "[", any_value(a, depth - 1), "]", 0, -1));
}

mx_pattern *mx_pattern_any_object(mx_arena *a)
{
    return any_object(a, ANY_DEPTH);
}

static mx_pattern *constant(mx_arena *a, const json_t *v)
{
    char *s = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    mx_pattern *p = text(a, s ? s : "null");
    free(s);
    return p;
}

/* --- keywords --- */

/* A bound, or `usual` where there is none. */
static int bound(reader *r, const json_t *schema, const char *name, int usual)
{
    const json_t *v = json_object_get(schema, name);
    if (!v)
        return usual;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > MOST_ITEMS)
        wrong(r, name, "must be an integer from 0 to 1000");
    return (int)n;
}

static mx_pattern *string(reader *r, const json_t *schema)
{
    const json_t *p = json_object_get(schema, "pattern");
    int least = bound(r, schema, "minLength", 0), most = bound(r, schema, "maxLength", -1);
    mx_pattern *inside = NULL;
    if (most >= 0 && most < least)
        return wrong(r, "maxLength", "is less than minLength");
    if (!p)
        return string_of(r->a, least, most);
    if (!json_is_string(p) || least > 0 || most >= 0)
        return wrong(r, "pattern", "must be a text, and does not go with minLength and maxLength");
    mx_status st =
        mx_pattern_regex(r->a, json_string_value(p), json_string_length(p), true, &inside);
    if (st && !r->error)
        r->error = mx_status_wrap(st, "\"pattern\"");
    else
        mx_status_free(st);
    return mx_pattern_then(r->a, text(r->a, "\""), mx_pattern_then(r->a, inside, text(r->a, "\"")));
}

static mx_pattern *number(reader *r, const json_t *schema, bool whole)
{
    const json_t *least = json_object_get(schema, "minimum");
    if (least && !(json_is_number(least) && json_number_value(least) == 0))
        return wrong(r, "minimum", "is followed only where it is 0");
    mx_pattern *p = regex(r->a, whole ? INTEGER : NUMBER);
    return least ? p : mx_pattern_then(r->a, mx_pattern_repeat(r->a, text(r->a, "-"), 0, 1), p);
}

static mx_pattern *array(reader *r, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    int least = bound(r, schema, "minItems", 0), most = bound(r, schema, "maxItems", -1);
    if (most >= 0 && most < least)
        return wrong(r, "maxItems", "is less than minItems");
    mx_pattern *x = items ? value(r, items) : any_value(r->a, ANY_DEPTH - 1);
    return r->error ? NULL : list_of(r->a, "[", x, "]", least, most);
}

static bool is_required(const json_t *schema, const char *name)
{
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i,
                       v) if (json_is_string(v) &&
                              strcmp(json_string_value(v), name) == 0) return true;
    return false;
}

typedef struct {
    mx_pattern *pair;
    bool required;
} property;

/* Properties from i on, where none is written yet: the first that is has no comma before it. */
static mx_pattern *first_of(mx_arena *a, const property *p, size_t i, size_t n)
{
    mx_pattern *rest = NULL;
    if (i == n)
        return NULL;
    for (size_t k = n; k-- > i + 1;) {
        mx_pattern *one = mx_pattern_then(a, after(a, ","), p[k].pair);
        one = p[k].required ? one : mx_pattern_repeat(a, one, 0, 1);
        rest = mx_pattern_then(a, one, rest);
    }
    mx_pattern *here = mx_pattern_then(a, p[i].pair, rest);
    return p[i].required ? here : mx_pattern_or(a, here, first_of(a, p, i + 1, n));
}

static mx_pattern *object(reader *r, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties"), *v;
    const json_t *more = json_object_get(schema, "additionalProperties");
    const char *name;
    size_t n = 0;
    if (!properties && (!more || json_is_true(more)))
        return any_object(r->a, ANY_DEPTH);
    if (!properties && json_is_object(more)) {
        mx_pattern *pair = mx_pattern_then(r->a, string_of(r->a, 0, -1), after(r->a, ":"));
        return list_of(r->a, "{", mx_pattern_then(r->a, pair, value(r, more)), "}", 0, -1);
    }
    property *p = MX_NEW_N(r->a, property, json_object_size(properties));
    json_object_foreach((json_t *)properties, name, v)
    {
        json_t *key = json_string(name);
        mx_pattern *pair = mx_pattern_then(r->a, constant(r->a, key), after(r->a, ":"));
        json_decref(key);
        p[n].pair = mx_pattern_then(r->a, pair, value(r, v));
        p[n++].required = is_required(schema, name);
    }
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i,
                       v) if (!json_is_string(v) ||
                              !json_object_get(properties, json_string_value(v)))
        wrong(r, "required", "names a property that \"properties\" does not have");
    mx_pattern *inside = first_of(r->a, p, 0, n);
    return mx_pattern_then(r->a, text(r->a, "{"), mx_pattern_then(r->a, inside, text(r->a, "}")));
}

static mx_pattern *by_type(reader *r, const json_t *schema, const char *type)
{
    if (strcmp(type, "string") == 0)
        return string(r, schema);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return number(r, schema, *type == 'i');
    if (strcmp(type, "boolean") == 0)
        return regex(r->a, "true|false");
    if (strcmp(type, "null") == 0)
        return text(r->a, "null");
    if (strcmp(type, "array") == 0)
        return array(r, schema);
    if (strcmp(type, "object") == 0)
        return object(r, schema);
    return wrong(r, "type", "must be string, integer, number, boolean, null, array or object");
}

/* --- schemas --- */

static mx_pattern *any_of(reader *r, const json_t *list, const char *keyword)
{
    mx_pattern *all = NULL;
    size_t i;
    const json_t *v;
    if (!json_array_size(list))
        return wrong(r, keyword, "must be a list that is not empty");
    json_array_foreach((json_t *)list, i, v)
    {
        mx_pattern *p = strcmp(keyword, "enum") == 0 ? constant(r->a, v) : value(r, v);
        all = i ? mx_pattern_or(r->a, all, p) : p;
    }
    return all;
}

/* #/$defs/Name, one step after the other. */
static mx_pattern *reference(reader *r, const json_t *ref)
{
    const char *path = json_string_value(ref);
    const json_t *at = r->root;
    if (!path || *path != '#')
        return wrong(r, "$ref", "must lead to a definition of the same schema, #/$defs/Name");
    for (path++; *path == '/' && at;) {
        char name[256];
        size_t n = strcspn(++path, "/");
        memcpy(name, path, n < sizeof name ? n : 0);
        name[n < sizeof name ? n : 0] = 0;
        at = json_object_get(at, name);
        path += n;
    }
    return at ? value(r, at) : wrong(r, "$ref", "leads nowhere");
}

static void check_keywords(reader *r, const json_t *schema)
{
    static const char known[] =
        " type enum const properties required additionalProperties items minItems maxItems "
        "minLength maxLength pattern anyOf oneOf $ref minimum title description default examples "
        "$schema $id $comment $defs definitions deprecated readOnly writeOnly format strict ";
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)schema, name, v)
    {
        mx_str word = {0};
        mx_str_addf(&word, " %s ", name); /* spaces, so that only whole words are found */
        if (!strstr(known, mx_str_text(&word)))
            wrong(r, name, "is not supported");
        mx_str_fini(&word);
    }
}

static mx_pattern *value(reader *r, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *v;
    mx_pattern *all = NULL, *p = NULL;
    size_t i;
    if (json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema)))
        return any_value(r->a, ANY_DEPTH - 1);
    if (!json_is_object(schema))
        return wrong(r, "schema", "must be an object");
    if (++r->depth > MOST_DEPTH)
        return wrong(r, "$ref", "leads back to itself, or schemas are nested too deep");
    check_keywords(r, schema);
    if (r->error)
        p = NULL;
    else if ((v = json_object_get(schema, "$ref")))
        p = reference(r, v);
    else if ((v = json_object_get(schema, "const")))
        p = constant(r->a, v);
    else if ((v = json_object_get(schema, "enum")))
        p = any_of(r, v, "enum");
    else if ((v = json_object_get(schema, "anyOf")))
        p = any_of(r, v, "anyOf");
    else if ((v = json_object_get(schema, "oneOf")))
        p = any_of(r, v, "oneOf");
    else if (json_is_string(type))
        p = by_type(r, schema, json_string_value(type));
    else if (!type && json_object_get(schema, "properties"))
        p = object(r, schema);
    else if (json_array_size(type))
        json_array_foreach((json_t *)type, i, v)
        {
            p = json_is_string(v) ? by_type(r, schema, json_string_value(v))
                                  : wrong(r, "type", "must hold texts");
            all = i ? mx_pattern_or(r->a, all, p) : p;
        }
    else
        p = wrong(r, "type", "is missing");
    r->depth--;
    return all ? all : p;
}

mx_status mx_pattern_schema(mx_arena *a, const json_t *schema, mx_pattern **out)
{
    reader r = {.a = a, .root = schema};
    *out = value(&r, schema);
    return r.error;
}
