/* model_files.c - see model_files.h. */
#include "train/input/model_files.h"

#include "base/file.h"
#include "base/json_doc.h"
#include "base/reserve.h"
#include "text/tokenizer/tokenizer_files.h"
#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 1 << 30 };

/* What belongs to the weights and not to the tokenizer. */
static const char *const of_weights[] = {"generation_config.json", "processor_config.json",
                                         "preprocessor_config.json",
                                         "video_preprocessor_config.json", NULL};

static mx_hf_extra *find(mx_model_files *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->v[i].name, name) == 0)
            return &f->v[i];
    return NULL;
}

/* Takes the place of a file of that name. */
static void put(mx_model_files *f, const char *name, const char *data, size_t n)
{
    mx_hf_extra *e = find(f, name);
    if (!e) {
        MX_GROW(f->v, f->n, f->cap);
        e = &f->v[f->n++];
    }
    *e = (mx_hf_extra){.name = mx_arena_strdup(&f->arena, name), .data = data, .n_bytes = n};
}

/* The file, if it is there. */
static mx_status read_as(mx_model_files *f, const char *path, const char *name)
{
    char *data;
    size_t n;
    if (!mx_file_exists(path))
        return MX_OK;
    MX_TRY(mx_file_read(&f->arena, path, MAX_BYTES, &data, &n));
    put(f, name, data, n);
    return MX_OK;
}

static mx_status read_names(mx_model_files *f, const char *dir, const char *const *names)
{
    for (; *names; names++)
        MX_TRY(read_as(f, mx_arena_printf(&f->arena, "%s/%s", dir, *names), *names));
    return MX_OK;
}

static mx_status read_folder(mx_model_files *f, const char *dir)
{
    for (int json = 1; json >= 0; json--) { /* slow and fast tokenizers may lie side by side */
        const char *path = mx_tokenizer_vocabulary_in(dir, json, &f->arena);
        if (path)
            MX_TRY(read_as(f, path, strrchr(path, '/') + 1));
    }
    return read_names(f, dir, mx_tokenizer_others);
}

static mx_status read_tokenizer(mx_model_files *f, const mx_model_files_from *from)
{
    static const char *const beside[] = {MX_TOKENIZER_CONFIG, "special_tokens_map.json", NULL};
    const char *file = mx_tokenizer_file(from->tokenizer);
    if (!file)
        return MX_OK;
    if (mx_dir_exists(from->at))
        return read_folder(f, from->at);
    MX_TRY(read_as(f, from->at, file));
    return read_names(f, mx_tokenizer_folder(from->at, &f->arena), beside);
}

/* What no file says goes into tokenizer_config.json: the pattern of a rank file, and bytes. */
static mx_status note(mx_model_files *f, const char *key, const char *text)
{
    mx_hf_extra *e = find(f, MX_TOKENIZER_CONFIG);
    json_t *config = NULL;
    if (e)
        MX_TRY(mx_json_parse(e->data, e->n_bytes, MX_TOKENIZER_CONFIG, NULL, &config));
    if (!json_is_object(config)) {
        json_decref(config);
        config = json_object();
    }
    json_object_set_new(config, key, json_string(text));
    char *written = mx_json_text(config, 2);
    size_t n = strlen(written);
    put(f, MX_TOKENIZER_CONFIG, mx_arena_copy(&f->arena, written, n + 1), n);
    mx_free(written);
    json_decref(config);
    return MX_OK;
}

mx_status mx_model_files_read(mx_model_files *f, const mx_model_files_from *from)
{
    *f = (mx_model_files){0};
    if (from->tokenizer)
        MX_TRY(read_tokenizer(f, from));
    else if (from->model)
        MX_TRY(read_folder(f, from->model));
    if (from->model)
        MX_TRY(read_names(f, from->model, of_weights));
    const char *type = from->tokenizer ? mx_tokenizer_type(from->tokenizer) : "";
    if (from->tokenizer && !mx_tokenizer_file(from->tokenizer))
        MX_TRY(note(f, MX_TOKENIZER_TYPE, type));
    if (strcmp(type, "tiktoken") == 0 && from->pattern && *from->pattern)
        MX_TRY(note(f, MX_TOKENIZER_PATTERN, from->pattern));
    if (from->chat)
        put(f, "chat_template.jinja", mx_arena_strdup(&f->arena, from->chat), strlen(from->chat));
    return mx_memory_check();
}

void mx_model_files_close(mx_model_files *f)
{
    mx_free(f->v);
    mx_arena_fini(&f->arena);
    *f = (mx_model_files){0};
}
