/* field.c - see field.h. */
#include "serve/field.h"

#include "base/json_doc.h"
#include <math.h>
#include <stdarg.h>

void mx_fields_fini(mx_fields *f)
{
    mx_str_fini(&f->why);
}

void mx_field_wrong(mx_fields *f, const char *name, const char *fmt, ...)
{
    va_list ap;
    if (f->param)
        return;
    f->param = name;
    mx_str_addf(&f->why, "`%s` ", name);
    va_start(ap, fmt);
    mx_str_addv(&f->why, fmt, ap);
    va_end(ap);
}

const json_t *mx_field_get(const mx_fields *f, const char *name)
{
    const json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

bool mx_field_bool(mx_fields *f, const char *name, bool usual)
{
    const json_t *v = mx_field_get(f, name);
    if (v && !json_is_boolean(v))
        mx_field_wrong(f, name, "must be true or false, not %s", mx_json_kind(v));
    return v ? json_is_true(v) : usual;
}

int64_t mx_field_int(mx_fields *f, const char *name, int64_t usual, int64_t least, int64_t most)
{
    const json_t *v = mx_field_get(f, name);
    if (!v)
        return usual;
    double real = json_is_real(v) ? json_real_value(v) : 0;
    bool whole =
        json_is_integer(v) || (json_is_real(v) && real == floor(real) && fabs(real) < 0x1p53);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : whole ? (int64_t)real : 0;
    if (!whole)
        mx_field_wrong(f, name, "must be an integer, not %s", mx_json_kind(v));
    else if (i < least || i > most)
        mx_field_wrong(f, name, "is %lld, but must be from %lld to %lld", (long long)i,
                       (long long)least, (long long)most);
    else
        return i;
    return usual;
}

double mx_field_float(mx_fields *f, const char *name, double usual, double least, double most)
{
    const json_t *v = mx_field_get(f, name);
    if (!v)
        return usual;
    double x = json_number_value(v);
    if (!json_is_number(v))
        mx_field_wrong(f, name, "must be a number, not %s", mx_json_kind(v));
    else if (!(x >= least && x <= most))
        mx_field_wrong(f, name, "is %g, but must be from %g to %g", x, least, most);
    else
        return x;
    return usual;
}

const char *mx_field_text(mx_fields *f, const char *name, const char *usual)
{
    const json_t *v = mx_field_get(f, name);
    if (v && !json_is_string(v))
        mx_field_wrong(f, name, "must be a string, not %s", mx_json_kind(v));
    return json_is_string(v) ? json_string_value(v) : usual;
}

int mx_field_texts(mx_fields *f, const char *name, mx_arena *a, const char *const **out, int most)
{
    const json_t *v = mx_field_get(f, name);
    size_t n = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
    *out = NULL;
    if (n > (size_t)most) {
        mx_field_wrong(f, name, "has %zu texts, at most %d are taken", n, most);
        return 0;
    }
    const char **list = MX_NEW_N(a, const char *, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(x) || !json_string_length(x)) {
            mx_field_wrong(f, name, "must be a string or a list of strings, none of them empty");
            return 0;
        }
        list[i] = mx_arena_strdup(a, json_string_value(x));
    }
    *out = list;
    return (int)n;
}

int mx_field_ids(mx_fields *f, const char *name, mx_arena *a, const int32_t **out, int64_t vocab)
{
    const json_t *v = mx_field_get(f, name);
    size_t n = json_array_size(v);
    *out = NULL;
    if (v && !json_is_array(v))
        mx_field_wrong(f, name, "must be a list of token ids, not %s", mx_json_kind(v));
    int32_t *ids = MX_NEW_N(a, int32_t, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id >= vocab) {
            mx_field_wrong(f, name, "must hold token ids from 0 to %lld; item %zu is none",
                           (long long)vocab - 1, i);
            return 0;
        }
        ids[i] = (int32_t)id;
    }
    *out = ids;
    return (int)n;
}
