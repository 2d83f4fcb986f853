/* tokenizer_path.c - from tokenizer_path to an open tokenizer.
 *
 * A path that exists here is taken as it is. Otherwise "org/name" (one slash, none of the
 * beginnings of a path) is a model on the Hugging Face hub, of which the small files that make up a
 * tokenizer are fetched into the shared cache.
 */
#include "train/tokenizer_path.h"

#include "data/hub.h"
#include <string.h>
#include <unistd.h>

static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && *path != '.' &&
           *path != '~';
}

static mx_status fetch(const mx_config *c, const char *name, mx_arena *a, const char **folder)
{
    mx_hub_request r = {.repo = name, .model = true,
                        .pattern = "tokenizer*,*.tiktoken,tiktoken.model,chat_template*,"
                                   "special_tokens_map.json,added_tokens.json,config.json,"
                                   "generation_config.json"};
    if (mx_config_has(c, "hf_access_token"))
        r.token = mx_config_text(c, "hf_access_token");
    char **paths, *at;
    int n;
    MX_TRY(mx_status_wrap(mx_hub_fetch(&r, a, &paths, &n, &at),
                          "tokenizer_path=%s is no file or folder here, so it was looked for on "
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
    if (is_hub_name(path) && access(path, F_OK) != 0)
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
