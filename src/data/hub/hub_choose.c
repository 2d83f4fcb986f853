/* hub_choose.c - which files of a dataset repository hold a split.
 *
 * Repositories say it by their names: data/train-00000-of-00002.parquet, en/c4-train.00001.json.gz,
 * train.jsonl, validation/part-0.parquet. A file belongs to a split when a word of its path is the
 * split's name or one of its usual other names. Where no file says "train", all data files are.
 */
#include "data/load/folder.h"
#include "data/hub/hub.h"

#include <string.h>

static bool is_data(const char *path)
{
    static const char *const endings[] = {".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz",
                                          ".jsonl.zst", ".json.zst", ".arrow", ".txt", ".tfrecord",
                                          ".arrayrecord", ".array_record", ".npy", ".bin"};
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (mx_is_dataset_card(path))
        return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (mx_ends_with(path, endings[i]))
            return *base != '.';
    return false;
}

static bool has_word(const char *path, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = path; (p = strstr(p, word)); p++) {
        bool begins = p == path || strchr("/-_. ", p[-1]), ends = !p[n] || strchr("/-_. ", p[n]);
        if (begins && ends)
            return true;
    }
    return false;
}

static bool of_split(const char *path, const char *split)
{
    static const char *const other[][4] = {{"train", "training", NULL},
                                           {"validation", "valid", "val", "dev"},
                                           {"test", "eval", "testing", NULL}};
    if (has_word(path, split))
        return true;
    for (int i = 0; i < 3; i++)
        if (strcmp(split, other[i][0]) == 0)
            for (int k = 1; k < 4 && other[i][k]; k++)
                if (has_word(path, other[i][k]))
                    return true;
    return false;
}

void mx_hub_choose(char *const *names, int n, const char *name, const char *data_dir,
                   const char *split, mx_str *out)
{
    size_t dir = strlen(data_dir);
    while (dir && data_dir[dir - 1] == '/')
        dir--;
    for (int strict = 1; strict >= 0 && out->len == 0; strict--)
        for (int i = 0; i < n; i++) {
            const char *p = names[i];
            if (!is_data(p) || (dir && (strncmp(p, data_dir, dir) != 0 || p[dir] != '/')) ||
                (*name && !has_word(p, name)))
                continue;
            if (strict ? !of_split(p, split)
                       : strcmp(split, "train") != 0 || of_split(p, "validation") ||
                             of_split(p, "test"))
                continue;
            mx_str_addf(out, "%s%s", out->len ? "," : "", p);
        }
}
