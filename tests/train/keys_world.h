/* keys_world.h - a folder with everything that examples of keys name, and verbs run in it.
 *
 * The examples of the key tables (base/key.h) say data.jsonl, model, tokenizer, ...: the world has
 * such files. What a verb prints and leaves behind becomes one text, without what differs from run
 * to run: times, rates, paths. */
#ifndef TEST_KEYS_WORLD_H
#define TEST_KEYS_WORLD_H

#include "base/str.h"

/* Makes the folder and goes there. */
void world_make(char *path, size_t cap);
void world_remove(const char *path);

/* Runs a verb, tiny unless the settings say otherwise: keys of `settings` (space-separated) replace
 * those of the verb's own tiny command line. Gives the exit status; `seen` gets what there was to
 * see. */
int world_run(const char *verb, const char *settings, mx_str *seen);
/* Whether the world knows how to run the verb. */
bool world_has(const char *verb);

#endif
