/* dispatch.c - from argv to a verb that runs, and from its status to the exit status.
 *
 *     maxc VERB [FILE.yml] [ARGUMENT ...] [key=value ...] [--key value] [--key=value]
 *
 * `-h` and `--help` anywhere ask for the verb's help; `maxc --version` is `maxc version`. An
 * argument is a key when it starts with a letter and `=` follows letters, digits, `_` or `.`; a
 * file whose name looks like that is given as ./name. `--key value` takes the next word, except
 * that a key which is true or false may stand alone. Dashes inside --key stand for `_`. After `--`
 * nothing is a key.
 *
 * Exit status: mx_status_code of what the verb returned, 0 when that is OK, 5 when what was printed
 * could not be written (a full disk behind standard output).
 */
#include "cmd/verb.h"

#include "base/clock.h"
#include "base/reserve.h"
#include "base/signals.h"
#include "base/simd.h"
#include "dist/rendezvous.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long another rank with a bad configuration waits to see whether the first one listens. */
enum { FIRST_RANK_S = 5 };

const mx_verb *mx_verb_find(const char *name)
{
    for (int i = 0; i < mx_verb_count; i++)
        if (strcmp(mx_verb_table[i]->name, name) == 0)
            return mx_verb_table[i];
    return NULL;
}

static const mx_verb *verb_nearest(const char *name)
{
    const mx_verb *best = NULL;
    int distance = INT_MAX;
    for (int i = 0; i < mx_verb_count; i++) {
        int d = mx_edit_distance(name, mx_verb_table[i]->name);
        if (d < distance) {
            distance = d;
            best = mx_verb_table[i];
        }
    }
    return best && mx_is_near(name, distance) ? best : NULL;
}

typedef struct {
    mx_arena *arena;
    const mx_verb *verb;
    const char **settings, **args; /* settings as key=value; room for all of argv in each */
    int n_settings, n_args;
    const char *file;
    bool wants_help;
} command;

static bool is_setting(const char *arg)
{
    const char *c = arg;
    while (isalnum((unsigned char)*c) || *c == '_' || *c == '.')
        c++;
    return *c == '=' && isalpha((unsigned char)arg[0]);
}

static bool is_config_file(const char *arg)
{
    return mx_ends_with(arg, ".yml") || mx_ends_with(arg, ".yaml");
}

static const mx_key *find_key(const mx_verb *verb, const char *name)
{
    const mx_key *key = mx_key_find(verb->keys, name);
    for (const mx_key *const *t = mx_keys.tables; !key && *t; t++)
        key = mx_key_find(*t, name);
    return key;
}

/* Takes --key=value or --key and perhaps the next word; gives the number of words used. */
static int take_option(command *c, const char *option, const char *next)
{
    const char *equals = strchr(option, '=');
    size_t n = equals ? (size_t)(equals - option) : strlen(option);
    char *name = mx_arena_printf(c->arena, "%.*s", (int)n - 2, option + 2);
    for (char *s = name; *s; s++)
        *s = *s == '-' ? '_' : *s;
    const mx_key *key = find_key(c->verb, name);
    bool flag = key && key->type == MX_KEY_BOOL;
    mx_value ignored;
    mx_str why = {0};
    bool is_value = next && (!flag || mx_value_read_text(c->arena, key, next, &ignored, &why));
    mx_str_fini(&why);
    const char *value = equals ? equals + 1 : is_value ? next : flag ? "true" : NULL;
    c->settings[c->n_settings++] = mx_arena_printf(c->arena, value ? "%s=%s" : "%s", name, value);
    return !equals && is_value ? 2 : 1;
}

static mx_status take_word(command *c, const char *arg)
{
    if (c->verb->takes_file && is_config_file(arg)) {
        if (c->file)
            return mx_fail(MX_USAGE,
                           "two configuration files, `%s` and `%s`; "
                           "name the first in the second as base_config",
                           c->file, arg);
        c->file = arg;
        return MX_OK;
    }
    c->args[c->n_args++] = arg;
    return MX_OK;
}

static mx_status sort_arguments(command *c, int argc, char **argv)
{
    bool only_words = false;
    for (int i = 2; i < argc;) {
        const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        int used = 1;
        if (only_words)
            MX_TRY(take_word(c, arg));
        else if (strcmp(arg, "--") == 0)
            only_words = true;
        else if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)
            c->wants_help = true;
        else if (mx_starts_with(arg, "--"))
            used = take_option(c, arg, next);
        else if (arg[0] == '-' && arg[1])
            return mx_fail(MX_USAGE,
                           "unknown option `%s`; keys are written key=value or --key value", arg);
        else if (is_setting(arg))
            c->settings[c->n_settings++] = arg;
        else
            MX_TRY(take_word(c, arg));
        i += used;
    }
    return MX_OK;
}

static mx_status check_arguments(const command *c)
{
    const mx_verb *v = c->verb;
    if (c->n_args > v->max_args)
        return mx_fail(MX_USAGE, "unexpected argument `%s`; usage: maxc %s %s",
                       c->args[v->max_args], v->name, v->usage);
    if (c->n_args < v->min_args)
        return mx_fail(MX_USAGE, "an argument is missing; usage: maxc %s %s", v->name, v->usage);
    for (int i = c->file ? -1 : 0; i < c->n_args; i++) {
        const char *path = i < 0 ? c->file : c->args[i];
        if (mx_path_advice(path))
            return mx_fail(MX_USAGE, "`%s` is not on this machine; %s", path, mx_path_advice(path));
    }
    if (v->takes_no_keys && c->n_settings)
        return mx_fail(MX_USAGE, "takes no keys, found `%s`; usage: maxc %s %s", c->settings[0],
                       v->name, v->usage);
    return MX_OK;
}

/* The argument, without the value of a key that is a secret. */
static const char *without_secret(mx_arena *a, const char *arg)
{
    size_t n = strcspn(arg, "=");
    char *name = mx_arena_printf(a, "%.*s", (int)n, arg);
    for (const mx_key *const *t = mx_keys.tables; *t && arg[n]; t++) {
        const mx_key *key = mx_key_find(*t, name);
        if (key && (key->flags & MX_KEY_SECRET))
            return mx_arena_printf(a, "%s=(not shown)", name);
    }
    return arg;
}

/* As typed, for command.txt; words that a shell would split are put in single quotes. */
static const char *command_line(mx_arena *a, int argc, char **argv)
{
    mx_str line = {0};
    for (int i = 0; i < argc; i++) {
        const char *arg = without_secret(a, argv[i]);
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789_-./=,:+@%";
        mx_str_add(&line, i ? " " : "");
        if (*arg && !arg[strspn(arg, plain)]) {
            mx_str_add(&line, arg);
            continue;
        }
        mx_str_add(&line, "'");
        for (const char *c = arg; *c; c++) {
            if (*c == '\'')
                mx_str_add(&line, "'\\''");
            else
                mx_str_add_n(&line, c, 1);
        }
        mx_str_add(&line, "'");
    }
    char *copy = mx_arena_strdup(a, mx_str_text(&line));
    mx_str_fini(&line);
    return copy;
}

/* Of several ranks, rank 0 reports what concerns all. */
static bool leads(void)
{
    mx_launch p;
    mx_status st = mx_launch_find(&p, getenv);
    bool first = st || p.rank == 0;
    mx_status_free(st);
    return first;
}

/* A wrong command line or configuration is wrong on every rank: rank 0 reports it, and the others
 * only end with its status. If rank 0 is listening, it found nothing wrong, so this rank was
 * started differently and reports that itself. */
static mx_status said_by_one(const mx_verb *verb, mx_status st)
{
    mx_launch p;
    const mx_key *of_ranks = find_key(verb, "rendezvous_secret");
    if (!of_ranks || !mx_verb_reads(verb, of_ranks))
        return st;
    mx_status found = mx_launch_find(&p, getenv);
    bool follows = !found && p.rank > 0;
    mx_status_free(found);
    if (!follows)
        return st;
    mx_wait wait = {.deadline = mx_clock_now() + FIRST_RANK_S, .alarm = -1};
    if (mx_rendezvous_answers(&p, &wait))
        return mx_status_wrap(st, "rank %d, unlike rank 0", p.rank);
    mx_code code = mx_status_code(st);
    mx_status_free(st);
    return mx_fail(code, "%s", "");
}

/* The configuration file: the user's, or one of the program's own recipes. A base.yml that is not
 * there is the program's own (base/config_files.c). */
static mx_status find_file(command *c, const char *home)
{
    c->file = mx_config_find(c->arena, home, c->file);
    if (access(c->file, F_OK) == 0 || !home || mx_config_is_base(c->file))
        return MX_OK;
    char **names;
    mx_str recipes = {0};
    int n = mx_config_recipes(c->arena, home, &names);
    for (int i = 0; i < n; i++)
        mx_str_addf(&recipes, "%s%s.yml", i ? ", " : "", names[i]);
    mx_status st = mx_fail(MX_INPUT, "there is no file %s, and no recipe of that name; recipes: %s",
                           c->file, mx_str_text(&recipes));
    mx_str_fini(&recipes);
    return st;
}

/* Gives NULL for a verb without keys. */
static mx_status configure(command *c, const char *home, char **environment, mx_config **out)
{
    *out = NULL;
    MX_TRY(mx_simd_check());
    if (c->file)
        MX_TRY(find_file(c, home));
    if (c->verb->takes_no_keys)
        return MX_OK;
    const mx_key **elsewhere = MX_NEW_N(c->arena, const mx_key *, mx_verb_count + 1);
    for (int i = 0, n = 0; i < mx_verb_count; i++)
        if (mx_verb_table[i]->keys)
            elsewhere[n++] = mx_verb_table[i]->keys;
    const mx_verb *whose = c->verb->takes_verb && c->n_args ? mx_verb_find(c->args[0]) : c->verb;
    const char *like = c->verb->like;
    if (whose && whose != c->verb && whose->objective)
        like = mx_arena_printf(c->arena, "%s %s", like ? like : "", whose->name);
    mx_config_request request = {
        .defaults = whose ? whose->defaults : NULL,
        .schema = &mx_keys,
        .extra = c->verb->keys,
        .elsewhere = elsewhere,
        .user = c->verb->name,
        .like = like,
        .home = home,
        .file = c->file,
        .args = c->settings,
        .n_args = c->n_settings,
        .environment = environment,
    };
    return mx_config_load(out, &request);
}

static bool is_read(const void *verb, const mx_key *key)
{
    const mx_verb *v = verb;
    return mx_key_find(v->keys, key->name) == key || mx_verb_reads(v, key);
}

/* Keys that the verb reads in other cases. What trains says so itself, in its log as well; plan,
 * data and bench are given whole files of a run. */
static void say_unused(const mx_verb *v, const mx_config *config)
{
    mx_str names = {0};
    if (!v->takes_file && !v->like && mx_config_unused(config, is_read, v, &names))
        fprintf(stderr, "note: these keys are set and have no effect here: %s\n",
                mx_str_text(&names));
    mx_str_fini(&names);
}

static mx_status run_verb(command *c, int argc, char **argv, char **environment)
{
    char buf[4096];
    const char *home = mx_config_home(buf, sizeof buf);
    mx_config *config;
    home = *home ? home : NULL;
    mx_status st = configure(c, home, environment, &config);
    if (st)
        return said_by_one(c->verb, st);
    mx_invocation inv = {
        .verb = c->verb,
        .config = config,
        .args = c->args,
        .n_args = c->n_args,
        .file = c->file,
        .home = home,
        .command_line = command_line(c->arena, argc, argv),
    };
    if (config && leads())
        fputs(mx_config_notes(config), stderr);
    st = mx_memory_check();
    if (!st)
        st = c->verb->run(&inv);
    if (!st && config && leads())
        say_unused(c->verb, config);
    mx_config_free(config);
    return st;
}

static mx_status unknown_verb(const char *name)
{
    const mx_verb *near = verb_nearest(name);
    if (near)
        return mx_fail(MX_USAGE, "maxc: unknown verb `%s`; did you mean `%s` (%s)?", name,
                       near->name, near->doc);
    return mx_fail(MX_USAGE, "maxc: unknown verb `%s`; `maxc help` lists them", name);
}

static mx_status dispatch_in(mx_arena *arena, int argc, char **argv, char **environment)
{
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0)
        name = "help";
    if (strcmp(name, "-v") == 0 || strcmp(name, "--version") == 0)
        name = "version";
    const mx_verb *verb = mx_verb_find(name);
    if (!verb)
        return unknown_verb(name);
    command c = {.arena = arena, .verb = verb};
    c.settings = MX_NEW_N(arena, const char *, argc + 1);
    c.args = MX_NEW_N(arena, const char *, argc + 1);
    mx_status st = sort_arguments(&c, argc, argv);
    if (!st && c.wants_help) {
        c.verb = mx_verb_find("help");
        c.args[0] = verb->name;
        c.n_args = 1;
        c.n_settings = 0;
    }
    if (!st)
        st = check_arguments(&c);
    st = st ? said_by_one(verb, st) : run_verb(&c, argc, argv, environment);
    return *mx_status_text(st) ? mx_status_wrap(st, "maxc %s", verb->name) : st;
}

mx_status mx_dispatch(int argc, char **argv, char **environment)
{
    mx_arena arena = {0};
    mx_status st = dispatch_in(&arena, argc, argv, environment);
    mx_arena_fini(&arena);
    return st;
}

/* A line may hold a text of any length from a file: its middle is left out. */
static void print_error(const char *text)
{
    enum { HEAD = 3000, TAIL = 1000 };
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n > HEAD + TAIL + 100)
            fprintf(stderr, "%.*s [... %zu bytes ...] %.*s\n", HEAD, text, n - HEAD - TAIL, TAIL,
                    text + n - TAIL);
        else
            fprintf(stderr, "%.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

int mx_main(int argc, char **argv, char **environment)
{
    mx_memory_install();
    mx_signals_limit_files();
    mx_status st = mx_dispatch(argc, argv, environment);
    int code = (int)mx_status_code(st);
    if (st && *mx_status_text(st)) /* else another rank has said it */
        print_error(mx_status_text(st));
    mx_status_free(st);
    errno = 0;
    bool unwritten = fflush(stdout) != 0 || ferror(stdout);
    if (unwritten && code == 0) {
        fprintf(stderr, "maxc: standard output could not be written%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        return MX_DEVICE;
    }
    return code == 0 && argc < 2 ? (int)MX_USAGE : code;
}
