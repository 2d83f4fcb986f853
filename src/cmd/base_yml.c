/* base_yml.c - see base_yml.h. A key a line, with its default and what it means; keys that are
 * planned and secrets stand in comments. `make base-yml` writes the file, a test compares it.
 */
#include "cmd/base_yml.h"

#include "keys/keys.h"
#include <stdio.h>

static void add_default(const mx_key *k, mx_str *line)
{
    mx_arena a = {0};
    mx_value v;
    mx_str why = {0};
    bool ok = mx_value_read_text(&a, k, k->fallback, &v, &why);
    MX_ASSERT(ok, "default of the table: %s", mx_str_text(&why));
    mx_value_write(k, &v, line);
    mx_str_fini(&why);
    mx_arena_fini(&a);
}

static void print_key(const mx_key *k)
{
    enum { COMMENT_COLUMN = 44 };
    bool planned = mx_key_state_of(k) == MX_KEY_IS_PLANNED, secret = k->flags & MX_KEY_SECRET;
    mx_str line = {0};
    mx_str_addf(&line, "%s%s: ", planned || secret ? "# " : "", k->name);
    add_default(k, &line);
    const char *more = planned  ? " (planned)"
                       : secret ? "; better given in the environment, never written"
                                : "";
    printf("%-*s # %s%s\n", COMMENT_COLUMN, mx_str_text(&line), k->help, more);
    mx_str_fini(&line);
}

void mx_base_yml_print(void)
{
    printf(
        "# base.yml - every key of maxc, with its default and what it means. Written by `make "
        "base-yml`.\n"
        "#\n"
        "# This is the lowest layer: a model's file (configs/models), files named by base_config, "
        "your own file,\n"
        "# MAXC_<KEY> in the environment and key=value on the command line override it, in this "
        "order. Do not\n"
        "# copy it: a file of your own holds only what differs. `maxc help KEY` says what a key "
        "accepts.\n"
        "# A key in a comment is planned: it is known, and refused unless it has its default.\n");
    for (int s = 0; mx_keys.sections[s].name; s++) {
        printf("\n# ---- %s: %s ----\n", mx_keys.sections[s].name, mx_keys.sections[s].doc);
        for (const mx_key *const *t = mx_keys.tables; *t; t++)
            for (const mx_key *k = *t; k->name; k++)
                if (k->section == s && mx_key_state_of(k) != MX_KEY_IS_FOREIGN)
                    print_key(k);
    }
}
