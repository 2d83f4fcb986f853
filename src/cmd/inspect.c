/* inspect.c - maxc inspect PATH: what is in a file or folder, found from what it is.
 *
 *   a safetensors file, a folder with some    tensors: names, types, shapes, bytes
 *   a tokenizer (file or folder)              kind, vocabulary, special tokens
 *   a data file of any kind                   format, records, columns, and the first records
 *                                             (inspect_data.c)
 *   a run folder                              command, last step, checkpoints (inspect_run.c),
 *                                             curves of its loss, or of its reward and the length
 *                                             of answers (inspect_curve.c), and these over time
 *                                             (inspect_samples.c)
 *   a folder of runs, several run folders     a table; of two what differs (inspect_runs.c)
 * A folder may be a model's: then its tensors and its tokenizer are both shown. Folders in a folder
 * are listed by name.
 */
#include "base/shown.h"
#include "cmd/inspect_data.h"
#include "cmd/inspect_run.h"
#include "cmd/run_summary.h"
#include "cmd/verb.h"
#include "models/model.h"
#include "store/hf_dir.h"
#include "store/quant_hints.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_files.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const char *path;
    int64_t n; /* how many records or tensors to show */
    mx_str out;
    int shown; /* parts that were recognised */
} report;

/* --- tensors --- */

static mx_status show_tensors(report *r, const char *path)
{
    mx_st_file f = {0};
    char shape[256], size[32];
    uint64_t total = 0;
    MX_TRY(mx_st_open(&f, path));
    for (int64_t i = 0; i < f.n_tensors; i++)
        total += f.tensors[i].n_bytes;
    mx_str_addf(&r->out, "format: safetensors\nfile: %s\ntensors: %lld, %s\n", path,
                (long long)f.n_tensors, mx_format_bytes(size, sizeof size, (double)total));
    for (int i = 0; i < f.n_metadata; i++)
        mx_str_addf(&r->out, "metadata: %s = %.200s\n", f.metadata[i].key, f.metadata[i].value);
    for (int64_t i = 0; i < f.n_tensors && i < r->n; i++)
        mx_str_addf(&r->out, "tensor: %s %s\n", f.by_name[i]->name,
                    mx_st_describe(f.by_name[i], shape, sizeof shape));
    if (f.n_tensors > r->n)
        mx_str_addf(&r->out, "... and %lld more (limit=%lld shows all)\n",
                    (long long)(f.n_tensors - r->n), (long long)f.n_tensors);
    mx_st_close(&f);
    r->shown++;
    return MX_OK;
}

/* --- tokenizers --- */

static mx_status show_tokenizer(report *r, const char *path)
{
    mx_tokenizer *t;
    MX_TRY(mx_tokenizer_open(&t, path, NULL));
    const struct {
        const char *name;
        int32_t id;
    } marks[] = {{"begin", mx_tokenizer_bos(t)},
                 {"end", mx_tokenizer_eos(t)},
                 {"padding", mx_tokenizer_pad(t)}};
    mx_str_addf(&r->out, "tokenizer: %s\nvocabulary: %d\n", mx_tokenizer_kind(t),
                mx_tokenizer_vocab_size(t));
    for (size_t i = 0; i < 3; i++) {
        size_t n = 0;
        const char *text = marks[i].id >= 0 ? mx_tokenizer_token(t, marks[i].id, &n) : NULL;
        if (text)
            mx_str_addf(&r->out, "%s: %d %.*s\n", marks[i].name, marks[i].id, (int)n, text);
    }
    int special = 0;
    for (int32_t id = 0; id < mx_tokenizer_vocab_size(t); id++)
        special += mx_tokenizer_is_special(t, id);
    mx_str_addf(&r->out, "special tokens: %d\n", special);
    mx_tokenizer_close(t);
    r->shown++;
    return MX_OK;
}

/* --- what it is --- */

static bool has_file(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, R_OK) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static mx_status show_folder(report *r)
{
    struct dirent **names;
    mx_status st = MX_OK;
    int n = scandir(r->path, &names, NULL, by_name);
    if (n < 0)
        return mx_fail_errno(MX_INPUT, "%s: this folder cannot be read", r->path);
    mx_str_addf(&r->out, "folder: %s\n", r->path);
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat s;
        snprintf(path, sizeof path, "%s/%s", r->path, names[i]->d_name);
        bool dots = names[i]->d_name[0] == '.';
        if (!st && !dots && mx_ends_with(path, ".safetensors"))
            st = show_tensors(r, path);
        else if (!dots && stat(path, &s) == 0 && S_ISDIR(s.st_mode))
            mx_str_addf(&r->out, "folder: %s\n", path);
        mx_free(names[i]); /* scandir's memory comes from malloc, as ours does */
    }
    mx_free(names);
    if (!st && mx_tokenizer_is_in(r->path))
        st = show_tokenizer(r, r->path);
    return st;
}

/* Names of fields, tensors and tokens are whatever a file says. */
static void print_text(const mx_str *text)
{
    mx_str shown = {0};
    mx_str_add_shown(&shown, mx_str_text(text), text->len);
    fputs(mx_str_text(&shown), stdout);
    mx_str_fini(&shown);
}

static void print_json(const mx_str *text)
{
    json_t *o = mx_inspect_lines(mx_str_text(text));
    char *out = json_dumps(o, JSON_INDENT(1) | JSON_SORT_KEYS);
    puts(out);
    mx_free(out);
    json_decref(o);
}

/* A number of the configuration by MaxText's name for it; 0: the family has none. */
static int64_t number_of(const mx_model_spec *m, const char *maxtext)
{
    for (const mx_model *f = m->family; f; f = f->text)
        for (const mx_cfg_field *k = f->fields; k && k->key; k++)
            if (k->kind == MX_CFG_WHOLE && k->maxtext && strcmp(k->maxtext, maxtext) == 0)
                return *(const int64_t *)((const char *)m->config + k->offset);
    return 0;
}

static void show_sizes(report *r, const mx_model_spec *m)
{
    int64_t heads = number_of(m, "base_num_query_heads"), kv = number_of(m, "base_num_kv_heads");
    mx_str_addf(&r->out, "layers: %lld\nwidth: %lld\n", (long long)m->summary.n_layers,
                (long long)m->summary.d_model);
    if (heads)
        mx_str_addf(&r->out, "heads: %lld\n", (long long)heads);
    if (kv)
        mx_str_addf(&r->out, "heads of keys and values: %lld\n", (long long)kv);
    if (m->summary.max_positions)
        mx_str_addf(&r->out, "context: %lld\n", (long long)m->summary.max_positions);
}

/* How weights are stored, or why they cannot be read. */
static void show_quantization(report *r, const json_t *config)
{
    mx_quant_hints h;
    mx_status st = mx_quant_hints_read(&h, config, "config.json");
    if (st)
        mx_str_addf(&r->out, "quantization: not read: %s\n", mx_status_text(st));
    else if (h.method)
        mx_str_addf(&r->out, "quantization: %s\n", h.method);
    mx_status_free(st);
}

/* The family, its sizes and the number of weights of a folder with config.json and weights. */
static mx_status show_model(report *r)
{
    mx_hf_dir dir = {0};
    mx_model_spec m = {0};
    char count[32], size[32];
    int64_t n = 0;
    MX_TRY(mx_hf_dir_open(&dir, r->path, MX_HF_ALL));
    for (int64_t i = 0; i < dir.n_tensors; i++)
        n += dir.tensors[i]->n;
    mx_status st = mx_model_from_json(&m, dir.config, r->path);
    mx_str_addf(&r->out, "family: %s\nparameters: %s (%lld)\nbytes: %s\n",
                st ? "not known" : m.family->name, mx_format_count(count, sizeof count, (double)n),
                (long long)n, mx_format_bytes(size, sizeof size, (double)dir.total_bytes));
    if (!st)
        show_sizes(r, &m);
    show_quantization(r, dir.config);
    mx_status_free(st); /* a model we cannot run can be looked at */
    mx_model_spec_fini(&m);
    mx_hf_dir_close(&dir);
    r->shown++;
    return MX_OK;
}

/* What is no run. */
static mx_status show_path(report *r, bool is_folder, bool *json)
{
    const char *base = strrchr(r->path, '/');
    base = base ? base + 1 : r->path;
    if (is_folder) {
        if (has_file(r->path, "config.json"))
            mx_status_free(show_model(r)); /* what is wrong with it shows below */
        return show_folder(r);
    }
    if (mx_ends_with(base, ".safetensors"))
        return show_tensors(r, r->path);
    if (mx_tokenizer_is_vocabulary(base) || mx_ends_with(base, ".model"))
        return show_tokenizer(r, r->path);
    mx_status st = mx_inspect_data(r->path, r->n, *json, &r->out);
    *json = false; /* it is JSON already */
    return st;
}

/* One run, or several; pictures come with the text. */
static mx_status show_runs(report *r, const mx_config *c, const char *const *paths, int n,
                           bool *json)
{
    mx_inspect_pictures p = {mx_config_text(c, "svg"), mx_config_text(c, "png"),
                             strcmp(mx_config_text(c, "theme"), "dark") == 0,
                             mx_config_text(c, "metric")};
    mx_str curve = {0};
    bool one = n == 1;
    mx_status st = one ? mx_inspect_run(paths[0], &r->out)
                       : mx_inspect_runs(paths, n, *json, &r->out);
    if (!st && (one || *p.svg || *p.png))
        st = mx_inspect_curve(paths, n, &p, &curve);
    if (!st && one)
        mx_inspect_samples(paths[0], &curve);
    if (!st && !*json)
        mx_str_add(&r->out, mx_str_text(&curve));
    *json = *json && one; /* a table is JSON already */
    mx_str_fini(&curve);
    return st;
}

static mx_status are_runs(const mx_invocation *inv)
{
    for (int i = 0; i < inv->n_args; i++)
        if (!mx_is_run_folder(inv->args[i]))
            return mx_fail(MX_USAGE,
                           "%s is not a run folder; several paths must all be run folders, which "
                           "are then compared",
                           inv->args[i]);
    return MX_OK;
}

static mx_status run(mx_invocation *inv)
{
    report r = {.path = inv->args[0], .n = mx_config_int(inv->config, "limit")};
    bool json = strcmp(mx_config_text(inv->config, "format"), "json") == 0;
    mx_arena arena = {0};
    const char **runs;
    struct stat s;
    mx_status st;
    if (stat(r.path, &s) != 0)
        return mx_fail_errno(MX_INPUT, "%s: cannot be opened", r.path);
    int n = S_ISDIR(s.st_mode) && !has_file(r.path, "config.json")
                ? mx_inspect_find_runs(r.path, &arena, &runs)
                : 0;
    if (inv->n_args > 1 || mx_is_run_folder(r.path)) {
        st = are_runs(inv);
        if (!st)
            st = show_runs(&r, inv->config, inv->args, inv->n_args, &json);
    } else if (n > 1) {
        st = show_runs(&r, inv->config, runs, n, &json);
    } else {
        st = n == 1 ? show_runs(&r, inv->config, runs, 1, &json)
                    : show_path(&r, S_ISDIR(s.st_mode), &json);
    }
    if (!st && json)
        print_json(&r.out);
    else if (!st)
        print_text(&r.out);
    mx_str_fini(&r.out);
    mx_arena_fini(&arena);
    return st;
}

static const mx_key keys[] = {
    {"limit", MX_KEY_INT, 0, "20", "0..", "tensors to list; at most three records are shown",
     .example = "limit=2"},
    {"svg", MX_KEY_STRING, 0, "", 0, "of runs: writes their curves to this file", 0,
     MX_KEY_PATH, .example = "svg=loss.svg", .seen_by = "tests/cli/run.sh"},
    {"png", MX_KEY_STRING, 0, "", 0, "the same as a PNG", 0, MX_KEY_PATH,
     .example = "png=loss.png", .seen_by = "tests/cli/run.sh"},
    {"metric", MX_KEY_STRING, 0, "", 0,
     "of runs: what the curve is of; empty: reward where there is one, else loss",
     .example = "metric=grad_norm", .seen_by = "tests/cli/inspect.sh"},
    {"theme", MX_KEY_ENUM, 0, "light", "light|dark", "the PNG; an SVG is as its reader's screen",
     .example = "theme=dark", .seen_by = "tests/cli/inspect.sh"},
    MX_KEY_FORMAT,
    {0},
};

const mx_verb mx_verb_inspect = {
    .name = "inspect",
    .doc = "what is in a checkpoint, a run folder, a dataset file or a tokenizer",
    .usage = "PATH [PATH ...] [limit=20] [svg=FILE] [png=FILE] [metric=NAME] [theme=dark] "
             "[format=json]",
    .help = "A folder of runs is a table of them. Two run folders are compared: the keys that\n"
            "differ, and their losses.",
    .min_args = 1,
    .max_args = 64,
    .keys = keys,
    .run = run,
};
