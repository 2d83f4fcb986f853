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
 *
 * Data that is given is used or refused: a key that names data and that the kind of data does not
 * read is an error. Evaluation has data of its own, a split, or a share that is held out of the
 * training data (eval_split=0.01); it never takes what nobody named.
 */
#include "train/input/train_sets.h"

#include "base/file.h"
#include "base/json_doc.h"
#include "data/load/folder.h"
#include "data/hub/hub.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Keys that name data: of the training data, then of evaluation. */
typedef enum {
    DATASET_PATH, DATASET_NAME, HF_PATH, HF_NAME, HF_DATA_DIR, HF_TRAIN_FILES,
    GRAIN_TRAIN_FILES, GRAIN_MIXTURE, TRAIN_SPLIT,
    EVAL_DATASET_PATH, EVAL_DATASET_NAME, HF_EVAL_SPLIT, HF_EVAL_FILES, GRAIN_EVAL_FILES,
    N_NAMED,
    N_TRAIN = EVAL_DATASET_PATH
} data_key;

static const char *const named[N_NAMED] = {
    [DATASET_PATH] = "dataset_path",
    [DATASET_NAME] = "dataset_name",
    [HF_PATH] = "hf_path",
    [HF_NAME] = "hf_name",
    [HF_DATA_DIR] = "hf_data_dir",
    [HF_TRAIN_FILES] = "hf_train_files",
    [GRAIN_TRAIN_FILES] = "grain_train_files",
    [GRAIN_MIXTURE] = "grain_train_mixture_config_path",
    [TRAIN_SPLIT] = "train_split",
    [EVAL_DATASET_PATH] = "eval_dataset_path",
    [EVAL_DATASET_NAME] = "eval_dataset_name",
    [HF_EVAL_SPLIT] = "hf_eval_split",
    [HF_EVAL_FILES] = "hf_eval_files",
    [GRAIN_EVAL_FILES] = "grain_eval_files",
};

typedef struct {
    const mx_config *c;
    bool evaluation;
    mx_arena *a;
    mx_dataset_options *sets;
    int n;
    unsigned read; /* a bit for each of `named` whose value was used */
} ctx;

static const char *text(ctx *x, data_key k)
{
    x->read |= 1u << k;
    return mx_config_text(x->c, named[k]);
}

static const char *key(ctx *x, data_key train, data_key evaluation)
{
    return text(x, x->evaluation ? evaluation : train);
}

/* Whether a key says something, which alone is no reason to count it as read. */
static bool says(const ctx *x, data_key k)
{
    return *mx_config_text(x->c, named[k]) != 0;
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
    json_t *o, *v;
    const char *name;
    mx_status st = mx_json_load(path, NULL, &o);
    if (!st && !json_is_object(o))
        st = mx_fail(MX_INPUT, "%s: expected a JSON object of datasets, found %s", path,
                     mx_json_kind(o));
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

/* eval_split has a default, so it alone says nothing of data. */
static const char *split_of(ctx *x, bool own)
{
    if (!x->evaluation)
        return text(x, TRAIN_SPLIT);
    return own ? text(x, HF_EVAL_SPLIT) : mx_config_text(x->c, "eval_split");
}

/* The names that hold the split, of a repository or of a folder like one. */
static mx_status choose(ctx *x, const char *where, char **names, int n, mx_str *chosen)
{
    const char *split = split_of(x, says(x, HF_EVAL_SPLIT));
    mx_hub_choose(names, n, text(x, HF_NAME), text(x, HF_DATA_DIR), split, chosen);
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
                        .pattern = key(x, HF_TRAIN_FILES, HF_EVAL_FILES), .progress = show,
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
    const char *path = text(x, HF_PATH),
               *files = key(x, HF_TRAIN_FILES, HF_EVAL_FILES);
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
    const char *root = text(x, DATASET_PATH), *dir = root, *own;
    const char *name = text(x, DATASET_NAME), *split;
    if (x->evaluation && *(own = text(x, EVAL_DATASET_PATH)))
        root = own;
    if (x->evaluation && *(own = text(x, EVAL_DATASET_NAME)))
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
    split = split_of(x, false);
    dir = own ? own : dir;
    return add(x, mx_arena_printf(x->a, "%s/*-%s.*", dir, split), NULL, 1);
}

static mx_status add_grain(ctx *x)
{
    const char *kind = mx_config_text(x->c, "grain_file_type");
    if (says(x, GRAIN_MIXTURE) && !x->evaluation)
        return add_mixture_file(x, text(x, GRAIN_MIXTURE), kind);
    return add_list(x, key(x, GRAIN_TRAIN_FILES, GRAIN_EVAL_FILES), kind);
}

static mx_status by_type(ctx *x, const char *type)
{
    data_key path = x->evaluation ? EVAL_DATASET_PATH : DATASET_PATH;
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
        return add_list(x, text(x, path), "tokens");
    if (*type || says(x, path))
        return add_list(x, text(x, path), *type ? type : NULL);
    if (says(x, x->evaluation ? HF_EVAL_FILES : HF_TRAIN_FILES) || says(x, HF_PATH))
        return add_hf(x);
    if (says(x, x->evaluation ? GRAIN_EVAL_FILES : GRAIN_TRAIN_FILES) ||
        says(x, GRAIN_MIXTURE))
        return add_grain(x);
    bool own = says(x, DATASET_PATH) || says(x, HF_TRAIN_FILES) || says(x, GRAIN_TRAIN_FILES);
    return own ? MX_OK : add(x, "", "story", 1); /* text of one's own is not judged by stories */
}

const char *mx_data_made_name(const char *kind)
{
    return !kind                          ? NULL
           : strcmp(kind, "story") == 0     ? "the built-in stories and sums, without an end"
           : strcmp(kind, "synthetic") == 0 ? "random tokens, without an end"
                                            : NULL;
}

bool mx_data_is_made(const char *kind)
{
    return mx_data_made_name(kind) != NULL;
}

/* Whether the user names data with this key. In a base.yml it is a default: MaxText's has a
 * dataset_name, whatever data a run takes. */
static bool is_named(const mx_config *c, int k)
{
    return mx_config_is_users(c, named[k]) && !mx_config_is_own_base(c, named[k]) &&
           *mx_config_text(c, named[k]) && !mx_config_is_default(c, named[k]);
}

/* eval_split as a share of the training data that is held out; 0 when it is the name of a split. */
static double eval_share(const mx_config *c)
{
    double share = 0;
    return mx_parse_f64(mx_config_text(c, "eval_split"), &share) ? share : 0;
}

/* Training: keys of the training data that were set and not read. The same for evaluation. */
static mx_status refuse_unread(const ctx *x, const char *type)
{
    mx_status all = MX_OK;
    int first = x->evaluation ? N_TRAIN : 0, last = x->evaluation ? N_NAMED : N_TRAIN;
    for (int i = first; i < last; i++) {
        if (x->read >> i & 1 || !is_named(x->c, i))
            continue;
        const char *where = mx_config_where(x->c, named[i]);
        mx_status st =
            eval_share(x->c) && x->evaluation
                ? mx_fail(MX_USAGE, "%s: `%s` names data, but eval_split=%s holds out a share of "
                          "the training data; leave out one of the two",
                          where, named[i], mx_config_text(x->c, "eval_split"))
            : *type ? mx_fail(MX_USAGE, "%s: `%s` names data, but dataset_type=%s (%s) does not "
                              "read it; leave out one of the two",
                              where, named[i], type, mx_config_where(x->c, "dataset_type"))
                    : mx_fail(MX_USAGE, "%s: `%s` names data, and another key does so too; leave "
                              "out one of them, or let dataset_type choose",
                              where, named[i]);
        all = mx_status_join(all, st);
    }
    return all;
}

mx_status mx_eval_data_refuse(const mx_config *c)
{
    for (int i = N_TRAIN; i < N_NAMED; i++)
        if (is_named(c, i))
            return mx_fail(MX_USAGE,
                           "%s: `%s` names data to evaluate on, but eval_interval=%lld does not "
                           "evaluate; set eval_interval to the steps between evaluations, or "
                           "leave it out",
                           mx_config_where(c, named[i]), named[i],
                           (long long)mx_config_int(c, "eval_interval"));
    return MX_OK;
}

static mx_status no_files(const ctx *x, const char *type)
{
    if (x->evaluation)
        return mx_fail(MX_USAGE,
                       "there is nothing to evaluate on; name data (%s), hold out a share of the "
                       "training data (eval_split=0.01), or do not evaluate (eval_interval=-1)",
                       strcmp(type, "grain") == 0 ? "grain_eval_files" : "eval_dataset_path");
    return mx_fail(MX_USAGE, "dataset_type=%s, but no files are named; set %s", type,
                   strcmp(type, "hf") == 0      ? "hf_path"
                   : strcmp(type, "grain") == 0 ? "grain_train_files"
                                                : "dataset_path");
}

mx_status mx_train_sets(const mx_config *c, bool evaluation, mx_arena *a, mx_dataset_options **sets,
                        int *n)
{
    double share = eval_share(c);
    ctx x = {.c = c, .evaluation = evaluation && !share, .a = a};
    x.sets = MX_NEW_N(a, mx_dataset_options, MX_MIX_MAX);
    const char *type = mx_config_text(c, "dataset_type");
    MX_TRY(by_type(&x, type));
    if (evaluation && share)
        x.evaluation = true; /* its own keys are not read beside a share */
    MX_TRY(refuse_unread(&x, type));
    if (x.n == 0)
        return no_files(&x, type);
    if (share && mx_data_is_made(x.sets[0].kind))
        return mx_fail(MX_USAGE, "%s: eval_split=%s holds out a share of files, but this data is "
                       "made, and evaluation has its own; leave it out",
                       mx_config_where(c, "eval_split"), mx_config_text(c, "eval_split"));
    for (int i = 0; i < x.n; i++) {
        x.sets[i].held_share = share;
        x.sets[i].held_out = evaluation;
    }
    *sets = x.sets;
    *n = x.n;
    return MX_OK;
}
