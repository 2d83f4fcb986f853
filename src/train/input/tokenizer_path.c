/* tokenizer_path.c - from tokenizer_path to an open tokenizer, and its chat template.
 *
 * A path that exists here is taken as it is. Otherwise "org/name" is a model on the hub, of which
 * the small files that make up a tokenizer are fetched into the shared cache.
 */
#include "train/input/tokenizer_path.h"

#include "base/file.h"
#include "base/json_doc.h"
#include "data/hub/hub.h"
#include "text/tokenizer/tokenizer_files.h"
#include <string.h>
#include <unistd.h>

static mx_status fetch(const mx_config *c, const char *name, mx_arena *a, const char **folder)
{
    mx_hub_request r = {.repo = name, .model = true, .pattern = mx_tokenizer_patterns};
    if (mx_config_has(c, "hf_access_token"))
        r.token = mx_config_text(c, "hf_access_token");
    char **paths, *at;
    int n;
    MX_TRY(mx_status_wrap(mx_hub_fetch(&r, a, &paths, &n, &at),
                          "tokenizer_path=%s is not a file or folder here, so it was looked for on "
                          "the hub",
                          name));
    *folder = at;
    return MX_OK;
}

mx_status mx_tokenizer_from_config(mx_tokenizer **out, const mx_config *c, const char *otherwise,
                                   mx_arena *a, const char **where)
{
    const char *path = mx_config_text(c, "tokenizer_path");
    mx_tokenizer_options o = {.pattern = mx_config_text(c, "tokenizer_pattern"),
                              .type = mx_config_text(c, "tokenizer_type")};
    if (!*path)
        path = otherwise && *otherwise ? otherwise : "byte";
    if (mx_hub_is_name(path) && access(path, F_OK) != 0)
        MX_TRY(fetch(c, path, a, &path));
    if (where)
        *where = path;
    return mx_tokenizer_open(out, path, &o);
}

mx_status mx_vocab_from_tokenizer(const mx_config *c)
{
    const char *type = mx_config_text(c, "dataset_type"), *where;
    bool ids = strcmp(type, "synthetic") == 0 || strcmp(type, "tokens") == 0 ||
               strcmp(type, "olmo_grain") == 0;
    if (mx_config_is_set(c, "vocab_size") || *mx_config_text(c, "load_parameters_path") ||
        (ids && !*mx_config_text(c, "tokenizer_path")))
        return MX_OK;
    mx_arena a = {0};
    mx_tokenizer *t = NULL;
    mx_status st = mx_tokenizer_from_config(&t, c, NULL, &a, &where);
    if (!st)
        mx_config_derive(c, "vocab_size",
                         mx_arena_printf(&a, "%d", (int)mx_tokenizer_vocab_size(t)),
                         mx_arena_printf(&a, "tokenizer %s", where));
    mx_tokenizer_close(t);
    mx_arena_fini(&a);
    return st;
}

/* A file that is the template, or JSON that holds it as "chat_template". */
static mx_status read_chat_file(const char *file, mx_arena *a, const char **text)
{
    char *whole;
    size_t n;
    json_t *o;
    MX_TRY(mx_file_read(a, file, (size_t)16 << 20, &whole, &n));
    *text = whole;
    if (!mx_ends_with(file, ".json"))
        return MX_OK;
    MX_TRY(mx_json_parse(whole, n, file, NULL, &o));
    const char *found = json_string_value(json_object_get(o, "chat_template"));
    mx_status st = MX_OK;
    if (found)
        *text = mx_arena_strdup(a, found);
    else
        st = mx_fail(MX_INPUT, "%s: expected a JSON object with a text \"chat_template\"", file);
    json_decref(o);
    return st;
}

mx_status mx_chat_from_config(mx_chat_template **out, const mx_config *c, const char *dir,
                              mx_arena *a, const char **given)
{
    const char *text = mx_config_text(c, "chat_template");
    const char *file = mx_config_text(c, "chat_template_path");
    bool must = strcmp(mx_config_text(c, "use_chat_template"), "true") == 0;
    *out = NULL;
    if (!*text && *file)
        MX_TRY(mx_status_wrap(read_chat_file(file, a, &text), "chat_template_path"));
    if (given)
        *given = *text ? text : NULL;
    if (*text)
        return mx_status_wrap(mx_chat_template_open(out, text), *file ? "%s" : "chat_template%s",
                              file);
    bool has = must;
    if (dir && mx_dir_exists(dir) && !must)
        MX_TRY(mx_chat_template_in_dir(dir, &has));
    if (dir && mx_dir_exists(dir) && has)
        return mx_chat_template_open_dir(out, dir, NULL);
    return must ? mx_fail(MX_USAGE, "use_chat_template=true, but there is no folder to find a chat "
                          "template in; give chat_template_path=FILE")
                : MX_OK;
}
