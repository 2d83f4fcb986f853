/* flatbuf.h - reading FlatBuffers, as far as Arrow uses them.
 *
 * A table at position t begins with a signed offset back to its vtable: u16 size, u16 table size,
 * then one u16 per field, the field's place in the table (0: not there). Tables, strings and
 * vectors are referred to by u32 offsets forward from where the reference stands; a vector begins
 * with its u32 length. Position 0 stands for "not there". Every access is checked; damage sets
 * `bad` and reads as absent.
 */
#ifndef MX_DATA_FLATBUF_H
#define MX_DATA_FLATBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *p;
    size_t n;
    bool bad;
} mx_flatbuf;

size_t mx_flatbuf_root(mx_flatbuf *f);
int64_t mx_flatbuf_int(mx_flatbuf *f, size_t table, int field, int bytes, int64_t otherwise);
size_t mx_flatbuf_table(mx_flatbuf *f, size_t table, int field); /* a table it refers to */
/* A vector: its number of elements and the place of the first; elements are `bytes` wide. */
size_t mx_flatbuf_vector(mx_flatbuf *f, size_t table, int field, size_t bytes, int64_t *n);
size_t mx_flatbuf_follow(mx_flatbuf *f, size_t at); /* the table a u32 at `at` refers to */
int64_t mx_flatbuf_i64(mx_flatbuf *f, size_t at);
const char *mx_flatbuf_string(mx_flatbuf *f, size_t table, int field, size_t *n);

#endif
