/* config.h - typed configuration: a schema, the places values come from, and questions by name.
 *
 * A schema is a list of tables of keys. Everything else follows from it: parsing, ranges, defaults,
 * help, "did you mean", the resolved file, the difference between two runs. Values come from,
 * lowest first:
 *
 *     the table's defaults    configs/base.yml    configs/models/<model_name>.yml
 *     files named by base_config    the user's file    environment MAXC_<KEY>
 *     arguments key=value
 *
 * A file called base.yml is the lowest layer wherever it is named: the model's file overrides it.
 *
 * A value is text until the schema gives it a type: `no` is false for a bool and "no" for a string,
 * `1e3` is an integer for an int. Numbers never depend on the locale. All problems of all sources
 * are collected and reported as one status (code MX_USAGE), each with file:line or the argument.
 *
 * A key is asked for by name: mx_config_int(cfg, "steps"). A name that is not in the schema, or has
 * another type, is a bug in the caller and asserts.
 *
 * Nothing here knows what the keys mean; the table is in keys/keys.h.
 */
#ifndef MX_BASE_CONFIG_H
#define MX_BASE_CONFIG_H

#include "base/key.h"

typedef struct mx_config mx_config;

/* Problems found so far, one per line. */
typedef struct {
    mx_str text;
    int n;
} mx_problems;
void mx_problem_add(mx_problems *p, const char *fmt, ...) MX_PRINTF(2, 3);

typedef struct {
    const mx_key *const *tables;    /* ends with NULL */
    const mx_key_section *sections; /* ends with a NULL name; at most 32 */
    /* Relations between keys, checked once every value has its type. May be NULL. */
    void (*check)(const mx_config *cfg, mx_problems *p);
} mx_schema;

typedef struct {
    const mx_schema *schema;
    const mx_key *extra;            /* further keys (of a verb), always taken; may be NULL */
    const mx_key *const *elsewhere; /* tables whose keys the environment may hold; may be NULL */
    const char *user;               /* the verb that asks: "train". NULL: any key may be given */
    const char *like;  /* verbs whose command lines it takes as well, by spaces; NULL: none */
    const char *home; /* folder that holds base.yml and models/; NULL: defaults of the table only */
    const char *file; /* the user's file; NULL for none */
    const char *const *defaults; /* key=value of the verb, above base.yml; NULL: none */
    bool is_resolved; /* the file holds every key: base.yml and the model's file are not read */
    const char *const *args; /* key=value, `n_args` of them; without `=`, the value is missing */
    int n_args;
    char *const *environment; /* NAME=value, NULL-terminated; NULL for none */
} mx_config_request;

/* Files may set any key of the schema (one file serves several verbs); arguments only keys that the
 * user or the verb it is like reads. On failure *out is NULL. */
mx_status mx_config_load(mx_config **out, const mx_config_request *request) MX_MUST_USE;
void mx_config_free(mx_config *cfg);

bool mx_config_bool(const mx_config *cfg, const char *name);
int64_t mx_config_int(const mx_config *cfg, const char *name);
double mx_config_float(const mx_config *cfg, const char *name);
const char *mx_config_text(const mx_config *cfg, const char *name); /* string or enum; never NULL */
/* Lists: number of items, and the items (borrowed). For rules, each item is "name=axis,axis". */
int mx_config_list(const mx_config *cfg, const char *name, const char *const **items);
int mx_config_ints(const mx_config *cfg, const char *name, const int64_t **items);

mx_key_type mx_config_type(const mx_config *cfg, const char *name);
/* Whether the key exists in this configuration, and whether anything above base.yml set it. */
bool mx_config_has(const mx_config *cfg, const char *name);
bool mx_config_is_set(const mx_config *cfg, const char *name);
/* Whether the user did: a file of theirs, the environment, an argument; not the model's file. */
bool mx_config_is_users(const mx_config *cfg, const char *name);
/* Whether it stands in a file of the user's that is called base.yml: their defaults. */
bool mx_config_is_own_base(const mx_config *cfg, const char *name);
/* Whether the value is the table's default, whatever set it: a resolved file sets every key. */
bool mx_config_is_default(const mx_config *cfg, const char *name);
/* Whether it was said for this command: the environment, an argument. */
bool mx_config_is_argument(const mx_config *cfg, const char *name);
/* Whether the value is what this text means to the key; false when the text is no value of it. */
bool mx_config_equals(const mx_config *cfg, const char *name, const char *text);
/* Where the value came from: "run.yml:3", "argument steps=5", "environment MAXC_STEPS", "default".
 */
const char *mx_config_where(const mx_config *cfg, const char *name);
/* The value as it stands in a resolved file. */
void mx_config_print(const mx_config *cfg, const char *name, mx_str *out);
/* Every key that may be given, as YAML that mx_config_load reads back to the same values. */
void mx_config_write(const mx_config *cfg, mx_str *out);
/* What the user should know about keys that have no meaning here, a line each; "" when nothing. */
const char *mx_config_notes(const mx_config *cfg);
/* Whether a verb that is called `user` (NULL: any) and takes the command line of `like` (NULL:
 * none) takes this key of the schema. Planned and foreign keys are taken, so that the user hears
 * about them. */
bool mx_key_is_taken(const mx_key *key, const char *user, const char *like);
/* Gives a key that nothing set the value that follows from something else (a tokenizer, a family),
 * so that the resolved file tells the truth; `where` says from what. Asserts that the text is a
 * value of the key. */
void mx_config_derive(const mx_config *cfg, const char *name, const char *text, const char *where);
/* The same for a key whose value was to be decided later (mesh=auto), or depends on such a one. */
void mx_config_decide(const mx_config *cfg, const char *name, const char *text, const char *where);
/* The names of keys with all of these flags that have another value than their default and have not
 * been read so far, in the arena; gives their number. */
int mx_config_unasked(const mx_config *cfg, unsigned flags, mx_arena *a, const char ***names);
/* Forgets which keys have been read so far, except for those with one of these flags. */
void mx_config_forget(const mx_config *cfg, unsigned except);
/* The names of keys with none of these flags that have been read so far, in the arena; gives their
 * number. */
int mx_config_asked(const mx_config *cfg, unsigned without, mx_arena *a, const char ***names);
/* Keys that the user's files, environment or arguments set and that have not been read so far, as a
 * list; gives their number. For keys that a program accepts and does not act on. `counts` chooses
 * among the keys; NULL: all. */
typedef bool mx_key_filter(const void *ctx, const mx_key *key);
int mx_config_unused(const mx_config *cfg, mx_key_filter *counts, const void *ctx, mx_str *names);
/* One line per key that the new one's user reads and that differs, "key: old -> new"; lines of keys
 * that may not change on resume end in a remark and are counted, unless n_refused is NULL. Keys
 * that only one side knows, and those of `without` (ends with NULL; NULL: none), are ignored. */
int mx_config_diff(const mx_config *old, const mx_config *new, const char *const *without,
                   mx_str *report, int *n_refused);

/* Where configs/ is: $MAXC_CONFIGS, else beside the program (build/release/../../configs), else
 * installed (../share/maxc/configs). Gives "" when there is none. The buffer is returned. */
const char *mx_config_home(char *buf, size_t cap);
/* Whether a file of this name is a base.yml, the lowest layer wherever it is named. */
bool mx_config_is_base(const char *path);
/* A configuration file as it was given; where there is none, the file or recipe of that name in
 * home (demo.yml, configs/recipes/demo.yml), so that recipes are found from any folder. */
const char *mx_config_find(mx_arena *a, const char *home, const char *file);
/* The names in home/models and home/recipes without .yml, sorted; give their number. */
int mx_config_models(mx_arena *a, const char *home, char ***names);
int mx_config_recipes(mx_arena *a, const char *home, char ***names);

#endif
