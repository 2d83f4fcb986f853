/* test_dir.h - a scratch directory for one test, and files in it. */
#ifndef MX_TEST_STORE_DIR_H
#define MX_TEST_STORE_DIR_H

#include "store/st_write.h"
#include <stddef.h>

typedef struct {
    char path[256];
} test_dir;

void test_dir_make(test_dir *d);
void test_dir_remove(test_dir *d);
/* "d/name" in one of 64 rotating static buffers. */
const char *test_dir_file(const test_dir *d, const char *name);
void test_put(const char *path, const void *data, size_t n);
void test_put_text(const char *path, const char *text);
/* A safetensors file with this header text and this many zero bytes of data. */
void test_put_st(const char *path, const char *header, size_t data_bytes);
char *test_get(const char *path, size_t *n); /* mx_free it */
bool test_exists(const char *path);

#endif
