/* tokenizer_files.c - see tokenizer_files.h. */
#include "text/tokenizer/tokenizer_files.h"

#include "base/file.h"
#include "base/json_tree.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define VOCABULARIES(X) X("tokenizer.json") X("tokenizer.model") X("tiktoken.model") X("*.tiktoken")
#define OTHERS(X)                                                                                  \
    X(MX_TOKENIZER_CONFIG) X("special_tokens_map.json") X("added_tokens.json") X("vocab.json")     \
    X("merges.txt") X("chat_template.jinja") X("chat_template.json")

#define ROW(name) name,
#define PATTERN(name) name ","
const char *const mx_tokenizer_vocabularies[] = {VOCABULARIES(ROW) NULL};
const char *const mx_tokenizer_others[] = {OTHERS(ROW) NULL};
const char mx_tokenizer_patterns[] = VOCABULARIES(PATTERN) OTHERS(PATTERN);

/* The first file of the directory, by name, that the pattern fits; NULL: none. */
static const char *first_match(const char *dir, const char *pattern, mx_arena *a)
{
    char best[256] = "";
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (mx_glob_match(pattern, e->d_name) && (!*best || strcmp(e->d_name, best) < 0))
            snprintf(best, sizeof best, "%s", e->d_name);
    if (d)
        closedir(d);
    return *best ? mx_arena_printf(a, "%s/%s", dir, best) : NULL;
}

const char *mx_tokenizer_vocabulary_in(const char *dir, int json, mx_arena *a)
{
    for (const char *const *name = mx_tokenizer_vocabularies; *name; name++) {
        const char *path = strchr(*name, '*') ? first_match(dir, *name, a)
                                              : mx_arena_printf(a, "%s/%s", dir, *name);
        bool fits = json < 0 || json == mx_ends_with(*name, ".json");
        if (fits && path && mx_file_exists(path))
            return path;
    }
    return NULL;
}

const char *mx_tokenizer_folder(const char *file, mx_arena *a)
{
    const char *slash = strrchr(file, '/');
    return slash ? mx_arena_printf(a, "%.*s", slash > file ? (int)(slash - file) : 1, file) : ".";
}

bool mx_tokenizer_is_vocabulary(const char *name)
{
    for (const char *const *v = mx_tokenizer_vocabularies; *v; v++)
        if (mx_glob_match(*v, name))
            return true;
    return false;
}

const char *mx_tokenizer_config_text(const char *dir, const char *key, mx_arena *a)
{
    const mx_json_node *config = NULL;
    const char *path = mx_arena_printf(a, "%s/" MX_TOKENIZER_CONFIG, dir);
    if (mx_file_exists(path))
        mx_status_free(mx_json_tree_load(&config, a, path)); /* a tokenizer works without it */
    return mx_json_get_text(config, key, NULL);
}

bool mx_tokenizer_is_in(const char *dir)
{
    mx_arena a = {0};
    bool is = mx_tokenizer_vocabulary_in(dir, -1, &a) ||
              mx_tokenizer_config_text(dir, MX_TOKENIZER_TYPE, &a);
    mx_arena_fini(&a);
    return is;
}
