/* train_sets.c - dataset_type and the keys beside it, as MaxText has them.
 *
 *   synthetic                 random tokens
 *   corpus                    the built-in stories and sums; also when nothing is named at all
 *   text, jsonl, parquet ...  dataset_path; empty type: found from the files
 *   hf                        hf_path: a hub dataset or such a folder on this machine (hf_name,
 *                             hf_data_dir, train_split, hf_train_files choose its files), or a
 *                             format's name with hf_train_files
 *   grain                     grain_train_files, or grain_train_mixture_config_path:
 *                             {"NAME": {"path": ..., "weight": ...}}
 *   tfds, c4_mlperf           dataset_path / dataset_name ("c4/en:3.1.0" is c4/en/3.1.0; without a
 *                             version the highest), by split
 *   olmo_grain                token files
 * Any list of paths may be a mixture: "a*.jsonl,0.3;b*.parquet,0.7". A number after the last
 * comma of a part is its weight.
 */
#include "train/train_sets.h"

#include "base/file.h"
#include "data/folder.h"
#include "data/hub.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const mx_config *c;
    bool evaluation;
    mx_arena *a;
    mx_dataset_options *sets;
    int n;
} ctx;

static const char *key(const ctx *x, const char *train, const char *evaluation)
{
    return mx_config_text(x->c, x->evaluation ? evaluation : train);
}

static mx_status add(ctx *x, const char *paths, const char *kind, double weight)
{
    if (x->n == MX_MIX_MAX)
        return mx_fail(MX_USAGE, "more than %d datasets in a mixture", MX_MIX_MAX);
    x->sets[x->n++] = (mx_dataset_options){.paths = paths, .kind = kind, .weight = weight};
    return MX_OK;
}

/* "a,b,0.3;c" : two sets. */
static mx_status add_list(ctx *x, const char *list, const char *kind)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ";");
        char *part = mx_arena_printf(x->a, "%.*s", (int)n, p), *comma = strrchr(part, ',');
        double weight = 1;
        if (comma && mx_parse_f64(comma + 1, &weight))
            *comma = 0;
        else
            weight = 1;
        if (*part)
            MX_TRY(add(x, part, kind, weight));
        p += n + (p[n] == ';');
    }
    return MX_OK;
}

static mx_status add_mixture_file(ctx *x, const char *path, const char *kind)
{
    json_error_t err;
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, &err), *v;
    const char *name;
    mx_status st = MX_OK;
    if (!json_is_object(o))
        st = mx_fail(MX_INPUT, "%s: expected a JSON object of datasets: %s", path,
                     o ? "found another" : err.text);
    json_object_foreach (o, name, v) {
        const char *files = json_string_value(json_object_get(v, "path"));
        json_t *w = json_object_get(v, "weight");
        if (!st && (!files || (w && !json_is_number(w))))
            st = mx_fail(MX_INPUT, "%s: dataset \"%s\" needs a path, and a number as its weight",
                         path, name);
        if (!st)
            st = add(x, mx_arena_strdup(x->a, files), kind, w ? json_number_value(w) : 1);
    }
    json_decref(o);
    return st;
}

static void show(void *context, const char *file, int64_t done, int64_t total)
{
    int64_t *last = context; /* one line every 64 MiB, and at the end */
    if (done - *last < 64 << 20 && done != total)
        return;
    *last = done == total ? 0 : done;
    fprintf(stderr, "fetching %s: %.1f of %.1f MB\n", file, (double)done / 1e6,
            (double)total / 1e6);
}

/* The names that hold the split, of a repository or of a folder like one. */
static mx_status choose(ctx *x, const char *where, char **names, int n, mx_str *chosen)
{
    const char *split = key(
        x, "train_split", *mx_config_text(x->c, "hf_eval_split") ? "hf_eval_split" : "eval_split");
    mx_hub_choose(names, n, mx_config_text(x->c, "hf_name"), mx_config_text(x->c, "hf_data_dir"),
                  split, chosen);
    if (chosen->len)
        return MX_OK;
    return mx_fail(MX_INPUT,
                   "%s: none of its %d files is data of the split \"%s\"; set %s, or name the "
                   "files with %s",
                   where, n, split, x->evaluation ? "hf_eval_split" : "train_split",
                   x->evaluation ? "hf_eval_files" : "hf_train_files");
}

static mx_status add_hub(ctx *x, const char *repo)
{
    mx_hub_request r = {.repo = repo, .token = mx_config_text(x->c, "hf_access_token"),
                        .pattern = key(x, "hf_train_files", "hf_eval_files"), .progress = show,
                        .ctx = &(int64_t){0}};
    char **names, **paths, *folder;
    int n;
    mx_str chosen = {0}, list = {0};
    if (!*r.pattern) {
        MX_TRY(mx_hub_list(&r, x->a, &names, &n));
        MX_TRY(choose(x, repo, names, n, &chosen));
        r.pattern = chosen.text;
    }
    mx_status st = mx_hub_fetch(&r, x->a, &paths, &n, &folder);
    for (int i = 0; !st && i < n; i++) {
        if (strchr(paths[i], ','))
            st = mx_fail(MX_INPUT, "%s: a path with a comma cannot be used", paths[i]);
        mx_str_addf(&list, "%s%s", i ? "," : "", paths[i]);
    }
    if (!st)
        st = add(x, mx_arena_strdup(x->a, mx_str_text(&list)), NULL, 1);
    mx_str_fini(&chosen);
    mx_str_fini(&list);
    return st;
}

/* A folder on this machine as it would be on the hub, or as save_to_disk leaves it. */
static mx_status add_hf_folder(ctx *x, const char *dir)
{
    char **names;
    int n;
    mx_str chosen = {0}, list = {0};
    MX_TRY(mx_folder_files(dir, x->a, &names, &n));
    MX_TRY(choose(x, dir, names, n, &chosen));
    for (const char *p = chosen.text; *p;) {
        size_t k = strcspn(p, ",");
        mx_str_addf(&list, "%s%s/%.*s", list.len ? "," : "", dir, (int)k, p);
        p += k + (p[k] == ',');
    }
    mx_status st = add(x, mx_arena_strdup(x->a, list.text), NULL, 1);
    mx_str_fini(&chosen);
    mx_str_fini(&list);
    return st;
}

static mx_status add_hf(ctx *x)
{
    static const char *const formats[][2] = {{"json", "jsonl"},
                                             {"jsonl", "jsonl"},
                                             {"parquet", "parquet"},
                                             {"text", "text"},
                                             {"arrow", "arrow"}};
    const char *path = mx_config_text(x->c, "hf_path"),
               *files = key(x, "hf_train_files", "hf_eval_files");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(path, formats[i][0]) == 0)
            return add_list(x, files, formats[i][1]);
    if (strcmp(path, "csv") == 0 || strcmp(path, "webdataset") == 0)
        return mx_fail(MX_USAGE, "hf_path=%s: files of this format are not read; convert them to "
                                 "JSON lines or Parquet",
                       path);
    if (*path && access(path, R_OK) != 0)
        return add_hub(x, path);
    if (*path && *files)
        return add_list(x, mx_arena_printf(x->a, "%s/%s", path, files), NULL);
    if (*path && mx_dir_exists(path))
        return add_hf_folder(x, path);
    return add_list(x, *path ? path : files, NULL);
}

static mx_status add_tfds(ctx *x)
{
    const char *root = mx_config_text(x->c, "dataset_path"), *dir = root, *own;
    const char *name = mx_config_text(x->c, "dataset_name"), *split;
    if (x->evaluation && *(own = mx_config_text(x->c, "eval_dataset_path")))
        root = own;
    if (x->evaluation && *(own = mx_config_text(x->c, "eval_dataset_name")))
        name = own;
    if (!*root)
        return MX_OK; /* reported with the key to set */
    char *below = mx_arena_strdup(x->a, name);
    for (char *c = below; *c; c++)
        *c = *c == ':' ? '/' : *c;
    dir = *below ? mx_arena_printf(x->a, "%s/%s", root, below) : root;
    if (!mx_dir_exists(dir))
        return mx_fail(MX_INPUT,
                       "%s: no such folder; dataset_type=tfds looks for dataset_path/dataset_name, "
                       "where \"c4/en:3.1.0\" is the folder c4/en/3.1.0",
                       dir);
    own = mx_folder_latest_version(dir, x->a);
    split = key(x, "train_split", "eval_split");
    dir = own ? own : dir;
    return add(x, mx_arena_printf(x->a, "%s/*-%s.*", dir, split), NULL, 1);
}

static mx_status add_grain(ctx *x)
{
    const char *kind = mx_config_text(x->c, "grain_file_type");
    const char *file = mx_config_text(x->c, "grain_train_mixture_config_path");
    if (*file && !x->evaluation)
        return add_mixture_file(x, file, kind);
    return add_list(x, key(x, "grain_train_files", "grain_eval_files"), kind);
}

static mx_status by_type(ctx *x, const char *type)
{
    const char *path = key(x, "dataset_path", "eval_dataset_path");
    if (strcmp(type, "synthetic") == 0)
        return add(x, "", "synthetic", 1);
    if (strcmp(type, "corpus") == 0)
        return add(x, "", "story", 1);
    if (strcmp(type, "hf") == 0)
        return add_hf(x);
    if (strcmp(type, "grain") == 0)
        return add_grain(x);
    if (strcmp(type, "tfds") == 0 || strcmp(type, "c4_mlperf") == 0)
        return add_tfds(x);
    if (strcmp(type, "olmo_grain") == 0)
        return add_list(x, path, "tokens");
    if (*type || *path)
        return add_list(x, path, *type ? type : NULL);
    if (*key(x, "hf_train_files", "hf_eval_files") || *mx_config_text(x->c, "hf_path"))
        return add_hf(x);
    if (*key(x, "grain_train_files", "grain_eval_files") ||
        *mx_config_text(x->c, "grain_train_mixture_config_path"))
        return add_grain(x);
    return add(x, "", "story", 1);
}

mx_status mx_train_sets(const mx_config *c, bool evaluation, mx_arena *a, mx_dataset_options **sets,
                        int *n)
{
    ctx x = {.c = c, .evaluation = evaluation, .a = a};
    x.sets = MX_NEW_N(a, mx_dataset_options, MX_MIX_MAX);
    const char *type = mx_config_text(c, "dataset_type");
    MX_TRY(by_type(&x, type));
    if (x.n == 0)
        return mx_fail(MX_USAGE, "dataset_type=%s, but no files are named; set %s", type,
                       strcmp(type, "hf") == 0      ? "hf_path"
                       : strcmp(type, "grain") == 0 ? "grain_train_files"
                       : evaluation                 ? "eval_dataset_path"
                                                    : "dataset_path");
    *sets = x.sets;
    *n = x.n;
    return MX_OK;
}
