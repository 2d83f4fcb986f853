/* parquet_page.c - a column chunk: page header (Thrift), page, page header, page...
 *
 *   PageHeader    1 type, 2 uncompressed, 3 compressed, 4 crc, 5 data page, 7 dictionary,
 *                 8 data page v2
 *   data page v1  1 num_values, 2 encoding: (repetition levels, definition levels, values)
 *                 compressed together, each kind of levels with a 4-byte length before it
 *   data page v2  1 num_values, 2 num_nulls, 4 encoding, 5 and 6 bytes of definition and
 *                 repetition levels, which stand uncompressed before the values, 7 whether the
 *                 values are compressed
 */
#include "data/formats/parquet.h"

#include <string.h>
#include <zlib.h>

typedef struct {
    int type, encoding;
    int64_t raw_bytes, packed_bytes, n_values, def_bytes, rep_bytes;
    bool has_crc, plain_values;
    uint32_t crc;
} page;

typedef struct {
    mx_pq_column *c;
    const mx_pq_node *leaf;
    const mx_pq_chunk *chunk;
    mx_pq_value *dictionary;
    int64_t n_dictionary, at_entry, raw_left;
    uint32_t *levels; /* scratch for one page */
    int64_t cap_levels;
} ctx;

static void data_header(mx_thrift *r, page *g, bool v2)
{
    int id;
    mx_thrift_type t;
    for (mx_thrift_begin(r); mx_thrift_field(r, &id, &t);) {
        if (t == MX_T_STRUCT || t == MX_T_BINARY || t == MX_T_LIST) {
            mx_thrift_skip(r, t); /* statistics */
            continue;
        }
        int64_t v = mx_thrift_int(r, t);
        if (id == 1)
            g->n_values = v;
        else if (id == (v2 ? 4 : 2))
            g->encoding = (int)v;
        else if (v2 && id == 5)
            g->def_bytes = v;
        else if (v2 && id == 6)
            g->rep_bytes = v;
        else if (v2 && id == 7)
            g->plain_values = !v;
    }
}

static mx_status page_header(const uint8_t **p, const uint8_t *end, page *g)
{
    mx_thrift r;
    int id;
    mx_thrift_type t;
    *g = (page){.type = -1};
    mx_thrift_init(&r, *p, (size_t)(end - *p));
    for (mx_thrift_begin(&r); mx_thrift_field(&r, &id, &t);) {
        if (id == 1)
            g->type = (int)mx_thrift_int(&r, t);
        else if (id == 2)
            g->raw_bytes = mx_thrift_int(&r, t);
        else if (id == 3)
            g->packed_bytes = mx_thrift_int(&r, t);
        else if (id == 4) {
            g->crc = (uint32_t)mx_thrift_int(&r, t);
            g->has_crc = true;
        } else if ((id == 5 || id == 7 || id == 8) && t == MX_T_STRUCT)
            data_header(&r, g, id == 8);
        else
            mx_thrift_skip(&r, t);
    }
    *p = r.p;
    if (r.bad || g->packed_bytes < 0 || g->packed_bytes > end - r.p || g->raw_bytes < 0 ||
        g->raw_bytes > INT32_MAX || g->n_values < 0 || g->def_bytes < 0 || g->rep_bytes < 0)
        return mx_fail(MX_INPUT, "a page header is damaged (%s)",
                       r.bad ? r.bad : "sizes do not fit");
    return MX_OK;
}

/* The page's bytes, decompressed into the column's memory; v2 levels are copied in front. */
static mx_status page_bytes(ctx *x, const page *g, const uint8_t *p, const uint8_t **out)
{
    if (g->has_crc && (uint32_t)crc32(0, p, (unsigned)g->packed_bytes) != g->crc)
        return mx_fail(MX_INPUT,
                       "the checksum of a page is wrong: the file is damaged, fetch it again");
    size_t levels = g->type == 3 ? (size_t)(g->def_bytes + g->rep_bytes) : 0;
    if (levels > (size_t)g->packed_bytes || levels > (size_t)g->raw_bytes)
        return mx_fail(MX_INPUT, "the levels of a page are longer than the page");
    x->raw_left -= g->raw_bytes;
    if (x->raw_left < 0)
        return mx_fail(MX_INPUT, "pages decompress to more than the %lld bytes the footer says",
                       (long long)x->chunk->raw_bytes);
    MX_TRY(mx_compression_plausible((size_t)g->packed_bytes, (uint64_t)g->raw_bytes));
    mx_compression codec = g->type == 3 && g->plain_values ? MX_COMPRESSION_NONE : x->chunk->codec;
    if (codec == MX_COMPRESSION_NONE) {
        if (g->packed_bytes != g->raw_bytes)
            return mx_fail(MX_INPUT, "a page that is not compressed has two sizes");
        *out = p; /* the chunk's own bytes stay in memory with the column */
        return MX_OK;
    }
    uint8_t *raw = mx_arena_alloc(&x->c->arena, (size_t)g->raw_bytes);
    memcpy(raw, p, levels);
    *out = raw;
    if ((size_t)g->raw_bytes == levels)
        return MX_OK;
    return mx_decompress(NULL, codec, p + levels, (size_t)g->packed_bytes - levels, raw + levels,
                         (size_t)g->raw_bytes - levels);
}

static int bit_width(int max)
{
    int w = 0;
    while (max >> w)
        w++;
    return w;
}

/* n levels, each at most `max`, from p; *p moves past them. */
static mx_status read_levels(ctx *x, const page *g, const uint8_t **p, const uint8_t *end, int max,
                             int64_t v2_bytes, uint8_t *out)
{
    size_t used, bytes = (size_t)v2_bytes;
    if (g->type == 0) {
        if (end - *p < 4 || mx_le32(*p) > (size_t)(end - *p) - 4)
            return mx_fail(MX_INPUT, "the levels of a page are longer than the page");
        bytes = mx_le32(*p);
        *p += 4;
    }
    if (bytes > (size_t)(end - *p))
        return mx_fail(MX_INPUT, "the levels of a page are longer than the page");
    if (g->n_values > x->cap_levels) {
        x->cap_levels = g->n_values;
        x->levels = mx_realloc(x->levels, sizeof *x->levels * (size_t)x->cap_levels);
    }
    MX_TRY(mx_pq_hybrid(*p, bytes, bit_width(max), x->levels, g->n_values, &used));
    for (int64_t i = 0; i < g->n_values; i++) {
        if (x->levels[i] > (uint32_t)max)
            return mx_fail(MX_INPUT, "a level of %u where %d is the highest", x->levels[i], max);
        out[i] = (uint8_t)x->levels[i];
    }
    *p += bytes;
    return MX_OK;
}

static mx_status data_page(ctx *x, const page *g, const uint8_t *p, const uint8_t *end)
{
    mx_pq_column *c = x->c;
    if (g->n_values > c->n - x->at_entry)
        return mx_fail(MX_INPUT, "pages hold more values than the %lld of the footer",
                       (long long)c->n);
    uint8_t *def = c->def ? c->def + x->at_entry : NULL,
            *rep = c->rep ? c->rep + x->at_entry : NULL;
    mx_pq_value *v = c->values + x->at_entry;
    if (rep)
        MX_TRY(read_levels(x, g, &p, end, x->leaf->max_rep, g->rep_bytes, rep));
    else
        p += g->rep_bytes <= end - p ? g->rep_bytes : 0;
    if (def)
        MX_TRY(read_levels(x, g, &p, end, x->leaf->max_def, g->def_bytes, def));
    else
        p += g->def_bytes <= end - p ? g->def_bytes : 0;
    int64_t n = g->n_values;
    for (int64_t i = 0; def && i < g->n_values; i++)
        n -= def[i] < x->leaf->max_def;
    mx_pq_decoder d = {g->encoding, x->leaf, x->dictionary, x->n_dictionary, &c->arena};
    MX_TRY(mx_pq_decode(&d, p, (size_t)(end - p), v, n));
    /* values are dense: spread them over the entries that have one, from the back */
    for (int64_t i = g->n_values - 1, k = n - 1; def && k >= 0 && i > k; i--)
        if (def[i] == x->leaf->max_def)
            v[i] = v[k--];
    x->at_entry += g->n_values;
    return MX_OK;
}

static mx_status dictionary_page(ctx *x, const page *g, const uint8_t *p, const uint8_t *end)
{
    if (x->dictionary || g->n_values > end - p + 1)
        return mx_fail(MX_INPUT, "a dictionary of %lld values in a page of %lld bytes",
                       (long long)g->n_values, (long long)(end - p));
    x->dictionary = MX_NEW_N(&x->c->arena, mx_pq_value, g->n_values ? g->n_values : 1);
    x->n_dictionary = g->n_values;
    mx_pq_decoder d = {0, x->leaf, NULL, 0, &x->c->arena};
    return mx_pq_decode(&d, p, (size_t)(end - p), x->dictionary, g->n_values);
}

static mx_status find_rows(mx_pq_column *c, int64_t n_rows)
{
    int64_t row = 0;
    c->row_at = MX_NEW_N(&c->arena, int64_t, n_rows + 1);
    for (int64_t i = 0; i < c->n; i++)
        if (c->rep[i] == 0) {
            if (row == n_rows)
                return mx_fail(MX_INPUT, "a column has more rows than the %lld of its row group",
                               (long long)n_rows);
            c->row_at[row++] = i;
        }
    c->row_at[n_rows] = c->n;
    if (row != n_rows || (c->n && c->rep[0] != 0))
        return mx_fail(MX_INPUT, "a column has %lld rows and its row group %lld", (long long)row,
                       (long long)n_rows);
    return MX_OK;
}

static mx_status read_pages(ctx *x, const uint8_t *p, const uint8_t *end)
{
    while (x->at_entry < x->c->n && p < end) {
        page g;
        const uint8_t *bytes = NULL;
        MX_TRY(page_header(&p, end, &g));
        if (g.type == 0 || g.type == 2 || g.type == 3)
            MX_TRY(page_bytes(x, &g, p, &bytes));
        if (g.type == 0 || g.type == 3)
            MX_TRY(data_page(x, &g, bytes, bytes + g.raw_bytes));
        else if (g.type == 2)
            MX_TRY(dictionary_page(x, &g, bytes, bytes + g.raw_bytes));
        p += g.packed_bytes;
    }
    if (x->at_entry != x->c->n)
        return mx_fail(MX_INPUT, "pages hold %lld values and the footer says %lld",
                       (long long)x->at_entry, (long long)x->c->n);
    return MX_OK;
}

mx_status mx_pq_column_read(mx_pq_column *c, mx_shard_file *f, const mx_pq_node *leaf,
                            const mx_pq_chunk *chunk, int64_t n_rows)
{
    *c = (mx_pq_column){.n = chunk->n_values};
    /* runs of equal levels cost nothing in the file; their entries cost memory here */
    int64_t most =
        (4 << 20) + 1024 * (chunk->packed_bytes < (int64_t)1 << 40 ? chunk->packed_bytes : 0);
    if (!chunk->present || c->n > most || (leaf->max_rep == 0 && c->n != n_rows))
        return mx_fail(MX_INPUT, "column \"%s\" has %lld values in %lld bytes for %lld rows",
                       leaf->name, (long long)c->n, (long long)chunk->packed_bytes,
                       (long long)n_rows);
    ctx x = {.c = c, .leaf = leaf, .chunk = chunk};
    /* headers count in the footer's size: a page is never larger than all of them */
    x.raw_left = chunk->raw_bytes;
    size_t n = (size_t)(c->n ? c->n : 1);
    uint8_t *all = mx_arena_alloc(&c->arena, (size_t)chunk->packed_bytes + 1);
    c->values = mx_arena_alloc(&c->arena, sizeof *c->values * n);
    if (leaf->max_def)
        c->def = mx_arena_alloc(&c->arena, n);
    if (leaf->max_rep)
        c->rep = mx_arena_alloc(&c->arena, n);
    mx_status st = mx_shard_read(f, chunk->at, all, (size_t)chunk->packed_bytes);
    if (!st)
        st = read_pages(&x, all, all + chunk->packed_bytes);
    if (!st && c->rep)
        st = find_rows(c, n_rows);
    mx_free(x.levels);
    return mx_status_wrap(st, "column \"%s\" at offset %lld", leaf->name, (long long)chunk->at);
}

void mx_pq_column_fini(mx_pq_column *c)
{
    mx_arena_fini(&c->arena);
    *c = (mx_pq_column){0};
}
