/* pattern_json.h - pieces of JSON documents as patterns, which schemas are put together from. */
#ifndef MX_INFER_PATTERN_JSON_H
#define MX_INFER_PATTERN_JSON_H

#include "infer/pattern.h"

enum { MX_ANY_DEPTH = 5 }; /* how deep values nest that no schema describes */

mx_pattern *mx_pattern_literal(mx_arena *a, const char *text);
mx_pattern *mx_pattern_literal_regex(mx_arena *a, const char *regex); /* ours: cannot be wrong */
mx_pattern *mx_pattern_json_string(mx_arena *a, int least, int most); /* characters; -1: any */
mx_pattern *mx_pattern_json_value(mx_arena *a, int depth);
/* A value as it is written: const and enum. */
mx_word mx_json_word(mx_arena *a, const json_t *v);
/* The mark, and a space that may follow it. */
mx_pattern *mx_pattern_json_mark(mx_arena *a, const char *mark);
/* open x (, x)* close, with `least` to `most` of them. */
mx_pattern *mx_pattern_json_list(mx_arena *a, const char *const marks[2], mx_pattern *x, int least,
                                 int most);
/* Strings of a `format`; NULL: it is not known. */
mx_pattern *mx_pattern_json_format(mx_arena *a, const char *format);

/* Numbers between two bounds, in at most 15 digits. */
typedef struct {
    double least, most;       /* -HUGE_VAL, HUGE_VAL: none */
    bool above, below, whole; /* least and most are themselves left out; integers alone */
} mx_number_range;
/* NEVER where there is none; an error where a bound has more digits than are followed. */
mx_status mx_pattern_json_number(mx_arena *a, const mx_number_range *r,
                                 mx_pattern **out) MX_MUST_USE;

/* What two schemas allow both, as one: `into` takes the keywords of `from`, which must not hold
 * $ref, allOf, anyOf or oneOf. The keyword that cannot be merged, or NULL. */
const char *mx_schema_merge(json_t *into, const json_t *from);
/* What stands in the schema at /$defs/Name and the like; NULL: nothing. */
const json_t *mx_schema_find(const json_t *root, const char *path);
/* The first keyword of the schema that is about one of the `kinds`; NULL: none. The kinds are types
 * ('s'tring, 'n'umber, 'a'rray, 'o'bject), 'v'alues, other 'c'omposed schemas, 't'ype, and
 * 'd'escription alone. */
const char *mx_schema_keyword_of(const json_t *schema, const char *kinds);
/* Below, at or above 0 as x stands before, with or after y in one order of all values. Values are
 * equal as JSON Schema has it: 1 and 1.0 are; 2^53 + 1 and 2^53 are not, as integers or reals. */
int mx_json_order(const json_t *x, const json_t *y);
/* Whether a value has the type, or one of the types; NULL: any. */
bool mx_json_has_type(const json_t *v, const json_t *type);
/* Whether no document that is written from one of the schemas can be one of the other. */
bool mx_schemas_exclude(const json_t *x, const json_t *y);

#endif
