/* hf_dir.c - which files make up a model, and that each is where it should be.
 *
 * A single model.safetensors wins over an index, as in transformers. With an index, only the
 * tensors it lists exist; a listed tensor that its shard does not hold is an error, a shard's
 * further tensors are left alone. All missing shards and tensors are reported at once.
 */
#include "store/hf_dir.h"

#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SHARDS = 10000, MAX_LISTED = 10 };

/* --- paths ---------------------------------------------------------------------------------- */
static bool inside(const char *real, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(real, dir, n) == 0 && (real[n] == '/' || (n && dir[n - 1] == '/'));
}

/* For ".../models--X/snapshots/REV" gives ".../models--X/blobs", else NULL. */
static const char *hub_blobs(mx_hf_dir *d)
{
    char *s = mx_arena_strdup(&d->arena, d->real_path), *rev = strrchr(s, '/');
    if (!rev)
        return NULL;
    *rev = 0;
    char *snapshots = strrchr(s, '/');
    if (!snapshots || strcmp(snapshots, "/snapshots") != 0)
        return NULL;
    *snapshots = 0;
    char *repo = strrchr(s, '/');
    if (!repo || !mx_starts_with(repo + 1, "models--"))
        return NULL;
    return mx_arena_printf(&d->arena, "%s/blobs", s);
}

/* A path inside the directory, checked as above; the file need not be JSON. MX_INPUT when it leads
 * outside; *out is NULL when there is no such file. The string lives in the directory's arena. */
static mx_status hf_dir_file(mx_hf_dir *d, const char *name, const char **out)
{
    *out = NULL;
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        strlen(name) > NAME_MAX)
        return mx_fail(MX_INPUT,
                       "%s: \"%.300s\" is not a plain file name; files of a model must lie "
                       "in its directory",
                       d->path, name);
    const char *path = mx_arena_printf(&d->arena, "%s/%s", d->path, name);
    struct stat s;
    if (lstat(path, &s))
        return errno == ENOENT ? MX_OK : mx_fail_errno(MX_INPUT, "%s", path);
    char *real = realpath(path, NULL);
    if (!real)
        return mx_fail_errno(MX_INPUT, "%s: a symbolic link that leads nowhere", path);
    const char *blobs = hub_blobs(d);
    mx_status st = MX_OK;
    if (!inside(real, d->real_path) && !(blobs && inside(real, blobs)))
        st = mx_fail(MX_INPUT,
                     "%s is a link to %s, outside the model's directory; copy the file "
                     "there, or give the directory it lies in",
                     path, real);
    else
        *out = path;
    free(real);
    return st;
}

mx_status mx_hf_dir_json(mx_hf_dir *d, const char *name, bool required, json_t **out)
{
    const char *path;
    *out = NULL;
    MX_TRY(hf_dir_file(d, name, &path));
    if (!path && required)
        return mx_fail(MX_INPUT,
                       "%s: no %s in this directory; a Hugging Face model directory is "
                       "expected",
                       d->path, name);
    if (!path)
        return MX_OK;
    MX_TRY(mx_json_load(path, NULL, out));
    if (json_is_object(*out))
        return MX_OK;
    mx_status st =
        mx_fail(MX_INPUT, "%s: expected an object and found %s", path, mx_json_kind(*out));
    json_decref(*out);
    *out = NULL;
    return st;
}

/* --- weights -------------------------------------------------------------------------------- */
static int by_name(const void *a, const void *b)
{
    return strcmp((*(const mx_st_tensor *const *)a)->name, (*(const mx_st_tensor *const *)b)->name);
}

static mx_status open_shard(mx_hf_dir *d, const char *name)
{
    const char *path;
    MX_TRY(hf_dir_file(d, name, &path));
    if (!path)
        return mx_fail(MX_INPUT, "%s: shard %s is missing; download it again", d->path, name);
    MX_TRY(mx_st_open(&d->files[d->n_files], path));
    d->n_files++;
    return MX_OK;
}

static mx_status open_single(mx_hf_dir *d)
{
    d->files = MX_NEW(&d->arena, mx_st_file);
    MX_TRY(open_shard(d, d->single));
    const mx_st_file *f = &d->files[0];
    d->tensors = MX_NEW_N(&d->arena, const mx_st_tensor *, f->n_tensors);
    for (; d->n_tensors < f->n_tensors; d->n_tensors++)
        d->tensors[d->n_tensors] = f->by_name[d->n_tensors];
    return MX_OK;
}

/* Opens every shard the map names, and sets each name's slot (the index into d->files). */
static mx_status open_shards(mx_hf_dir *d, json_t *map, json_t *slots)
{
    mx_str wrong = {0};
    mx_status st = MX_OK;
    const char *tensor;
    json_t *shard;
    int n_wrong = 0;
    mx_code code = MX_INPUT;
    json_object_foreach(map, tensor, shard)
    {
        const char *file = json_string_value(shard);
        if (!file) {
            MX_TRY_OUT(st,
                       mx_fail(MX_INPUT, "%s/%s: weight_map.%.200s must be a file name and is %s",
                               d->path, d->index, tensor, mx_json_kind(shard)));
        }
        if (json_object_get(slots, file))
            continue;
        if (!mx_ends_with(file, ".safetensors"))
            MX_TRY_OUT(st, mx_fail(MX_INPUT,
                                   "%s/%s: weight_map names %.300s, which is not a "
                                   "safetensors file",
                                   d->path, d->index, file));
        if (json_object_size(slots) == MAX_SHARDS)
            MX_TRY_OUT(
                st, mx_fail(MX_INPUT, "%s/%s: more than %d shards", d->path, d->index, MAX_SHARDS));
        json_object_set_new(slots, file, json_integer(d->n_files));
        mx_status bad = open_shard(d, file);
        if (mx_status_code(bad) == MX_MEMORY)
            code = MX_MEMORY; /* then it may not be the shard's fault */
        if (bad && n_wrong++ < MAX_LISTED)
            mx_str_addf(&wrong, "%s%s", wrong.len ? "\n" : "", mx_status_text(bad));
        mx_status_free(bad);
    }
    if (n_wrong)
        st = mx_fail(code, "%s%s", wrong.text, n_wrong > MAX_LISTED ? "\n(and more)" : "");
out:
    mx_str_fini(&wrong);
    return st;
}

static mx_status resolve_map(mx_hf_dir *d, json_t *map, json_t *slots)
{
    mx_str missing = {0};
    int n_missing = 0;
    const char *name;
    json_t *shard;
    d->tensors = MX_NEW_N(&d->arena, const mx_st_tensor *, json_object_size(map));
    json_object_foreach(map, name, shard)
    {
        const json_t *slot = json_object_get(slots, json_string_value(shard));
        const mx_st_file *f = &d->files[json_integer_value(slot)];
        const mx_st_tensor *t = mx_st_find(f, name);
        if (t)
            d->tensors[d->n_tensors++] = t;
        else if (n_missing++ < MAX_LISTED)
            mx_str_addf(&missing, "\n  %s, which should be in %s", name, f->path);
    }
    mx_status st = MX_OK;
    if (n_missing)
        st = mx_fail(MX_INPUT, "%s/%s lists %d tensors that its shards do not hold:%s%s", d->path,
                     d->index, n_missing, missing.text, n_missing > MAX_LISTED ? "\n  ..." : "");
    mx_str_fini(&missing);
    qsort(d->tensors, (size_t)d->n_tensors, sizeof *d->tensors, by_name);
    return st;
}

static mx_status open_index(mx_hf_dir *d)
{
    json_t *index = NULL, *slots = json_object();
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_hf_dir_json(d, d->index, true, &index));
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        MX_TRY_OUT(st,
                   mx_fail(MX_INPUT,
                           "%s/%s: \"weight_map\" must be an object of file names and "
                           "is %s",
                           d->path, d->index, json_is_object(map) ? "empty" : mx_json_kind(map)));
    size_t n = json_object_size(map) < MAX_SHARDS ? json_object_size(map) : MAX_SHARDS;
    d->files = MX_NEW_N(&d->arena, mx_st_file, n);
    MX_TRY_OUT(st, open_shards(d, map, slots));
    st = resolve_map(d, map, slots);
out:
    json_decref(slots);
    json_decref(index);
    return st;
}

/* Neither file is there: say what is there instead. */
static mx_status explain_no_weights(const mx_hf_dir *d)
{
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".ckpt", ".pkl", 0};
    DIR *dir = opendir(d->path);
    mx_status st = MX_OK;
    for (struct dirent *e; dir && !st && (e = readdir(dir));) {
        for (int i = 0; pickles[i]; i++)
            if (mx_ends_with(e->d_name, pickles[i]) && !st)
                st = mx_fail(
                    MX_INPUT,
                    "%s/%s is a pickle: loading it would run whatever program is "
                    "in it, so maxc does not; use the model's safetensors files, or convert "
                    "it with transformers' save_pretrained",
                    d->path, e->d_name);
        if (!st && mx_starts_with(e->d_name, "model-") && mx_ends_with(e->d_name, ".safetensors"))
            st = mx_fail(MX_INPUT,
                         "%s holds shards (%s) and no %s that says which tensor is where; "
                         "download it too",
                         d->path, e->d_name, d->index);
    }
    if (dir)
        closedir(dir);
    return st ? st
              : mx_fail(MX_INPUT, "%s: no weights: neither %s nor %s is there", d->path, d->single,
                        d->index);
}

static mx_status open_weights(mx_hf_dir *d)
{
    const char *single, *index;
    MX_TRY(hf_dir_file(d, d->single, &single));
    MX_TRY(hf_dir_file(d, d->index, &index));
    if (!single && !index)
        return explain_no_weights(d);
    MX_TRY(single ? open_single(d) : open_index(d));
    for (int64_t i = 0; i < d->n_tensors; i++)
        d->total_bytes += d->tensors[i]->n_bytes;
    return MX_OK;
}

static mx_status locate(mx_hf_dir *d, const char *path, const char *stem)
{
    d->single = mx_arena_printf(&d->arena, "%s.safetensors", stem);
    d->index = mx_arena_printf(&d->arena, "%s.safetensors.index.json", stem);
    char *p = mx_arena_strdup(&d->arena, path);
    for (size_t n = strlen(p); n > 1 && p[n - 1] == '/'; n--)
        p[n - 1] = 0;
    d->path = p;
    char *real = realpath(p, NULL);
    if (!real)
        return mx_fail_errno(MX_INPUT, "%s: cannot find the model's directory", path);
    d->real_path = mx_arena_strdup(&d->arena, real);
    free(real);
    struct stat s;
    if (stat(d->real_path, &s) || !S_ISDIR(s.st_mode))
        return mx_fail(MX_INPUT,
                       "%s: expected a directory (config.json and safetensors files) and "
                       "found a file",
                       path);
    return MX_OK;
}

static mx_status open_parts(mx_hf_dir *d, const char *path, mx_hf_parts parts)
{
    MX_TRY(locate(d, path, "model"));
    MX_TRY(mx_hf_dir_json(d, "config.json", parts != MX_HF_WEIGHTS_ONLY, &d->config));
    MX_TRY(mx_hf_dir_json(d, "generation_config.json", false, &d->generation_config));
    return parts == MX_HF_CONFIG_ONLY ? MX_OK : open_weights(d);
}

mx_status mx_hf_dir_open(mx_hf_dir *d, const char *path, mx_hf_parts parts)
{
    *d = (mx_hf_dir){0};
    mx_status st = open_parts(d, path, parts);
    if (st)
        mx_hf_dir_close(d);
    return st;
}

mx_status mx_hf_dir_open_set(mx_hf_dir *d, const char *path, const char *stem)
{
    *d = (mx_hf_dir){0};
    mx_status st = locate(d, path, stem);
    if (!st)
        st = open_weights(d);
    if (st)
        mx_hf_dir_close(d);
    return st;
}

void mx_hf_dir_close(mx_hf_dir *d)
{
    for (int i = 0; i < d->n_files; i++)
        mx_st_close(&d->files[i]);
    json_decref(d->config);
    json_decref(d->generation_config);
    mx_arena_fini(&d->arena);
    *d = (mx_hf_dir){0};
}

const mx_st_tensor *mx_hf_dir_find(const mx_hf_dir *d, const char *name)
{
    mx_st_tensor key = {.name = name};
    const mx_st_tensor *p = &key;
    const mx_st_tensor **hit =
        bsearch(&p, d->tensors, (size_t)d->n_tensors, sizeof *d->tensors, by_name);
    return hit ? *hit : NULL;
}
