/* files.h - temporary files for the data tests. */
#ifndef MX_TEST_DATA_FILES_H
#define MX_TEST_DATA_FILES_H

#include <stddef.h>
#include <stdint.h>

/* A folder of this test's own, made on first use and removed at exit; "NAME" inside it. Static
 * memory, valid until the fourth call after it. */
const char *temp_path(const char *name);
/* Writes bytes to temp_path(name) and returns that path. */
const char *temp_file(const char *name, const void *data, size_t n);
const char *temp_text(const char *name, const char *text);
/* tests/data/fixtures/NAME, wherever the tests are run from. */
const char *fixture(const char *name);
/* The whole file, NUL-terminated; exits the test when it is not there. Release with mx_free. */
char *read_whole(const char *path, size_t *n);
/* Gives every file of a folder ("FOLDER/") to a fuzz target: whole, and at about `places` places
 * with a bit flipped, a byte set, and cut there. The number of files. */
int replay_corpus(const char *folder, size_t places, int (*target)(const uint8_t *p, size_t n));

#endif
