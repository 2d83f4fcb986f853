/* keys_world.h - a folder with everything that examples of keys name, and verbs run in it.
 *
 * The examples of the key tables (base/key.h) say data.jsonl, model, tokenizer, ...: the world has
 * such files. What a verb prints and leaves behind becomes one text, without what differs from run
 * to run: times, rates, paths. */
#ifndef TEST_KEYS_WORLD_H
#define TEST_KEYS_WORLD_H

#include "base/arena.h"
#include "base/str.h"

/* Makes the world and goes to a folder in it. */
void world_make(char *path, size_t cap);
void world_remove(const char *path);
/* A further folder in it, with copies of its files: settings at random may write anywhere. */
void world_copy(const char *world, const char *name);

/* Runs a verb, tiny unless the settings say otherwise: keys of `settings` (space-separated) replace
 * those of the verb's own tiny command line. Gives the exit status; `seen` gets what there was to
 * see. */
int world_run(const char *verb, const char *settings, mx_str *seen);
/* The command line of that. `settings` are space-separated. Gives argc; NULL follows. */
int world_command(const char *verb, const char *settings, mx_arena *a, char **argv, int most);

#endif
