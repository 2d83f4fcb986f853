/* pattern_json.c - pieces of JSON: strings, constants, lists, any value, and strings of a format.
 *
 * A \u escape is a character of its own, or two that make one beyond 0xffff: half of such a pair is
 * not written, so that lengths are counted in characters.
 */
#include "infer/pattern_json.h"

#include "base/json_doc.h"
#include <string.h>

#define HEX "[0-9a-fA-F]"
#define ESCAPED                                                                                    \
    "\\\\([\"\\\\/bfnrt]|u([0-9a-cA-CefEF]" HEX "{3}|[dD][0-7]" HEX "{2}|[dD][89abAB]" HEX         \
    "{2}\\\\u[dD][c-fC-F]" HEX "{2}))"
#define CHAR "([^\"\\\\\\x00-\\x1f]|" ESCAPED ")"

mx_pattern *mx_pattern_literal(mx_arena *a, const char *s)
{
    return mx_pattern_text(a, s, strlen(s));
}

mx_pattern *mx_pattern_literal_regex(mx_arena *a, const char *s)
{
    mx_pattern *p = NULL;
    mx_status st = mx_pattern_regex(a, s, strlen(s), false, &p);
    MX_ASSERT(!st, "%s", s);
    return p;
}

static mx_pattern *quoted(mx_arena *a, mx_pattern *inside)
{
    mx_pattern *mark = mx_pattern_literal(a, "\"");
    return mx_pattern_then(a, mark, mx_pattern_then(a, inside, mark));
}

mx_pattern *mx_pattern_json_string(mx_arena *a, int least, int most)
{
    mx_pattern *one = mx_pattern_literal_regex(a, CHAR);
    return quoted(a, mx_pattern_repeat(a, one, least, most));
}

mx_pattern *mx_pattern_json_mark(mx_arena *a, const char *mark)
{
    mx_pattern *space = mx_pattern_repeat(a, mx_pattern_literal(a, " "), 0, 1);
    return mx_pattern_then(a, mx_pattern_literal(a, mark), space);
}

mx_pattern *mx_pattern_json_list(mx_arena *a, const char *const marks[2], mx_pattern *x, int least,
                                 int most)
{
    mx_pattern *more = mx_pattern_then(a, mx_pattern_json_mark(a, ","), x);
    mx_pattern *all = NULL, *close = mx_pattern_literal(a, marks[1]);
    more = mx_pattern_repeat(a, more, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
    if (most != 0)
        all = mx_pattern_then(a, x, more);
    if (least == 0 && all)
        all = mx_pattern_repeat(a, all, 0, 1);
    return mx_pattern_then(a, mx_pattern_literal(a, marks[0]), mx_pattern_then(a, all, close));
}

static mx_pattern *object_pattern(mx_arena *a, int depth)
{
    static const char *const marks[] = {"{", "}"};
    mx_pattern *name = mx_pattern_json_string(a, 0, -1);
    mx_pattern *pair = mx_pattern_then(a, name, mx_pattern_json_mark(a, ":"));
    pair = mx_pattern_then(a, pair, mx_pattern_json_value(a, depth - 1));
    return mx_pattern_json_list(a, marks, pair, 0, -1);
}

mx_pattern *mx_pattern_json_value(mx_arena *a, int depth)
{
    static const char *const marks[] = {"[", "]"};
    static const char plain[] =
        "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?|true|false|null";
    mx_pattern *p = mx_pattern_literal_regex(a, plain);
    p = mx_pattern_or(a, p, mx_pattern_json_string(a, 0, -1));
    if (depth <= 0)
        return p;
    p = mx_pattern_or(a, p, object_pattern(a, depth));
    mx_pattern *list = mx_pattern_json_list(a, marks, mx_pattern_json_value(a, depth - 1), 0, -1);
    return mx_pattern_or(a, p, list);
}

mx_pattern *mx_pattern_any_object(mx_arena *a)
{
    return object_pattern(a, MX_ANY_DEPTH);
}

mx_word mx_json_word(mx_arena *a, const json_t *v)
{
    char *s = mx_json_compact(v);
    const char *text = mx_arena_strdup(a, s ? s : "null");
    mx_free(s);
    return (mx_word){text, strlen(text)};
}

#define DATE                                                                                       \
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"   \
    "02-(0[1-9]|1[0-9]|2[0-8]))"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[-+]" CLOCK ")"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HOST "([a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\\.){1,3}[a-z]{2,10}"

mx_pattern *mx_pattern_json_format(mx_arena *a, const char *format)
{
    static const struct {
        const char *name, *regex;
    } known[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"duration", "P([0-9]{1,4}Y)?([0-9]{1,4}M)?[0-9]{1,4}D(T[0-9]{1,4}H)?|"
                     "PT[0-9]{1,4}(H[0-9]{1,4}M[0-9]{1,4}S|M[0-9]{1,4}S|S|M|H)|P[0-9]{1,4}W"},
        {"email", "[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@" HOST},
        {"hostname", HOST},
        {"ipv4", OCTET "(\\." OCTET "){3}"},
        {"ipv6", HEX "{1,4}(:" HEX "{1,4}){7}"},
        {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
        {"uri", "(https?|ftp)://" HOST "(:[1-9][0-9]{1,3})?(/[A-Za-z0-9._~-]*)*"
                "(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, format) == 0)
            return quoted(a, mx_pattern_literal_regex(a, known[i].regex));
    return NULL;
}
