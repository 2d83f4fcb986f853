/* config_load.c - from files, environment and arguments to a resolved configuration.
 *
 * Everything said by any source becomes a list of settings (key, text or node, layer, where), in
 * order of precedence. Only then are values typed, so one pass finds every problem of every source.
 * The model's file is known once model_name is, and that may come from any source: it is looked up
 * among the settings, highest layer first, and its own settings are put below the user's.
 *
 * The environment: MAXC_<KEY> in capitals. A name that no schema knows is a problem like any other
 * (MAXC_STPES would otherwise be silently ignored); a key of another verb is left alone.
 *
 * What is not built is refused here, whatever source asks for it (key.h); only a resolved file,
 * which another version may have written, may hold it.
 */
#include "base/config_entry.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void mx_settings_add(mx_settings *s, mx_setting setting)
{
    MX_GROW(s->list, s->n, s->cap);
    s->list[s->n++] = setting;
}

void mx_settings_add_problem(mx_settings *s, mx_layer layer, const char *where,
                             const char *problem)
{
    mx_settings_add(s, (mx_setting){.problem = problem, .layer = layer, .where = where});
}

const mx_key *mx_settings_key(const mx_settings *s, const char *name)
{
    const mx_config_entry *e = mx_config_entry_find(s->cfg, name);
    const mx_key *k = mx_key_find(s->req->extra, name); /* by its other names too, first of all */
    k = !k && e ? e->key : k;
    for (const mx_key *const *t = s->req->schema->tables; !k && *t; t++)
        k = mx_key_find(*t, name);
    return k;
}

const char *mx_settings_peek(const mx_settings *s, const char *name, const char **where)
{
    for (int i = s->n - 1; i >= 0; i--) {
        const mx_setting *t = &s->list[i];
        if (t->key && strcmp(t->key->name, name) == 0) {
            *where = t->where;
            return t->node ? t->node->text : t->text;
        }
    }
    const mx_key *key = mx_settings_key(s, name);
    *where = "default";
    return key ? key->fallback : "";
}

/* Is some word of the one list among those of the other? */
static bool have_common(const char *words, const char *others)
{
    char word[64];
    for (const char *p = others; p && *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (mx_word_among(words, word))
            return true;
        p += n;
    }
    return false;
}

bool mx_key_is_taken(const mx_key *key, const char *user, const char *like)
{
    return !user || mx_key_state_of(key) != MX_KEY_IS_DONE || mx_word_among(key->verbs, user) ||
           have_common(key->verbs, like);
}

static bool is_taken(const mx_settings *s, const mx_key *key)
{
    return mx_key_find(s->req->extra, key->name) == key ||
           mx_key_is_taken(key, s->req->user, s->req->like);
}

void mx_settings_unknown(mx_settings *s, mx_layer layer, const char *where, const char *name)
{
    mx_arena *a = &s->cfg->arena;
    int distance = INT_MAX;
    const mx_key *best = mx_key_nearest(s->req->extra, name, &distance);
    for (const mx_key *const *t = s->req->schema->tables; *t; t++) {
        const mx_key *nearer = mx_key_nearest(*t, name, &distance);
        best = nearer ? nearer : best;
    }
    const char *problem =
        best && mx_is_near(name, distance)
            ? mx_arena_printf(a, "unknown key `%s`; did you mean `%s` (%s)?", name, best->name,
                              best->help)
            : mx_arena_printf(a, "unknown key `%s`; `maxc help keys` lists all keys", name);
    mx_settings_add_problem(s, layer, where, problem);
}

/* ---- environment ---- */

static bool is_reserved(const char *name)
{
    return strcmp(name, "configs") == 0 || mx_starts_with(name, "test_");
}

static bool is_known_elsewhere(const mx_settings *s, const char *name)
{
    for (const mx_key *const *t = s->req->elsewhere; t && *t; t++)
        if (mx_key_find(*t, name))
            return true;
    return false;
}

static void add_environment(mx_settings *s)
{
    mx_arena *a = &s->cfg->arena;
    for (char *const *e = s->req->environment; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (!mx_starts_with(*e, "MAXC_") || !equals)
            continue;
        char *name = mx_arena_printf(a, "%.*s", (int)(equals - *e - 5), *e + 5);
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        if (is_reserved(name))
            continue;
        const char *where = mx_arena_printf(a, "environment %.*s", (int)(equals - *e), *e);
        const mx_key *key = mx_settings_key(s, name);
        if (!key && !is_known_elsewhere(s, name))
            mx_settings_unknown(s, MX_LAYER_ENVIRONMENT, where, name);
        else if (key && is_taken(s, key))
            mx_settings_add(s, (mx_setting){.key = key,
                                            .text = equals + 1,
                                            .layer = MX_LAYER_ENVIRONMENT,
                                            .where = where});
    }
}

/* ---- arguments ---- */

static void add_argument(mx_settings *s, const char *name, const char *value, const char *where)
{
    mx_arena *a = &s->cfg->arena;
    const mx_key *key = mx_settings_key(s, name);
    const char *user = s->req->user, *problem = NULL;
    if (!key) {
        mx_settings_unknown(s, MX_LAYER_ARGUMENT, where, name);
        return;
    }
    if (!is_taken(s, key))
        problem = mx_arena_printf(a, "`maxc %s` does not use `%s`; `maxc help %s` lists its keys",
                                  user, key->name, user);
    else if (!value)
        problem = mx_arena_printf(a, "`%s` needs a value: %s=VALUE", name, key->name);
    if (problem)
        mx_settings_add_problem(s, MX_LAYER_ARGUMENT, where, problem);
    else
        mx_settings_add(
            s, (mx_setting){
                   .key = key, .text = value, .layer = MX_LAYER_ARGUMENT, .where = where});
}

static void add_arguments(mx_settings *s)
{
    mx_arena *a = &s->cfg->arena;
    for (int i = 0; i < s->req->n_args; i++) {
        const char *arg = s->req->args[i], *equals = strchr(arg, '=');
        size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
        char *name = mx_arena_printf(a, "%.*s", (int)n, arg);
        const mx_key *key = mx_settings_key(s, name);
        bool secret = key && (key->flags & MX_KEY_SECRET);
        const char *where = secret ? mx_arena_printf(a, "argument %s=(not shown)", name)
                                   : mx_arena_printf(a, "argument %.80s", arg);
        add_argument(s, name, equals ? equals + 1 : NULL, where);
    }
}

/* What the verb takes for a key that is not set. */
static void add_defaults(mx_settings *s)
{
    mx_arena *a = &s->cfg->arena;
    for (const char *const *d = s->req->defaults; d && *d; d++) {
        size_t n = strcspn(*d, "=");
        const mx_key *key = mx_settings_key(s, mx_arena_printf(a, "%.*s", (int)n, *d));
        MX_ASSERT(key && (*d)[n], "the default %s of `maxc %s`", *d, s->req->user);
        mx_settings_add(s, (mx_setting){.key = key, .text = *d + n + 1, .layer = MX_LAYER_BASE,
                                        .where = "default"});
    }
}

/* ---- resolution ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_config_entry *)a)->key->name, ((const mx_config_entry *)b)->key->name);
}

static void add_entries(mx_config *cfg, const mx_key *keys)
{
    for (const mx_key *k = keys; k && k->name; k++) {
        if (k->type == MX_KEY_FOREIGN)
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
static void report_conflict(mx_settings *s, const mx_config_entry *e, const mx_setting *t)
{
    bool both = e->layer == MX_LAYER_ENVIRONMENT && t->layer == MX_LAYER_ARGUMENT;
    bool twice = e->layer == t->layer && t->layer >= MX_LAYER_ENVIRONMENT;
    size_t file = strcspn(t->where, ":");
    bool beside = t->layer <= MX_LAYER_FILE && e->layer == t->layer && t->node && t->node->key &&
                  strncmp(e->where, t->where, file + 1) == 0 &&
                  strcmp(t->node->key, e->key->name) != 0;
    if (both)
        mx_problem_add(&s->problems, "%s: `%s` is also set by %s; keep one", t->where, t->key->name,
                       e->where);
    else if (twice)
        mx_problem_add(&s->problems, "%s: `%s` is given twice (%s); keep one", t->where,
                       t->key->name, e->where);
    else if (beside)
        mx_problem_add(&s->problems, "%s: `%s` is another name of `%s`, set in %s; keep one",
                       t->where, t->node->key, e->key->name, e->where);
}

/* Said once for all such keys; what the program's own files hold needs no note. */
static void note_foreign(mx_settings *s, const mx_setting *t)
{
    if (t->layer >= MX_LAYER_FILE)
        mx_str_addf(&s->foreign, "%s%s (%s)", s->foreign.len ? ", " : "", t->key->name,
                    t->key->help);
}

/* Whether a later source sets the key again. */
static bool is_overridden(const mx_settings *s, const mx_setting *t)
{
    for (const mx_setting *u = s->list; u < s->list + s->n; u++)
        if (u->key == t->key && (u->layer > t->layer || (u->layer == t->layer && u > t)))
            return true;
    return false;
}

/* use_sft of `maxc sft`. */
static bool is_what_the_verb_does(const mx_settings *s, const mx_key *key)
{
    return key->flags & MX_KEY_PLANNED && s->req->user && mx_word_among(key->verbs, s->req->user);
}

/* MaxText's base.yml holds its defaults; those that are not to be had here are no one's wish. */
static bool is_maxtexts_default(mx_settings *s, const mx_setting *t)
{
    if (t->layer != MX_LAYER_OWN_BASE || !t->node || !t->key->maxtext ||
        strcasecmp(t->node->text, t->key->maxtext) != 0)
        return false;
    mx_str_addf(&s->notes, "note: %s: `%s: %s` is MaxText's default and has no effect here\n",
                t->where, t->node->key, t->node->text);
    return true;
}

/* Gives the setting a type; false, with a problem, when it cannot be used. */
static bool read_setting(mx_settings *s, const mx_setting *t, mx_value *v)
{
    mx_str why = {0};
    bool ok = t->node ? mx_value_read(&s->cfg->arena, t->key, t->node, v, &why)
                      : mx_value_read_text(&s->cfg->arena, t->key, t->text, v, &why);
    ok = ok && (s->req->is_resolved || is_overridden(s, t) || is_what_the_verb_does(s, t->key) ||
                mx_value_is_built(t->key, v, &why));
    ok = ok && mx_value_is_local(t->key, v, &why);
    bool from_file = strcmp(t->key->name, "base_config") != 0 || t->layer <= MX_LAYER_FILE;
    if (ok && !from_file) {
        mx_str_add(
            &why,
            "base_config belongs in a configuration file; here give that file itself, FILE.yml");
        ok = false;
    }
    if (!ok && !is_maxtexts_default(s, t))
        mx_problem_add(&s->problems, "%s: %s", t->where, mx_str_text(&why));
    mx_str_fini(&why);
    return ok;
}

static void resolve(mx_settings *s, mx_layer first, mx_layer last)
{
    for (int i = 0; i < s->n; i++) {
        const mx_setting *t = &s->list[i];
        if (t->layer < first || t->layer > last)
            continue;
        if (t->problem) {
            mx_problem_add(&s->problems, "%s: %s", t->where, t->problem);
            continue;
        }
        if (t->key->type == MX_KEY_FOREIGN) {
            note_foreign(s, t);
            continue;
        }
        mx_value v;
        bool ok = read_setting(s, t, &v);
        mx_config_entry *e = mx_config_entry_find(s->cfg, t->key->name);
        report_conflict(s, e, t);
        bool kept = t->whole && ok && mx_value_equal(t->key, &e->value, &v);
        if (ok)
            e->value = v;
        e->layer = kept ? e->layer : t->layer;
        e->where = t->where;
    }
}

static mx_status finish(mx_settings *s)
{
    if (s->failed)
        return s->failed;
    if (!s->problems.n)
        return MX_OK;
    return mx_fail(MX_USAGE, "%d problem%s in the configuration:%s", s->problems.n,
                   s->problems.n == 1 ? "" : "s", mx_str_text(&s->problems.text));
}

static void check_required(mx_settings *s)
{
    for (int i = 0; i < s->cfg->n; i++) {
        const mx_config_entry *e = &s->cfg->entries[i];
        bool missing = (e->key->flags & MX_KEY_REQUIRED) && e->layer <= MX_LAYER_BASE;
        if (missing && is_taken(s, e->key))
            mx_problem_add(&s->problems, "`%s` is not set (%s); give %s=VALUE", e->key->name,
                           e->key->help, e->key->name);
    }
}

static void check_relations(mx_settings *s)
{
    if (s->problems.n || !s->req->schema->check)
        return;
    s->req->schema->check(s->cfg, &s->problems);
    for (int i = 0; i < s->cfg->n; i++)
        s->cfg->entries[i].asked = false; /* a check is no use */
}

/* Keys that did their work by setting others count as asked for. */
static void mark_used(mx_settings *s)
{
    static const char *const names[] = {"base_config", "model_name"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mx_config_entry *e = mx_config_entry_find(s->cfg, names[i]);
        if (e && !s->req->is_resolved)
            e->asked = e->layer > MX_LAYER_BASE;
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
                       .user = request->user,
                       .like = request->like};
    mx_settings s = {.req = request, .cfg = cfg};
    make_entries(cfg);

    if (!request->is_resolved)
        mx_settings_add_base(&s);
    if (!request->is_resolved)
        add_defaults(&s);
    if (request->file)
        mx_settings_add_file(&s);
    add_environment(&s);
    add_arguments(&s);
    if (!request->is_resolved)
        mx_settings_add_model(&s);

    resolve(&s, MX_LAYER_DEFAULT, MX_LAYER_OWN_BASE);
    resolve(&s, MX_LAYER_MODEL, MX_LAYER_MODEL);
    resolve(&s, MX_LAYER_FILE, MX_LAYER_ARGUMENT);
    check_required(&s);
    check_relations(&s);
    mark_used(&s);
    if (s.foreign.len)
        mx_str_addf(&s.notes, "note: without a meaning here: %s\n", mx_str_text(&s.foreign));
    cfg->notes = mx_arena_strdup(&cfg->arena, mx_str_text(&s.notes));

    mx_status st = finish(&s);
    mx_free(s.list);
    mx_str_fini(&s.problems.text);
    mx_str_fini(&s.notes);
    mx_str_fini(&s.foreign);
    if (st)
        mx_config_free(cfg);
    else
        *out = cfg;
    return st;
}
