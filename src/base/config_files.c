/* config_files.c - settings out of files: base.yml, the user's file, the model's file.
 *
 * base_config in a file names files that are read before it. Each file is read once: one that is
 * named again, in a circle or by two files, is a problem, so the work is bounded by the number of
 * files, and that by MAX_FILES.
 *
 * A file called base.yml stands below the model's file, as MaxText's does: given as the user's file
 * it must not undo what model_name says. The program's own base.yml is read anyway, and stands in
 * for one that a command line names and that does not exist. A file that gives a model's sizes is
 * refused where another source names another model.
 */
#include "base/config_entry.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 16, MAX_FILES = 64, WHOLE_FILE = 100 };

/* ---- one file ---- */

/* Whether `path` is the beginning of a dotted key, so that a map may stand there. */
static bool is_key_prefix(const mx_settings *s, const char *path)
{
    size_t n = strlen(path);
    for (const mx_key *const *t = s->req->schema->tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (strncmp(k->name, path, n) == 0 && k->name[n] == '.')
                return true;
    return false;
}

/* A copy of base.yml, or a run's resolved configuration that is given back: nobody writes so many
 * keys by hand. */
static bool is_whole(const mx_yaml_node *root, mx_layer layer)
{
    int n = 0;
    for (const mx_yaml_node *k = root->first; k; k = k->next)
        n++;
    return layer == MX_LAYER_OWN_BASE || (layer == MX_LAYER_FILE && n >= WHOLE_FILE);
}

static void add_map(mx_settings *s, const char *file, const char *prefix, const mx_yaml_node *map,
                    mx_layer layer)
{
    mx_arena *a = &s->cfg->arena;
    bool whole = is_whole(map, layer);
    for (const mx_yaml_node *c = map->first; c; c = c->next) {
        const char *name = *prefix ? mx_arena_printf(a, "%s.%s", prefix, c->key) : c->key;
        const char *where = mx_arena_printf(a, "%s:%d", file, c->line);
        const mx_key *key = mx_settings_key(s, name);
        if (c->kind == MX_YAML_MAP && is_key_prefix(s, name)) /* also where a key has that name */
            add_map(s, file, name, c, layer);
        else if (key)
            mx_settings_add(s,
                            (mx_setting){.key = key, .node = c, .layer = layer, .where = where,
                                         .whole = whole});
        else
            mx_settings_unknown(s, layer, where, name);
    }
}

/* `from` is what names the file; NULL: the program itself. */
static mx_yaml_node *read_file(mx_settings *s, const char *path, const char *from)
{
    mx_yaml_node *root = NULL;
    mx_status st = mx_yaml_read(&s->cfg->arena, path, &root);
    if (st && mx_status_code(st) != MX_USAGE) {
        if (from)
            st = mx_status_wrap(st, "%s: base_config", from);
        s->failed = mx_status_join(s->failed, st);
        return NULL;
    }
    if (st) { /* one problem per line of the status */
        char *save = NULL, *text = mx_arena_strdup(&s->cfg->arena, mx_status_text(st));
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            mx_problem_add(&s->problems, "%s", line);
        mx_status_free(st);
    }
    return root;
}

/* The program's own; "" when there is none. */
static const char *own_base(mx_settings *s)
{
    const char *home = s->req->home;
    const char *path = home ? mx_arena_printf(&s->cfg->arena, "%s/base.yml", home) : "";
    return access(path, R_OK) == 0 ? path : "";
}

void mx_settings_add_base(mx_settings *s)
{
    const char *path = own_base(s);
    const mx_yaml_node *root = *path ? read_file(s, path, NULL) : NULL;
    if (root)
        add_map(s, path, "", root, MX_LAYER_BASE);
}

/* ---- the user's file and those below it ---- */

typedef struct {
    dev_t device;
    ino_t inode;
    const char *from; /* the line that named it */
    bool is_open;     /* its own base_config is being read */
} file_seen;

typedef struct {
    mx_settings *s;
    file_seen seen[MAX_FILES];
    int n;
} chain;

/* base_config names are relative to the file that says them; a plain name may also be in configs/
 * or be a recipe. */
static const char *base_path(mx_settings *s, const char *from, const char *name)
{
    mx_arena *a = &s->cfg->arena;
    const char *slash = strrchr(from, '/');
    int folder = slash && name[0] != '/' ? (int)(slash - from + 1) : 0;
    const char *path = mx_arena_printf(a, "%.*s%s", folder, from, name);
    static const char *const folders[] = {"", "recipes/"};
    for (int i = 0; i < 2 && s->req->home && access(path, R_OK) != 0; i++) {
        const char *other = mx_arena_printf(a, "%s/%s%s", s->req->home, folders[i], name);
        if (access(other, R_OK) == 0)
            return other;
    }
    return path;
}

bool mx_config_is_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, "base.yml") == 0;
}

/* Whether the file is the program's own base.yml, or stands for it. */
static bool is_own_base(mx_settings *s, const char *path)
{
    struct stat own, st;
    if (!mx_config_is_base(path) || stat(own_base(s), &own) != 0)
        return false;
    if (stat(path, &st) == 0)
        return st.st_dev == own.st_dev && st.st_ino == own.st_ino;
    mx_str_addf(&s->notes, "note: %s is not there; the program's own is used: %s\n", path,
                own_base(s));
    return true;
}

/* The file's place among those seen; NULL, with a problem, when it must not be read. */
static file_seen *enter(chain *c, const char *path, const char *from, int depth)
{
    struct stat st;
    mx_problems *p = &c->s->problems;
    if (depth > MAX_DEPTH || c->n == MAX_FILES) {
        mx_problem_add(p, "%s: %s files linked by base_config; join some", from,
                       c->n == MAX_FILES ? "more than 64" : "a chain of more than 16");
        return NULL;
    }
    bool exists = stat(path, &st) == 0;
    for (int i = 0; exists && i < c->n; i++) {
        const file_seen *f = &c->seen[i];
        if (f->device != st.st_dev || f->inode != st.st_ino)
            continue;
        if (f->is_open)
            mx_problem_add(p, "%s: base_config goes round in a circle: %s is being read", from,
                           path);
        else
            mx_problem_add(p, "%s: base_config names %s a second time (first in %s); name it once",
                           from, path, f->from);
        return NULL;
    }
    file_seen *f = &c->seen[c->n++];
    *f = (file_seen){.from = from, .is_open = true};
    if (exists) {
        f->device = st.st_dev;
        f->inode = st.st_ino;
    }
    return f;
}

static void add_file(chain *c, const char *path, const char *from, int depth);

static void add_named(chain *c, const char *path, const mx_yaml_node *name, int depth)
{
    mx_arena *a = &c->s->cfg->arena;
    bool here = !mx_path_advice(name->text); /* else the key's own check refuses it */
    if (name->kind == MX_YAML_SCALAR && *name->text && here)
        add_file(c, base_path(c->s, path, name->text),
                 mx_arena_printf(a, "%s:%d", path, name->line), depth + 1);
}

static void add_file(chain *c, const char *path, const char *from, int depth)
{
    mx_settings *s = c->s;
    if (!s->req->is_resolved && is_own_base(s, path))
        return;
    file_seen *f = enter(c, path, from, depth);
    const mx_yaml_node *root = f ? read_file(s, path, depth ? from : NULL) : NULL;
    for (const mx_yaml_node *k = root ? root->first : NULL; k; k = k->next) {
        if (strcmp(k->key, "base_config") != 0)
            continue;
        add_named(c, path, k, depth);
        for (const mx_yaml_node *name = k->first; name; name = name->next)
            add_named(c, path, name, depth);
    }
    if (root)
        add_map(s, path, "", root, mx_config_is_base(path) ? MX_LAYER_OWN_BASE : MX_LAYER_FILE);
    if (f)
        f->is_open = false;
}

void mx_settings_add_file(mx_settings *s)
{
    chain c = {.s = s};
    add_file(&c, s->req->file, "the command line", 0);
}

/* ---- the model's file ---- */

/* Gives the nearest name in models/, or "". */
static const char *nearest_model(mx_settings *s, const char *name)
{
    mx_arena *a = &s->cfg->arena;
    char **files = NULL;
    int n = mx_config_models(a, s->req->home, &files), best = INT_MAX;
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

static void no_model(mx_settings *s, const char *where, const char *name)
{
    mx_arena *a = &s->cfg->arena;
    const char *home = s->req->home, *other = home ? nearest_model(s, name) : "";
    mx_settings_add_problem(
        s, MX_LAYER_MODEL, where,
        *other ? mx_arena_printf(a, "no model `%s`; did you mean `%s`?", name, other)
               : mx_arena_printf(a, "no model `%s` in %s/models; `maxc help models` lists them",
                                 name, home ? home : "configs"));
}

static bool in_same_file(const char *where, const char *other)
{
    const char *a = strrchr(where, ':'), *b = strrchr(other, ':');
    return a && b && a - where == b - other && strncmp(where, other, (size_t)(a - where)) == 0;
}

/* A file that names one model and has its sizes, while another source names another: the sizes
 * would win, and the model would not be the one that was named. */
static void check_sizes(mx_settings *s, const char *name, const char *where)
{
    const mx_key *size = mx_settings_key(s, "decoder_block"); /* one of the section of sizes */
    const mx_setting *first = NULL, *own = NULL;
    int n = 0;
    for (int i = 0; i < s->n && !own; i++) {
        const mx_setting *t = &s->list[i];
        if (t->key && t->layer == MX_LAYER_FILE && strcmp(t->key->name, "model_name") == 0 &&
            t->node->text && strcmp(t->node->text, name) != 0)
            own = t;
    }
    for (int i = 0; own && size && i < s->n; i++) {
        const mx_setting *t = &s->list[i];
        if (!t->key || t->layer != MX_LAYER_FILE || t->key->section != size->section ||
            !in_same_file(t->where, own->where))
            continue;
        first = first ? first : t;
        n++;
    }
    if (!first)
        return;
    mx_arena *a = &s->cfg->arena;
    const char *more = n > 1 ? mx_arena_printf(a, " and %d more keys of this file describe", n - 1)
                             : " describes";
    mx_settings_add_problem(
        s, MX_LAYER_FILE, first->where,
        mx_arena_printf(a, "`%s`%s another model (model_name: %s, %s) and would override that of "
                        "model_name=%s (%s); name one model: leave that out, or use a file without "
                        "a model's sizes", first->key->name, more, own->node->text, own->where,
                        name, where));
}

void mx_settings_add_model(mx_settings *s)
{
    mx_arena *a = &s->cfg->arena;
    const char *home = s->req->home, *where = NULL,
               *name = mx_settings_peek(s, "model_name", &where);
    if (!*name || strcmp(name, "default") == 0)
        return;
    char *path = mx_arena_printf(a, "%s/models/%s.yml", home ? home : "", name);
    if (strchr(name, '/') || !home || access(path, R_OK) != 0) {
        no_model(s, where, name);
        return;
    }
    check_sizes(s, name, where);
    const mx_yaml_node *root = read_file(s, path, NULL);
    if (root)
        add_map(s, path, "", root, MX_LAYER_MODEL);
    /* A model's file says what the model is, not which one it is. */
    for (const mx_yaml_node *c = root ? root->first : NULL; c; c = c->next)
        if (strcmp(c->key, "model_name") == 0 || strcmp(c->key, "base_config") == 0)
            mx_settings_add_problem(s, MX_LAYER_MODEL, mx_arena_printf(a, "%s:%d", path, c->line),
                                    mx_arena_printf(a, "a model's file cannot set %s", c->key));
}
