/* key_built.c - what a value asks for: whether it is built, and whether it is on this machine. */
#include "base/key_accept.h"

#include <string.h>
#include <strings.h>

static bool is_default(const mx_key *key, const mx_value *v)
{
    mx_arena a = {0};
    mx_value usual;
    mx_str why = {0};
    bool read = mx_value_read_text(&a, key, key->fallback, &usual, &why);
    MX_ASSERT(read, "default of the table: %s", mx_str_text(&why));
    bool same = mx_value_equal(key, v, &usual);
    mx_str_fini(&why);
    mx_arena_fini(&a);
    return same;
}

/* What the table says of this value alone. */
static bool is_marked_planned(const mx_key *key, const mx_value *v)
{
    char word[MX_ACCEPT_WORD];
    switch (key->type) {
    case MX_KEY_INT:
        return mx_accept_number(key, (double)v->integer) == MX_ACCEPT_PLANNED;
    case MX_KEY_FLOAT:
        return mx_accept_number(key, v->real) == MX_ACCEPT_PLANNED;
    case MX_KEY_ENUM:
        return mx_accept_word(key, v->text, word) == MX_ACCEPT_PLANNED;
    default:
        return false;
    }
}

bool mx_value_is_built(const mx_key *key, const mx_value *v, mx_str *why)
{
    bool some = mx_accept_has_planned(key);
    if (key->type == MX_KEY_FOREIGN || (!some && !(key->flags & MX_KEY_PLANNED)))
        return true;
    if (some ? !is_marked_planned(key, v) : is_default(key, v))
        return true;
    mx_str value = {0}, built = {0};
    mx_value_write(key, v, &value);
    if (some)
        mx_accept_describe(key, false, &built);
    mx_str_addf(why, "`%s` (%s) cannot be %s yet; ", key->name, key->help,
                key->flags & MX_KEY_SECRET ? "set" : mx_str_text(&value));
    if (key->instead)
        mx_str_add(why, key->instead);
    else if (some)
        mx_str_addf(why, "accepted: %s", mx_str_text(&built));
    else
        mx_str_addf(why, "leave it at its default, %s", *key->fallback ? key->fallback : "\"\"");
    mx_str_fini(&value);
    mx_str_fini(&built);
    return false;
}

const char *mx_path_advice(const char *path)
{
    static const struct {
        const char *scheme, *advice;
    } known[] = {
        {"gs", "mount the bucket (gcsfuse) and give that folder, or use a folder of this machine "
               "and copy with `gcloud storage cp -r`"},
        {"s3", "mount the bucket (mount-s3) and give that folder, or use a folder of this machine "
               "and copy with `aws s3 sync`"},
        {"hf", "download it (hf download NAME --local-dir DIR) and give DIR; a dataset of the hub "
               "is hf_path=NAME"},
        {"file", "give the path without file://"},
        {"", "download it and give the file's path"},
    };
    if (mx_starts_with(path, "~/"))
        return "only a shell knows ~; write the whole path";
    const char *mark = strstr(path, "://"), *from = mark;
    while (from && from > path && strchr("abcdefghijklmnopqrstuvwxyz0123456789+-", from[-1] | 32))
        from--;
    if (!mark || from == mark)
        return NULL;
    for (size_t i = 0;; i++) {
        size_t n = strlen(known[i].scheme);
        if (!n || (n == (size_t)(mark - from) && strncasecmp(known[i].scheme, from, n) == 0))
            return known[i].advice;
    }
}

bool mx_value_is_local(const mx_key *key, const mx_value *v, mx_str *why)
{
    if (!(key->flags & MX_KEY_PATH))
        return true;
    bool one = key->type == MX_KEY_STRING;
    for (int i = 0; i < (one ? 1 : v->n); i++) {
        const char *path = one ? v->text : v->items[i], *advice = mx_path_advice(path);
        if (!advice)
            continue;
        mx_str_addf(why, "`%s` takes paths of this machine; found `%.80s`: %s", key->name, path,
                    advice);
        return false;
    }
    return true;
}
