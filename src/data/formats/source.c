/* source.c - the record, and what is the same for every kind: finding it, opening, errors with a
 * place. */
#include "data/formats/source.h"

#include <stdio.h>
#include <string.h>

/* --- records --- */

void mx_record_clear(mx_record *r)
{
    r->n_cells = 0;
    mx_str_clear(&r->bytes);
    r->offset = -1;
}

void mx_record_fini(mx_record *r)
{
    mx_free(r->cells);
    mx_str_fini(&r->bytes);
    *r = (mx_record){0};
}

static void make_room(mx_record *r, size_t need)
{
    if (need > r->bytes.cap) {
        r->bytes.cap = need > 2 * r->bytes.cap ? need : 2 * r->bytes.cap;
        r->bytes.text = mx_realloc(r->bytes.text, r->bytes.cap);
    }
}

char *mx_record_reserve(mx_record *r, const char *name, size_t name_len, mx_cell_kind kind,
                        size_t n)
{
    static const char zeros[16] = {0};
    MX_GROW(r->cells, r->n_cells, r->cap_cells);
    mx_cell *c = &r->cells[r->n_cells++];
    *c = (mx_cell){.kind = kind, .name_at = r->bytes.len};
    mx_str_add_n(&r->bytes, name, name_len);
    mx_str_add_n(&r->bytes, zeros, 1 + 7 - (r->bytes.len & 7)); /* ends the name, aligns the data */
    c->at = r->bytes.len;
    make_room(r, c->at + n + 2);
    return r->bytes.text + c->at;
}

void mx_record_commit(mx_record *r, size_t n)
{
    mx_cell *c = &r->cells[r->n_cells - 1];
    c->len_bytes = n;
    make_room(r, c->at + n + 2);
    r->bytes.text[c->at + n] = 0;
    r->bytes.text[c->at + n + 1] = 0;
    r->bytes.len = c->at + n + 1; /* with the NUL, so that the next cell does not overwrite it */
}

void mx_record_add(mx_record *r, const char *name, mx_cell_kind kind, const void *data, size_t n)
{
    char *p = mx_record_reserve(r, name, strlen(name), kind, n);
    if (n)
        memcpy(p, data, n);
    mx_record_commit(r, n);
}

const char *mx_record_name(const mx_record *r, int i)
{
    return r->bytes.text + r->cells[i].name_at;
}

const char *mx_record_data(const mx_record *r, int i)
{
    return r->bytes.text + r->cells[i].at;
}

int mx_record_find(const mx_record *r, const char *name)
{
    for (int i = 0; i < r->n_cells; i++)
        if (strcmp(mx_record_name(r, i), name) == 0)
            return i;
    return -1;
}

/* --- kinds --- */

const mx_source_kind *mx_source_kind_find(const char *name)
{
    for (int i = 0; i < mx_source_kind_count; i++)
        if (strcmp(mx_source_kind_table[i]->name, name) == 0)
            return mx_source_kind_table[i];
    return NULL;
}

/* The longest suffix wins: "a.jsonl.zst" is lines, not an unknown ".zst". */
static const mx_source_kind *kind_by_name(const char *path)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    for (const char *dot = strchr(base, '.'); dot; dot = strchr(dot + 1, '.'))
        for (int i = 0; i < mx_source_kind_count; i++) {
            char key[64];
            snprintf(key, sizeof key, " %s ", dot);
            if (strstr(mx_source_kind_table[i]->suffixes, key))
                return mx_source_kind_table[i];
        }
    return NULL;
}

mx_status mx_source_kind_detect(const char *path, const mx_source_kind **out)
{
    *out = kind_by_name(path);
    if (*out)
        return MX_OK;
    mx_shard_file f;
    uint8_t head[64] = {0};
    MX_TRY(mx_shard_open(&f, path));
    size_t n = f.size_bytes < 64 ? (size_t)f.size_bytes : 64;
    mx_status st = mx_shard_read(&f, 0, head, n);
    mx_shard_close(&f);
    MX_TRY(st);
    for (int i = 0; i < mx_source_kind_count; i++)
        if (mx_source_kind_table[i]->sniff && mx_source_kind_table[i]->sniff(head, n)) {
            *out = mx_source_kind_table[i];
            return MX_OK;
        }
    mx_str known = {0};
    for (int i = 0; i < mx_source_kind_count; i++)
        mx_str_addf(&known, "%s%s", i ? ", " : "", mx_source_kind_table[i]->name);
    st = mx_fail(MX_INPUT,
                 "%s: neither the name nor the first bytes say what kind of data this is; "
                 "set dataset_type to one of %s",
                 path, mx_str_text(&known));
    mx_str_fini(&known);
    return st;
}

/* --- sources --- */

mx_status mx_source_open(mx_source *s, const char *path, const mx_source_kind *kind,
                         const mx_source_options *o)
{
    *s = (mx_source){.options = o ? *o : (mx_source_options){0}, .n_records = -1};
    s->file.fd = -1;
    if (!s->options.max_record_bytes)
        s->options.max_record_bytes = (size_t)256 << 20;
    if (!s->options.record_tokens)
        s->options.record_tokens = 2048;
    if (!kind)
        MX_TRY(mx_source_kind_detect(path, &kind));
    if (!kind->no_file) {
        MX_TRY(mx_shard_open(&s->file, path));
        if (s->file.size_bytes == 0) {
            mx_shard_close(&s->file);
            return mx_fail(MX_INPUT,
                           "%s: the file is empty (0 bytes); fetch it again or leave it out", path);
        }
    }
    s->kind = kind;
    mx_status st = kind->open(s);
    if (st)
        mx_source_close(s);
    return st;
}

mx_status mx_record_place(mx_status st, const mx_record *r)
{
    if (r->offset >= 0)
        return mx_status_wrap(st, "%s: record %lld at offset %lld", r->path, (long long)r->number,
                              (long long)r->offset);
    return mx_status_wrap(st, "%s: record %lld", r->path, (long long)r->number);
}

static void begin_record(const mx_source *s, int64_t i, mx_record *r)
{
    mx_record_clear(r);
    r->path = s->file.path ? s->file.path : s->kind->name;
    r->number = i;
}

mx_status mx_source_read(mx_source *s, int64_t i, mx_record *r)
{
    MX_ASSERT(i >= 0 && i < s->n_records, "record %lld of %lld", (long long)i,
              (long long)s->n_records);
    begin_record(s, i, r);
    return mx_record_place(s->kind->read(s, i, r), r);
}

mx_status mx_source_next(mx_source *s, mx_record *r, bool *end)
{
    begin_record(s, s->record, r);
    *end = s->broken;
    if (s->broken)
        return MX_OK;
    mx_status st = mx_record_place(s->kind->next(s, r, end), r);
    s->record += !*end;
    return st;
}

mx_status mx_source_rewind(mx_source *s)
{
    s->record = 0;
    s->broken = false;
    return s->kind->rewind(s);
}

void mx_source_columns(const char *path, mx_str *out)
{
    mx_source s = {0};
    mx_record r = {0};
    bool end = false;
    mx_status st = mx_source_open(&s, path, NULL, NULL);
    bool open = !st;
    if (!st && s.n_records != 0)
        st = s.n_records < 0 ? mx_source_next(&s, &r, &end) : mx_source_read(&s, 0, &r);
    for (int i = 0; !st && i < r.n_cells; i++)
        mx_str_addf(out, "%s%s", i ? ", " : "", mx_record_name(&r, i));
    mx_status_free(st);
    mx_record_fini(&r);
    if (open)
        mx_source_close(&s);
}

bool mx_source_wants(const mx_source *s, const char *name, size_t len)
{
    if (!s->options.columns)
        return true;
    for (int i = 0; i < s->options.n_columns; i++)
        if (strlen(s->options.columns[i]) == len && memcmp(s->options.columns[i], name, len) == 0)
            return true;
    return false;
}

mx_status mx_source_inspect(mx_source *s, mx_str *out)
{
    char size[32];
    mx_str_addf(out, "format: %s (%s)\n", s->kind->name, s->kind->doc);
    if (s->file.path)
        mx_str_addf(out, "file: %s, %s\n", s->file.path,
                    mx_format_bytes(size, sizeof size, (double)s->file.size_bytes));
    if (s->n_records >= 0)
        mx_str_addf(out, "records: %lld\n", (long long)s->n_records);
    if (s->n_blocks)
        mx_str_addf(out, "blocks: %lld\n", (long long)s->n_blocks);
    if (s->kind->inspect)
        s->kind->inspect(s, out);
    return MX_OK;
}

void mx_source_close(mx_source *s)
{
    if (s->kind)
        s->kind->close(s);
    mx_shard_close(&s->file);
    mx_free(s->block_first);
    *s = (mx_source){.n_records = -1};
    s->file.fd = -1;
}
