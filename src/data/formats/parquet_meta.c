/* parquet_meta.c - the footer. Field numbers are those of the format's Thrift definition:
 *   FileMetaData    2 schema, 3 num_rows, 4 row_groups, 6 created_by
 *   SchemaElement   1 type, 2 type_length, 3 repetition, 4 name, 5 num_children,
 *                   6 converted_type, 10 logical type
 *   RowGroup        1 columns, 3 num_rows
 *   ColumnChunk     1 file_path, 3 meta_data
 *   ColumnMetaData  4 codec, 5 num_values, 6 uncompressed and 7 compressed bytes,
 *                   9 offset of the data pages, 11 of the dictionary page
 * Nothing in it is believed: sizes and offsets are checked against the file before they are used.
 */
#include "data/formats/parquet.h"

#include <string.h>

enum { MAX_FOOTER = 256 << 20, MAX_NODES = 100000, MAX_SCHEMA_DEPTH = 32 };

typedef struct {
    mx_pq_meta *m;
    mx_thrift *r;
    const char *path;
    int64_t file_bytes;
} ctx;

/* --- schema --- */

static mx_pq_logic logical_type(mx_thrift *r)
{
    int id;
    mx_thrift_type t;
    mx_pq_logic logic = MX_PQ_PLAIN_LOGIC;
    for (mx_thrift_begin(r); mx_thrift_field(r, &id, &t);) {
        /* a union: the number of its one field is the type; 1 string, 2 map, 3 list, 4 enum, 12
         * json */
        logic = id == 1 || id == 4 || id == 12 ? MX_PQ_STRING : id == 2 ? MX_PQ_MAP
                : id == 3                          ? MX_PQ_LIST
                                                   : logic;
        mx_thrift_skip(r, t);
    }
    return logic;
}

static void element(ctx *c, mx_pq_node *n)
{
    int id;
    mx_thrift_type t;
    size_t len;
    bool has_type = false;
    *n = (mx_pq_node){.type = MX_PQ_GROUP, .next = -1, .first_child = -1, .parent = -1, .name = ""};
    for (mx_thrift_begin(c->r); mx_thrift_field(c->r, &id, &t);) {
        if (id == 4) {
            const char *name = mx_thrift_binary(c->r, t, &len);
            n->name = mx_arena_alloc(&c->m->arena, len + 1);
            if (len)
                memcpy(n->name, name, len);
        } else if (id == 10 && t == MX_T_STRUCT) {
            mx_pq_logic logic = logical_type(c->r);
            n->logic = logic ? logic : n->logic;
        } else if (id == 1 || id == 2 || id == 3 || id == 5 || id == 6) {
            int64_t v = mx_thrift_int(c->r, t);
            if (id == 1) {
                has_type = true;
                n->type = v >= 0 && v <= MX_PQ_FIXED ? (mx_pq_type)v : MX_PQ_GROUP;
            } else if (id == 2) {
                n->type_length = v > 0 && v < 1 << 20 ? (int)v : 0;
            } else if (id == 3) {
                n->repetition = v == 1 ? MX_PQ_OPTIONAL : v == 2 ? MX_PQ_REPEATED : MX_PQ_REQUIRED;
            } else if (id == 5) {
                n->n_children = v >= 0 && v < MAX_NODES ? (int)v : MAX_NODES;
            } else if (!n->logic) { /* converted type: 0 utf8, 1 map, 2 map_key_value, 3 list, 4
                                       enum, 19 json */
                n->logic = v == 0 || v == 4 || v == 19 ? MX_PQ_STRING : v == 1 || v == 2 ? MX_PQ_MAP
                           : v == 3                                   ? MX_PQ_LIST
                                                                      : MX_PQ_PLAIN_LOGIC;
            }
        } else {
            mx_thrift_skip(c->r, t);
        }
    }
    if (has_type && n->type == MX_PQ_GROUP)
        c->r->bad = "an unknown physical type";
    if (has_type)
        n->n_children = 0;
}

/* The flat list is the tree in depth-first order; this links it. Levels grow on the way down. */
static mx_status link_tree(ctx *c)
{
    mx_pq_meta *m = c->m;
    int stack[MAX_SCHEMA_DEPTH], left[MAX_SCHEMA_DEPTH], last[MAX_SCHEMA_DEPTH], depth = 0;
    m->leaf_node = MX_NEW_N(&m->arena, int, m->n_nodes);
    stack[0] = 0, left[0] = m->nodes[0].n_children, last[0] = -1;
    for (int i = 1; i < m->n_nodes; i++) {
        while (depth > 0 && left[depth] == 0)
            depth--;
        mx_pq_node *n = &m->nodes[i], *parent = &m->nodes[stack[depth]];
        if (left[depth]-- <= 0)
            return mx_fail(MX_INPUT, "%s: the Parquet schema has more elements than its tree",
                           c->path);
        n->parent = stack[depth];
        if (last[depth] < 0)
            parent->first_child = i;
        else
            m->nodes[last[depth]].next = i;
        last[depth] = i;
        n->max_def = parent->max_def + (n->repetition != MX_PQ_REQUIRED);
        n->max_rep = parent->max_rep + (n->repetition == MX_PQ_REPEATED);
        n->leaf = m->n_leaves;
        if (n->type != MX_PQ_GROUP) {
            m->leaf_node[m->n_leaves++] = i;
            continue;
        }
        if (n->n_children == 0)
            return mx_fail(MX_INPUT, "%s: the Parquet group \"%s\" has no columns", c->path,
                           n->name);
        if (++depth == MAX_SCHEMA_DEPTH)
            return mx_fail(MX_INPUT, "%s: the Parquet schema is nested too deep", c->path);
        stack[depth] = i;
        left[depth] = n->n_children;
        last[depth] = -1;
    }
    for (; depth >= 0; depth--)
        if (left[depth] > 0)
            return mx_fail(MX_INPUT, "%s: the Parquet schema has fewer elements than its tree",
                           c->path);
    return m->n_leaves ? MX_OK
                       : mx_fail(MX_INPUT, "%s: the Parquet schema has no columns", c->path);
}

static mx_status schema(ctx *c, mx_thrift_type type)
{
    mx_thrift_type e;
    int64_t n = mx_thrift_list(c->r, type, &e);
    if (n < 1 || n > MAX_NODES || e != MX_T_STRUCT || c->m->nodes)
        return mx_fail(MX_INPUT, "%s: a Parquet schema of %lld elements", c->path, (long long)n);
    c->m->nodes = MX_NEW_N(&c->m->arena, mx_pq_node, n);
    for (int64_t i = 0; i < n; i++)
        element(c, &c->m->nodes[i]);
    c->m->nodes[0].repetition = MX_PQ_REQUIRED;
    c->m->n_nodes = (int)n;
    return c->r->bad ? MX_OK : link_tree(c);
}

/* --- row groups --- */

static bool set_codec(mx_pq_chunk *k, int64_t v)
{
    static const mx_compression codecs[] = {MX_COMPRESSION_NONE,   MX_COMPRESSION_SNAPPY,
                                            MX_COMPRESSION_GZIP,   MX_COMPRESSION_NONE,
                                            MX_COMPRESSION_BROTLI, MX_COMPRESSION_LZ4_HADOOP,
                                            MX_COMPRESSION_ZSTD,   MX_COMPRESSION_LZ4_RAW};
    if (v < 0 || v > 7 || v == 3) /* 3 is LZO */
        return false;
    k->codec = codecs[v];
    return true;
}

static mx_status column_meta(ctx *c, mx_pq_chunk *k)
{
    int id;
    mx_thrift_type t;
    int64_t data = -1, dictionary = -1;
    *k = (mx_pq_chunk){.present = true};
    for (mx_thrift_begin(c->r); mx_thrift_field(c->r, &id, &t);) {
        if (id != 4 && id != 5 && id != 6 && id != 7 && id != 9 && id != 11) {
            mx_thrift_skip(c->r, t);
            continue;
        }
        int64_t v = mx_thrift_int(c->r, t);
        if (id == 4 && !set_codec(k, v))
            return mx_fail(MX_INPUT,
                           "%s: a column is compressed with codec %lld, which is not supported",
                           c->path, (long long)v);
        *(id == 5   ? &k->n_values
          : id == 6 ? &k->raw_bytes
          : id == 7 ? &k->packed_bytes
          : id == 9 ? &data
          : id == 11 ? &dictionary
                     : &(int64_t){0}) = v;
    }
    k->at =
        dictionary > 0 && dictionary < data ? dictionary : data; /* some writers put 0 for none */
    if (!c->r->bad && (k->at < 4 || k->n_values < 0 || k->packed_bytes < 0 || k->raw_bytes < 0 ||
                       k->at > c->file_bytes || k->packed_bytes > c->file_bytes - k->at))
        return mx_fail(MX_INPUT,
                       "%s: a column chunk of %lld bytes at offset %lld lies outside the file of "
                       "%lld bytes: it is truncated or damaged",
                       c->path, (long long)k->packed_bytes, (long long)k->at,
                       (long long)c->file_bytes);
    return MX_OK;
}

static mx_status column_chunk(ctx *c, mx_pq_chunk *k)
{
    int id;
    mx_thrift_type t;
    for (mx_thrift_begin(c->r); mx_thrift_field(c->r, &id, &t);) {
        if (id == 1)
            return mx_fail(MX_INPUT, "%s: its columns are in other files, which is not supported",
                           c->path);
        if (id == 3 && t == MX_T_STRUCT)
            MX_TRY(column_meta(c, k));
        else
            mx_thrift_skip(c->r, t);
    }
    return MX_OK;
}

static mx_status row_group(ctx *c, mx_pq_group *g)
{
    int id;
    mx_thrift_type t, e;
    g->chunks = MX_NEW_N(&c->m->arena, mx_pq_chunk, c->m->n_leaves);
    for (mx_thrift_begin(c->r); mx_thrift_field(c->r, &id, &t);) {
        if (id == 1) {
            int64_t n = mx_thrift_list(c->r, t, &e);
            if (!c->r->bad && (n != c->m->n_leaves || e != MX_T_STRUCT))
                return mx_fail(MX_INPUT, "%s: a row group has %lld columns, the schema %d", c->path,
                               (long long)n, c->m->n_leaves);
            for (int64_t i = 0; i < n && !c->r->bad; i++)
                MX_TRY(column_chunk(c, &g->chunks[i]));
        } else if (id == 3) {
            g->n_rows = mx_thrift_int(c->r, t);
        } else {
            mx_thrift_skip(c->r, t);
        }
    }
    if (!c->r->bad && (g->n_rows < 0 || g->n_rows > INT32_MAX))
        return mx_fail(MX_INPUT, "%s: a row group of %lld rows", c->path, (long long)g->n_rows);
    return MX_OK;
}

static mx_status row_groups(ctx *c, mx_thrift_type type)
{
    mx_thrift_type e;
    int64_t n = mx_thrift_list(c->r, type, &e);
    if (!c->m->nodes || c->m->groups || (n && e != MX_T_STRUCT))
        return mx_fail(MX_INPUT, "%s: the Parquet footer's fields are out of order", c->path);
    c->m->groups = MX_NEW_N(&c->m->arena, mx_pq_group, n ? n : 1);
    for (int64_t i = 0; i < n && !c->r->bad; i++) {
        MX_TRY(row_group(c, &c->m->groups[i]));
        c->m->n_rows += c->m->groups[i].n_rows;
    }
    c->m->n_groups = n;
    return MX_OK;
}

/* The footer's Thrift alone, for the fuzz target as well. */
static mx_status pq_meta_parse(mx_pq_meta *m, const uint8_t *p, size_t n, const char *path,
                           int64_t file_bytes)
{
    mx_thrift r;
    ctx c = {m, &r, path, file_bytes};
    int id;
    mx_thrift_type t;
    size_t len;
    mx_thrift_init(&r, p, n);
    for (mx_thrift_begin(&r); mx_thrift_field(&r, &id, &t);) {
        if (id == 2) {
            MX_TRY(schema(&c, t));
        } else if (id == 4) {
            MX_TRY(row_groups(&c, t));
        } else if (id == 6) {
            const char *s = mx_thrift_binary(&r, t, &len);
            m->created_by =
                mx_arena_printf(&m->arena, "%.*s", (int)(len < 200 ? len : 200), s ? s : "");
        } else {
            mx_thrift_skip(&r, t);
        }
    }
    if (r.bad || !m->nodes || !m->groups)
        return mx_fail(
            MX_INPUT,
            "%s: the Parquet footer is damaged (%s, byte %zu of %zu); fetch the file again", path,
            r.bad ? r.bad : "no schema or no row groups", (size_t)(r.p - r.start), n);
    return MX_OK;
}

mx_status mx_pq_meta_read(mx_pq_meta *m, mx_shard_file *f)
{
    uint8_t tail[8], head[4];
    if (f->size_bytes < 12)
        return mx_fail(MX_INPUT, "%s: %lld bytes are too few for a Parquet file", f->path,
                       (long long)f->size_bytes);
    MX_TRY(mx_shard_read(f, 0, head, 4));
    MX_TRY(mx_shard_read(f, f->size_bytes - 8, tail, 8));
    if (memcmp(head, "PAR1", 4) != 0 || memcmp(tail + 4, "PAR1", 4) != 0)
        return mx_fail(
            MX_INPUT, "%s: a Parquet file begins and ends with PAR1; this one %s", f->path,
            memcmp(tail + 4, "PARE", 4) == 0 ? "has an encrypted footer"
            : memcmp(head, "PAR1", 4) == 0   ? "does not end so: it is truncated, fetch it again"
                                             : "is something else");
    int64_t n = mx_le32(tail);
    if (n > f->size_bytes - 12 || n > MAX_FOOTER)
        return mx_fail(MX_INPUT, "%s: the Parquet footer claims %lld bytes of a file of %lld",
                       f->path, (long long)n, (long long)f->size_bytes);
    void *buf;
    MX_TRY(mx_alloc(&buf, (size_t)n, f->path));
    mx_status st = mx_shard_read(f, f->size_bytes - 8 - n, buf, (size_t)n);
    if (!st)
        st = pq_meta_parse(m, buf, (size_t)n, f->path, f->size_bytes);
    mx_free(buf);
    return st;
}
