/* completion.c - maxc completion bash|zsh|fish: a script that completes verbs, keys and values.
 *
 * Written from the same tables as help. Keys that the same verbs take form a group, and the script
 * tests for each group whether the current verb is one of them. Names of models and recipes are
 * files, so the script asks the program for them when it runs.
 */
#include "cmd/verb.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const mx_key *key;
    const mx_verb *owner; /* of a verb's own key; NULL: of the schema */
    mx_str verbs;         /* that take it, "data train" */
    bool done;
} entry;

typedef struct {
    entry *entry; /* owns */
    int n, cap;
    const mx_verb *verb; /* the one being visited */
} list;

static void visit(void *ctx, const mx_key *key, const mx_key_section *section)
{
    list *l = ctx;
    entry *e = NULL;
    for (int i = 0; i < l->n && section && !e; i++)
        e = l->entry[i].key == key ? &l->entry[i] : NULL;
    if (!e) {
        MX_GROW(l->entry, l->n, l->cap);
        e = &l->entry[l->n++];
        *e = (entry){.key = key, .owner = section ? NULL : l->verb};
    }
    mx_str_addf(&e->verbs, "%s%s", e->verbs.len ? " " : "", l->verb->name);
}

static void collect(list *l)
{
    for (int i = 0; i < mx_verb_count; i++) {
        l->verb = mx_verb_table[i];
        mx_verb_each_key(l->verb, visit, l);
    }
}

static void list_fini(list *l)
{
    for (int i = 0; i < l->n; i++)
        mx_str_fini(&l->entry[i].verbs);
    mx_free(l->entry);
}

/* In single quotes, where bash, zsh and fish all need `quote` for a quote. */
static void put_quoted(const char *text, const char *quote)
{
    putchar('\'');
    for (const char *c = text; *c; c++)
        if (*c == '\'')
            printf("%s", quote);
        else
            putchar(*c);
    putchar('\'');
}

/* ---- values ---- */

/* The words of an enum. A table may say more than the words: `!` before one that is not built,
 * other spellings after `=` or `~`. */
static void put_words(const mx_key *k)
{
    if (k->type == MX_KEY_BOOL) {
        printf(" true false");
        return;
    }
    for (const char *w = k->accept; *w; w += strcspn(w, "|"), w += *w == '|') {
        size_t n = strcspn(w, "|=~");
        if (n && *w != '!')
            printf(" %.*s", (int)n, w);
    }
}

static bool has_words(const mx_key *k)
{
    return k->type == MX_KEY_BOOL || k->type == MX_KEY_ENUM;
}

/* `VERB.KEY` to words, as branches of a `case`; a verb's own keys first. */
static void put_values(const list *l, const char *branch, const char *end)
{
    for (int own = 1; own >= 0; own--)
        for (int i = 0; i < l->n; i++) {
            const entry *e = &l->entry[i];
            if (!has_words(e->key) || (e->owner != NULL) != own)
                continue;
            printf(branch, e->owner ? e->owner->name : "*", e->key->name);
            put_words(e->key);
            printf("%s", end);
        }
}

/* ---- what stands where a key does not ---- */

/* The words of a verb's usage: small letters as they are, MODEL and such by what they stand for. */
static void put_arguments(const mx_verb *v, const char *call)
{
    static const char between[] = " []|";
    for (const char *w = v->usage; *w;) {
        size_t n = strcspn(w, between);
        bool plain = n > 1;
        for (size_t i = 0; i < n; i++)
            plain = plain && (islower((unsigned char)w[i]) || w[i] == '_');
        if (plain)
            printf(" %.*s", (int)n, w);
        else if (n == 5 && strncmp(w, "MODEL", n) == 0)
            printf(call, "models");
        else if (n == 8 && strncmp(w, "FILE.yml", n) == 0)
            printf(call, "recipes");
        else if (n == 4 && strncmp(w, "VERB", n) == 0)
            printf(call, "verbs");
        else if (n == 3 && strncmp(w, "KEY", n) == 0)
            printf(call, "keys");
        w += n;
        w += strspn(w, between);
    }
}

static void put_all_arguments(const char *branch, const char *call, const char *end)
{
    for (int i = 0; i < mx_verb_count; i++) {
        printf(branch, mx_verb_table[i]->name);
        put_arguments(mx_verb_table[i], call);
        printf("%s", end);
    }
}

/* ---- keys ---- */

typedef void put_group(const list *l, int first);

/* Calls `put` for the first entry of each group. */
static void put_groups(list *l, put_group *put)
{
    for (int i = 0; i < l->n; i++)
        if (!l->entry[i].done) {
            put(l, i);
            for (int j = i; j < l->n; j++)
                l->entry[j].done |= strcmp(l->entry[j].verbs.text, l->entry[i].verbs.text) == 0;
        }
}

static bool in_group(const list *l, int first, int i)
{
    return strcmp(l->entry[i].verbs.text, l->entry[first].verbs.text) == 0;
}

/* The key's names: its own, then the aliases that are accepted as they are. Starts with *at = NULL;
 * false when there are no more. */
static bool next_name(const mx_key *k, const char **at, int *n)
{
    if (!*at) {
        *at = k->name;
        *n = (int)strlen(k->name);
        return true;
    }
    const char *from = *at == k->name ? (k->aliases ? k->aliases : "") : *at + *n;
    const char *equals = strchr(from, '=');
    if (!equals)
        return false;
    *at = equals + 1;
    *n = (int)strcspn(*at, " ");
    return true;
}

/* What bash and zsh share: two functions of one `case` each. zsh parenthesizes its patterns. */
static void put_cases(list *l, const char *value, const char *argument)
{
    printf("}\n_maxc_values() {\n    case $1 in\n"
           "    *.model_name) maxc completion models ;;\n");
    put_values(l, value, " ;;\n");
    printf("    esac\n}\n_maxc_arguments() {\n    case $1 in\n");
    put_all_arguments(argument, " $(maxc completion %s)", " ;;\n");
}

/* ---- bash ---- */

static void bash_group(const list *l, int first)
{
    int n;
    printf("    case ' %s ' in *\" $1 \"*) echo '", l->entry[first].verbs.text);
    for (int i = first; i < l->n; i++)
        for (const char *at = NULL; in_group(l, first, i) && next_name(l->entry[i].key, &at, &n);)
            printf(" %.*s=", n, at);
    printf("' ;; esac\n");
}

static void put_bash(list *l)
{
    printf("# bash completion for maxc, written by `maxc completion bash`.\n"
           "_maxc_keys() {\n");
    put_groups(l, bash_group);
    put_cases(l, "    %s.%s) echo", "    %s) echo");
    printf(
        "    esac\n}\n"
        "_maxc() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} key= before= dashes=\n"
        "    COMPREPLY=()\n"
        "    if [[ $COMP_CWORD -eq 1 ]]; then\n"
        "        COMPREPLY=($(compgen -W \"$(maxc completion verbs)\" -- \"$cur\"))\n"
        "        return\n"
        "    fi\n"
        "    # bash makes = a word of its own unless COMP_WORDBREAKS has been changed\n"
        "    if [[ $cur == ?*=* ]]; then\n"
        "        key=${cur%%%%=*} before=${cur%%%%=*}= cur=${cur#*=}\n"
        "    elif [[ $cur == = ]]; then\n"
        "        key=${COMP_WORDS[COMP_CWORD-1]} cur=\n"
        "    elif [[ ${COMP_WORDS[COMP_CWORD-1]} == = ]]; then\n"
        "        key=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    fi\n"
        "    key=${key#--}\n"
        "    if [[ $key ]]; then\n"
        "        COMPREPLY=($(compgen -P \"$before\" -W \"$(_maxc_values \"$verb.$key\")\" -- "
        "\"$cur\"))\n"
        "    else\n"
        "        [[ $cur == --* ]] && dashes=--\n"
        "        COMPREPLY=($([[ $dashes ]] ||\n"
        "                compgen -W \"$(_maxc_arguments \"$verb\")\" -- \"$cur\"\n"
        "            compgen -P \"$dashes\" -W \"$(_maxc_keys \"$verb\")\" -- \"${cur#--}\"))\n"
        "        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
        "    fi\n"
        "    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then\n"
        "        compopt -o filenames\n"
        "        local IFS=$'\\n'\n"
        "        COMPREPLY=($(compgen -P \"$before\" -f -- \"$cur\"))\n"
        "    fi\n"
        "} 2> /dev/null\n"
        "complete -F _maxc maxc\n");
}

/* ---- zsh ---- */

/* A colon ends the name in what _describe takes. */
static void zsh_group(const list *l, int first)
{
    int n;
    printf("    if [[ ' %s ' == *\" $1 \"* ]]; then keys+=(\n", l->entry[first].verbs.text);
    for (int i = first; i < l->n; i++)
        for (const char *at = NULL; in_group(l, first, i) && next_name(l->entry[i].key, &at, &n);) {
            mx_str text = {0};
            mx_str_addf(&text, "%.*s=:%s", n, at, l->entry[i].key->help);
            printf("        ");
            put_quoted(mx_str_text(&text), "'\\''");
            printf("\n");
            mx_str_fini(&text);
        }
    printf("    ) fi\n");
}

static void put_zsh(list *l)
{
    printf("#compdef maxc\n# zsh completion for maxc, written by `maxc completion zsh`.\n"
           "_maxc_keys() {\n");
    put_groups(l, zsh_group);
    put_cases(l, "    (%s.%s) echo", "    (%s) echo");
    printf("    esac\n}\n_maxc() {\n    local -a verbs keys values\n    verbs=(\n");
    for (int i = 0; i < mx_verb_count; i++) {
        mx_str text = {0};
        mx_str_addf(&text, "%s:%s", mx_verb_table[i]->name, mx_verb_table[i]->doc);
        printf("        ");
        put_quoted(mx_str_text(&text), "'\\''");
        printf("\n");
        mx_str_fini(&text);
    }
    printf("    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        _describe -t verbs verb verbs\n"
           "    elif [[ $PREFIX == ?*=* ]]; then\n"
           "        local key=${${PREFIX%%%%=*}#--}\n"
           "        compset -P '*='\n"
           "        values=(${=$(_maxc_values $words[2].$key 2> /dev/null)})\n"
           "        (( $#values )) && compadd -a values || _files\n"
           "    else\n"
           "        _maxc_keys $words[2]\n"
           "        values=(${=$(_maxc_arguments $words[2] 2> /dev/null)})\n"
           "        local dashes=${(M)PREFIX#--}\n"
           "        [[ $dashes ]] && compset -P '--'\n"
           "        [[ $dashes ]] || (( ! $#values )) || compadd -a values\n"
           "        _describe -t keys key keys -S ''\n"
           "        [[ $dashes ]] || _files\n"
           "    fi\n"
           "}\n_maxc \"$@\"\n");
}

/* ---- fish ---- */

static void fish_group(const list *l, int first)
{
    int n;
    printf("    if contains -- $argv[1] %s\n        printf '%%s=\\t%%s\\n'",
           l->entry[first].verbs.text);
    for (int i = first; i < l->n; i++)
        for (const char *at = NULL; in_group(l, first, i) && next_name(l->entry[i].key, &at, &n);) {
            printf(" \\\n            %.*s ", n, at);
            put_quoted(l->entry[i].key->help, "\\'");
        }
    printf("\n    end\n");
}

static void put_fish(list *l)
{
    printf("# fish completion for maxc, written by `maxc completion fish`.\n"
           "function __maxc_keys\n");
    put_groups(l, fish_group);
    printf("end\nfunction __maxc_values\n    switch $argv[1]\n"
           "        case '*.model_name'\n            maxc completion models\n");
    put_values(l, "        case '%s.%s'\n            printf '%%s\\n'", "\n");
    printf("    end\nend\nfunction __maxc_arguments\n    switch $argv[1]\n");
    put_all_arguments("        case %s\n            printf '%%s\\n'", " (maxc completion %s)",
                      "\n");
    printf("    end\nend\n"
           "function __maxc_settings\n"
           "    set -l words (commandline -opc)\n"
           "    set -l parts (string match -r '^(?:--)?(.+?)=' -- (commandline -ct))\n"
           "    for value in (__maxc_values $words[2].$parts[2] 2> /dev/null)\n"
           "        echo $parts[1]$value\n"
           "    end\n"
           "end\n"
           "function __maxc_complete\n"
           "    set -l words (commandline -opc)\n"
           "    if string match -q '*=*' -- (commandline -ct)\n"
           "        __maxc_settings\n"
           "    else if string match -q -- '--*' (commandline -ct)\n"
           "        __maxc_keys $words[2] | string replace -r '^' -- --\n"
           "    else\n"
           "        __maxc_arguments $words[2] 2> /dev/null | string match -r '.+'\n"
           "        __maxc_keys $words[2]\n"
           "    end\n"
           "end\n");
    for (int i = 0; i < mx_verb_count; i++) {
        printf("complete -c maxc -f -n 'test (count (commandline -opc)) -eq 1' -a %s -d ",
               mx_verb_table[i]->name);
        put_quoted(mx_verb_table[i]->doc, "\\'");
        printf("\n");
    }
    printf("complete -c maxc -n 'test (count (commandline -opc)) -gt 1' -a '(__maxc_complete)'\n"
           "# no files where the values are known\n"
           "complete -c maxc -f -n 'count (__maxc_settings) > /dev/null'\n");
}

/* ---- the verb ---- */

typedef int list_files(mx_arena *a, const char *home, char ***names);

static void put_names(const char *home, list_files *files, const char *suffix)
{
    mx_arena arena = {0};
    char **names = NULL;
    int n = home ? files(&arena, home, &names) : 0;
    for (int i = 0; i < n; i++)
        printf("%s%s\n", names[i], suffix);
    mx_arena_fini(&arena);
}

static void put_verbs(void)
{
    for (int i = 0; i < mx_verb_count; i++)
        printf("%s\n", mx_verb_table[i]->name);
}

static void put_key_names(const list *l)
{
    for (int i = 0; i < l->n; i++)
        printf("%s\n", l->entry[i].key->name);
}

static mx_status run(mx_invocation *inv)
{
    const char *what = inv->args[0];
    list l = {0};
    mx_status st = MX_OK;
    collect(&l);
    if (strcmp(what, "bash") == 0)
        put_bash(&l);
    else if (strcmp(what, "zsh") == 0)
        put_zsh(&l);
    else if (strcmp(what, "fish") == 0)
        put_fish(&l);
    else if (strcmp(what, "verbs") == 0)
        put_verbs();
    else if (strcmp(what, "keys") == 0)
        put_key_names(&l);
    else if (strcmp(what, "models") == 0)
        put_names(inv->home, mx_config_models, "");
    else if (strcmp(what, "recipes") == 0)
        put_names(inv->home, mx_config_recipes, ".yml");
    else
        st = mx_fail(MX_USAGE, "no shell `%s`; bash, zsh and fish are known", what);
    list_fini(&l);
    return st;
}

const mx_verb mx_verb_completion = {
    .name = "completion",
    .doc = "a script that completes verbs, keys and values in a shell",
    .usage = "bash | zsh | fish | verbs | keys | models | recipes",
    .help =
        "`source <(maxc completion bash)` tries it; `make install` installs all three. The other\n"
        "words list names, one a line.",
    .min_args = 1,
    .max_args = 1,
    .takes_no_keys = true,
    .run = run,
};
