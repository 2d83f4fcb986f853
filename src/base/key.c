/* key.c - values by the type and limits of their key.
 *
 * Booleans: true false yes no on off 1 0, any case. Integers: decimal, `_` between digits, and any
 * float spelling that is a whole number (1e3). Floats: finite only; nan and inf are refused. Lists:
 * a YAML list, `[a, b]`, or text separated by commas. The limits grammar is described in key.h.
 */
#include "base/key.h"

#include "base/key_accept.h"
#include "base/utf8.h"
#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- what a key is ---- */

mx_key_state mx_key_state_of(const mx_key *key)
{
    return key->type == MX_KEY_FOREIGN   ? MX_KEY_IS_FOREIGN
           : key->flags & MX_KEY_PLANNED ? MX_KEY_IS_PLANNED
                                         : MX_KEY_IS_DONE;
}

const char *mx_key_state_name(mx_key_state state)
{
    static const char *const names[] = {[MX_KEY_IS_DONE] = "done",
                                        [MX_KEY_IS_PLANNED] = "planned",
                                        [MX_KEY_IS_FOREIGN] = "foreign"};
    return names[state];
}

void mx_key_describe(const mx_key *key, mx_str *out)
{
    static const char *const name[] = {
        [MX_KEY_BOOL] = "true or false",
        [MX_KEY_INT] = "an integer",
        [MX_KEY_FLOAT] = "a number",
        [MX_KEY_STRING] = "text in UTF-8",
        [MX_KEY_ENUM] = "one of ",
        [MX_KEY_LIST] = "a list of names",
        [MX_KEY_INTS] = "a list of integers",
        [MX_KEY_RULES] = "a list of [name, [axis, ...]]",
        [MX_KEY_FOREIGN] = "anything",
    };
    mx_str words = {0};
    mx_accept_describe(key, false, &words);
    mx_str_addf(out, "%s%s%s", name[key->type], words.len && key->type != MX_KEY_ENUM ? ", " : "",
                mx_str_text(&words));
    mx_str_fini(&words);
}

bool mx_word_among(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; p && *p;) {
        size_t k = strcspn(p, " ");
        if (k == n && memcmp(p, word, n) == 0)
            return true;
        p += k;
        p += strspn(p, " ");
    }
    return false;
}

/* ---- reading ---- */

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

static bool read_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1", NULL};
    static const char *const no[] = {"false", "no", "off", "0", NULL};
    *out = is_one_of(text, yes);
    return *out || is_one_of(text, no);
}

/* Copies a number without the `_` between digits; false when it is not made of a number's
 * characters (which also keeps out hexadecimal, "nan", "infinity" and leading blanks). */
static bool clean_number(const char *text, char *buf, size_t cap)
{
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '_' && c > text && c[-1] >= '0' && c[-1] <= '9' && c[1] >= '0' && c[1] <= '9')
            continue;
        if (!strchr("0123456789+-.eE", *c) || n + 1 >= cap)
            return false;
        buf[n++] = *c;
    }
    buf[n] = 0;
    return n > 0;
}

static bool read_float(const char *text, double *out)
{
    char buf[64];
    return clean_number(text, buf, sizeof buf) && mx_parse_f64(buf, out) && isfinite(*out);
}

static bool read_int(const char *text, int64_t *out)
{
    char buf[64];
    double d;
    if (!clean_number(text, buf, sizeof buf))
        return false;
    if (mx_parse_i64(buf, out))
        return true;
    /* 1e3, 2.0: whole numbers that a double holds exactly */
    if (!mx_parse_f64(buf, &d) || d != floor(d) || fabs(d) > 9007199254740992.0)
        return false;
    *out = (int64_t)d;
    return true;
}

static bool is_utf8(const char *text)
{
    size_t n = strlen(text);
    return mx_utf8_valid_prefix((const uint8_t *)text, n) == n;
}

static bool in_range(const mx_key *key, double v)
{
    return mx_accept_number(key, v) != MX_ACCEPT_NO;
}

static bool read_word(mx_arena *a, const mx_key *key, const char *text, mx_value *out)
{
    char word[MX_ACCEPT_WORD];
    bool truth;
    /* `auto|true|false` takes true and false as they are spelled for any other key. */
    if (mx_accept_word(key, text, word) == MX_ACCEPT_NO &&
        (!read_bool(text, &truth) ||
         mx_accept_word(key, truth ? "true" : "false", word) == MX_ACCEPT_NO))
        return false;
    out->text = mx_arena_strdup(a, word);
    return true;
}

static bool read_scalar(mx_arena *a, const mx_key *key, const char *text, mx_value *out)
{
    switch (key->type) {
    case MX_KEY_BOOL:
        return read_bool(text, &out->truth);
    case MX_KEY_INT:
        return read_int(text, &out->integer) && in_range(key, (double)out->integer);
    case MX_KEY_FLOAT:
        return read_float(text, &out->real) && in_range(key, out->real);
    case MX_KEY_STRING:
        out->text = mx_arena_strdup(a, text);
        return is_utf8(text);
    case MX_KEY_ENUM:
        return read_word(a, key, text, out);
    default:
        return false;
    }
}

static bool is_identifier(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n > 0 && !s[n];
}

/* A rule [name, axis, ...] or [name, [axis, ...]] as "name=axis,axis"; NULL when it is none. */
static const char *read_rule(mx_arena *a, const mx_yaml_node *n)
{
    const mx_yaml_node *name = n->first;
    if (n->kind != MX_YAML_LIST || !name || !is_identifier(name->text))
        return NULL;
    char *text = mx_arena_printf(a, "%s=", name->text);
    const char *comma = "";
    for (const mx_yaml_node *c = name->next; c; c = c->next) {
        const mx_yaml_node *axis = c->kind == MX_YAML_LIST ? c->first : c;
        for (; axis; axis = c->kind == MX_YAML_LIST ? axis->next : NULL) {
            if (!is_identifier(axis->text))
                return NULL;
            text = mx_arena_printf(a, "%s%s%s", text, comma, axis->text);
            comma = ",";
        }
    }
    return text;
}

static bool read_list(mx_arena *a, const mx_key *key, const mx_yaml_node *node, mx_value *out)
{
    const char **items = MX_NEW_N(a, const char *, node->n + 1);
    int64_t *integers = MX_NEW_N(a, int64_t, node->n + 1);
    int n = 0;
    for (const mx_yaml_node *c = node->first; c; c = c->next, n++) {
        bool rules = key->type == MX_KEY_RULES;
        if (!rules && c->kind != MX_YAML_SCALAR)
            return false;
        items[n] = rules ? read_rule(a, c) : mx_arena_strdup(a, c->text);
        if (!items[n] || !is_utf8(items[n]))
            return false;
        if (key->type == MX_KEY_INTS &&
            !(read_int(items[n], &integers[n]) && in_range(key, (double)integers[n])))
            return false;
    }
    out->items = items;
    out->integers = integers;
    out->n = n;
    return true;
}

/* "a, b" as a list node; blanks around the commas do not count, "" is the empty list. */
static const mx_yaml_node *split_commas(mx_arena *a, const char *text)
{
    mx_yaml_node *list = MX_NEW(a, mx_yaml_node), **end = &list->first;
    list->kind = MX_YAML_LIST;
    list->text = "";
    for (const char *s = text + strspn(text, " "); *s;) {
        size_t n = strcspn(s, ","), keep = n;
        while (keep && s[keep - 1] == ' ')
            keep--;
        mx_yaml_node *item = MX_NEW(a, mx_yaml_node);
        item->text = mx_arena_printf(a, "%.*s", (int)keep, s);
        *end = item;
        end = &item->next;
        list->n++;
        s += n;
        if (*s == ',')
            s++;
        s += strspn(s, " ");
    }
    return list;
}

static bool is_list_type(mx_key_type t)
{
    return t == MX_KEY_LIST || t == MX_KEY_INTS || t == MX_KEY_RULES;
}

static bool say_why(const mx_key *key, const char *found, bool quote, mx_str *why)
{
    mx_str_addf(why, "`%s` takes ", key->name);
    mx_key_describe(key, why);
    if (key->flags & MX_KEY_SECRET)
        found = "something else", quote = false;
    mx_str_addf(why, quote ? "; found `%.80s`" : "; found %s", found);
    char word[MX_ACCEPT_WORD];
    if (quote && key->type == MX_KEY_ENUM && mx_accept_nearest(key, found, word))
        mx_str_addf(why, "; did you mean `%s`?", word);
    return false;
}

bool mx_value_read(mx_arena *a, const mx_key *key, const mx_yaml_node *node, mx_value *out,
                   mx_str *why)
{
    *out = (mx_value){.text = ""};
    if (key->type == MX_KEY_FOREIGN)
        return true;
    static const char *const none[] = {"", "null", "~", "none", NULL};
    bool scalar = node->kind == MX_YAML_SCALAR;
    if (scalar && (key->flags & MX_KEY_OPTIONAL) && is_one_of(node->text, none) &&
        strcmp(node->text, key->fallback) != 0)
        return mx_value_read_text(a, key, key->fallback, out, why);
    if (is_list_type(key->type)) {
        const mx_yaml_node *list = scalar ? split_commas(a, node->text) : node;
        if (list->kind == MX_YAML_LIST && read_list(a, key, list, out))
            return true;
        return say_why(key, scalar ? node->text : mx_yaml_kind_name(node->kind), scalar, why);
    }
    if (!scalar)
        return say_why(key, mx_yaml_kind_name(node->kind), false, why);
    const char *text = node->text;
    /* `key:` and `key: null` are the empty string; other types have no empty value */
    bool textual = key->type == MX_KEY_STRING || key->type == MX_KEY_ENUM;
    if (textual && !node->quoted && (strcmp(text, "null") == 0 || strcmp(text, "~") == 0))
        text = "";
    if (read_scalar(a, key, text, out))
        return true;
    return say_why(key, *text ? text : "no value", *text != 0, why);
}

bool mx_value_read_text(mx_arena *a, const mx_key *key, const char *text, mx_value *out,
                        mx_str *why)
{
    mx_yaml_node scalar = {.kind = MX_YAML_SCALAR, .text = text, .line = 1};
    if (!is_list_type(key->type) || text[strspn(text, " ")] != '[')
        return mx_value_read(a, key, &scalar, out, why);
    mx_yaml_node *node = NULL;
    mx_status st = mx_yaml_parse_value(a, key->name, text, &node);
    if (st) {
        mx_str_add(why, mx_status_text(st));
        mx_status_free(st);
        return false;
    }
    return mx_value_read(a, key, node, out, why);
}

/* ---- writing ---- */

/* What YAML allows in a file as it stands, less the characters that it takes for line breaks. */
static bool is_plain(uint32_t c)
{
    return (c >= 0x20 && c <= 0x7e) ||
           (c >= 0xa0 && c < 0xfffe && c != 0x2028 && c != 0x2029 && c != 0xfeff) || c >= 0x10000;
}

static void write_quoted(const char *text, mx_str *out)
{
    mx_str_add(out, "\"");
    const uint8_t *s = (const uint8_t *)text;
    while (*s) {
        uint32_t c;
        int n = mx_utf8_next(s, &c);
        if (c == '"' || c == '\\')
            mx_str_addf(out, "\\%c", (int)c);
        else if (c == '\n')
            mx_str_add(out, "\\n");
        else if (c == '\t')
            mx_str_add(out, "\\t");
        else if (is_plain(c))
            mx_str_add_n(out, (const char *)s, (size_t)n);
        else
            mx_str_addf(out, "\\u%04x", c);
        s += n;
    }
    mx_str_add(out, "\"");
}

static void write_rule(const char *item, mx_str *out)
{
    const char *equals = strchr(item, '=');
    mx_str_addf(out, "[%.*s, [", (int)(equals - item), item);
    for (const char *s = equals + 1; *s;) {
        size_t n = strcspn(s, ",");
        mx_str_addf(out, "%s%.*s", s == equals + 1 ? "" : ", ", (int)n, s);
        s += n + (s[n] == ',');
    }
    mx_str_add(out, "]]");
}

void mx_value_write(const mx_key *key, const mx_value *v, mx_str *out)
{
    char buf[40];
    switch (key->type) {
    case MX_KEY_BOOL:
        mx_str_add(out, v->truth ? "true" : "false");
        break;
    case MX_KEY_INT:
        mx_str_addf(out, "%lld", (long long)v->integer);
        break;
    case MX_KEY_FLOAT:
        mx_str_add(out, mx_format_f64(buf, sizeof buf, v->real));
        break;
    case MX_KEY_STRING:
    case MX_KEY_ENUM:
        write_quoted(v->text, out);
        break;
    default:
        mx_str_add(out, "[");
        for (int i = 0; i < v->n; i++) {
            mx_str_add(out, i ? ", " : "");
            if (key->type == MX_KEY_RULES)
                write_rule(v->items[i], out);
            else if (key->type == MX_KEY_INTS)
                mx_str_addf(out, "%lld", (long long)v->integers[i]);
            else
                write_quoted(v->items[i], out);
        }
        mx_str_add(out, "]");
    }
}

bool mx_value_equal(const mx_key *key, const mx_value *a, const mx_value *b)
{
    mx_str x = {0}, y = {0};
    mx_value_write(key, a, &x);
    mx_value_write(key, b, &y);
    bool same = strcmp(mx_str_text(&x), mx_str_text(&y)) == 0;
    mx_str_fini(&x);
    mx_str_fini(&y);
    return same;
}

/* ---- names ---- */

/* Walks the aliases of a key: fills buf, says whether the alias is accepted. */
static bool next_alias(const char **s, char *buf, size_t cap, bool *accepted)
{
    if (!*s)
        return false;
    *s += strspn(*s, " ");
    size_t n = strcspn(*s, " ");
    if (n == 0)
        return false;
    *accepted = **s == '=';
    MX_ASSERT(n < cap, "alias `%s`", *s);
    memcpy(buf, *s + *accepted, n - *accepted);
    buf[n - *accepted] = 0;
    *s += n;
    return true;
}

const mx_key *mx_key_find(const mx_key *keys, const char *name)
{
    for (const mx_key *k = keys; k && k->name; k++) {
        if (strcmp(k->name, name) == 0)
            return k;
        const char *rest = k->aliases;
        char alias[64];
        bool accepted;
        while (next_alias(&rest, alias, sizeof alias, &accepted))
            if (accepted && strcmp(alias, name) == 0)
                return k;
    }
    return NULL;
}

const mx_key *mx_key_nearest(const mx_key *keys, const char *name, int *distance)
{
    const mx_key *best = NULL;
    for (const mx_key *k = keys; k && k->name; k++) {
        int d = mx_edit_distance(name, k->name);
        const char *rest = k->aliases;
        char alias[64];
        bool accepted;
        while (next_alias(&rest, alias, sizeof alias, &accepted)) {
            int e = mx_edit_distance(name, alias);
            d = e < d ? e : d;
        }
        if (d < *distance) {
            *distance = d;
            best = k;
        }
    }
    return best;
}

bool mx_is_near(const char *typed, int distance)
{
    return distance <= 2 ? distance < (int)strlen(typed) : distance <= (int)strlen(typed) / 3;
}
