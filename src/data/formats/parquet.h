/* parquet.h - what the files of the Parquet reader share.
 *
 *   parquet_meta.c    the footer: schema tree, row groups, column chunks
 *   parquet_page.c    a column chunk's pages into levels and values
 *   parquet_decode.c  the value encodings
 *   parquet.c         rows into records: the source kind
 *
 * Layout: "PAR1", column chunks, footer (Thrift), footer length (u32), "PAR1". A leaf column of a
 * row group is a sequence of entries; entry e has a definition level (how many of its optional
 * and repeated ancestors are there) and a repetition level (0 begins a row), and a value when the
 * definition level is the leaf's highest.
 */
#ifndef MX_DATA_PARQUET_H
#define MX_DATA_PARQUET_H

#include "base/arena.h"
#include "data/formats/compression.h"
#include "data/formats/source.h"
#include "data/formats/thrift.h"

typedef enum {
    MX_PQ_BOOLEAN, MX_PQ_INT32, MX_PQ_INT64, MX_PQ_INT96, MX_PQ_FLOAT, MX_PQ_DOUBLE, MX_PQ_BYTES,
    MX_PQ_FIXED, MX_PQ_GROUP = 100,
} mx_pq_type;
typedef enum { MX_PQ_REQUIRED, MX_PQ_OPTIONAL, MX_PQ_REPEATED } mx_pq_repetition;
typedef enum { MX_PQ_PLAIN_LOGIC, MX_PQ_STRING, MX_PQ_LIST, MX_PQ_MAP } mx_pq_logic;

typedef struct mx_pq_node {
    char *name;
    mx_pq_type type;
    mx_pq_repetition repetition;
    mx_pq_logic logic;
    int type_length;
    int n_children, first_child, parent; /* children follow each other through `next` */
    int next;                            /* next sibling, -1: none */
    int leaf;                            /* number of the leaf column; groups: of the first below */
    int max_def, max_rep;
} mx_pq_node;

typedef struct {
    mx_compression codec;
    int64_t at, packed_bytes, raw_bytes, n_values; /* of the column chunk in the file */
    bool present;
} mx_pq_chunk;

typedef struct {
    int64_t n_rows;
    mx_pq_chunk *chunks; /* (n_leaves) */
} mx_pq_group;

typedef struct {
    mx_arena arena;
    mx_pq_node *nodes; /* nodes[0] is the root */
    int n_nodes, n_leaves;
    int *leaf_node;    /* (n_leaves) */
    mx_pq_group *groups;
    int64_t n_groups, n_rows;
    char *created_by;
} mx_pq_meta;

mx_status mx_pq_meta_read(mx_pq_meta *m, mx_shard_file *f) MX_MUST_USE;

typedef union {
    struct {
        const uint8_t *p;
        size_t n;
    } bytes;
    int64_t i;
    double f;
} mx_pq_value;

/* One leaf column of one row group, decoded. */
typedef struct {
    mx_arena arena;       /* pages and what values point into */
    uint8_t *def, *rep;   /* (n) levels; NULL when the highest is 0 */
    mx_pq_value *values;  /* (n); undefined where the entry has none */
    int64_t n;
    int64_t *row_at;      /* (n_rows + 1) entry at which each row begins; NULL: row r is entry r */
} mx_pq_column;

mx_status mx_pq_column_read(mx_pq_column *c, mx_shard_file *f, const mx_pq_node *leaf,
                            const mx_pq_chunk *chunk, int64_t n_rows) MX_MUST_USE;
void mx_pq_column_fini(mx_pq_column *c);

/* parquet_decode.c */
/* Values of RLE / bit-packed hybrid runs, n of them, each below 2^width; *used: bytes read. */
mx_status mx_pq_hybrid(const uint8_t *p, size_t n_bytes, int width, uint32_t *out, int64_t n,
                       size_t *used) MX_MUST_USE;
typedef struct {
    int encoding;
    const mx_pq_node *leaf;
    const mx_pq_value *dictionary;
    int64_t n_dictionary;
    mx_arena *arena;
} mx_pq_decoder;
/* n values from a page's bytes. */
mx_status mx_pq_decode(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes, mx_pq_value *out,
                       int64_t n) MX_MUST_USE;

#endif
