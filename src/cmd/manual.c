/* manual.c - maxc manual [VERB]: the page that `man maxc` or `man maxc-VERB` shows, as roff.
 *
 * Written from the tables that help is written from. In roff a backslash, a dash and a line that
 * begins with . or ' have a meaning of their own.
 */
#include "base/version.h"
#include "cmd/verb.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* An empty line begins a paragraph. */
static void put(const char *text)
{
    bool line_start = true;
    for (const char *c = text; *c; c++) {
        if (line_start && *c == '\n')
            printf(".PP");
        if (line_start && (*c == '.' || *c == '\''))
            printf("\\&");
        if (*c == '\\')
            printf("\\e");
        else if (*c == '-')
            printf("\\-");
        else
            putchar(*c);
        line_start = *c == '\n';
    }
}

/* NAME is upper case in the title. */
static void put_title(const char *verb)
{
    printf(".TH MAXC");
    for (const char *c = verb ? verb : ""; *c; c++)
        printf("%s%c", c == verb ? "\\-" : "", toupper((unsigned char)*c));
    printf(" 1 \"\" \"maxc " MX_VERSION "\" \"maxc manual\"\n");
}

static void put_key(void *ctx, const mx_key *k, const mx_key_section *section)
{
    const mx_key_section **last = ctx;
    if (section != *last) {
        printf(".SS ");
        put(section->name);
        printf(" - ");
        put(section->doc);
        printf("\n");
        *last = section;
    }
    mx_str accepted = {0};
    mx_key_describe(k, &accepted);
    printf(".TP\n\\fB");
    put(k->name);
    printf("\\fR=");
    put(*k->fallback ? k->fallback : "\"\"");
    printf("\n");
    put(k->help);
    printf("; ");
    put(mx_str_text(&accepted));
    printf(".\n");
    mx_str_fini(&accepted);
}

static void put_verb(const mx_verb *v)
{
    put_title(v->name);
    printf(".SH NAME\nmaxc\\-%s \\- ", v->name);
    put(v->doc);
    printf("\n.SH SYNOPSIS\n.B maxc %s\n", v->name);
    put(v->usage);
    printf("\n.SH DESCRIPTION\n");
    put(v->help ? v->help : v->doc);
    printf("\n");
    if (!v->takes_no_keys) {
        const mx_key_section *last = NULL;
        printf(".SH KEYS\nWritten key=value or \\-\\-key value, each here with its default.\n");
        mx_verb_each_key(v, put_key, &last);
    }
    printf(".SH EXIT STATUS\n");
    put(mx_exit_statuses);
    printf(".SH SEE ALSO\n.BR maxc (1)\n");
}

static void put_overview(void)
{
    put_title(NULL);
    printf(
        ".SH NAME\nmaxc \\- train, fine\\-tune and decode large language models\n"
        ".SH SYNOPSIS\n.B maxc\nVERB [FILE.yml] [key=value ...]\n"
        ".SH DESCRIPTION\n"
        "maxc does what its first argument, the verb, says. FILE.yml and key=value (or \\-\\-key "
        "value) set keys;\nwhat a key means is in the page of the verb and in "
        "`maxc help KEY`. FILE.yml may be a recipe\n(`maxc help recipes`), which is found from "
        "any folder.\n.SH VERBS\n");
    for (int i = 0; i < mx_verb_count; i++) {
        printf(".TP\n.BR maxc\\-%s (1)\n", mx_verb_table[i]->name);
        put(mx_verb_table[i]->doc);
        printf("\n");
    }
    printf(
        ".SH ENVIRONMENT\n"
        ".TP\n.B MAXC_KEY\nsets the key KEY, in capitals: MAXC_STEPS=100. A key that is also "
        "given as an argument is an error.\n"
        ".TP\n.B MAXC_CONFIGS\nthe folder of base.yml, models/ and recipes/, instead of the "
        "installed one.\n"
        ".TP\n.B HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT\nas for Hugging "
        "Face's own library.\n"
        ".SH FILES\n"
        ".TP\n.I runs/NAME\na run: config.yml, metrics.jsonl, log.txt, checkpoints/STEP (Hugging "
        "Face directories).\n"
        ".TP\n.I share/maxc/configs\nbase.yml (every key), models/ and recipes/.\n"
        ".SH EXIT STATUS\n");
    put(mx_exit_statuses);
}

static mx_status run(mx_invocation *inv)
{
    const mx_verb *verb = inv->n_args ? mx_verb_find(inv->args[0]) : NULL;
    if (inv->n_args && !verb)
        return mx_fail(MX_USAGE, "no verb `%s`; `maxc help` lists them", inv->args[0]);
    if (verb)
        put_verb(verb);
    else
        put_overview();
    return MX_OK;
}

const mx_verb mx_verb_manual = {
    .name = "manual",
    .doc = "a manual page, as man reads it",
    .usage = "[VERB]",
    .help = "`maxc manual train | man -l -` shows it; `make install` installs all of them.",
    .max_args = 1,
    .takes_no_keys = true,
    .run = run,
};
