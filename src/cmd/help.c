/* help.c - maxc help [VERB | KEY | SECTION | keys | models | ...], written from the tables. */
#include "cmd/help_models.h"
#include "cmd/verb.h"

#include "models/model.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

static void print_key_line(const mx_key *k)
{
    char shown[64];
    const char *fallback = k->fallback;
    if (strlen(fallback) > 20) {
        snprintf(shown, sizeof shown, "%.17s...", fallback);
        fallback = shown;
    }
    printf("  %-34s %-20s %s\n", k->name, *fallback ? fallback : "\"\"", k->help);
}

static void print_section(int section)
{
    printf("\n%s - %s\n", mx_keys.sections[section].name, mx_keys.sections[section].doc);
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (k->section == section && k->type != MX_KEY_RETIRED)
                print_key_line(k);
}

static void print_overview(void)
{
    printf("maxc trains, fine-tunes and decodes large language models.\n\n"
           "usage: maxc VERB [FILE.yml] [key=value ...]      (--key value means the same)\n\n");
    for (int i = 0; i < mx_verb_count; i++)
        printf("  %-12s %s\n", mx_verb_table[i]->name, mx_verb_table[i]->doc);
    printf("\n`maxc help VERB` says what a verb takes, `maxc help KEY` what a key means,\n"
           "`maxc help keys` lists all keys, `maxc help models` the models that have a file,\n"
           "`maxc help families` the families that are understood,\n"
           "`maxc help recipes` files to train with.\n"
           "`maxc doctor` says what hardware and libraries were found.\n");
}

static void print_verb(const mx_verb *v)
{
    printf("maxc %s %s\n\n  %s\n", v->name, v->usage, v->doc);
    if (v->help)
        printf("\n%s\n", v->help);
    if (v->keys) {
        printf("\nkeys of %s, with their defaults\n", v->name);
        for (const mx_key *k = v->keys; k->name; k++)
            print_key_line(k);
    }
    for (int s = 0; s < MX_SECTION_COUNT; s++)
        if (v->sections >> s & 1)
            print_section(s);
    printf("\nexit status: %s", mx_exit_statuses);
}

static void print_users(const mx_key *key)
{
    const char *comma = "";
    printf("used by: ");
    for (int i = 0; i < mx_verb_count; i++) {
        const mx_verb *v = mx_verb_table[i];
        if (mx_key_find(v->keys, key->name) == key ||
            (key->section >= 0 && v->sections >> key->section & 1 &&
             !mx_key_find(v->keys, key->name))) {
            printf("%s%s", comma, v->name);
            comma = ", ";
        }
    }
    printf("%s\n", *comma ? "" : "no verb yet");
}

static void print_aliases(const mx_key *key)
{
    if (!key->aliases)
        return;
    printf("known elsewhere as: ");
    for (const char *s = key->aliases; *s; s++)
        if (*s != '=')
            putchar(*s);
    printf("%s\n", strchr(key->aliases, '=') ? " (some are accepted as they are)" : "");
}

static void print_key(const mx_key *key, const char *owner)
{
    if (key->type == MX_KEY_RETIRED) {
        printf("%s is not needed: %s.\n", key->name, key->help);
        return;
    }
    mx_str accepted = {0};
    mx_key_describe(key, &accepted);
    printf("%s - %s\n\naccepted: %s\ndefault:  %s\n", key->name, key->help, mx_str_text(&accepted),
           *key->fallback ? key->fallback : "\"\" (empty)");
    mx_str_fini(&accepted);
    if (owner) {
        printf("used by: %s\n", owner);
        return;
    }
    printf("section:  %s\n", mx_keys.sections[key->section].name);
    print_users(key);
    print_aliases(key);
    if (key->flags & MX_KEY_FIXED)
        printf("cannot change when a run is resumed\n");
}

static bool print_keys_named(const char *name)
{
    bool found = false;
    for (const mx_key *const *t = mx_keys.tables; *t; t++) {
        const mx_key *k = mx_key_find(*t, name);
        if (k)
            print_key(k, NULL);
        found = found || k;
    }
    for (int i = 0; i < mx_verb_count; i++) {
        const mx_key *k = mx_key_find(mx_verb_table[i]->keys, name);
        if (k) {
            printf("%s", found ? "\n" : "");
            print_key(k, mx_verb_table[i]->name);
        }
        found = found || k;
    }
    return found;
}

/* Each with the first line of its file. */
static mx_status print_recipes(const char *home)
{
    mx_arena arena = {0};
    char **names = NULL, line[256];
    int n = home ? mx_config_recipes(&arena, home, &names) : 0;
    for (int i = 0; i < n; i++) {
        FILE *f = fopen(mx_arena_printf(&arena, "%s/recipes/%s.yml", home, names[i]), "r");
        const char *dash = f && fgets(line, sizeof line, f) ? strstr(line, " - ") : NULL;
        printf("%s.yml%s%s", names[i], dash ? dash : "", dash ? "" : "\n");
        if (f)
            fclose(f);
    }
    mx_arena_fini(&arena);
    return n ? MX_OK : mx_fail(MX_INPUT, "no recipes; let MAXC_CONFIGS name the folder configs/");
}

/* As a Markdown table: README.md shows it, and a test compares the two. */
static void print_families(void)
{
    printf("| family | models | `model_type` in config.json | `decoder_block` in configs/models |\n"
           "|---|---|---|---|\n");
    for (int i = 0; i < mx_model_count; i++) {
        const mx_model *m = mx_model_table[i];
        printf("| %s | %s | %s | %s |\n", m->name, m->doc, m->model_types,
               m->decoder_block ? m->decoder_block : "");
    }
}

static const char *nearest(const char *name, int *distance)
{
    const char *best = "";
    for (const mx_key *const *t = mx_keys.tables; *t; t++) {
        const mx_key *k = mx_key_nearest(*t, name, distance);
        best = k ? k->name : best;
    }
    for (int i = 0; i < mx_verb_count; i++) {
        const mx_verb *v = mx_verb_table[i];
        int d = mx_edit_distance(name, v->name);
        if (d < *distance) {
            *distance = d;
            best = v->name;
        }
        const mx_key *k = mx_key_nearest(v->keys, name, distance);
        best = k ? k->name : best;
    }
    return best;
}

static mx_status run(mx_invocation *inv)
{
    if (inv->n_args == 0) {
        print_overview();
        return MX_OK;
    }
    const char *name = inv->args[0];
    bool known = false;
    const mx_verb *verb = mx_verb_find(name);
    if (verb) {
        print_verb(verb);
        known = true;
    }
    if (strcmp(name, "models") == 0)
        return mx_help_models(inv->home);
    if (strcmp(name, "recipes") == 0)
        return print_recipes(inv->home);
    if (strcmp(name, "families") == 0) {
        print_families();
        return MX_OK;
    }
    for (int s = 0; s < MX_SECTION_COUNT; s++)
        if (strcmp(name, mx_keys.sections[s].name) == 0 || strcmp(name, "keys") == 0) {
            if (!verb)
                print_section(s);
            known = true;
        }
    known = (!known && print_keys_named(name)) || known;
    if (known)
        return MX_OK;
    int distance = INT_MAX;
    const char *near = nearest(name, &distance);
    if (mx_is_near(name, distance))
        return mx_fail(MX_USAGE, "no verb or key `%s`; did you mean `%s`?", name, near);
    return mx_fail(MX_USAGE, "no verb or key `%s`; `maxc help` lists verbs, `maxc help keys` keys",
                   name);
}

const mx_verb mx_verb_help = {
    .name = "help",
    .doc = "what a verb takes, what a key means",
    .usage = "[VERB | KEY | SECTION | keys | models | families | recipes]",
    .max_args = 1,
    .takes_no_keys = true,
    .run = run,
};
