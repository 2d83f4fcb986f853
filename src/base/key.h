/* key.h - one configuration key: its type, its limits, and values read and written by them.
 *
 * A key is one line of a const table. Its default and its limits are text in the table, so that the
 * code which reads the user's values reads them too, and a table stays readable as a document.
 */
#ifndef MX_BASE_KEY_H
#define MX_BASE_KEY_H

#include "base/arena.h"
#include "base/str.h"
#include "base/yaml.h"

typedef enum {
    MX_KEY_BOOL,
    MX_KEY_INT,
    MX_KEY_FLOAT,
    MX_KEY_STRING,
    MX_KEY_ENUM,    /* one of the words of `accept` */
    MX_KEY_LIST,    /* of strings */
    MX_KEY_INTS,    /* list of integers */
    MX_KEY_RULES,   /* list of [name, [axis, ...]]; items read as "name=axis,axis" */
    MX_KEY_FOREIGN, /* about another program's implementation: any value, a note; `help` says why */
} mx_key_type;

enum {
    MX_KEY_FIXED = 1,     /* may not change when a run is resumed */
    MX_KEY_SECRET = 2,    /* never written or printed */
    MX_KEY_OPTIONAL = 4,  /* null and None are accepted and mean the default */
    MX_KEY_REQUIRED = 8,  /* the verb cannot do without it */
    MX_KEY_PLANNED = 16,  /* not built: any value but the default is an error */
    MX_KEY_PATH = 32,     /* files or folders of this machine */
    MX_KEY_SHAPE = 64,    /* says what the model is: a family without it refuses it */
    MX_KEY_CHECKED = 128, /* no more than that: a family has it or has it not */
};

/* What becomes of a key that is set. It follows from type and flags; a test holds every key that is
 * done to its `example` and `verbs`, so a key that is only declared cannot pass for done. */
typedef enum {
    MX_KEY_IS_DONE,    /* read, and it makes a difference */
    MX_KEY_IS_PLANNED, /* an error unless it has its default */
    MX_KEY_IS_FOREIGN, /* a note */
} mx_key_state;

/* One key. Defaults and limits are text, read by the same code that reads the user's values; a test
 * reads all of them. A table ends with an entry whose name is NULL.
 *   accept   numbers: alternatives separated by `|`, each `3`, `1..`, `..8`, `0..1` or `>0`
 *            enums: the words, separated by `|`; an empty word stands for the empty string. Other
 *            spellings follow a word: `cuda=gpu` accepts gpu for cuda, `bfloat16~bf16` offers
 *            bfloat16 to who writes bf16
 *            `!` before an alternative: not built. A planned key with such alternatives takes the
 *            others
 *   aliases  names other programs use for the same thing, separated by spaces. They are offered in
 *            errors; one that starts with `=` is accepted as if it were the key.
 *   verbs    that read it, separated by spaces; for a verb's own keys NULL. Of a planned key: those
 *            for which it says only what they do anyway, so that they take any value
 *   example  settings separated by spaces: this key's own first, at another value than the default,
 *            then those under which it makes a difference. Help shows it; a test runs it with and
 *            without the first, with the first of `verbs`, and must see the difference
 *   seen_by  the test that sets it and sees the difference where one run cannot show it
 *   instead  of a planned key: what to do until it is there
 *   maxtext  the value in MaxText's base.yml, where it cannot be had here: a file called base.yml
 *            may have it, with a note, since nobody asked for it there */
typedef struct {
    const char *name;
    mx_key_type type;
    int section; /* index into the schema's sections */
    const char *fallback;
    const char *accept;
    const char *help;
    const char *aliases;
    unsigned flags;
    const char *verbs;
    const char *example;
    const char *seen_by;
    const char *instead;
    const char *maxtext;
} mx_key;

typedef struct {
    const char *name, *doc;
} mx_key_section;

/* A value with its type; the key says which member counts. Everything is borrowed from an arena. */
typedef struct {
    bool truth;               /* bool */
    int64_t integer;          /* int */
    double real;              /* float */
    const char *text;         /* string, enum */
    const char *const *items; /* list, ints, rules */
    const int64_t *integers;  /* ints */
    int n;                    /* items */
} mx_value;

/* Reads a node by the key's type. False when it does not fit; `why` then says what is expected and
 * what was found. */
bool mx_value_read(mx_arena *a, const mx_key *key, const mx_yaml_node *node, mx_value *out,
                   mx_str *why);
/* The same for the text of an argument, an environment variable or a default. */
bool mx_value_read_text(mx_arena *a, const mx_key *key, const char *text, mx_value *out,
                        mx_str *why);
/* False when the value asks for what is not built; `why` then says so, and what to do. */
bool mx_value_is_built(const mx_key *key, const mx_value *v, mx_str *why);
/* False when a key of files names something that is not on this machine, gs://bucket/x. */
bool mx_value_is_local(const mx_key *key, const mx_value *v, mx_str *why);
/* What to do about such a path; NULL when it is a path of this machine. */
const char *mx_path_advice(const char *path);
/* As YAML that mx_value_read reads back to the same value. */
void mx_value_write(const mx_key *key, const mx_value *v, mx_str *out);
bool mx_value_equal(const mx_key *key, const mx_value *a, const mx_value *b);

mx_key_state mx_key_state_of(const mx_key *key);
const char *mx_key_state_name(mx_key_state state);
/* Whether a list of words that spaces divide holds this one; the list may be NULL. */
bool mx_word_among(const char *words, const char *word);

/* The key by name or accepted alias, in a table that may be NULL; NULL when there is none. */
const mx_key *mx_key_find(const mx_key *keys, const char *name);
/* The key whose name or alias is nearest to a mistyped one, or NULL when none is near. `*distance`
 * is the best so far, so that several tables can be searched (start with INT_MAX). */
const mx_key *mx_key_nearest(const mx_key *keys, const char *name, int *distance);
/* What is accepted, in words: "an integer, at least 1", "one of a, b". */
void mx_key_describe(const mx_key *key, mx_str *out);
/* How far apart two names may be and still be offered as a typing error. */
bool mx_is_near(const char *typed, int distance);

#endif
