/* config_load.c - from files, environment and arguments to a resolved configuration.
 *
 * Everything said by any source becomes a list of settings (key, text or node, layer, where), in
 * order of precedence. Only then are values typed, so one pass finds every problem of every source.
 * The model's file is known once model_name is, and that may come from any source: it is looked up
 * among the settings, highest layer first, and its own settings are put below the user's.
 *
 * The environment: MAXC_<KEY> in capitals. A name that no schema knows is a problem like any other
 * (MAXC_STPES would otherwise be silently ignored); a key of another verb is left alone.
 */
#include "base/config_entry.h"

#include "base/yaml.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BASE_CONFIGS = 16 };

typedef struct {
    const mx_key *key;        /* NULL when there is none: `problem` says so */
    const char *problem;      /* found while reading; reported in the order of the sources */
    const mx_yaml_node *node; /* from a file; NULL: text counts */
    const char *text;
    mx_layer layer;
    const char *where;
} setting;

typedef struct {
    const mx_config_request *req;
    mx_config *cfg;
    setting *settings; /* owns */
    int n, cap;
    mx_problems problems;
    mx_status failed; /* an unreadable file: reported with the problems; owns */
} loader;

static void add(loader *ld, setting s)
{
    MX_GROW(ld->settings, ld->n, ld->cap);
    ld->settings[ld->n++] = s;
}

static const mx_key *find_key(const loader *ld, const char *name)
{
    const mx_key *k = mx_key_find(ld->req->extra, name);
    for (const mx_key *const *t = ld->req->schema->tables; !k && *t; t++)
        k = mx_key_find(*t, name);
    return k;
}

static bool is_taken(const loader *ld, const mx_key *key)
{
    return mx_key_find(ld->req->extra, key->name) == key || ld->req->sections >> key->section & 1;
}

static void add_problem(loader *ld, mx_layer layer, const char *where, const char *problem)
{
    add(ld, (setting){.problem = problem, .layer = layer, .where = where});
}

static void unknown_key(loader *ld, mx_layer layer, const char *where, const char *name)
{
    mx_arena *a = &ld->cfg->arena;
    int distance = INT_MAX;
    const mx_key *best = mx_key_nearest(ld->req->extra, name, &distance);
    for (const mx_key *const *t = ld->req->schema->tables; *t; t++) {
        const mx_key *nearer = mx_key_nearest(*t, name, &distance);
        best = nearer ? nearer : best;
    }
    const char *problem =
        best && mx_is_near(name, distance)
            ? mx_arena_printf(a, "unknown key `%s`; did you mean `%s` (%s)?", name, best->name,
                              best->help)
            : mx_arena_printf(a, "unknown key `%s`; `maxc help keys` lists all keys", name);
    add_problem(ld, layer, where, problem);
}

/* ---- files ---- */

/* Whether `path` is the beginning of a dotted key, so that a map may stand there. */
static bool is_key_prefix(const loader *ld, const char *path)
{
    size_t n = strlen(path);
    for (const mx_key *const *t = ld->req->schema->tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (strncmp(k->name, path, n) == 0 && k->name[n] == '.')
                return true;
    return false;
}

static void add_map(loader *ld, const char *file, const char *prefix, const mx_yaml_node *map,
                    mx_layer layer)
{
    mx_arena *a = &ld->cfg->arena;
    for (const mx_yaml_node *c = map->first; c; c = c->next) {
        const char *name = *prefix ? mx_arena_printf(a, "%s.%s", prefix, c->key) : c->key;
        const char *where = mx_arena_printf(a, "%s:%d", file, c->line);
        const mx_key *key = find_key(ld, name);
        if (key)
            add(ld, (setting){.key = key, .node = c, .layer = layer, .where = where});
        else if (c->kind == MX_YAML_MAP && is_key_prefix(ld, name))
            add_map(ld, file, name, c, layer);
        else
            unknown_key(ld, layer, where, name);
    }
}

static mx_yaml_node *read_file(loader *ld, const char *path)
{
    mx_yaml_node *root = NULL;
    mx_status st = mx_yaml_read(&ld->cfg->arena, path, &root);
    if (st && mx_status_code(st) != MX_USAGE) {
        ld->failed = mx_status_join(ld->failed, st);
        return NULL;
    }
    if (st) { /* one problem per line of the status */
        char *save = NULL, *text = mx_arena_strdup(&ld->cfg->arena, mx_status_text(st));
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            mx_problem_add(&ld->problems, "%s", line);
        mx_status_free(st);
    }
    return root;
}

/* base_config names are relative to the file that says them; a plain name may also be in configs/.
 */
static const char *base_path(loader *ld, const char *from, const char *name)
{
    mx_arena *a = &ld->cfg->arena;
    const char *slash = strrchr(from, '/');
    int folder = slash && name[0] != '/' ? (int)(slash - from + 1) : 0;
    const char *path = mx_arena_printf(a, "%.*s%s", folder, from, name);
    if (access(path, R_OK) != 0 && ld->req->home) {
        const char *other = mx_arena_printf(a, "%s/%s", ld->req->home, name);
        if (access(other, R_OK) == 0)
            return other;
    }
    return path;
}

/* Reads a file below which its base_config files stand. */
static void add_file(loader *ld, const char *path, int depth)
{
    if (depth > MAX_BASE_CONFIGS) {
        mx_problem_add(&ld->problems,
                       "%s: more than %d files linked by base_config; is there a circle?", path,
                       MAX_BASE_CONFIGS);
        return;
    }
    const mx_yaml_node *root = read_file(ld, path);
    for (const mx_yaml_node *c = root ? root->first : NULL; c; c = c->next) {
        if (strcmp(c->key, "base_config") != 0)
            continue;
        if (c->kind == MX_YAML_SCALAR && *c->text)
            add_file(ld, base_path(ld, path, c->text), depth + 1);
        for (const mx_yaml_node *f = c->first; f; f = f->next)
            if (f->kind == MX_YAML_SCALAR)
                add_file(ld, base_path(ld, path, f->text), depth + 1);
    }
    if (root)
        add_map(ld, path, "", root, MX_LAYER_FILE);
}

/* ---- environment ---- */

static bool is_reserved(const char *name)
{
    return strcmp(name, "configs") == 0 || mx_starts_with(name, "test_");
}

static bool is_known_elsewhere(const loader *ld, const char *name)
{
    for (const mx_key *const *t = ld->req->elsewhere; t && *t; t++)
        if (mx_key_find(*t, name))
            return true;
    return false;
}

static void add_environment(loader *ld)
{
    mx_arena *a = &ld->cfg->arena;
    for (char *const *e = ld->req->environment; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (!mx_starts_with(*e, "MAXC_") || !equals)
            continue;
        char *name = mx_arena_printf(a, "%.*s", (int)(equals - *e - 5), *e + 5);
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        if (is_reserved(name))
            continue;
        const char *where = mx_arena_printf(a, "environment %.*s", (int)(equals - *e), *e);
        const mx_key *key = find_key(ld, name);
        if (!key && !is_known_elsewhere(ld, name))
            unknown_key(ld, MX_LAYER_ENVIRONMENT, where, name);
        else if (key && is_taken(ld, key))
            add(ld,
                (setting){
                    .key = key, .text = equals + 1, .layer = MX_LAYER_ENVIRONMENT, .where = where});
    }
}

/* ---- arguments ---- */

static void add_argument(loader *ld, const char *name, const char *value, const char *where)
{
    mx_arena *a = &ld->cfg->arena;
    const mx_key *key = find_key(ld, name);
    const char *user = ld->req->user, *problem = NULL;
    if (!key) {
        unknown_key(ld, MX_LAYER_ARGUMENT, where, name);
        return;
    }
    if (!is_taken(ld, key) && key->type != MX_KEY_RETIRED)
        problem = mx_arena_printf(a, "`maxc %s` does not use `%s`; `maxc help %s` lists its keys",
                                  user, key->name, user);
    else if (!value)
        problem = mx_arena_printf(a, "`%s` needs a value: %s=VALUE", name, key->name);
    if (problem)
        add_problem(ld, MX_LAYER_ARGUMENT, where, problem);
    else
        add(ld, (setting){.key = key, .text = value, .layer = MX_LAYER_ARGUMENT, .where = where});
}

static void add_arguments(loader *ld)
{
    mx_arena *a = &ld->cfg->arena;
    for (int i = 0; i < ld->req->n_args; i++) {
        const char *arg = ld->req->args[i], *equals = strchr(arg, '=');
        size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
        char *name = mx_arena_printf(a, "%.*s", (int)n, arg);
        const mx_key *key = find_key(ld, name);
        bool secret = key && (key->flags & MX_KEY_SECRET);
        const char *where = secret ? mx_arena_printf(a, "argument %s=(not shown)", name)
                                   : mx_arena_printf(a, "argument %.80s", arg);
        add_argument(ld, name, equals ? equals + 1 : NULL, where);
    }
}

/* ---- the model's file ---- */

/* The last setting of a text key among what was read so far, or its default. */
static const char *peek(const loader *ld, const char *name, const char **where)
{
    for (int i = ld->n - 1; i >= 0; i--) {
        const setting *s = &ld->settings[i];
        if (s->key && strcmp(s->key->name, name) == 0) {
            *where = s->where;
            return s->node ? s->node->text : s->text;
        }
    }
    const mx_key *key = find_key(ld, name);
    *where = "default";
    return key ? key->fallback : "";
}

/* Gives the nearest name in models/, or "". */
static const char *nearest_model(loader *ld, const char *name)
{
    mx_arena *a = &ld->cfg->arena;
    char **files = NULL;
    int n = mx_config_models(a, ld->req->home, &files), best = INT_MAX;
    const char *found = "";
    for (int i = 0; i < n; i++) {
        int d = mx_edit_distance(name, files[i]);
        if (d < best) {
            best = d;
            found = files[i];
        }
    }
    return best <= 4 || mx_is_near(name, best) ? found : "";
}

static void add_model(loader *ld)
{
    mx_arena *a = &ld->cfg->arena;
    const char *home = ld->req->home, *where = NULL, *name = peek(ld, "model_name", &where);
    if (!*name || strcmp(name, "default") == 0)
        return;
    char *path = mx_arena_printf(a, "%s/models/%s.yml", home ? home : "", name);
    if (strchr(name, '/') || !home || access(path, R_OK) != 0) {
        const char *other = home ? nearest_model(ld, name) : "";
        add_problem(
            ld, MX_LAYER_MODEL, where,
            *other ? mx_arena_printf(a, "no model `%s`; did you mean `%s`?", name, other)
                   : mx_arena_printf(a, "no model `%s` in %s/models; `maxc help models` lists them",
                                     name, home ? home : "configs"));
        return;
    }
    const mx_yaml_node *root = read_file(ld, path);
    if (root)
        add_map(ld, path, "", root, MX_LAYER_MODEL);
    /* A model's file says what the model is, not which one it is. */
    for (const mx_yaml_node *c = root ? root->first : NULL; c; c = c->next)
        if (strcmp(c->key, "model_name") == 0 || strcmp(c->key, "base_config") == 0)
            add_problem(ld, MX_LAYER_MODEL, mx_arena_printf(a, "%s:%d", path, c->line),
                        mx_arena_printf(a, "a model's file cannot set %s", c->key));
}

/* ---- resolution ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_config_entry *)a)->key->name, ((const mx_config_entry *)b)->key->name);
}

static void add_entries(mx_config *cfg, const mx_key *keys)
{
    for (const mx_key *k = keys; k && k->name; k++) {
        if (k->type == MX_KEY_RETIRED)
            continue;
        mx_config_entry *e = &cfg->entries[cfg->n++];
        *e = (mx_config_entry){.key = k, .where = "default"};
        mx_str why = {0};
        bool ok = mx_value_read_text(&cfg->arena, k, k->fallback, &e->value, &why);
        MX_ASSERT(ok, "default of the table: %s", mx_str_text(&why));
        mx_str_fini(&why);
    }
}

static int count_keys(const mx_key *keys)
{
    int n = 0;
    for (; keys && keys[n].name; n++)
        ;
    return n;
}

static void make_entries(mx_config *cfg)
{
    int n = count_keys(cfg->extra);
    for (const mx_key *const *t = cfg->schema->tables; *t; t++)
        n += count_keys(*t);
    cfg->entries = MX_NEW_N(&cfg->arena, mx_config_entry, n + 1);
    add_entries(cfg, cfg->extra);
    for (const mx_key *const *t = cfg->schema->tables; *t; t++)
        add_entries(cfg, *t);
    qsort(cfg->entries, (size_t)cfg->n, sizeof *cfg->entries, by_name);
    for (int i = 1; i < cfg->n; i++)
        MX_ASSERT(by_name(&cfg->entries[i - 1], &cfg->entries[i]) != 0, "key `%s` is in two tables",
                  cfg->entries[i].key->name);
}

/* Two settings of one key that do not override each other: an alias beside its key in one file, an
 * argument given twice, or environment and argument together. */
static void report_conflict(loader *ld, const mx_config_entry *e, const setting *s)
{
    bool both = e->layer == MX_LAYER_ENVIRONMENT && s->layer == MX_LAYER_ARGUMENT;
    bool twice = e->layer == s->layer && s->layer >= MX_LAYER_ENVIRONMENT;
    if (both)
        mx_problem_add(&ld->problems, "%s: `%s` is also set by %s; keep one", s->where,
                       s->key->name, e->where);
    else if (twice)
        mx_problem_add(&ld->problems, "%s: `%s` is given twice (%s); keep one", s->where,
                       s->key->name, e->where);
}

static bool same_file(const char *a, const char *b)
{
    size_t n = strcspn(a, ":");
    return n == strcspn(b, ":") && strncmp(a, b, n) == 0;
}

static void resolve(loader *ld, mx_layer first, mx_layer last)
{
    for (int i = 0; i < ld->n; i++) {
        const setting *s = &ld->settings[i];
        if (s->layer < first || s->layer > last)
            continue;
        if (s->problem) {
            mx_problem_add(&ld->problems, "%s: %s", s->where, s->problem);
            continue;
        }
        mx_value v;
        mx_str why = {0};
        bool ok = s->node ? mx_value_read(&ld->cfg->arena, s->key, s->node, &v, &why)
                          : mx_value_read_text(&ld->cfg->arena, s->key, s->text, &v, &why);
        if (!ok)
            mx_problem_add(&ld->problems, "%s: %s", s->where, mx_str_text(&why));
        mx_str_fini(&why);
        mx_config_entry *e = mx_config_entry_find(ld->cfg, s->key->name);
        if (!e)
            continue; /* a retired key, reported above */
        report_conflict(ld, e, s);
        if (s->layer <= MX_LAYER_FILE && e->layer == s->layer && s->node->key &&
            same_file(e->where, s->where) && strcmp(s->node->key, e->key->name) != 0)
            mx_problem_add(&ld->problems, "%s: `%s` is another name of `%s`, set in %s; keep one",
                           s->where, s->node->key, e->key->name, e->where);
        if (ok)
            e->value = v;
        e->layer = s->layer;
        e->where = s->where;
    }
}

static mx_status finish(loader *ld)
{
    if (ld->failed)
        return ld->failed;
    if (!ld->problems.n)
        return MX_OK;
    return mx_fail(MX_USAGE, "%d problem%s in the configuration:%s", ld->problems.n,
                   ld->problems.n == 1 ? "" : "s", mx_str_text(&ld->problems.text));
}

static void check_required(loader *ld)
{
    for (int i = 0; i < ld->cfg->n; i++) {
        const mx_config_entry *e = &ld->cfg->entries[i];
        bool missing = (e->key->flags & MX_KEY_REQUIRED) && e->layer <= MX_LAYER_BASE;
        if (missing && is_taken(ld, e->key))
            mx_problem_add(&ld->problems, "`%s` is not set (%s); give %s=VALUE", e->key->name,
                           e->key->help, e->key->name);
    }
}

mx_status mx_config_load(mx_config **out, const mx_config_request *request)
{
    *out = NULL;
    mx_arena arena = {0};
    mx_config *cfg = MX_NEW(&arena, mx_config);
    *cfg = (mx_config){.arena = arena,
                       .schema = request->schema,
                       .extra = request->extra,
                       .sections = request->sections};
    loader ld = {.req = request, .cfg = cfg};
    make_entries(cfg);

    char *base = mx_arena_printf(&cfg->arena, "%s/base.yml", request->home ? request->home : "");
    if (request->home && !request->is_resolved && access(base, R_OK) == 0) {
        const mx_yaml_node *root = read_file(&ld, base);
        if (root)
            add_map(&ld, base, "", root, MX_LAYER_BASE);
    }
    if (request->file)
        add_file(&ld, request->file, 0);
    add_environment(&ld);
    add_arguments(&ld);
    if (!request->is_resolved)
        add_model(&ld);

    resolve(&ld, MX_LAYER_DEFAULT, MX_LAYER_BASE);
    resolve(&ld, MX_LAYER_MODEL, MX_LAYER_MODEL);
    resolve(&ld, MX_LAYER_FILE, MX_LAYER_ARGUMENT);
    check_required(&ld);
    if (!ld.problems.n && request->schema->check)
        request->schema->check(cfg, &ld.problems);

    mx_status st = finish(&ld);
    mx_free(ld.settings);
    mx_str_fini(&ld.problems.text);
    if (st)
        mx_config_free(cfg);
    else
        *out = cfg;
    return st;
}
