/* pattern_schema.c - JSON schemas as patterns.
 *
 * Followed: type, enum, const, properties, required, additionalProperties, items, prefixItems,
 * minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum and their exclusive
 * forms, anyOf, allOf, oneOf of schemas that exclude each other, and $ref to a definition. What
 * only describes is passed over; any other keyword is an error, because a document would not be
 * held to it. Documents are some of those that the schema allows: properties come in its order,
 * others than those named or required are not written, a definition that refers to itself is
 * followed a few times, and a space may follow a colon or a comma.
 */
#include "infer/pattern_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_DEPTH = 256,
    MOST_VISITS = 20000,
    MOST_WORK = 8000000, /* keywords merged and compared */
    MOST_ITEMS = 1000000, /* and characters; more than a context holds */
    MOST_ROUNDS = 16, /* of definitions that refer to themselves */
    BUCKETS = 4096
};

/* What is known of a schema: without $ref and allOf; as a pattern, after so many rounds. */
typedef struct known {
    struct known *next; /* in the bucket */
    const json_t *schema, *flat;
    mx_pattern *pattern;
    int round; /* -1: of `flat` */
} known;

typedef struct {
    mx_arena *a;
    const json_t *root, *path[MOST_DEPTH]; /* schemas that this one is part of */
    json_t *made;                          /* merged schemas, until the end; owns */
    known **known;                         /* (BUCKETS) */
    mx_pattern *any;                       /* value; NULL: not made yet */
    int depth, visits, round, rounds;
    bool comes_round; /* a schema leads back to itself */
    int64_t work;
    mx_status error;
} reader;

static mx_pattern *value(reader *r, const json_t *schema);

static mx_pattern *wrong(reader *r, const char *keyword, const char *what)
{
    if (!r->error)
        r->error = mx_fail(MX_USAGE, "the schema cannot be followed: \"%s\" %s", keyword, what);
    return NULL;
}

/* Counts work that grows with the square of a schema. */
static bool works(reader *r, const char *keyword, size_t n)
{
    r->work += (int64_t)n;
    if (r->work > MOST_WORK)
        wrong(r, keyword, "leads to more comparisons than are made");
    return !r->error;
}

/* The entry of a schema, made when it is first asked for. */
static known *entry(reader *r, const json_t *schema, int round)
{
    known **at = &r->known[((uintptr_t)schema / 16 * 31 + (uintptr_t)(round + 1)) % BUCKETS];
    for (; *at; at = &(*at)->next)
        if ((*at)->schema == schema && (*at)->round == round)
            return *at;
    *at = MX_NEW(r->a, known);
    **at = (known){.schema = schema, .round = round};
    return *at;
}

static mx_pattern *any_value(reader *r)
{
    if (!r->any)
        r->any = mx_pattern_json_value(r->a, MX_ANY_DEPTH - 1);
    return r->any;
}

/* --- keywords of one type --- */

/* A bound, or `usual` where there is none. One that nothing reaches is as good as a higher one. */
static int bound(reader *r, const json_t *schema, const char *name, int usual)
{
    const json_t *v = json_object_get(schema, name);
    if (!v)
        return usual;
    double n = json_number_value(v);
    bool least = strncmp(name, "min", 3) == 0;
    if (!json_is_number(v) || !(n >= 0) || n != floor(n) || (least && n > MOST_ITEMS)) {
        wrong(r, name, "must be an integer, at least 0, and for a least at most 1000000");
        return usual;
    }
    return n < MOST_ITEMS ? (int)n : MOST_ITEMS;
}

static mx_pattern *string(reader *r, const json_t *schema)
{
    const json_t *p = json_object_get(schema, "pattern"), *f = json_object_get(schema, "format");
    int least = bound(r, schema, "minLength", 0), most = bound(r, schema, "maxLength", -1);
    mx_pattern *inside = NULL, *mark = mx_pattern_literal(r->a, "\"");
    if (most >= 0 && most < least)
        return wrong(r, "maxLength", "is less than minLength");
    if (!p && !f)
        return mx_pattern_json_string(r->a, least, most);
    if (least > 0 || most >= 0 || (p && f))
        return wrong(r, p ? "pattern" : "format",
                     "does not go with minLength, maxLength or the other of the two");
    if (f) {
        inside = json_is_string(f) ? mx_pattern_json_format(r->a, json_string_value(f)) : NULL;
        return inside ? inside
                      : wrong(r, "format",
                              "must be date, time, date-time, duration, email, hostname, ipv4, "
                              "ipv6, uuid or uri");
    }
    if (!json_is_string(p))
        return wrong(r, "pattern", "must be a text");
    mx_status st =
        mx_pattern_regex(r->a, json_string_value(p), json_string_length(p), true, &inside);
    if (st && !r->error)
        r->error = mx_status_wrap(st, "\"pattern\"");
    else
        mx_status_free(st);
    return mx_pattern_then(r->a, mark, mx_pattern_then(r->a, inside, mark));
}

/* One end of a range, from the keyword and its exclusive form. */
static double limit(reader *r, const json_t *schema, const char *const names[2], bool *without)
{
    double sign = names[0][1] == 'i' ? 1 : -1, x = -HUGE_VAL;
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(schema, names[i]);
        double y = sign * json_number_value(v);
        if (v && !json_is_number(v))
            wrong(r, names[i], "must be a number");
        else if (v && y >= x) {
            *without = i == 1;
            x = y;
        }
    }
    return sign * x;
}

/* Formats of numbers are the types of languages: a range, at most. */
static void hold_to_format(reader *r, const json_t *format, mx_number_range *in)
{
    static const struct {
        const char *name;
        double least, most;
    } formats[] = {{"int8", -128, 127},
                   {"uint8", 0, 255},
                   {"int16", -32768, 32767},
                   {"uint16", 0, 65535},
                   {"int32", -2147483648., 2147483647.},
                   {"uint32", 0, 4294967295.},
                   {"int", -HUGE_VAL, HUGE_VAL},
                   {"int64", -HUGE_VAL, HUGE_VAL}, /* numbers have 15 digits */
                   {"uint", 0, HUGE_VAL},
                   {"uint64", 0, HUGE_VAL},
                   {"float", -HUGE_VAL, HUGE_VAL},
                   {"double", -HUGE_VAL, HUGE_VAL}};
    for (size_t i = 0; format && i < sizeof formats / sizeof *formats; i++)
        if (json_is_string(format) && strcmp(formats[i].name, json_string_value(format)) == 0) {
            in->above &= in->least >= formats[i].least;
            in->below &= in->most <= formats[i].most;
            in->least = fmax(in->least, formats[i].least);
            in->most = fmin(in->most, formats[i].most);
            return;
        }
    if (format)
        wrong(r, "format", "of a number must be int8 to int64, uint8 to uint64, float or double");
}

static mx_pattern *number(reader *r, const json_t *schema, bool whole)
{
    static const char *const least[] = {"minimum", "exclusiveMinimum"};
    static const char *const most[] = {"maximum", "exclusiveMaximum"};
    mx_number_range in = {.whole = whole};
    mx_pattern *p = NULL;
    in.least = limit(r, schema, least, &in.above);
    in.most = limit(r, schema, most, &in.below);
    hold_to_format(r, json_object_get(schema, "format"), &in);
    if (r->error)
        return NULL;
    if (isinf(in.least) && isinf(in.most))
        return mx_pattern_literal_regex(
            r->a, whole ? "-?(0|[1-9][0-9]{0,14})"
                        : "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?");
    mx_status st = mx_pattern_json_number(r->a, &in, &p);
    if (st)
        r->error = mx_status_wrap(st, "the schema cannot be followed");
    else if (mx_pattern_is_never(p))
        wrong(r, isinf(in.least) ? "maximum" : "minimum", "leaves no number of at most 15 digits");
    return p;
}

/* The first items are written whole, as far as maxItems allows; others of `items` may follow. */
static mx_pattern *tuple(reader *r, const json_t *first, mx_pattern *x, int least, int most)
{
    mx_arena *a = r->a;
    mx_pattern *all = NULL, *comma = mx_pattern_json_mark(a, ",");
    int n = (int)json_array_size(first);
    for (int i = 0; i < n && (most < 0 || i < most); i++) {
        mx_pattern *p = value(r, json_array_get(first, (size_t)i));
        all = i ? mx_pattern_then(a, mx_pattern_then(a, all, comma), p) : p;
    }
    int left = most < 0 ? -1 : most > n ? most - n : 0;
    if (left)
        x = mx_pattern_repeat(a, mx_pattern_then(a, comma, x), least > n ? least - n : 0, left);
    all = left ? mx_pattern_then(a, all, x) : all;
    mx_pattern *close = mx_pattern_literal(a, "]");
    return mx_pattern_then(a, mx_pattern_literal(a, "["), mx_pattern_then(a, all, close));
}

static mx_pattern *array(reader *r, const json_t *schema)
{
    static const char *const marks[] = {"[", "]"};
    const json_t *items = json_object_get(schema, "items");
    const json_t *first = json_object_get(schema, "prefixItems");
    int least = bound(r, schema, "minItems", 0), most = bound(r, schema, "maxItems", -1);
    if (most >= 0 && most < least)
        return wrong(r, "maxItems", "is less than minItems");
    if (json_is_true(json_object_get(schema, "uniqueItems")) && (most < 0 || most > 1))
        return wrong(r, "uniqueItems", "is not supported");
    mx_pattern *x = !items                 ? any_value(r)
                    : json_is_false(items) ? mx_pattern_never(r->a)
                                           : value(r, items);
    if (r->error)
        return NULL;
    return json_array_size(first) ? tuple(r, first, x, least, most)
                                  : mx_pattern_json_list(r->a, marks, x, least, most);
}

typedef struct {
    mx_pattern *pair;
    bool required;
} property;

/* Properties in their order: the first that is written has no comma before it. */
static mx_pattern *all_of(mx_arena *a, const property *p, size_t n)
{
    mx_pattern *rest = NULL, *first = NULL; /* from property i on: after one, and with none yet */
    for (size_t i = n; i-- > 0;) {
        mx_pattern *here = mx_pattern_then(a, p[i].pair, rest);
        mx_pattern *one = mx_pattern_then(a, mx_pattern_json_mark(a, ","), p[i].pair);
        first = p[i].required ? here : mx_pattern_or(a, here, first);
        rest = mx_pattern_then(a, p[i].required ? one : mx_pattern_repeat(a, one, 0, 1), rest);
    }
    return first;
}

static mx_pattern *pair(reader *r, const char *name, mx_pattern *x)
{
    json_t *key = json_string(name);
    mx_word word = mx_json_word(r->a, key);
    mx_pattern *p = mx_pattern_text(r->a, word.text, word.n);
    json_decref(key);
    return mx_pattern_then(r->a, mx_pattern_then(r->a, p, mx_pattern_json_mark(r->a, ":")), x);
}

/* A value of a property that has no name in the schema. */
static mx_pattern *unnamed(reader *r, const json_t *more)
{
    if (json_is_false(more))
        return wrong(r, "required", "names a property that the schema does not allow");
    return more ? value(r, more) : any_value(r);
}

/* The texts of `required` as the keys of an object. A new reference. */
static json_t *names_of(reader *r, const json_t *required)
{
    json_t *names = json_object(), *v;
    size_t i;
    json_array_foreach((json_t *)required, i, v)
    {
        if (json_is_string(v))
            json_object_set_new(names, json_string_value(v), json_true());
        else
            wrong(r, "required", "must hold texts");
    }
    return names;
}

static mx_pattern *object(reader *r, const json_t *schema)
{
    static const char *const marks[] = {"{", "}"};
    const json_t *properties = json_object_get(schema, "properties"), *v;
    const json_t *more = json_object_get(schema, "additionalProperties");
    const json_t *required = json_object_get(schema, "required");
    const char *name;
    size_t n = 0;
    if (!properties && !json_array_size(required) && !json_is_false(more)) {
        mx_pattern *x = unnamed(r, more), *key = mx_pattern_json_string(r->a, 0, -1);
        key = mx_pattern_then(r->a, key, mx_pattern_json_mark(r->a, ":"));
        return mx_pattern_json_list(r->a, marks, mx_pattern_then(r->a, key, x), 0, -1);
    }
    json_t *names = names_of(r, required);
    property *p = MX_NEW_N(r->a, property, json_object_size(properties) + json_object_size(names));
    json_object_foreach((json_t *)properties, name, v)
    {
        if (r->error)
            break;
        mx_pattern *x = json_is_false(v) ? mx_pattern_never(r->a) : value(r, v);
        p[n++] = (property){pair(r, name, x), json_object_get(names, name) != NULL};
    }
    json_object_foreach(names, name, v) if (!r->error && !json_object_get(properties, name))
        p[n++] = (property){pair(r, name, unnamed(r, more)), true};
    json_decref(names);
    mx_pattern *inside = r->error ? NULL : all_of(r->a, p, n);
    mx_pattern *close = mx_pattern_literal(r->a, "}");
    return mx_pattern_then(r->a, mx_pattern_literal(r->a, "{"),
                           mx_pattern_then(r->a, inside, close));
}

static mx_pattern *by_type(reader *r, const json_t *schema, const char *type)
{
    if (strcmp(type, "string") == 0)
        return string(r, schema);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return number(r, schema, *type == 'i');
    if (strcmp(type, "boolean") == 0)
        return mx_pattern_literal_regex(r->a, "true|false");
    if (strcmp(type, "null") == 0)
        return mx_pattern_literal(r->a, "null");
    if (strcmp(type, "array") == 0)
        return array(r, schema);
    if (strcmp(type, "object") == 0)
        return object(r, schema);
    return wrong(r, "type", "must be string, integer, number, boolean, null, array or object");
}

/* --- schemas --- */

/* What a keyword is about, as a kind of mx_schema_keyword_of. 0: it is not known. */
static char about(const char *keyword)
{
    static const char *const words[] = {"s minLength maxLength pattern format ",
                                        "n minimum maximum exclusiveMinimum exclusiveMaximum ",
                                        "a items prefixItems minItems maxItems uniqueItems ",
                                        "o properties required additionalProperties ",
                                        "v enum const ",
                                        "c anyOf oneOf allOf $ref ",
                                        "t type ",
                                        "d title discriminator description default examples "
                                        "$schema $id $comment $defs definitions deprecated "
                                        "readOnly writeOnly strict "};
    size_t n = strlen(keyword);
    for (size_t i = 0; n && i < sizeof words / sizeof *words; i++)
        for (const char *at = words[i]; (at = strstr(at, keyword)); at++)
            if (at[-1 + (at == words[i])] == ' ' && at[n] == ' ')
                return words[i][0];
    return 0;
}

const char *mx_schema_keyword_of(const json_t *schema, const char *kinds)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)schema, name,
                        v) if (about(name) && strchr(kinds, about(name))) return name;
    return NULL;
}

/* const and enum: those of their values that have the schema's type. */
static mx_pattern *constants(reader *r, const json_t *schema)
{
    const json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    const json_t *type = json_object_get(schema, "type");
    const char *other = mx_schema_keyword_of(schema, "snaoc");
    size_t n = 0, i;
    json_t *v;
    if (other)
        return wrong(r, other, "beside enum or const is not supported");
    if (one && list)
        return wrong(r, "enum", "beside const is not supported");
    if (!one && !json_array_size(list))
        return wrong(r, "enum", "must be a list that is not empty");
    mx_word *words = MX_NEW_N(r->a, mx_word, json_array_size(list) + 1);
    if (one && mx_json_has_type(one, type))
        words[n++] = mx_json_word(r->a, one);
    json_array_foreach((json_t *)list, i, v) if (mx_json_has_type(v, type)) words[n++] =
        mx_json_word(r->a, v);
    return n ? mx_pattern_words(r->a, words, n)
             : wrong(r, one ? "const" : "enum", "has no value of the schema's type");
}

/* What a $ref leads to. */
static const json_t *find(reader *r, const json_t *ref)
{
    const char *path = json_string_value(ref);
    bool ours = path && *path == '#';
    const json_t *at = ours ? mx_schema_find(r->root, path + 1) : NULL;
    if (!ours)
        wrong(r, "$ref", "must lead to a definition of the same schema, #/$defs/Name");
    else if (!at)
        wrong(r, "$ref", "leads nowhere");
    return at;
}

/* Whether nothing but `keyword` and descriptions stands in the schema. */
static bool only_has(const json_t *schema, const char *keyword)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)schema, name,
                        v) if (strcmp(name, keyword) != 0 && about(name) != 'd') return false;
    return true;
}

static size_t size_of(const json_t *schema)
{
    return 1 + json_object_size(schema) + json_object_size(json_object_get(schema, "properties")) +
           json_array_size(json_object_get(schema, "required")) +
           json_array_size(json_object_get(schema, "enum"));
}

static const json_t *flat(reader *r, const json_t *schema, int depth);

/* $ref and allOf merged into what stands beside them; the reader's. */
static const json_t *merged(reader *r, const json_t *schema, const json_t *target, int depth)
{
    const json_t *list = json_object_get(schema, "allOf");
    json_t *out = json_copy((json_t *)schema),
           *all = list ? json_copy((json_t *)list) : json_array(), *v;
    size_t i;
    json_array_append_new(r->made, out);
    json_array_append_new(r->made, all);
    json_object_del(out, "$ref");
    json_object_del(out, "allOf");
    if (target)
        json_array_append(all, (json_t *)target);
    json_array_foreach(all, i, v)
    {
        const json_t *one = r->error ? NULL : flat(r, v, depth + 1);
        bool merges = one && json_is_object(one) && works(r, "allOf", size_of(out) + size_of(one));
        const char *why = merges ? mx_schema_merge(out, one) : NULL;
        if (why)
            wrong(r, why, "cannot be merged with what stands beside it");
    }
    return out;
}

/* The schema without its keywords $ref and allOf, which are merged into the others. NULL: an
 * error. A $ref by itself is the definition; anything else is made once, so that `value` knows it
 * again where it leads back to itself. */
static const json_t *flat(reader *r, const json_t *schema, int depth)
{
    const json_t *ref = json_object_get(schema, "$ref"), *list = json_object_get(schema, "allOf");
    if (json_is_true(schema) || (json_is_object(schema) && !ref && !list))
        return schema;
    if (!json_is_object(schema))
        wrong(r, "schema", "must be an object");
    else if (depth > MOST_DEPTH)
        wrong(r, "$ref", "leads back to itself");
    else if (list && !json_array_size(list))
        wrong(r, "allOf", "must be a list that is not empty");
    const json_t *target = ref && !r->error ? find(r, ref) : NULL;
    if (r->error)
        return NULL;
    if (only_has(schema, "$ref"))
        return flat(r, target, depth + 1);
    if (json_array_size(list) == 1 && only_has(schema, "allOf"))
        return flat(r, json_array_get(list, 0), depth + 1);
    known *k = entry(r, schema, -1);
    if (!k->flat)
        k->flat = merged(r, schema, target, depth);
    return r->error ? NULL : k->flat;
}

/* anyOf and oneOf: each with what stands beside it. */
static mx_pattern *choices(reader *r, const json_t *schema)
{
    const char *keyword = json_object_get(schema, "anyOf") ? "anyOf" : "oneOf";
    const json_t *list = json_object_get(schema, keyword);
    mx_pattern *all = mx_pattern_never(r->a);
    size_t n = json_array_size(list);
    const json_t **one = MX_NEW_N(r->a, const json_t *, n + 1);
    if (!n || (json_object_get(schema, "oneOf") && *keyword == 'a'))
        return wrong(r, keyword, "must be a list that is not empty, and one of anyOf and oneOf");
    for (size_t i = 0; i < n; i++) {
        json_t *branch = json_array_get(list, i), *both;
        if (mx_schema_keyword_of(schema, "snaovt")) {
            json_t *rest = json_copy((json_t *)schema);
            json_object_del(rest, keyword);
            json_array_append_new(r->made, both = json_pack("{s:[o,O]}", "allOf", rest, branch));
            branch = both;
        }
        one[i] = flat(r, branch, 0);
        for (size_t k = 0; k < i && *keyword == 'o' && !r->error; k++)
            if (works(r, "oneOf", 1 + size_of(one[k]) * size_of(one[i]) / 16) &&
                !mx_schemas_exclude(one[k], one[i]))
                wrong(r, "oneOf", "has two schemas that one value may match; anyOf would do");
        mx_pattern *p = r->error ? NULL : value(r, one[i]);
        all = mx_pattern_or(r->a, all, p);
    }
    return all;
}

static mx_pattern *of_types(reader *r, const json_t *schema)
{
    static const char *const types[] = {"string", "number", "array", "object"};
    const json_t *type = json_object_get(schema, "type");
    const char *keyword = mx_schema_keyword_of(schema, "snao");
    mx_pattern *all = mx_pattern_never(r->a);
    size_t i;
    json_t *v;
    if (!type && !keyword)
        return any_value(r);
    if (!type) /* one that the keywords speak of */
        return by_type(r, schema, types[strchr("snao", about(keyword)) - "snao"]);
    if (json_is_string(type))
        return by_type(r, schema, json_string_value(type));
    if (!json_array_size(type))
        return wrong(r, "type", "must be a text or a list of texts");
    json_array_foreach((json_t *)type, i, v)
    {
        mx_pattern *p = json_is_string(v) ? by_type(r, schema, json_string_value(v))
                                          : wrong(r, "type", "must hold texts");
        all = mx_pattern_or(r->a, all, p);
    }
    return all;
}

static mx_pattern *read_value(reader *r, const json_t *schema)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)schema, name, v) if (!about(name))
        wrong(r, name, "is not supported");
    if (r->error)
        return NULL;
    if (mx_schema_keyword_of(schema, "v"))
        return constants(r, schema);
    return mx_schema_keyword_of(schema, "c") ? choices(r, schema) : of_types(r, schema);
}

static bool is_on_path(const reader *r, const json_t *schema)
{
    for (int i = 0; i < r->depth; i++)
        if (r->path[i] == schema)
            return true;
    return false;
}

/* A schema that leads back to itself is followed so many rounds: it is NEVER in the last. Within a
 * round it is read once, wherever it stands. */
static mx_pattern *value(reader *r, const json_t *schema)
{
    if (r->error || !(schema = flat(r, schema, 0)))
        return NULL;
    if (json_is_true(schema))
        return any_value(r);
    bool again = is_on_path(r, schema);
    r->comes_round |= again;
    if (again && r->round >= r->rounds)
        return mx_pattern_never(r->a);
    known *k = entry(r, schema, r->round + again);
    if (k->pattern)
        return k->pattern;
    r->visits = r->depth < MOST_DEPTH ? r->visits + 1 : MOST_VISITS + 1;
    if (r->visits > MOST_VISITS)
        return wrong(r, "$ref", "or what stands in one another leads to more schemas than are "
                                "followed");
    r->round += again;
    r->path[r->depth++] = schema;
    mx_pattern *p = read_value(r, schema);
    r->depth--;
    r->round -= again;
    k->pattern = p;
    return p;
}

/* Fewer rounds where many make it too large. */
mx_status mx_pattern_schema(mx_arena *a, const json_t *schema, mx_pattern **out)
{
    mx_status st = MX_OK;
    for (int rounds = MOST_ROUNDS; rounds >= 1; rounds /= 2) {
        mx_status_free(st);
        reader r = {.a = a,
                    .root = schema,
                    .made = json_array(),
                    .known = MX_NEW_N(a, known *, BUCKETS),
                    .rounds = rounds};
        *out = value(&r, schema);
        if (!r.error && mx_pattern_is_never(*out))
            wrong(&r, "$ref", "leads back to itself, and no document comes to an end");
        json_decref(r.made);
        st = r.error;
        if (!st || r.visits <= MOST_VISITS || !r.comes_round)
            break;
    }
    return st;
}
