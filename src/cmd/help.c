/* help.c - maxc help [VERB | KEY | SECTION | ...], written from the tables. */
#include "base/key_accept.h"
#include "cmd/base_yml.h"
#include "cmd/help_models.h"
#include "cmd/verb.h"

#include "models/model.h"
#include "post/reward.h"
#include "train/run/objective.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_key_line(const mx_key *k)
{
    char shown[64];
    const char *fallback = k->fallback ? k->fallback : "any";
    if (strlen(fallback) > 20) {
        snprintf(shown, sizeof shown, "%.17s...", fallback);
        fallback = shown;
    }
    printf("  %-34s %-20s %s\n", k->name, *fallback ? fallback : "\"\"", k->help);
}

/* Every key of the schema for which `wanted` holds. */
typedef bool filter(const mx_key *k, const void *what);

static int print_keys(filter *wanted, const void *what)
{
    int n = 0;
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (wanted(k, what)) {
                print_key_line(k);
                n++;
            }
    return n;
}

/* A section of the keys that a verb takes, or of all keys. */
typedef struct {
    const mx_verb *verb;
    int section;
} part;

static bool is_in_part(const mx_key *k, const void *what)
{
    const part *p = what;
    return k->section == p->section && mx_key_state_of(k) == MX_KEY_IS_DONE &&
           (!p->verb || mx_verb_takes(p->verb, k));
}

static bool is_planned_in_part(const mx_key *k, const void *what)
{
    const part *p = what;
    return k->section == p->section && mx_key_state_of(k) == MX_KEY_IS_PLANNED;
}

static bool is_foreign(const mx_key *k, const void *what)
{
    (void)what;
    return mx_key_state_of(k) == MX_KEY_IS_FOREIGN;
}

static bool has_keys(filter *wanted, const void *what)
{
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (wanted(k, what))
                return true;
    return false;
}

static void print_section(const mx_verb *verb, int section, filter *wanted)
{
    part p = {verb, section};
    if (!has_keys(wanted, &p))
        return;
    printf("\n%s - %s\n", mx_keys.sections[section].name, mx_keys.sections[section].doc);
    print_keys(wanted, &p);
}

static void print_overview(void)
{
    printf("maxc trains, fine-tunes and decodes large language models.\n\n"
           "usage: maxc VERB [FILE.yml] [key=value ...]      (--key value means the same)\n\n");
    for (int i = 0; i < mx_verb_count; i++)
        printf("  %-12s %s\n", mx_verb_table[i]->name, mx_verb_table[i]->doc);
    printf(
        "\n`maxc help VERB` says what a verb takes, `maxc help KEY` what a key means,\n"
        "`maxc help keys` lists all keys, `maxc help planned` those that are not built yet,\n"
        "`maxc help foreign` those of MaxText that have no meaning here,\n"
        "`maxc help models` the models that have a file,\n"
        "`maxc help families` the families that are understood,\n"
        "`maxc help objectives` what can be learned besides the next token, `maxc help rewards`,\n"
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
    for (int s = 0; s < MX_SECTION_COUNT && !v->takes_no_keys; s++)
        print_section(v, s, is_in_part);
    printf("\nexit status: %s", mx_exit_statuses);
}

/* The verbs that read the key, and those that only take it with the command line of another. */
static void print_users(const mx_key *key)
{
    mx_str reads = {0}, takes = {0};
    for (int i = 0; i < mx_verb_count; i++) {
        const mx_verb *v = mx_verb_table[i];
        mx_str *to = mx_verb_reads(v, key) ? &reads : &takes;
        if (mx_verb_takes(v, key))
            mx_str_addf(to, "%s%s", to->len ? ", " : "", v->name);
    }
    printf("read by:  %s\n", mx_str_text(&reads));
    if (takes.len)
        printf("accepted by %s, which do not use it\n", mx_str_text(&takes));
    mx_str_fini(&reads);
    mx_str_fini(&takes);
}

static void print_example(const mx_key *key, const char *owner)
{
    int first = (int)strcspn(key->verbs ? key->verbs : "", " ");
    if (key->flags & MX_KEY_CHECKED)
        printf("a family has it or does not; a value that contradicts the family is refused\n");
    else if (strcmp(key->name, "base_config") == 0) /* no argument */
        printf("example:  base_config: common.yml, in a file\n");
    else if (key->example)
        printf("example:  maxc %.*s %s\n", owner ? (int)strlen(owner) : first,
               owner ? owner : key->verbs, key->example);
}

static void print_state(const mx_key *key)
{
    mx_str planned = {0};
    mx_accept_describe(key, true, &planned);
    const char *but = mx_key_state_of(key) == MX_KEY_IS_DONE ? ", but for " : ": ";
    printf("state:    %s%s%s\n", mx_key_state_name(mx_key_state_of(key)), planned.len ? but : "",
           mx_str_text(&planned));
    mx_str_fini(&planned);
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

static void print_planned(const mx_key *key)
{
    printf("It is known and not built yet: a configuration that sets it to anything but its "
           "default\nis refused%s%s.\n",
           key->instead ? "; " : "", key->instead ? key->instead : "");
}

static void print_key(const mx_key *key, const char *owner)
{
    mx_key_state state = mx_key_state_of(key);
    if (state == MX_KEY_IS_FOREIGN) {
        printf("%s has no meaning here: %s.\nIt is accepted, with a note.\n", key->name, key->help);
        return;
    }
    mx_str accepted = {0};
    mx_key_describe(key, &accepted);
    printf("%s - %s\n\naccepted: %s\ndefault:  %s\n", key->name, key->help, mx_str_text(&accepted),
           *key->fallback ? key->fallback : "\"\" (empty)");
    mx_str_fini(&accepted);
    if (!owner)
        printf("section:  %s\n", mx_keys.sections[key->section].name);
    print_state(key);
    if (state == MX_KEY_IS_PLANNED)
        print_planned(key);
    else if (owner)
        printf("read by:  %s\n", owner);
    else
        print_users(key);
    print_example(key, owner);
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

/* By their places; those that have none come last. */
static int compare_objectives(const void *a, const void *b)
{
    const mx_objective *x = *(const mx_objective *const *)a, *y = *(const mx_objective *const *)b;
    unsigned left = (unsigned)x->place - 1, right = (unsigned)y->place - 1; /* none: the largest */
    return left != right ? (left > right ? 1 : -1) : strcmp(x->name, y->name);
}

/* The same of objectives, and of the rewards that are built in. */
static void print_objectives(void)
{
    printf("| command | what it learns from | records |\n|---|---|---|\n");
    mx_arena scratch = {0};
    const mx_objective **all = mx_arena_copy(&scratch, mx_objective_table,
                                             sizeof *all * (size_t)mx_objective_count);
    qsort(all, (size_t)mx_objective_count, sizeof *all, compare_objectives);
    for (int i = 0; i < mx_objective_count; i++) {
        const mx_objective *o = all[i];
        bool own = strcmp(o->verb, o->name) == 0;
        printf("| maxc %s%s%s | %s | %s |\n", o->verb, own ? "" : o->key ? " " : " loss_type=",
               own ? "" : o->key ? o->key : o->name, o->doc, o->data);
    }
    mx_arena_fini(&scratch);
}

static void print_rewards(void)
{
    printf("| reward | what it is |\n|---|---|\n");
    for (int i = 0; i < mx_reward_count; i++)
        printf("| %s | %s |\n", mx_reward_table[i]->name, mx_reward_table[i]->doc);
    printf("| reward_model_path=DIR | the score of a reward model |\n");
    printf("| reward_library=FILE | what a shared library says: include/maxc_reward.h |\n");
    printf("| reward_command=PROGRAM | what the program says |\n");
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

/* Sections by name, or all of them; false when there is none of that name. */
static bool print_sections(const char *name, bool quiet)
{
    bool keys = strcmp(name, "keys") == 0, planned = strcmp(name, "planned") == 0, found = false;
    for (int s = 0; s < MX_SECTION_COUNT; s++) {
        if (!keys && !planned && strcmp(name, mx_keys.sections[s].name) != 0)
            continue;
        found = true;
        if (!quiet)
            print_section(NULL, s, planned ? is_planned_in_part : is_in_part);
    }
    return found;
}

/* What is no verb and no key. */
static bool print_topic(const mx_invocation *inv, const char *name, mx_status *st)
{
    if (strcmp(name, "models") == 0)
        *st = mx_help_models(inv->home);
    else if (strcmp(name, "recipes") == 0)
        *st = print_recipes(inv->home);
    else if (strcmp(name, "families") == 0)
        print_families();
    else if (strcmp(name, "objectives") == 0)
        print_objectives();
    else if (strcmp(name, "rewards") == 0)
        print_rewards();
    else if (strcmp(name, "foreign") == 0)
        print_keys(is_foreign, NULL);
    else if (strcmp(name, "base.yml") == 0)
        mx_base_yml_print();
    else
        return false;
    return true;
}

static mx_status run(mx_invocation *inv)
{
    mx_status st = MX_OK;
    if (inv->n_args == 0) {
        print_overview();
        return MX_OK;
    }
    const char *name = inv->args[0];
    const mx_verb *verb = mx_verb_find(name);
    if (verb)
        print_verb(verb);
    if (print_topic(inv, name, &st))
        return st;
    /* a verb and a section may have one name: the verb's help shows its keys */
    if (print_sections(name, verb != NULL) || verb || print_keys_named(name))
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
    .usage = "[VERB | KEY | SECTION | keys | planned | foreign | models | families | recipes | "
             "objectives | rewards | base.yml]",
    .help = "base.yml prints the file configs/base.yml as the tables have it.",
    .max_args = 1,
    .takes_no_keys = true,
    .run = run,
};
