/* verb.h - what `maxc VERB` is made of.
 *
 * A verb is one const struct in its own file of src/cmd:
 *
 *     const mx_verb mx_verb_plan = { .name = "plan", .doc = "what a run will need", ... };
 *
 * The table is scanned out of the sources by tools/scan. Dispatch, help, the nearest verb for a
 * mistyped one, and which keys an invocation accepts all follow from the struct and from the keys'
 * own `verbs`.
 */
#ifndef MX_CMD_VERB_H
#define MX_CMD_VERB_H

#include "base/config.h"
#include "keys/keys.h"

typedef struct mx_verb mx_verb;

/* One call of the program, ready to run: everything has been parsed and checked. */
typedef struct {
    const mx_verb *verb;
    mx_config *config;       /* by-name questions, base/config.h; NULL for a verb without keys */
    const char *const *args; /* what is neither key=value nor the configuration file */
    int n_args;
    const char *file; /* the configuration file given, or NULL */
    const char *home; /* the folder with base.yml and models/, or NULL */
    const char *command_line;
} mx_invocation;

struct mx_verb {
    const char *name;
    const char *doc;   /* one line */
    const char *usage; /* what follows the name: "MODEL [key=value ...]" */
    const char *help;  /* further paragraphs, or NULL */
    int min_args, max_args;
    bool takes_file;    /* an argument that ends in .yml or .yaml is the configuration file */
    bool takes_no_keys; /* no configuration is read at all (help) */
    const char *like;   /* a verb whose command line it takes, whatever it reads of it; or NULL */
    const char *const *defaults; /* key=value, ending with NULL: above base.yml; NULL for none */
    bool takes_verb;    /* its first argument may be a verb, whose defaults count */
    /* What it trains for, by its keys; NULL: it is no verb that trains for an objective. */
    const struct mx_objective *(*objective)(const mx_config *c);
    const mx_key *keys; /* keys of its own, ending with a NULL name; NULL for none */
    mx_status (*run)(mx_invocation *inv);
};

extern const mx_verb *const mx_verb_table[];
extern const int mx_verb_count;

/* `format=json`, for verbs that print facts. */
#define MX_KEY_FORMAT                                                                              \
    {                                                                                              \
        "format", MX_KEY_ENUM, 0, "text", "text|json", "how to print", .example = "format=json"    \
    }

const mx_verb *mx_verb_find(const char *name);    /* NULL when there is none */
/* Whether the verb reads a key of the schema; whether it takes one, because it reads it or because
 * the verb it is like does. What is planned or foreign does neither. */
bool mx_verb_reads(const mx_verb *v, const mx_key *key);
bool mx_verb_takes(const mx_verb *v, const mx_key *key);
/* Every key the verb takes, for help, manual pages and completion: its own (section NULL), then
 * those of the schema, section by section. */
typedef void mx_key_visit(void *ctx, const mx_key *key, const mx_key_section *section);
void mx_verb_each_key(const mx_verb *v, mx_key_visit *visit, void *ctx);
/* What the exit statuses mean, in lines of 100 columns. */
extern const char mx_exit_statuses[];

/* Finds the verb that argv[1] names and runs it. */
mx_status mx_dispatch(int argc, char **argv, char **environment) MX_MUST_USE;
/* The whole program: gives the exit status. Errors are printed to standard error, once. */
int mx_main(int argc, char **argv, char **environment);

#endif
