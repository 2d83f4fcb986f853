/* form.c - structured outputs: an answer must be JSON, match a schema or a regular expression, or
 * be one of several texts. */
#include "base/json_doc.h"
#include "serve/api_call.h"

#include <string.h>

/* Takes the status. */
static void keep(mx_api_call *c, mx_fields *f, const char *name, mx_pattern *p, mx_status st)
{
    mx_automaton *m = NULL;
    if (!st)
        st = mx_automaton_open(&m, p);
    mx_automaton_close(m);
    if (st)
        mx_field_wrong(f, name, "cannot be followed: %s", mx_status_text(st));
    mx_status_free(st);
    c->pattern = p;
}

static void read_schema(mx_api_call *c, mx_fields *f, const char *name, const json_t *schema)
{
    mx_pattern *p = NULL;
    json_t *parsed = NULL;
    if (json_is_string(schema)) {
        mx_status st = mx_json_parse(json_string_value(schema), json_string_length(schema),
                                     "the schema", NULL, &parsed);
        if (st)
            mx_field_wrong(f, name, "is not JSON: %s", mx_status_text(st));
        mx_status_free(st);
    }
    const json_t *s = parsed ? parsed : schema;
    if (!f->param && !json_is_object(s))
        mx_field_wrong(f, name, "must have a schema, an object");
    if (!f->param) {
        mx_status st = mx_pattern_schema(&c->arena, s, &p);
        keep(c, f, name, p, st);
    }
    json_decref(parsed);
}

static void read_regex(mx_api_call *c, mx_fields *f, const char *name, const json_t *v)
{
    mx_pattern *p = NULL;
    if (!json_is_string(v) || !json_string_length(v)) {
        mx_field_wrong(f, name, "must have a regular expression, a string");
        return;
    }
    mx_status st =
        mx_pattern_regex(&c->arena, json_string_value(v), json_string_length(v), false, &p);
    keep(c, f, name, p, st);
}

static void read_choice(mx_api_call *c, mx_fields *f, const char *name, const json_t *list)
{
    mx_word *words = MX_NEW_N(&c->arena, mx_word, json_array_size(list) + 1);
    size_t i;
    const json_t *v;
    if (!json_array_size(list))
        mx_field_wrong(f, name, "must have a list of strings, at least one");
    json_array_foreach((json_t *)list, i, v)
    {
        if (!json_is_string(v) || !json_string_length(v)) {
            mx_field_wrong(f, name, "must have a list of strings, none of them empty");
            return;
        }
        words[i] = (mx_word){json_string_value(v), json_string_length(v)};
    }
    keep(c, f, name, mx_pattern_words(&c->arena, words, i), MX_OK);
}

static void read_response_format(mx_api_call *c, mx_fields *f, const json_t *v)
{
    static const char name[] = "response_format";
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *schema = json_object_get(json_object_get(v, "json_schema"), "schema");
    if (!type)
        mx_field_wrong(f, name, "must be an object with a `type`");
    else if (strcmp(type, "json_schema") == 0)
        read_schema(c, f, name, schema);
    else if (strcmp(type, "json_object") == 0)
        keep(c, f, name, mx_pattern_any_object(&c->arena), MX_OK);
    else if (strcmp(type, "text") != 0)
        mx_field_wrong(f, name, "has the type `%s`; expected text, json_object or json_schema",
                       type);
}

void mx_api_call_read_form(mx_api_call *c, mx_fields *f)
{
    static const char *const forms[] = {"json", "regex", "choice"};
    static void (*const read[])(mx_api_call *, mx_fields *, const char *,
                                const json_t *) = {read_schema, read_regex, read_choice};
    static const char own[] = "structured_outputs";
    /* vLLM's names for the same before structured_outputs */
    static const char *const guided[] = {"guided_json", "guided_regex", "guided_choice"};
    const json_t *format = mx_field_get(f, "response_format"), *more = mx_field_get(f, own);
    if (format)
        read_response_format(c, f, format);
    if (more && (!json_is_object(more) || json_object_size(more) != 1 || c->pattern))
        mx_field_wrong(f, own,
                       "must be an object with one of json, regex and choice, and does not "
                       "go with `response_format`");
    bool known = !more;
    for (int i = 0; i < 3 && !f->param; i++)
        if (json_object_get(more, forms[i])) {
            read[i](c, f, own, json_object_get(more, forms[i]));
            known = true;
        }
    if (!known)
        mx_field_wrong(f, own, "must have one of json, regex and choice");
    for (int i = 0; i < 3; i++) {
        const json_t *v = mx_field_get(f, guided[i]);
        if (v && (format || more || c->pattern))
            mx_field_wrong(f, guided[i], "does not go with another form of the answer");
        else if (v && !f->param)
            read[i](c, f, guided[i], v);
    }
}
