/* verb_keys.c - which keys a verb takes, and what every verb's help has in common. */
#include "cmd/verb.h"

const char mx_exit_statuses[] =
    "0 done, 1 a check failed, 2 usage or configuration, 3 bad or missing input,\n"
    "4 would not fit in memory, 5 device, communicator or I/O failure, 75 stopped on request with\n"
    "a durable checkpoint (run again to resume), 128+n signal n\n";

/* A verb's own key of the same name takes the place of the schema's. */
bool mx_verb_takes(const mx_verb *v, const mx_key *key)
{
    return !v->takes_no_keys && mx_key_state_of(key) == MX_KEY_IS_DONE &&
           !mx_key_find(v->keys, key->name) && mx_key_is_taken(key, v->name, v->like);
}

/* A verb that trains for an objective does so by train's own loop. */
bool mx_verb_reads(const mx_verb *v, const mx_key *key)
{
    return mx_verb_takes(v, key) && (mx_word_among(key->verbs, v->name) ||
                                     (v->objective && mx_word_among(key->verbs, "train")));
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
