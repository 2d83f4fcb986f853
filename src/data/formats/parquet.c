/* parquet.c - Parquet files as a source: a row group is a block, a row is a record.
 *
 * The row group that was asked for last is held decoded, only the columns that are wanted. A flat
 * string column gives text; anything nested or numeric is written as JSON from the levels:
 *   value(node)  optional and not there -> null;  list -> [ ... ] while the repetition level says
 *                "again"; group -> {"child": ...};  leaf -> string, number, true, false
 * Lists are annotated groups (optional group x (LIST) { repeated group list { optional y element
 * } }); the two inner levels are not shown. Maps with string keys become objects.
 */
#include "data/formats/data_url.h"
#include "data/formats/parquet.h"

#include "data/formats/json_scan.h"
#include <string.h>

typedef struct {
    mx_pq_meta meta;
    mx_pq_column *columns; /* (n_leaves) of the row group in memory */
    int64_t *at;           /* (n_leaves) entry of each leaf while a row is written */
    bool *wanted;          /* (n_leaves) */
    int64_t group;         /* -1: none */
} state;

static bool parquet_sniff(const uint8_t *head, size_t n)
{
    return n >= 4 && memcmp(head, "PAR1", 4) == 0;
}

static mx_status parquet_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){.group = -1};
    s->state = t;
    MX_TRY(mx_pq_meta_read(&t->meta, &s->file));
    mx_pq_meta *m = &t->meta;
    t->columns = MX_NEW_N(&m->arena, mx_pq_column, m->n_leaves);
    t->at = MX_NEW_N(&m->arena, int64_t, m->n_leaves);
    t->wanted = MX_NEW_N(&m->arena, bool, m->n_leaves);
    for (int i = 0; i < m->n_leaves; i++) {
        const mx_pq_node *top = &m->nodes[m->leaf_node[i]];
        while (top->parent > 0)
            top = &m->nodes[top->parent];
        t->wanted[i] = mx_source_wants(s, top->name, strlen(top->name));
    }
    s->n_records = m->n_rows;
    s->n_blocks = m->n_groups;
    s->block_first = mx_realloc(NULL, sizeof(int64_t) * (size_t)(m->n_groups + 1));
    s->block_first[0] = 0;
    for (int64_t g = 0; g < m->n_groups; g++)
        s->block_first[g + 1] = s->block_first[g] + m->groups[g].n_rows;
    return MX_OK;
}

static void drop_group(state *t)
{
    for (int i = 0; t->columns && i < t->meta.n_leaves; i++)
        mx_pq_column_fini(&t->columns[i]);
    t->group = -1;
}

static mx_status load_group(mx_source *s, int64_t g)
{
    state *t = s->state;
    const mx_pq_meta *m = &t->meta;
    drop_group(t);
    mx_status st = MX_OK;
    for (int i = 0; !st && i < m->n_leaves; i++)
        if (t->wanted[i])
            st = mx_pq_column_read(&t->columns[i], &s->file, &m->nodes[m->leaf_node[i]],
                                   &m->groups[g].chunks[i], m->groups[g].n_rows);
    if (st)
        drop_group(t);
    else
        t->group = g;
    return mx_status_wrap(st, "row group %lld", (long long)g);
}

/* --- rows as JSON --- */

typedef struct {
    state *t;
    mx_str *out;
    size_t max_bytes;
    int64_t row;
    const char *bad;
} writer;

static int leaves_below(const state *t, const mx_pq_node *n)
{
    int count = 0;
    if (n->type != MX_PQ_GROUP)
        return 1;
    for (int c = n->first_child; c >= 0; c = t->meta.nodes[c].next)
        count += leaves_below(t, &t->meta.nodes[c]);
    return count;
}

static int64_t row_end(const state *t, int leaf, int64_t row)
{
    const mx_pq_column *c = &t->columns[leaf];
    return c->row_at ? c->row_at[row + 1] : row + 1;
}

/* Definition level at a leaf's current entry; -1 past the row's end, which only damage can cause.
 * */
static int def_at(writer *w, int leaf)
{
    const mx_pq_column *c = &w->t->columns[leaf];
    if (w->t->at[leaf] >= row_end(w->t, leaf, w->row)) {
        w->bad = "the levels of nested columns do not agree";
        return -1;
    }
    return c->def ? c->def[w->t->at[leaf]] : 0;
}

static void consume(writer *w, const mx_pq_node *n)
{
    int k = leaves_below(w->t, n);
    for (int i = 0; i < k; i++)
        w->t->at[n->leaf + i]++;
}

static void write_bytes(writer *w, const mx_pq_node *node, const mx_pq_value *v)
{
    size_t n = v->bytes.n;
    const char *p = (const char *)v->bytes.p;
    if (n > w->max_bytes)
        w->bad = "a value is longer than max_record_bytes";
    else if (mx_utf8_valid(p, n) < n && node->logic != MX_PQ_STRING)
        mx_data_url_write(w->out, p, n);
    else if (mx_utf8_valid(p, n) < n)
        w->bad = "text inside a nested column is not UTF-8";
    else
        mx_json_write_string(w->out, p, n);
}

static void write_leaf(writer *w, const mx_pq_node *n)
{
    const mx_pq_value *v = &w->t->columns[n->leaf].values[w->t->at[n->leaf]];
    switch (n->type) {
    case MX_PQ_BOOLEAN: mx_str_add(w->out, v->i ? "true" : "false"); break;
    case MX_PQ_INT32:
    case MX_PQ_INT64: mx_str_addf(w->out, "%lld", (long long)v->i); break;
    case MX_PQ_FLOAT:
    case MX_PQ_DOUBLE:
        mx_json_write_double(w->out, v->f);
        break;
    default: write_bytes(w, n, v);
    }
    w->t->at[n->leaf]++;
}

static void write_value(writer *w, const mx_pq_node *n);

/* The contents of a node that is there: its levels are behind us. */
static void write_body(writer *w, const mx_pq_node *n)
{
    const mx_pq_node *nodes = w->t->meta.nodes;
    if (n->type != MX_PQ_GROUP) {
        write_leaf(w, n);
        return;
    }
    const mx_pq_node *only = n->n_children == 1 ? &nodes[n->first_child] : NULL;
    if ((n->logic == MX_PQ_LIST || n->logic == MX_PQ_MAP) && only &&
        only->repetition == MX_PQ_REPEATED) {
        write_value(w, only);
        return;
    }
    mx_str_add(w->out, "{");
    for (int c = n->first_child; c >= 0 && !w->bad; c = nodes[c].next) {
        if (c != n->first_child)
            mx_str_add(w->out, ", ");
        mx_json_write_string(w->out, nodes[c].name, strlen(nodes[c].name));
        mx_str_add(w->out, ": ");
        write_value(w, &nodes[c]);
    }
    mx_str_add(w->out, "}");
}

static bool is_map_entry(const writer *w, const mx_pq_node *n)
{
    const mx_pq_node *nodes = w->t->meta.nodes, *parent = &nodes[n->parent];
    return n->parent > 0 && parent->logic == MX_PQ_MAP && n->type == MX_PQ_GROUP &&
           n->n_children == 2 && nodes[n->first_child].type == MX_PQ_BYTES &&
           nodes[n->first_child].repetition == MX_PQ_REQUIRED;
}

static void write_element(writer *w, const mx_pq_node *n)
{
    const mx_pq_node *nodes = w->t->meta.nodes, *parent = &nodes[n->parent];
    if (is_map_entry(w, n)) {
        write_value(w, &nodes[n->first_child]);
        mx_str_add(w->out, ": ");
        write_value(w, &nodes[nodes[n->first_child].next]);
    } else if (n->parent > 0 && parent->logic == MX_PQ_LIST && n->type == MX_PQ_GROUP &&
               n->n_children == 1) {
        write_value(w, &nodes[n->first_child]); /* the usual three levels */
    } else {
        write_body(w, n);
    }
}

static void write_repeated(writer *w, const mx_pq_node *n)
{
    bool object = is_map_entry(w, n);
    const mx_pq_column *c = &w->t->columns[n->leaf];
    mx_str_add(w->out, object ? "{" : "[");
    if (def_at(w, n->leaf) < n->max_def) {
        consume(w, n);
    } else {
        for (bool again = true, first = true; again && !w->bad; first = false) {
            int64_t before = w->t->at[n->leaf];
            if (!first)
                mx_str_add(w->out, ", ");
            write_element(w, n);
            int64_t at = w->t->at[n->leaf];
            again = at < row_end(w->t, n->leaf, w->row) && c->rep[at] == n->max_rep;
            if (at == before || w->out->len > w->max_bytes)
                w->bad = "a nested value is longer than max_record_bytes";
        }
    }
    mx_str_add(w->out, object ? "}" : "]");
}

static void write_value(writer *w, const mx_pq_node *n)
{
    if (w->bad)
        return;
    if (n->repetition == MX_PQ_REPEATED) {
        write_repeated(w, n);
        return;
    }
    int d = def_at(w, n->leaf);
    if (d < 0)
        return;
    if (n->repetition == MX_PQ_OPTIONAL && d < n->max_def) {
        consume(w, n);
        mx_str_add(w->out, "null");
        return;
    }
    write_body(w, n);
}

/* --- records --- */

static mx_status add_flat_text(mx_source *s, const mx_pq_node *n, int64_t row, mx_record *r)
{
    state *t = s->state;
    const mx_pq_column *c = &t->columns[n->leaf];
    const mx_pq_value *v = &c->values[row];
    if (c->def && c->def[row] < n->max_def) {
        mx_record_add(r, n->name, MX_CELL_NULL, "", 0);
        return MX_OK;
    }
    if (v->bytes.n > s->options.max_record_bytes)
        return mx_fail(MX_INPUT, "column \"%s\" has %zu bytes, max_record_bytes is %zu", n->name,
                       v->bytes.n, s->options.max_record_bytes);
    size_t valid = mx_utf8_valid((const char *)v->bytes.p, v->bytes.n);
    if (n->logic == MX_PQ_STRING && valid < v->bytes.n)
        return mx_fail(MX_INPUT, "byte %zu of column \"%s\" is not UTF-8", valid, n->name);
    /* files without annotations hold text in plain byte arrays */
    mx_record_add(r, n->name, valid == v->bytes.n ? MX_CELL_TEXT : MX_CELL_BYTES, v->bytes.p,
                  v->bytes.n);
    return MX_OK;
}

static mx_status parquet_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    const mx_pq_meta *m = &t->meta;
    int64_t g = t->group;
    if (g < 0 || i < s->block_first[g] || i >= s->block_first[g + 1]) {
        g = mx_block_of(s->block_first, s->n_blocks, i);
        MX_TRY(load_group(s, g));
    }
    int64_t row = i - s->block_first[g];
    for (int c = m->nodes[0].first_child; c >= 0; c = m->nodes[c].next) {
        const mx_pq_node *n = &m->nodes[c];
        if (!t->wanted[n->leaf])
            continue;
        if ((n->type == MX_PQ_BYTES || n->type == MX_PQ_FIXED) && n->repetition != MX_PQ_REPEATED) {
            MX_TRY(add_flat_text(s, n, row, r));
            continue;
        }
        int k = leaves_below(t, n);
        for (int l = n->leaf; l < n->leaf + k; l++)
            t->at[l] = t->columns[l].row_at ? t->columns[l].row_at[row] : row;
        mx_record_reserve(r, n->name, strlen(n->name), MX_CELL_JSON, 0);
        size_t from = r->bytes.len;
        writer w = {t, &r->bytes, s->options.max_record_bytes, row, NULL};
        write_value(&w, n);
        if (w.bad)
            return mx_fail(MX_INPUT, "column \"%s\": %s", n->name, w.bad);
        mx_record_commit(r, r->bytes.len - from);
        if (strcmp(mx_record_data(r, r->n_cells - 1), "null") == 0)
            r->cells[r->n_cells - 1].kind = MX_CELL_NULL;
    }
    return MX_OK;
}

static void parquet_inspect(mx_source *s, mx_str *out)
{
    static const char *const types[] = {"boolean", "int32",  "int64", "int96",
                                        "float",   "double", "bytes", "fixed"};
    static const char *const codecs[] = {"plain", "snappy",  "gzip", "brotli",
                                         "zstd",  "lz4_raw", "lz4",  "lz4"};
    const state *t = s->state;
    const mx_pq_meta *m = &t->meta;
    if (m->created_by)
        mx_str_addf(out, "written by: %s\n", m->created_by);
    for (int i = 0; i < m->n_leaves; i++) {
        const mx_pq_node *n = &m->nodes[m->leaf_node[i]];
        mx_str path = {0};
        for (const mx_pq_node *up = n; up != m->nodes; up = &m->nodes[up->parent]) {
            mx_str longer = {0};
            mx_str_addf(&longer, path.len ? "%s.%s" : "%s%s", up->name, mx_str_text(&path));
            mx_str_fini(&path);
            path = longer;
        }
        int64_t packed = 0, raw = 0;
        for (int64_t g = 0; g < m->n_groups; g++)
            packed += m->groups[g].chunks[i].packed_bytes, raw += m->groups[g].chunks[i].raw_bytes;
        char a[32], b[32];
        mx_str_addf(out, "column: %s, %s, %s of %s, %s\n", mx_str_text(&path),
                    n->logic == MX_PQ_STRING ? "text" : types[n->type],
                    mx_format_bytes(a, sizeof a, (double)packed),
                    mx_format_bytes(b, sizeof b, (double)raw),
                    m->n_groups ? codecs[m->groups[0].chunks[i].codec] : "none");
        mx_str_fini(&path);
    }
}

static void parquet_close(mx_source *s)
{
    state *t = s->state;
    if (t) {
        drop_group(t);
        mx_arena_fini(&t->meta.arena);
    }
    mx_free(t);
}

const mx_source_kind mx_source_kind_parquet = {
    .name = "parquet", .doc = "Apache Parquet", .suffixes = " .parquet ",
    .sniff = parquet_sniff, .open = parquet_open, .read = parquet_read, .inspect = parquet_inspect,
    .close = parquet_close,
};
