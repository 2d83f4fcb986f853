/* keys_effect_test.c - a key that is done does something: its example, run with and without it,
 * makes a difference in the graph, the plan, the run or the output; and the verbs that the table
 * names are those that read it.
 *
 * A row of a key table that is neither planned nor foreign needs `verbs` and `example`; nothing
 * else has to be written for it here. The cheapest of the verbs that shows a difference is enough.
 */
#include "keys_world.h"

#include "../test.h"
#include "base/io.h"
#include "cmd/verb.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- every key that is done, those of verbs included ---- */

typedef void visit(const mx_key *key, const mx_verb *owner, void *ctx);

static void each_table(const mx_key *keys, const mx_verb *owner, visit *fn, void *ctx)
{
    for (const mx_key *k = keys; k && k->name; k++)
        if (mx_key_state_of(k) == MX_KEY_IS_DONE)
            fn(k, owner, ctx);
}

static void each_key(visit *fn, void *ctx)
{
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        each_table(*t, NULL, fn, ctx);
    for (int i = 0; i < mx_verb_count; i++)
        each_table(mx_verb_table[i]->keys, mx_verb_table[i], fn, ctx);
}

/* The verbs of a key, one after the other. */
static bool next_verb(const char **rest, char verb[32])
{
    *rest += strspn(*rest, " ");
    size_t n = strcspn(*rest, " ");
    snprintf(verb, 32, "%.*s", (int)n, *rest);
    *rest += n;
    return n > 0;
}

static const char *verbs_of(const mx_key *k, const mx_verb *owner)
{
    return owner ? owner->name : k->verbs ? k->verbs : "";
}

/* ---- the rows ---- */

/* Does a test set this key? */
static bool sets(const char *file, const char *key)
{
    char *text = NULL, setting[128];
    size_t n;
    bool found = false;
    mx_status st = mx_io_read_file(NULL, file, 1 << 24, &text, &n);
    for (int quoted = 0; !st && quoted < 2 && !found; quoted++) { /* {"key", value} is one too */
        snprintf(setting, sizeof setting, quoted ? "\"%s\"" : "%s=", key);
        for (char *at = strstr(text, setting); at && !found; at = strstr(at + 1, setting))
            found = quoted || (at > text && strchr(" \"\n(", at[-1]));
    }
    mx_status_free(st);
    mx_free(text);
    return found;
}

static void check_row(const mx_key *k, const mx_verb *owner, void *ctx)
{
    (void)ctx;
    char verb[32];
    const char *rest = verbs_of(k, owner), *equals = k->example ? strchr(k->example, '=') : NULL;
    MX_CHECK(*rest, "%s: no verbs; a key that nothing reads is planned or foreign", k->name);
    while (next_verb(&rest, verb))
        MX_CHECK(mx_verb_find(verb), "%s: there is no verb %s", k->name, verb);
    MX_CHECK(equals && strlen(k->name) == (size_t)(equals - k->example) &&
                 strncmp(k->name, k->example, strlen(k->name)) == 0,
             "%s: the example must begin with %s=", k->name, k->name);
    MX_CHECK(!k->seen_by || sets(k->seen_by, k->name), "%s: %s does not set it", k->name,
             k->seen_by);
    if (!equals)
        return;
    mx_arena a = {0};
    mx_value usual, other;
    mx_str why = {0};
    char *value = mx_arena_printf(&a, "%.*s", (int)strcspn(equals + 1, " "), equals + 1);
    bool read = mx_value_read_text(&a, k, k->fallback, &usual, &why) &&
                mx_value_read_text(&a, k, value, &other, &why) &&
                mx_value_is_built(k, &other, &why);
    MX_CHECK(read && !mx_value_equal(k, &usual, &other),
             "%s: the example must have another value than the default %s", k->name,
             mx_str_text(&why));
    mx_str_fini(&why);
    mx_arena_fini(&a);
}

MX_TEST(keys_that_are_done_name_verbs_and_an_example)
{
    each_key(check_row, NULL);
}

/* ---- their effect ---- */

enum { MAX_BASELINES = 400 };

/* What a verb does without the key, under the circumstances of its example. */
typedef struct {
    char verb[32];
    const char *settings;
    mx_str seen;
    int code;
} baseline;

typedef struct {
    baseline all[MAX_BASELINES];
    int n;
    mx_arena arena;
} baselines;

/* What differs from run to run would pass for the effect of any key. */
static void check_repeats(const baseline *b)
{
    mx_str again = {0};
    world_run(b->verb, b->settings, &again);
    MX_CHECK(strcmp(mx_str_text(&b->seen), mx_str_text(&again)) == 0,
             "maxc %s %s differs from run to run:\n%s\n---\n%s", b->verb, b->settings,
             mx_str_text(&b->seen), mx_str_text(&again));
    mx_str_fini(&again);
}

static const baseline *without(baselines *b, const char *verb, const char *settings)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->all[i].verb, verb) == 0 && strcmp(b->all[i].settings, settings) == 0)
            return &b->all[i];
    MX_ASSERT(b->n < MAX_BASELINES);
    baseline *new = &b->all[b->n++];
    snprintf(new->verb, sizeof new->verb, "%s", verb);
    new->settings = mx_arena_strdup(&b->arena, settings);
    new->code = world_run(verb, settings, &new->seen);
    if (b->n % 6 == 1)
        check_repeats(new);
    return new;
}

/* The settings of a key's example but for its own. A run saves where any of them is about
 * checkpoints (keys_world.c), so that it must do so without the key, too. */
static const char *circumstances(baselines *b, const mx_key *k)
{
    const char *rest = k->example + strcspn(k->example, " ");
    rest += strspn(rest, " ");
    bool saves = strstr(k->example, "checkpoint") && !strstr(rest, "checkpoint");
    return saves ? mx_arena_printf(&b->arena, "%s enable_checkpointing=true", rest) : rest;
}

/* Whether this verb shows a difference. One of the two runs must come to an end without an error;
 * of a key that is only checked, the one without it. */
static bool differs(baselines *b, const mx_key *k, const char *verb, mx_str *report)
{
    const baseline *before = without(b, verb, circumstances(b, k));
    mx_str after = {0};
    int code = world_run(verb, k->example, &after);
    bool works = before->code == 0 || (code == 0 && !(k->flags & MX_KEY_CHECKED));
    bool seen = works && strcmp(mx_str_text(&before->seen), mx_str_text(&after)) != 0;
    mx_str_addf(report, "  %s: %s (%d, %d)\n%.*s", verb, seen ? "differs" : "no difference",
                before->code, code, code ? 400 : 0, mx_str_text(&after));
    mx_str_fini(&after);
    return seen;
}

static void check_effect(const mx_key *k, const mx_verb *owner, void *ctx)
{
    static const char *const by_cost[] = {"version", "doctor", "tokenize", "detokenize",
                                          "inspect", "data",   "generate", "verify",
                                          "plan",    "train"};
    if (k->seen_by || !k->example)
        return;
    mx_str report = {0};
    bool seen = false;
    for (size_t i = 0; i < sizeof by_cost / sizeof *by_cost && !seen; i++)
        if (mx_word_among(verbs_of(k, owner), by_cost[i]))
            seen = differs(ctx, k, by_cost[i], &report);
    MX_CHECK(seen, "%s: `%s` makes no difference\n%s", k->name, k->example, mx_str_text(&report));
    mx_str_fini(&report);
}

/* What plan reads, train and bench read too: one function builds the model and its step for all
 * three. What generate reads of a model and its text, serve, chat and eval read too
 * (cmd/model_text.h). The measurements of bench, servers and conversations are not run here. */
static bool is_shared(const mx_key *k, const mx_verb *owner, const char *verb)
{
    bool planned = mx_word_among(verbs_of(k, owner), "plan");
    return mx_word_among("bench serve chat eval", verb) || (planned && strcmp(verb, "train") == 0);
}

/* Every verb under the circumstances of every example that it should read, so that reads are
 * complete. */
static void run_readers(const mx_key *k, const mx_verb *owner, void *ctx)
{
    char verb[32];
    const char *verbs = verbs_of(k, owner);
    while (!k->seen_by && k->example && next_verb(&verbs, verb))
        if (!is_shared(k, owner, verb))
            without(ctx, verb, circumstances(ctx, k));
}

/* ---- who reads them ---- */

static bool is_read(const char *reads, const char *verb, const char *key)
{
    char line[160];
    snprintf(line, sizeof line, "\n%s %s\n", verb, key);
    return strstr(reads, line) != NULL;
}

static void check_readers(const mx_key *k, const mx_verb *owner, void *ctx)
{
    const char *reads = ctx;
    for (int i = 0; i < mx_verb_count; i++) {
        const mx_verb *v = mx_verb_table[i];
        bool read = is_read(reads, v->name, k->name);
        bool named = mx_word_among(verbs_of(k, owner), v->name);
        bool said = named || (!owner && mx_verb_reads(v, k));
        bool shadowed = !owner && mx_key_find(v->keys, k->name); /* the verb's own key is meant */
        bool optional = k->seen_by || is_shared(k, owner, v->name);
        MX_CHECK(!read || said || owner || shadowed,
                 "`maxc %s` reads %s; the table does not say so", v->name, k->name);
        MX_CHECK(!named || read || shadowed || optional,
                 "`maxc %s` does not read %s; the table says so", v->name, k->name);
    }
}

MX_TEST(keys_that_are_done_make_a_difference_to_who_reads_them)
{
    char folder[256], reads_path[300];
    baselines *b = mx_realloc(NULL, sizeof *b);
    *b = (baselines){0};
    world_make(folder, sizeof folder);
    snprintf(reads_path, sizeof reads_path, "%s/.reads", folder);
    FILE *f = fopen(reads_path, "w");
    fputs("\n", f);
    fclose(f);
    setenv("MAXC_TEST_READS", reads_path, 1);
    mx_str ignored = {0};
    world_run("bench", "", &ignored);
    mx_str_fini(&ignored);
    each_key(run_readers, b);
    each_key(check_effect, b);
    unsetenv("MAXC_TEST_READS");
    char *reads = NULL;
    size_t n;
    MX_CHECK_OK(mx_io_read_file(NULL, reads_path, 1 << 28, &reads, &n));
    each_key(check_readers, reads);
    mx_free(reads);
    for (int i = 0; i < b->n; i++)
        mx_str_fini(&b->all[i].seen);
    mx_arena_fini(&b->arena);
    mx_free(b);
    world_remove(folder);
}
