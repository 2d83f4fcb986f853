/* pattern_merge.c - what two JSON schemas allow both, as one schema; and whether they exclude each
 * other. Keywords are merged one by one: types and enums by what they share, bounds by the tighter,
 * properties by name (one that both have becomes an allOf of the two), items by position, required
 * by union. */
#include "infer/pattern_json.h"

#include <math.h>
#include <string.h>

/* --- one order of all JSON values, which says what is equal too --- */

static int order_numbers(const json_t *x, const json_t *y)
{
    double real = json_real_value(y);
    json_int_t i = json_integer_value(x), whole;
    if (json_is_real(x) && json_is_real(y))
        return (json_real_value(x) > real) - (json_real_value(x) < real);
    if (json_is_real(x))
        return -order_numbers(y, x);
    if (json_is_real(y) && !(real >= -0x1p63 && real < 0x1p63))
        return real < 0 ? 1 : -1;
    whole = json_is_real(y) ? (json_int_t)real : json_integer_value(y);
    if (i == whole && json_is_real(y)) /* where it has a fraction, its whole part is exact */
        return ((double)whole > real) - ((double)whole < real);
    return (i > whole) - (i < whole);
}

/* By the first name, in the order of strcmp, at which the two differ. A member that both have is
 * looked at once, or the work would double with each level of nesting. */
static int order_objects(const json_t *x, const json_t *y)
{
    const json_t *of[] = {x, y};
    const char *first = NULL, *name;
    int result = 0;
    size_t in_both = 0;
    json_t *v;
    for (int side = 0; side < 2 && (side == 0 || in_both < json_object_size(y)); side++)
        json_object_foreach((json_t *)of[side], name, v)
        {
            const json_t *other = json_object_get(of[1 - side], name);
            in_both += other && side == 0;
            if ((first && strcmp(name, first) >= 0) || (side && other))
                continue;
            int o = other ? mx_json_order(v, other) : side ? 1 : -1;
            first = o ? name : first;
            result = o ? o : result;
        }
    return result;
}

int mx_json_order(const json_t *x, const json_t *y)
{
    int kind[] = {json_is_real(x) ? JSON_INTEGER : (int)json_typeof(x),
                  json_is_real(y) ? JSON_INTEGER : (int)json_typeof(y)};
    size_t n = json_array_size(x), m = json_array_size(y);
    int o = 0;
    if (kind[0] != kind[1])
        return kind[0] < kind[1] ? -1 : 1;
    if (json_is_number(x))
        return order_numbers(x, y);
    if (json_is_string(x))
        return strcmp(json_string_value(x), json_string_value(y));
    if (json_is_object(x))
        return order_objects(x, y);
    for (size_t i = 0; i < n && i < m && o == 0; i++)
        o = mx_json_order(json_array_get(x, i), json_array_get(y, i));
    return o ? o : (n > m) - (n < m);
}

static bool among(const json_t *list, const json_t *v)
{
    size_t i;
    const json_t *x;
    json_array_foreach((json_t *)list, i, x) if (mx_json_order(x, v) == 0) return true;
    return false;
}

/* The types of a schema, as a list; integers are numbers. NULL: any. Gives a reference. */
static json_t *types_of(const json_t *schema)
{
    json_t *type = json_object_get(schema, "type"), *all = NULL, *v;
    size_t i;
    if (json_is_string(type))
        all = json_pack("[O]", type);
    else if (json_is_array(type))
        all = json_copy(type);
    json_array_foreach(
        all, i, v) if (strcmp(json_string_value(v) ? json_string_value(v) : "", "number") == 0)
    {
        json_array_append_new(all, json_string("integer"));
        break;
    }
    return all;
}

static int order_pointers(const void *x, const void *y)
{
    return mx_json_order(*(json_t *const *)x, *(json_t *const *)y);
}

/* Elements of x that y has, once each. Gives a reference. */
static json_t *shared(const json_t *x, const json_t *y)
{
    mx_arena scratch = {0};
    size_t n = 0, i;
    json_t *all = json_array(), *v;
    json_t **sorted = MX_NEW_N(&scratch, json_t *, json_array_size(y) + 1);
    json_array_foreach((json_t *)y, i, v) sorted[i] = v;
    qsort(sorted, json_array_size(y), sizeof *sorted, order_pointers);
    for (i = 0; i < json_array_size(y); i++) /* each value once */
        if (n == 0 || mx_json_order(sorted[n - 1], sorted[i]) != 0)
            sorted[n++] = sorted[i];
    bool *taken = MX_NEW_N(&scratch, bool, n + 1);
    json_array_foreach((json_t *)x, i, v)
    {
        json_t **found = bsearch(&v, sorted, n, sizeof *sorted, order_pointers);
        if (found && !taken[found - sorted])
            json_array_append(all, v);
        if (found)
            taken[found - sorted] = true;
    }
    mx_arena_fini(&scratch);
    return all;
}

static bool merge_types(json_t *into, const json_t *from)
{
    json_t *x = types_of(into), *y = types_of(from), *both = shared(x, y), *number;
    number = json_string("number");
    if (among(both, number)) { /* and with it integers */
        json_t *whole = json_string("integer"), *rest = json_array(), *v;
        size_t i;
        json_array_foreach(both, i, v) if (!json_equal(v, whole)) json_array_append(rest, v);
        json_decref(both);
        json_decref(whole);
        both = rest;
    }
    bool any = json_array_size(both) > 0;
    json_object_set(into, "type", both);
    json_decref(number);
    json_decref(x);
    json_decref(y);
    json_decref(both);
    return any;
}

static bool merge_properties(json_t *into, const json_t *from)
{
    json_t *mine = json_copy(json_object_get(into, "properties")), *v, *old;
    const char *name;
    json_object_foreach((json_t *)from, name, v)
    {
        old = json_object_get(mine, name);
        if (old && !json_equal(old, v))
            json_object_set_new(mine, name, json_pack("{s:[O,O]}", "allOf", old, v));
        else
            json_object_set(mine, name, v);
    }
    json_object_set_new(into, "properties", mine);
    return true;
}

static bool merge_required(json_t *into, const json_t *from)
{
    json_t *all = json_copy(json_object_get(into, "required"));
    json_array_extend(all, (json_t *)from);
    json_object_set_new(into, "required", all);
    return true;
}

/* What both allow, NULL being anything. Gives a reference, or NULL. */
static json_t *both_of(json_t *x, json_t *y)
{
    if (!x || json_is_true(x) || json_is_false(y))
        return json_incref(y);
    if (!y || json_is_true(y) || json_is_false(x) || json_equal(x, y))
        return json_incref(x);
    return json_pack("{s:[O,O]}", "allOf", x, y);
}

/* Items by their position: one that one schema has a place for is of the other's, or of its
 * `items`. Where nothing may stand at a position, lists end before it. */
static void merge_items(json_t *into, const json_t *from)
{
    static const char first[] = "prefixItems", rest[] = "items", most[] = "maxItems";
    const json_t *x = json_object_get(into, first), *y = json_object_get(from, first);
    json_t *more[] = {json_object_get(into, rest), json_object_get(from, rest)};
    json_t *all = json_array(), *others = both_of(more[0], more[1]);
    size_t n = json_array_size(x), m = json_array_size(y);
    for (size_t i = 0; i < n || i < m; i++) {
        json_t *one = both_of(i < n ? json_array_get(x, i) : more[0],
                              i < m ? json_array_get(y, i) : more[1]);
        if (json_is_false(one)) {
            const json_t *old = json_object_get(into, most);
            if (!old || json_number_value(old) > (double)i)
                json_object_set_new(into, most, json_integer((json_int_t)i));
            json_decref(one);
            break;
        }
        json_array_append_new(all, one ? one : json_true());
    }
    if (json_array_size(all))
        json_object_set(into, first, all);
    if (others)
        json_object_set(into, rest, others);
    json_decref(all);
    json_decref(others);
}

static bool merge_enum(json_t *into, const json_t *from)
{
    json_t *both = shared(json_object_get(into, "enum"), from);
    bool any = json_array_size(both) > 0;
    json_object_set_new(into, "enum", both);
    return any;
}

/* A bound: the greater of a least, the smaller of a most. */
static bool merge_bound(json_t *into, const char *name, const json_t *from)
{
    const json_t *old = json_object_get(into, name);
    bool most = strncmp(name, "max", 3) == 0 || strcmp(name, "exclusiveMaximum") == 0;
    if (!json_is_number(old) || !json_is_number(from))
        return false;
    if ((json_number_value(from) < json_number_value(old)) == most)
        json_object_set(into, name, (json_t *)from);
    return true;
}

static bool merge_keyword(json_t *into, const char *name, const json_t *v, const json_t *from)
{
    static const char bounds[] = " minimum maximum exclusiveMinimum exclusiveMaximum minLength "
                                 "maxLength minItems maxItems ";
    static const char notes[] = " title description default examples $schema $id $comment $defs "
                                "definitions deprecated readOnly writeOnly strict ";
    char word[64] = " ";
    size_t n = strlen(name);
    if (n + 3 > sizeof word)
        return false;
    memcpy(word + 1, name, n);
    word[n + 1] = ' ';
    const json_t *old = json_object_get(into, name);
    if (!old || json_equal(old, v) || strstr(notes, word))
        return json_object_set(into, name, (json_t *)(old ? old : v)) == 0;
    if (strcmp(name, "type") == 0)
        return merge_types(into, from);
    if (strcmp(name, "properties") == 0 && json_is_object(v) && json_is_object(old))
        return merge_properties(into, v);
    if (strcmp(name, "required") == 0 && json_is_array(v) && json_is_array(old))
        return merge_required(into, v);
    if (strcmp(name, "enum") == 0 && json_is_array(v) && json_is_array(old))
        return merge_enum(into, v);
    return strstr(bounds, word) && merge_bound(into, name, v);
}

/* additionalProperties speaks of the properties beside it alone: another schema's would be held to
 * it. Ours may only be open. */
static bool closed(const json_t *x, const json_t *y)
{
    const json_t *more = json_object_get(x, "additionalProperties");
    const char *name;
    json_t *v;
    if (!more || json_is_true(more))
        return false;
    json_object_foreach(
        json_object_get(y, "properties"), name,
        v) if (!json_object_get(json_object_get(x, "properties"), name)) return true;
    return false;
}

const char *mx_schema_merge(json_t *into, const json_t *from)
{
    const char *name;
    json_t *v;
    if (closed(into, from) || closed(from, into))
        return "additionalProperties";
    merge_items(into, from);
    json_object_foreach((json_t *)from, name, v)
    {
        bool item = strcmp(name, "items") == 0 || strcmp(name, "prefixItems") == 0;
        if (!item && !merge_keyword(into, name, v, from))
            return name;
    }
    return NULL;
}

/* --- exclusion --- */

static bool has_type(const json_t *v, const char *type)
{
    bool whole =
        json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    return strcmp(type, "string") == 0    ? json_is_string(v)
           : strcmp(type, "integer") == 0 ? whole
           : strcmp(type, "number") == 0  ? json_is_number(v)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(v)
           : strcmp(type, "null") == 0    ? json_is_null(v)
           : strcmp(type, "array") == 0   ? json_is_array(v)
                                          : strcmp(type, "object") == 0 && json_is_object(v);
}

bool mx_json_has_type(const json_t *v, const json_t *type)
{
    size_t i;
    json_t *t;
    if (!type)
        return true;
    if (json_is_string(type))
        return has_type(v, json_string_value(type));
    json_array_foreach((json_t *)type, i,
                       t) if (json_is_string(t) && has_type(v, json_string_value(t))) return true;
    return false;
}

/* The values of const or enum, as a list; NULL: any. Gives a reference. */
static json_t *values_of(const json_t *schema)
{
    json_t *v = json_object_get(schema, "const");
    return v ? json_pack("[O]", v) : json_incref(json_object_get(schema, "enum"));
}

static bool lists_exclude(json_t *x, json_t *y)
{
    json_t *both = shared(x, y);
    bool none = x && y && json_array_size(both) == 0;
    json_decref(both);
    json_decref(x);
    json_decref(y);
    return none;
}

/* x has values, and none of them has a type of y. */
static bool values_lack_type(const json_t *x, const json_t *y)
{
    json_t *values = values_of(x), *v;
    const json_t *type = json_object_get(y, "type");
    bool none = values && type;
    size_t i;
    json_array_foreach(values, i, v) none &= !mx_json_has_type(v, type);
    json_decref(values);
    return none;
}

static bool requires(const json_t *schema, const char *name)
{
    json_t *text = json_string(name);
    bool found = among(json_object_get(schema, "required"), text);
    json_decref(text);
    return found;
}

/* No object written from x is one of y: y requires what x never writes. */
static bool lacks(const json_t *x, const json_t *y)
{
    size_t i;
    const json_t *v, *mine = json_object_get(x, "properties");
    if (!mine || mx_schema_keyword_of(x, "c")) /* which may have more properties */
        return false;
    json_array_foreach(json_object_get(y, "required"), i,
                       v) if (json_is_string(v) && !json_object_get(mine, json_string_value(v)) &&
                              !requires(x, json_string_value(v))) return true;
    return false;
}

static bool takes_objects_alone(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    const char *name = json_string_value(json_array_size(type) == 1 ? json_array_get(type, 0)
                                                                   : type);
    return name && strcmp(name, "object") == 0;
}

/* Whether no value but an object can be of both: one takes objects alone, or both are written as
 * objects, for want of a type. */
static bool meet_in_objects(const json_t *x, const json_t *y)
{
    if (takes_objects_alone(x) || takes_objects_alone(y))
        return true;
    return !mx_schema_keyword_of(x, "snact") && !mx_schema_keyword_of(y, "snact");
}

bool mx_schemas_exclude(const json_t *x, const json_t *y)
{
    const char *name;
    json_t *v;
    if (lists_exclude(types_of(x), types_of(y)) || lists_exclude(values_of(x), values_of(y)))
        return true;
    if (values_lack_type(x, y) || values_lack_type(y, x))
        return true;
    if (!meet_in_objects(x, y))
        return false;
    json_object_foreach(json_object_get(x, "properties"), name, v)
    {
        const json_t *other = json_object_get(json_object_get(y, "properties"), name);
        if (other && requires(x, name) && requires(y, name) && mx_schemas_exclude(v, other))
            return true;
    }
    return lacks(x, y) && lacks(y, x);
}
