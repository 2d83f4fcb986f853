/* config.c - a resolved configuration: questions by name, the resolved file, differences.
 *
 * A configuration holds one entry per key of the schema (and of the verb's own keys), sorted by
 * name. Entries are filled by config_load.c, lowest source first.
 */
#include "base/config_entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mx_problem_add(mx_problems *p, const char *fmt, ...)
{
    enum { SHOWN = 100 };
    va_list ap;
    char line[2048];
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (mx_ends_with(mx_str_text(&p->text), line) || ++p->n > SHOWN) /* once is enough */
        return;
    mx_str_addf(&p->text, "\n  %s", line);
    if (p->n == SHOWN)
        mx_str_add(&p->text, "\n  (further problems are not shown)");
}

/* Tests compare what a verb reads with what the tables of keys say: with MAXC_TEST_READS=FILE each
 * configuration leaves lines "VERB KEY" there. */
#ifdef MX_TEST_BUILD
static void record_reads(const mx_config *cfg)
{
    const char *path = getenv("MAXC_TEST_READS");
    FILE *f = path && cfg->user ? fopen(path, "a") : NULL;
    for (int i = 0; f && i < cfg->n; i++)
        if (cfg->entries[i].asked)
            fprintf(f, "%s %s\n", cfg->user, cfg->entries[i].key->name);
    if (f)
        fclose(f);
}
#else
static void record_reads(const mx_config *cfg)
{
    (void)cfg;
}
#endif

void mx_config_free(mx_config *cfg)
{
    if (!cfg)
        return;
    record_reads(cfg);
    mx_arena arena = cfg->arena; /* holds cfg itself */
    mx_arena_fini(&arena);
}

static int by_name(const void *name, const void *entry)
{
    return strcmp(name, ((const mx_config_entry *)entry)->key->name);
}

mx_config_entry *mx_config_entry_find(const mx_config *cfg, const char *name)
{
    return bsearch(name, cfg->entries, (size_t)cfg->n, sizeof *cfg->entries, by_name);
}

static const mx_config_entry *entry(const mx_config *cfg, const char *name)
{
    const mx_config_entry *e = mx_config_entry_find(cfg, name);
    MX_ASSERT(e, "no key `%s` in the schema", name);
    return e;
}

static const mx_config_entry *asked(const mx_config *cfg, const char *name)
{
    mx_config_entry *e = mx_config_entry_find(cfg, name);
    MX_ASSERT(e, "no key `%s` in the schema", name);
    e->asked = true;
    return e;
}

static const mx_value *typed(const mx_config *cfg, const char *name, mx_key_type type)
{
    const mx_config_entry *e = asked(cfg, name);
    MX_ASSERT(e->key->type == type, "`%s` has type %d, asked for as %d", name, e->key->type, type);
    return &e->value;
}

bool mx_config_bool(const mx_config *cfg, const char *name)
{
    return typed(cfg, name, MX_KEY_BOOL)->truth;
}

int64_t mx_config_int(const mx_config *cfg, const char *name)
{
    return typed(cfg, name, MX_KEY_INT)->integer;
}

double mx_config_float(const mx_config *cfg, const char *name)
{
    return typed(cfg, name, MX_KEY_FLOAT)->real;
}

const char *mx_config_text(const mx_config *cfg, const char *name)
{
    const mx_config_entry *e = asked(cfg, name);
    bool text = e->key->type == MX_KEY_STRING || e->key->type == MX_KEY_ENUM;
    MX_ASSERT(text, "`%s` has type %d, asked for as text", name, e->key->type);
    return e->value.text;
}

int mx_config_list(const mx_config *cfg, const char *name, const char *const **items)
{
    const mx_config_entry *e = asked(cfg, name);
    bool list = e->key->type == MX_KEY_LIST || e->key->type == MX_KEY_RULES;
    MX_ASSERT(list, "`%s` has type %d, asked for as a list", name, e->key->type);
    *items = e->value.items;
    return e->value.n;
}

int mx_config_ints(const mx_config *cfg, const char *name, const int64_t **items)
{
    const mx_value *v = typed(cfg, name, MX_KEY_INTS);
    *items = v->integers;
    return v->n;
}

mx_key_type mx_config_type(const mx_config *cfg, const char *name)
{
    return entry(cfg, name)->key->type;
}

bool mx_config_has(const mx_config *cfg, const char *name)
{
    return mx_config_entry_find(cfg, name) != NULL;
}

bool mx_config_is_set(const mx_config *cfg, const char *name)
{
    return entry(cfg, name)->layer > MX_LAYER_BASE;
}

bool mx_config_is_users(const mx_config *cfg, const char *name)
{
    mx_layer layer = entry(cfg, name)->layer;
    return layer == MX_LAYER_OWN_BASE || layer >= MX_LAYER_FILE;
}

bool mx_config_is_own_base(const mx_config *cfg, const char *name)
{
    return entry(cfg, name)->layer == MX_LAYER_OWN_BASE;
}

bool mx_config_equals(const mx_config *cfg, const char *name, const char *text)
{
    const mx_config_entry *e = asked(cfg, name);
    mx_arena a = {0};
    mx_value v;
    mx_str why = {0};
    bool same = mx_value_read_text(&a, e->key, text, &v, &why) &&
                mx_value_equal(e->key, &e->value, &v);
    mx_str_fini(&why);
    mx_arena_fini(&a);
    return same;
}

bool mx_config_is_default(const mx_config *cfg, const char *name)
{
    return mx_config_equals(cfg, name, entry(cfg, name)->key->fallback);
}

bool mx_config_is_argument(const mx_config *cfg, const char *name)
{
    return entry(cfg, name)->layer >= MX_LAYER_ENVIRONMENT;
}

const char *mx_config_where(const mx_config *cfg, const char *name)
{
    return entry(cfg, name)->where;
}

void mx_config_print(const mx_config *cfg, const char *name, mx_str *out)
{
    const mx_config_entry *e = entry(cfg, name);
    if (e->key->flags & MX_KEY_SECRET)
        mx_str_add(out, "(not shown)");
    else
        mx_value_write(e->key, &e->value, out);
}

const char *mx_config_notes(const mx_config *cfg)
{
    return cfg->notes;
}

static bool is_written(const mx_config *cfg, const mx_key *k)
{
    return k->type != MX_KEY_FOREIGN && !(k->flags & MX_KEY_SECRET) &&
           strcmp(k->name, "base_config") != 0 && mx_key_is_taken(k, cfg->user, cfg->like);
}

/* By sections, so that the file reads like base.yml. base_config is left out: what those files said
 * is in the values, and they may be gone when the resolved file is read. */
void mx_config_write(const mx_config *cfg, mx_str *out)
{
    for (int i = 0; cfg->schema->sections[i].name; i++) {
        const mx_key_section *section = &cfg->schema->sections[i];
        bool begun = false;
        for (const mx_key *const *t = cfg->schema->tables; *t; t++)
            for (const mx_key *k = *t; k->name; k++) {
                if (k->section != i || !is_written(cfg, k))
                    continue;
                if (!begun)
                    mx_str_addf(out, "%s# %s: %s\n", out->len ? "\n" : "", section->name,
                                section->doc);
                begun = true;
                mx_str_addf(out, "%s: ", k->name);
                mx_value_write(k, &entry(cfg, k->name)->value, out);
                mx_str_add(out, "\n");
            }
    }
}

int mx_config_unused(const mx_config *cfg, mx_key_filter *counts, const void *ctx, mx_str *names)
{
    int n = 0;
    for (int i = 0; i < cfg->n; i++) {
        const mx_config_entry *e = &cfg->entries[i];
        if (!e->asked && mx_config_is_users(cfg, e->key->name) &&
            mx_key_state_of(e->key) == MX_KEY_IS_DONE && (!counts || counts(ctx, e->key)))
            mx_str_addf(names, "%s%s", n++ ? ", " : "", e->key->name);
    }
    return n;
}

void mx_config_forget(const mx_config *cfg, unsigned except)
{
    for (int i = 0; i < cfg->n; i++)
        if (!(cfg->entries[i].key->flags & except))
            cfg->entries[i].asked = false;
}

int mx_config_asked(const mx_config *cfg, unsigned without, mx_arena *a, const char ***names)
{
    int n = 0;
    *names = MX_NEW_N(a, const char *, cfg->n);
    for (int i = 0; i < cfg->n; i++)
        if (cfg->entries[i].asked && !(cfg->entries[i].key->flags & without))
            (*names)[n++] = cfg->entries[i].key->name;
    return n;
}

int mx_config_unasked(const mx_config *cfg, unsigned flags, mx_arena *a, const char ***names)
{
    int n = 0;
    *names = MX_NEW_N(a, const char *, cfg->n);
    for (int i = 0; i < cfg->n; i++) {
        mx_config_entry *e = &cfg->entries[i];
        if (e->asked || (e->key->flags & flags) != flags || e->layer <= MX_LAYER_BASE)
            continue;
        if (!mx_config_equals(cfg, e->key->name, e->key->fallback))
            (*names)[n++] = e->key->name;
        e->asked = false;
    }
    return n;
}

void mx_config_derive(const mx_config *cfg, const char *name, const char *text, const char *where)
{
    const mx_config_entry *e = mx_config_entry_find(cfg, name);
    MX_ASSERT(e && e->layer <= MX_LAYER_BASE, "`%s` is set by %s", name, e ? e->where : "nothing");
    mx_config_decide(cfg, name, text, where);
}

void mx_config_decide(const mx_config *cfg, const char *name, const char *text, const char *where)
{
    mx_config_entry *e = mx_config_entry_find(cfg, name);
    mx_arena *a = &((mx_config *)cfg)->arena; /* what is settled later was open, not changed */
    mx_str why = {0};
    MX_ASSERT(e, "`%s` is no key", name);
    bool ok = mx_value_read_text(a, e->key, text, &e->value, &why);
    MX_ASSERT(ok, "%s", mx_str_text(&why));
    mx_str_fini(&why);
    e->layer = MX_LAYER_MODEL;
    e->where = mx_arena_strdup(a, where);
}

static bool is_one_of(const char *name, const char *const *list)
{
    while (list && *list && strcmp(*list, name) != 0)
        list++;
    return list && *list;
}

/* Whether a difference of the key's value would be one of the run. */
static bool is_compared(const mx_config *cfg, const mx_key *k, const char *const *without)
{
    return !is_one_of(k->name, without) && !(k->flags & MX_KEY_SECRET) &&
           mx_key_state_of(k) == MX_KEY_IS_DONE && mx_key_is_taken(k, cfg->user, cfg->like);
}

int mx_config_diff(const mx_config *old, const mx_config *new, const char *const *without,
                   mx_str *report, int *n_refused)
{
    int n = 0;
    if (n_refused)
        *n_refused = 0;
    for (int i = 0; i < new->n; i++) {
        const mx_config_entry *b = &new->entries[i];
        const mx_config_entry *a = mx_config_entry_find(old, b->key->name);
        if (!a || a->key->type != b->key->type || !is_compared(new, b->key, without) ||
            mx_value_equal(b->key, &a->value, &b->value))
            continue;
        n++;
        mx_str_addf(report, "  %s: ", b->key->name);
        mx_value_write(a->key, &a->value, report);
        mx_str_add(report, " -> ");
        mx_value_write(b->key, &b->value, report);
        if (n_refused && (b->key->flags & MX_KEY_FIXED)) {
            (*n_refused)++;
            mx_str_addf(report, " (%s: cannot change when a run is resumed)", b->where);
        }
        mx_str_add(report, "\n");
    }
    return n;
}
