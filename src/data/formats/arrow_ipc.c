/* arrow_ipc.c - Arrow IPC files and streams (also what Hugging Face datasets keeps in its cache).
 *
 * At open the messages are walked from head to head (bodies are not read), dictionaries are
 * decoded, and the record batches become blocks. The batch that was asked for last is held in
 * memory. A dictionary that comes again replaces the one before it for the batches
 * that follow; a delta adds values to it.
 */
#include "data/formats/arrow.h"

#include <string.h>

enum { MOST_DELTAS = 10000 };

typedef struct {
    mx_arrow_schema schema;
    int64_t *batch_at; /* (2 n_blocks) offset of each batch's message, dictionaries before it */
    int64_t n_batches, cap_batches, cap_first;
    mx_arena dict_arena;
    mx_arrow_dictionary **dictionaries; /* each in dict_arena: arrays point at them */
    int n_dictionaries, cap_dictionaries, n_deltas;
    bool is_file; /* with a footer: dictionaries may stand anywhere and are never replaced */
    bool *wanted; /* (n_fields) */
    /* the batch in memory */
    mx_arena arena;
    mx_arrow_array *columns;
    int64_t batch; /* -1: none */
} state;

static bool arrow_sniff(const uint8_t *head, size_t n)
{
    return (n >= 8 && memcmp(head, "ARROW1", 6) == 0) ||
           (n >= 16 && mx_le32(head) == 0xffffffffu && mx_le32(head + 4) > 0 &&
            mx_le32(head + 4) < 1 << 24);
}

/* Metadata and body of a message, in the arena. */
static mx_status load(mx_source *s, const mx_arrow_message *m, mx_arena *a, uint8_t **meta,
                      uint8_t **body)
{
    *meta = mx_arena_alloc(a, (size_t)m->meta_bytes);
    *body = mx_arena_alloc(a, (size_t)m->body_bytes + 1);
    MX_TRY(mx_shard_read(&s->file, m->meta_at, *meta, (size_t)m->meta_bytes));
    return mx_shard_read(&s->file, m->body_at, *body, (size_t)m->body_bytes);
}

static mx_status read_schema(mx_source *s, const mx_arrow_message *m)
{
    state *t = s->state;
    uint8_t *meta, *body;
    if (t->schema.fields)
        return mx_fail(MX_INPUT, "a second schema");
    MX_TRY(load(s, m, &t->schema.arena, &meta, &body));
    mx_flatbuf b = {meta, (size_t)m->meta_bytes, false};
    size_t root = mx_flatbuf_root(&b);
    MX_TRY(mx_arrow_schema_read(&t->schema, &b, mx_flatbuf_table(&b, root, 2)));
    t->wanted = MX_NEW_N(&t->schema.arena, bool, t->schema.n_fields);
    for (int i = 0; i < t->schema.n_fields; i++)
        t->wanted[i] =
            mx_source_wants(s, t->schema.fields[i].name, strlen(t->schema.fields[i].name));
    return MX_OK;
}

static const mx_arrow_field *dictionary_field(const mx_arrow_field *f, int n, int64_t id)
{
    for (int i = 0; i < n; i++) {
        if (f[i].has_dictionary && f[i].dictionary_id == id)
            return f[i].values;
        const mx_arrow_field *below = dictionary_field(f[i].children, f[i].n_children, id);
        if (below)
            return below;
    }
    return NULL;
}

static mx_status read_dictionary(mx_source *s, const mx_arrow_message *m)
{
    state *t = s->state;
    uint8_t *meta, *body;
    MX_TRY(load(s, m, &t->dict_arena, &meta, &body));
    mx_flatbuf b = {meta, (size_t)m->meta_bytes, false};
    size_t header = mx_flatbuf_table(&b, mx_flatbuf_root(&b), 2);
    int64_t id = mx_flatbuf_int(&b, header, 0, 8, 0), n_rows;
    const mx_arrow_field *f = dictionary_field(t->schema.fields, t->schema.n_fields, id);
    mx_arrow_dictionary *before = NULL;
    bool delta = mx_flatbuf_int(&b, header, 2, 1, 0);
    for (int i = 0; i < t->n_dictionaries; i++)
        before = t->dictionaries[i]->id == id ? t->dictionaries[i] : before;
    if (!f || b.bad || (delta && !before))
        return mx_fail(MX_INPUT, "dictionary %lld %s", (long long)id,
                       delta ? "is extended before it is there" : "is of no column");
    if (delta && ++t->n_deltas > MOST_DELTAS)
        return mx_fail(MX_INPUT, "more than %d additions to dictionaries", MOST_DELTAS);
    mx_arrow_batch batch = {.arena = &t->dict_arena,
                            .meta = &b,
                            .batch = mx_flatbuf_table(&b, header, 1),
                            .body = body,
                            .body_bytes = m->body_bytes,
                            .dictionaries = t->dictionaries,
                            .n_dictionaries = t->n_dictionaries};
    mx_arrow_array array;
    MX_TRY(mx_arrow_batch_read(&batch, f, 1, &array, &n_rows));
    mx_arrow_dictionary *d = MX_NEW(&t->dict_arena, mx_arrow_dictionary);
    *d = (mx_arrow_dictionary){id, array, d};
    if (delta) {
        before->last->array.extension = &d->array;
        before->last = d;
        return MX_OK;
    }
    MX_GROW(t->dictionaries, t->n_dictionaries, t->cap_dictionaries);
    t->dictionaries[t->n_dictionaries++] = d;
    return MX_OK;
}

/* Only the head: how many rows. */
static mx_status note_batch(mx_source *s, int64_t at, const mx_arrow_message *m)
{
    state *t = s->state;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, m->meta_at, (size_t)m->meta_bytes, &p, &got));
    mx_flatbuf b = {p, (size_t)m->meta_bytes, false};
    int64_t rows = mx_flatbuf_int(&b, mx_flatbuf_table(&b, mx_flatbuf_root(&b), 2), 0, 8, 0);
    if (b.bad || rows < 0 || rows > (int64_t)1 << 40)
        return mx_fail(MX_INPUT, "a record batch of %lld rows", (long long)rows);
    MX_GROW(t->batch_at, 2 * t->n_batches, t->cap_batches); /* two at a time; the room is even */
    if (t->n_batches + 1 >= t->cap_first) {
        t->cap_first = 2 * t->cap_first + 16;
        s->block_first = mx_realloc(s->block_first, sizeof(int64_t) * (size_t)t->cap_first);
    }
    if (t->n_batches == 0)
        s->block_first[0] = 0;
    t->batch_at[2 * t->n_batches] = at;
    t->batch_at[2 * t->n_batches + 1] = t->n_dictionaries;
    s->block_first[t->n_batches + 1] = s->block_first[t->n_batches] + rows;
    t->n_batches++;
    return MX_OK;
}

static mx_status walk(mx_source *s)
{
    state *t = s->state;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, 0, 8, &p, &got));
    bool is_file = got >= 8 && memcmp(p, "ARROW1", 6) == 0;
    t->is_file = is_file;
    if (is_file) {
        uint8_t tail[6];
        MX_TRY(mx_shard_read(&s->file, s->file.size_bytes - 6, tail, 6));
        if (memcmp(tail, "ARROW1", 6) != 0)
            return mx_fail(MX_INPUT,
                           "the file does not end in ARROW1: it is truncated, fetch it again");
    }
    for (int64_t at = is_file ? 8 : 0; at < s->file.size_bytes;) {
        mx_arrow_message m;
        MX_TRY(mx_arrow_message_at(&s->file, at, &m));
        if (m.type == 0)
            break;
        if (m.type != 1 && !t->schema.fields)
            return mx_fail(MX_INPUT, "no schema comes before the data");
        MX_TRY(m.type == 1   ? read_schema(s, &m)
               : m.type == 2 ? read_dictionary(s, &m)
               : m.type == 3 ? note_batch(s, at, &m)
                             : MX_OK);
        at = m.next;
    }
    return t->schema.fields ? MX_OK : mx_fail(MX_INPUT, "no schema: this is no Arrow file");
}

static mx_status arrow_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){.batch = -1};
    s->state = t;
    MX_TRY(mx_status_wrap(walk(s), "%s", s->file.path));
    s->n_blocks = t->n_batches;
    s->n_records = t->n_batches ? s->block_first[t->n_batches] : 0;
    return MX_OK;
}

static mx_status load_batch(mx_source *s, int64_t k)
{
    state *t = s->state;
    mx_arrow_message m;
    uint8_t *meta, *body;
    int64_t n_rows;
    t->batch = -1;
    mx_arena_fini(&t->arena);
    MX_TRY(mx_arrow_message_at(&s->file, t->batch_at[2 * k], &m));
    MX_TRY(load(s, &m, &t->arena, &meta, &body));
    mx_flatbuf b = {meta, (size_t)m.meta_bytes, false};
    t->columns = MX_NEW_N(&t->arena, mx_arrow_array, t->schema.n_fields);
    mx_arrow_batch batch = {.arena = &t->arena,
                            .meta = &b,
                            .body = body,
                            .body_bytes = m.body_bytes,
                            .batch = mx_flatbuf_table(&b, mx_flatbuf_root(&b), 2),
                            .dictionaries = t->dictionaries,
                            .n_dictionaries = t->is_file ? t->n_dictionaries
                                                         : (int)t->batch_at[2 * k + 1],
                            .wanted = t->wanted};
    MX_TRY(mx_arrow_batch_read(&batch, t->schema.fields, t->schema.n_fields, t->columns, &n_rows));
    if (n_rows != s->block_first[k + 1] - s->block_first[k])
        return mx_fail(MX_INPUT, "a record batch changed its length");
    t->batch = k;
    return MX_OK;
}

static mx_status add_text(mx_source *s, const mx_arrow_array *a, int64_t row, mx_record *r)
{
    const char *p;
    size_t n;
    const mx_arrow_field *v = a->field->has_dictionary ? a->field->values : a->field;
    bool text = v->type == MX_ARROW_UTF8 || v->type == MX_ARROW_LARGE_UTF8 ||
                v->type == MX_ARROW_UTF8_VIEW;
    if (!mx_arrow_bytes(a, row, &p, &n))
        return mx_fail(MX_INPUT, "the offsets of column \"%s\" are damaged", a->field->name);
    if (n > s->options.max_record_bytes)
        return mx_fail(MX_INPUT, "column \"%s\" has %zu bytes, max_record_bytes is %zu",
                       a->field->name, n, s->options.max_record_bytes);
    size_t valid = mx_utf8_valid(p, n);
    if (text && valid < n)
        return mx_fail(MX_INPUT, "byte %zu of column \"%s\" is not UTF-8", valid, a->field->name);
    mx_record_add(r, a->field->name, valid == n ? MX_CELL_TEXT : MX_CELL_BYTES, p, n);
    return MX_OK;
}

static mx_status arrow_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    int64_t k = t->batch;
    if (k < 0 || i < s->block_first[k] || i >= s->block_first[k + 1]) {
        k = mx_block_of(s->block_first, s->n_blocks, i);
        r->offset = t->batch_at[2 * k];
        MX_TRY(load_batch(s, k));
    }
    r->offset = t->batch_at[2 * k];
    int64_t row = i - s->block_first[k];
    for (int c = 0; c < t->schema.n_fields; c++) {
        const mx_arrow_array *a = &t->columns[c];
        if (a->skipped)
            continue;
        if (mx_arrow_is_null(a, row)) {
            mx_record_add(r, a->field->name, MX_CELL_NULL, "", 0);
            continue;
        }
        if (mx_arrow_is_text(a->field)) {
            MX_TRY(add_text(s, a, row, r));
            continue;
        }
        mx_record_reserve(r, a->field->name, strlen(a->field->name), MX_CELL_JSON, 0);
        size_t from = r->bytes.len;
        const char *bad = mx_arrow_write(a, row, s->options.max_record_bytes, &r->bytes);
        if (bad)
            return mx_fail(MX_INPUT, "column \"%s\": %s", a->field->name, bad);
        mx_record_commit(r, r->bytes.len - from);
    }
    return MX_OK;
}

static void arrow_inspect(mx_source *s, mx_str *out)
{
    static const char *const names[] = {"?",           "null",       "integer", "float",    "bytes",
                                        "text",        "boolean",    "decimal", "date",     "time",
                                        "timestamp",   "interval",   "list",    "struct",   "union",
                                        "fixed bytes", "fixed list", "map",     "duration", "bytes",
                                        "text",        "list",       "runs",    "bytes",    "text"};
    const state *t = s->state;
    for (int i = 0; i < t->schema.n_fields; i++) {
        const mx_arrow_field *f = &t->schema.fields[i];
        const mx_arrow_field *v = f->has_dictionary ? f->values : f;
        mx_str_addf(out, "column: %s, %s%s\n", f->name, names[v->type],
                    f->has_dictionary ? " (dictionary)" : "");
    }
}

static void arrow_close(mx_source *s)
{
    state *t = s->state;
    if (t) {
        mx_arena_fini(&t->schema.arena);
        mx_arena_fini(&t->dict_arena);
        mx_arena_fini(&t->arena);
        mx_free(t->batch_at);
        mx_free(t->dictionaries);
    }
    mx_free(t);
}

const mx_source_kind mx_source_kind_arrow = {
    .name = "arrow", .doc = "Arrow IPC file or stream, Feather", .suffixes = " .arrow .feather ",
    .sniff = arrow_sniff, .open = arrow_open, .read = arrow_read, .inspect = arrow_inspect,
    .close = arrow_close,
};
