/* tokenizer_files.h - which files of a directory are its tokenizer: the one list of them.
 *
 * Who opens a tokenizer, looks whether there is one, fetches one from the hub or copies one into a
 * checkpoint asks here.
 */
#ifndef MX_TEXT_TOKENIZER_FILES_H
#define MX_TEXT_TOKENIZER_FILES_H

#include "base/arena.h"

/* A directory without a vocabulary whose tokenizer_config.json says so has the byte tokenizer; and
 * there a rank file's pattern is kept, which the file itself does not say. */
#define MX_TOKENIZER_CONFIG "tokenizer_config.json"
#define MX_TOKENIZER_TYPE "tokenizer_type"
#define MX_TOKENIZER_PATTERN "tokenizer_pattern"

/* Vocabularies, the preferred first; a `*` stands for anything. Then the files beside them. */
extern const char *const mx_tokenizer_vocabularies[]; /* ends in NULL */
extern const char *const mx_tokenizer_others[];       /* likewise */
/* All of them as comma-separated patterns. */
extern const char mx_tokenizer_patterns[];

/* The directory's vocabulary, in the arena; NULL: none. json: 1 a tokenizer.json, 0 any other, -1
 * whichever comes first. */
const char *mx_tokenizer_vocabulary_in(const char *dir, int json, mx_arena *a);
/* The folder of a file, in the arena. */
const char *mx_tokenizer_folder(const char *file, mx_arena *a);
/* A text of the directory's tokenizer_config.json, in the arena; NULL: there is none. */
const char *mx_tokenizer_config_text(const char *dir, const char *key, mx_arena *a);
/* Whether there is a vocabulary, or the word that it is bytes. */
bool mx_tokenizer_is_in(const char *dir);
/* Whether a file of this name, without its folder, is a vocabulary. */
bool mx_tokenizer_is_vocabulary(const char *name);

#endif
