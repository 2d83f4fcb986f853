/* model_ref.c - finding a model by directory, run or name. */
#include "exec/model_ref.h"

#include "base/file.h"
#include "data/hub/hub.h"
#include "models/from_config.h"
#include "store/checkpoint_read.h"
#include "store/quant_hints.h"
#include "store/weights.h"
#include "text/tokenizer/tokenizer_files.h"
#include "keys/keys.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static mx_status open_dir(mx_model_ref *r, const char *path);

static bool exists(mx_arena *a, const char *dir, const char *name)
{
    return access(mx_arena_printf(a, "%s/%s", dir, name), F_OK) == 0;
}

/* The newest whole checkpoint of a run folder. */
static mx_status newest_of(mx_arena *a, const char *path, const char **out)
{
    mx_ckpt_entry newest = {0};
    mx_str notes = {0};
    const char *root = mx_arena_printf(a, "%s/checkpoints", path);
    mx_status st = mx_ckpt_newest(root, MX_CHECK_HASHES, 2, a, &newest, &notes);
    if (notes.len)
        fprintf(stderr, "%s\n", mx_str_text(&notes));
    mx_str_fini(&notes);
    MX_TRY(st);
    if (!newest.path)
        return mx_fail(MX_INPUT, "%s is a run folder without a checkpoint yet", path);
    *out = newest.path;
    return MX_OK;
}

static int is_run_of(const char *parent, const struct dirent *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/checkpoints", parent, e->d_name);
    return e->d_name[0] != '.' && access(path, F_OK) == 0;
}

/* runs/mien where runs holds runs: a typing error, and no name to ask the hub for. */
static mx_status refuse_missing_run(const char *given, mx_arena *a)
{
    const char *parent = mx_arena_printf(a, "%.*s", (int)strcspn(given, "/"), given);
    mx_str runs = {0};
    DIR *d = opendir(parent);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (is_run_of(parent, e) && ++n <= 12)
            mx_str_addf(&runs, "%s%s", n > 1 ? ", " : "", e->d_name);
    if (d)
        closedir(d);
    mx_status st = n ? mx_fail(MX_INPUT, "%s: there is no such run; %s has %s%s", given, parent,
                               mx_str_text(&runs), n > 12 ? ", ..." : "")
                     : MX_OK;
    mx_str_fini(&runs);
    return st;
}

/* One line for each file that is not in the cache yet. */
static void say_fetch(void *ctx, const char *file, int64_t done, int64_t total)
{
    char size[32];
    (void)done;
    if (strcmp(ctx, file) == 0)
        return;
    snprintf(ctx, 256, "%s", file);
    fprintf(stderr, "fetching %s%s%s\n", file, total > 0 ? ", " : "",
            total > 0 ? mx_format_bytes(size, sizeof size, (double)total) : "");
}

mx_status mx_model_place(const char *given, mx_fetch_what what, const mx_config *c, mx_arena *a,
                         const char **dir)
{
    *dir = given;
    if (exists(a, given, "checkpoints") && !exists(a, given, "config.json"))
        return newest_of(a, given, dir);
    if (!mx_hub_is_name(given) || access(given, F_OK) == 0)
        return MX_OK;
    MX_TRY(refuse_missing_run(given, a));
    char **paths, *folder, latest[256] = "";
    int n;
    const char *all = mx_arena_printf(a, "%s%s", mx_tokenizer_patterns,
                                      "config.json,generation_config.json,*processor_config.json,"
                                      "model*.safetensors,model.safetensors.index.json");
    mx_hub_request q = {.repo = given, .model = true, .progress = say_fetch, .ctx = latest,
                        .pattern = what == MX_FETCH_CONFIG ? "config.json" : all};
    if (c && mx_config_has(c, "hf_access_token"))
        q.token = mx_config_text(c, "hf_access_token");
    MX_TRY(mx_status_wrap(mx_hub_fetch(&q, a, &paths, &n, &folder),
                          "%s is not a folder here, so it was looked for on the hub", given));
    *dir = folder;
    return MX_OK;
}

/* The model that an adapter names, and the adapter. */
static mx_status open_adapter(mx_model_ref *r, const char *path)
{
    MX_TRY(mx_adapter_open(&r->adapter, path));
    r->has_adapter = true;
    const char *base = r->adapter.base;
    if (!*base || !exists(&r->arena, base, "config.json"))
        return mx_fail(MX_INPUT,
                       "%s is an adapter for \"%s\", which is not a model's folder here; give the "
                       "model, and adapter=%s beside it",
                       path, base, path);
    return open_dir(r, base);
}

static mx_status open_dir(mx_model_ref *r, const char *path)
{
    if (!exists(&r->arena, path, "config.json") && mx_adapter_in_dir(path))
        return open_adapter(r, path);
    MX_TRY(mx_hf_dir_open(&r->dir, path, MX_HF_ALL));
    r->has_weights = true;
    r->path = mx_arena_strdup(&r->arena, path);
    const char *where = mx_arena_printf(&r->arena, "%s/config.json", path);
    mx_quant_hints stored; /* before weights are read by it, and where they are not (plan) */
    MX_TRY(mx_quant_hints_read(&stored, r->dir.config, where));
    return mx_model_from_json(&r->spec, r->dir.config, where);
}


mx_status mx_model_ref_adapter(mx_adapter *out, const char *path)
{
    mx_arena scratch = {0};
    mx_status st = MX_OK;
    *out = (mx_adapter){0};
    if (!mx_adapter_in_dir(path) && exists(&scratch, path, "checkpoints"))
        st = newest_of(&scratch, path, &path);
    if (!st)
        st = mx_adapter_open(out, path);
    mx_arena_fini(&scratch);
    return st;
}

mx_status mx_model_ref_adapt(mx_model_ref *r, const char *path)
{
    if (r->has_adapter)
        return mx_fail(MX_USAGE, "%s is an adapter already; give the model it is for",
                       r->adapter.dir.path);
    MX_TRY(mx_model_ref_adapter(&r->adapter, path));
    r->has_adapter = true;
    return MX_OK;
}

static mx_status open_name(mx_model_ref *r, const char *name, const char *home)
{
    const char *arg = mx_arena_printf(&r->arena, "model_name=%s", name);
    mx_config *cfg = NULL;
    mx_config_request q = {.schema = &mx_keys, .user = NULL,
                           .home = home, .args = &arg, .n_args = 1};
    MX_TRY(mx_config_load(&cfg, &q));
    mx_status st = mx_model_from_config(&r->spec, cfg);
    mx_config_free(cfg);
    return st;
}

mx_status mx_model_ref_open(mx_model_ref *r, const char *what, const char *home,
                            const mx_config *c)
{
    *r = (mx_model_ref){0};
    mx_status st = mx_model_place(what, MX_FETCH_MODEL, c, &r->arena, &what);
    bool is_dir = !st && mx_dir_exists(what);
    if (st)
        ; /* said already */
    else if (is_dir && (exists(&r->arena, what, "config.json") || mx_adapter_in_dir(what)))
        st = open_dir(r, what);
    else if (is_dir)
        st = mx_fail(MX_INPUT, "%s has neither config.json (a model) nor checkpoints/ (a run)",
                     what);
    else if (home && exists(&r->arena, home, mx_arena_printf(&r->arena, "models/%s.yml", what)))
        st = open_name(r, what, home);
    else
        st = mx_fail(MX_INPUT,
                     "%s is neither a directory nor a model of configs/models; give a Hugging "
                     "Face directory, a run folder, org/name of the hub, or a name such as "
                     "llama3.2-1b",
                     what);
    if (st)
        mx_model_ref_close(r);
    return st;
}

void mx_model_ref_close(mx_model_ref *r)
{
    mx_model_spec_fini(&r->spec);
    mx_hf_dir_close(&r->dir);
    mx_adapter_close(&r->adapter);
    mx_arena_fini(&r->arena);
    *r = (mx_model_ref){0};
}

/* Codes are made of weights that are read; random ones have none. */
static mx_status refuse_quantized(mx_session *s)
{
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_session_var(s, i)->attr.quantized)
            return mx_fail(MX_USAGE, "quantization= is for weights that are read; this model "
                           "begins at random");
    return MX_OK;
}

mx_status mx_model_ref_weights(const mx_model_ref *r, mx_session *s, uint64_t seed)
{
    mx_str notes = {0};
    mx_status st = MX_OK;
    if (!r->has_weights)
        MX_TRY(refuse_quantized(s));
    if (r->has_weights)
        st = mx_weights_load(s, &r->spec, (mx_hf_dir *)&r->dir, (mx_load_options){.notes = &notes});
    if (notes.len)
        fputs(mx_str_text(&notes), stderr);
    mx_str_fini(&notes);
    if (!st && r->has_adapter)
        st = mx_adapter_check_tied(s, &r->adapter);
    if (!st && r->has_adapter)
        st = mx_adapter_load(s, (mx_hf_dir *)&r->adapter.dir);
    return st ? st : mx_session_init(s, seed);
}
