/* arrow.h - what the files of the Arrow reader share.
 *
 *   arrow_schema.c  messages and the schema
 *   arrow_array.c   a record batch's buffers into arrays; values as JSON
 *   arrow_ipc.c     the file: the source kind
 *
 * A stream is messages: 0xffffffff, i32 metadata size, metadata (a FlatBuffer), padding to 8, body.
 * A file is "ARROW1", two zero bytes, a stream, a footer and "ARROW1"; the footer repeats where the
 * messages are, so both are read as a stream. A record batch lists its buffers in the order of a
 * depth-first walk over the fields.
 */
#ifndef MX_DATA_ARROW_H
#define MX_DATA_ARROW_H

#include "data/formats/compression.h"
#include "data/formats/flatbuf.h"
#include "data/formats/source.h"

typedef enum {
    MX_ARROW_NULL = 1, MX_ARROW_INT = 2, MX_ARROW_FLOAT = 3, MX_ARROW_BINARY = 4, MX_ARROW_UTF8 = 5,
    MX_ARROW_BOOL = 6, MX_ARROW_DECIMAL = 7, MX_ARROW_DATE = 8, MX_ARROW_TIME = 9,
    MX_ARROW_TIMESTAMP = 10, MX_ARROW_LIST = 12, MX_ARROW_STRUCT = 13, MX_ARROW_FIXED_BINARY = 15,
    MX_ARROW_FIXED_LIST = 16, MX_ARROW_MAP = 17, MX_ARROW_DURATION = 18, MX_ARROW_LARGE_BINARY = 19,
    MX_ARROW_LARGE_UTF8 = 20, MX_ARROW_LARGE_LIST = 21, MX_ARROW_BINARY_VIEW = 23,
    MX_ARROW_UTF8_VIEW = 24,
} mx_arrow_type;

typedef struct mx_arrow_field {
    char *name;
    mx_arrow_type type;
    int bits;             /* integers, floats and times: width of a value */
    bool is_signed;
    int64_t fixed;        /* bytes of a fixed binary, elements of a fixed list */
    bool has_dictionary;
    int64_t dictionary_id;
    struct mx_arrow_field *values; /* with a dictionary: what the indices stand for */
    struct mx_arrow_field *children;
    int n_children;
} mx_arrow_field;

typedef struct {
    mx_arena arena;
    mx_arrow_field *fields;
    int n_fields;
} mx_arrow_schema;

typedef struct {
    const uint8_t *p;
    int64_t n; /* bytes */
} mx_arrow_buffer;

typedef struct mx_arrow_array {
    const mx_arrow_field *field; /* borrowed */
    int64_t length;
    bool skipped;                /* not among the wanted columns */
    mx_arrow_buffer valid, offsets, data; /* valid.n = 0: all are */
    mx_arrow_buffer *more;       /* views: their data buffers */
    int64_t n_more;
    struct mx_arrow_array *children;
    const struct mx_arrow_array *dictionary; /* borrowed; NULL: none */
    const struct mx_arrow_array *extension;  /* of a dictionary: values that were added to it */
} mx_arrow_array;

/* A message as it lies in the file. */
typedef struct {
    int type;              /* 1 schema, 2 dictionary, 3 record batch; 0: end of the stream */
    int64_t meta_at, meta_bytes, body_at, body_bytes, next;
} mx_arrow_message;

typedef struct mx_arrow_dictionary {
    int64_t id;
    mx_arrow_array array;
    struct mx_arrow_dictionary *last; /* its latest extension; itself without one */
} mx_arrow_dictionary;

mx_status mx_arrow_message_at(mx_shard_file *f, int64_t at, mx_arrow_message *m) MX_MUST_USE;
mx_status mx_arrow_schema_read(mx_arrow_schema *s, mx_flatbuf *f, size_t table) MX_MUST_USE;

/* Decodes the record batch table `batch`; memory from `a`. `wanted` (per field) may be NULL. */
typedef struct {
    mx_arena *arena;
    mx_flatbuf *meta;
    size_t batch;
    const uint8_t *body;
    int64_t body_bytes;
    mx_arrow_dictionary *const *dictionaries;
    int n_dictionaries;
    const bool *wanted;
} mx_arrow_batch;
mx_status mx_arrow_batch_read(const mx_arrow_batch *b, const mx_arrow_field *fields, int n_fields,
                              mx_arrow_array *out, int64_t *n_rows) MX_MUST_USE;
bool mx_arrow_is_text(const mx_arrow_field *f); /* text or bytes that become one cell */
bool mx_arrow_is_null(const mx_arrow_array *a, int64_t i);
/* Bytes of a text or binary value; false: its offsets are damaged. */
bool mx_arrow_bytes(const mx_arrow_array *a, int64_t i, const char **p, size_t *n);
/* NULL, or what is wrong. */
const char *mx_arrow_write(const mx_arrow_array *a, int64_t i, size_t max_bytes, mx_str *out);

#endif
