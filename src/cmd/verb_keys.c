/* verb_keys.c - which keys a verb takes, and what every verb's help has in common. */
#include "cmd/verb.h"

const char mx_exit_statuses[] =
    "0 done, 1 a check failed, 2 usage or configuration, 3 bad or missing input,\n"
    "4 would not fit in memory, 5 device, communicator or I/O failure, 75 stopped on request with\n"
    "a durable checkpoint (run again to resume), 128+n signal n\n";

bool mx_verb_takes(const mx_verb *v, const mx_key *key)
{
    return key->type != MX_KEY_RETIRED && v->sections >> key->section & 1 &&
           !mx_key_find(v->keys, key->name);
}

void mx_verb_each_key(const mx_verb *v, mx_key_visit *visit, void *ctx)
{
    for (const mx_key *k = v->keys; k && k->name; k++)
        visit(ctx, k, NULL);
    for (int s = 0; s < MX_SECTION_COUNT; s++)
        for (const mx_key *const *t = mx_keys.tables; *t; t++)
            for (const mx_key *k = *t; k->name; k++)
                if (k->section == s && mx_verb_takes(v, k))
                    visit(ctx, k, &mx_keys.sections[s]);
}
