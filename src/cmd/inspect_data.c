/* inspect_data.c - a data file: its format, what its own headers say, and the first records.
 *
 * As JSON:
 *     {"format": "parquet", "description": ..., "file": PATH, "bytes": N,
 *      "records": N or null when only reading all of it would tell, "blocks": N,
 *      "details": {...what the format says of itself...},
 *      "first_records": [{"COLUMN": {"type": "text", "bytes": N, "value": ...}}]}
 * Values are given whole, ids as a list, bytes that are no text as null.
 */
#include "cmd/inspect_data.h"

#include "base/utf8.h"
#include "data/formats/json_scan.h"
#include "data/formats/source.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const cell_kinds[] = {"null", "text", "JSON", "bytes", "ids"};

/* --- lines to JSON --- */

/* A number where the text is one. */
static json_t *json_value(const char *text, size_t n)
{
    char buf[64];
    int64_t whole;
    double real;
    snprintf(buf, sizeof buf, "%.*s", n < sizeof buf ? (int)n : 0, text);
    if (mx_parse_i64(buf, &whole))
        return json_integer(whole);
    if (mx_parse_f64(buf, &real) && isfinite(real))
        return json_real(real);
    json_t *v = json_stringn(text, n); /* NULL when it is not UTF-8 */
    return v ? v : json_null();
}

json_t *mx_inspect_lines(const char *text)
{
    json_t *o = json_object();
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        const char *colon = memmem(p, n, ": ", 2);
        size_t k = colon ? (size_t)(colon - p) : 0;
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)k, p);
        json_t *v = colon ? json_value(colon + 2, n - k - 2) : json_value(p, n);
        if (!colon)
            snprintf(name, sizeof name, "text");
        json_t *old = json_object_get(o, name);
        if (old && !json_is_array(old))
            json_object_set_new(o, name, json_pack("[O]", old));
        if (old)
            json_array_append_new(json_object_get(o, name), v);
        else
            json_object_set_new(o, name, v);
        p += n + (p[n] == '\n');
    }
    return o;
}

/* --- records --- */

static json_t *cell_json(const mx_record *rec, int i)
{
    const mx_cell *c = &rec->cells[i];
    const char *p = mx_record_data(rec, i);
    json_t *v = NULL;
    if (c->kind == MX_CELL_TEXT)
        v = json_stringn(p, c->len_bytes);
    else if (c->kind == MX_CELL_JSON)
        v = json_loadb(p, c->len_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    else if (c->kind == MX_CELL_IDS)
        v = json_array();
    for (size_t k = 0; c->kind == MX_CELL_IDS && 4 * k < c->len_bytes; k++)
        json_array_append_new(v, json_integer(((const int32_t *)p)[k]));
    return json_pack("{s:s, s:I, s:o}", "type", cell_kinds[c->kind], "bytes",
                     (json_int_t)c->len_bytes, "value", v ? v : json_null());
}

static void show_cell(const mx_record *rec, int i, mx_str *out)
{
    const mx_cell *c = &rec->cells[i];
    const char *p = mx_record_data(rec, i);
    size_t n = c->len_bytes < 120 ? c->len_bytes : 120;
    mx_str_addf(out, "  %s (%s, %zu bytes): ", mx_record_name(rec, i), cell_kinds[c->kind],
                c->len_bytes);
    n -= mx_utf8_incomplete_tail((const uint8_t *)p, n);
    if (c->kind == MX_CELL_TEXT)
        mx_json_write_string(out, p, n);
    else if (c->kind == MX_CELL_JSON)
        mx_str_add_n(out, p, n);
    for (size_t k = 0; c->kind == MX_CELL_IDS && k < 16 && 4 * k < c->len_bytes; k++)
        mx_str_addf(out, "%s%d", k ? " " : "", ((const int32_t *)p)[k]);
    mx_str_add(out, n < c->len_bytes ? " ...\n" : "\n");
}

/* Gives each of the first records to the text or to the list, whichever is there. */
static mx_status show_records(mx_source *s, int64_t n, mx_str *out, json_t *list)
{
    mx_record rec = {0};
    mx_status st = MX_OK;
    bool end = false;
    n = n < 3 ? n : 3;
    for (int64_t i = 0; !st && i < n && (s->n_records < 0 || i < s->n_records); i++) {
        st = s->n_records < 0 ? mx_source_next(s, &rec, &end) : mx_source_read(s, i, &rec);
        if (st || end)
            break;
        json_t *o = list ? json_object() : NULL;
        if (!list)
            mx_str_addf(out, "record %lld:\n", (long long)i);
        for (int k = 0; k < rec.n_cells; k++) {
            if (list)
                json_object_set_new(o, mx_record_name(&rec, k), cell_json(&rec, k));
            else
                show_cell(&rec, k, out);
        }
        if (list)
            json_array_append_new(list, o);
    }
    mx_record_fini(&rec);
    return st;
}

static mx_status show_json(mx_source *s, int64_t n, mx_str *out)
{
    mx_str lines = {0};
    json_t *list = json_array();
    if (s->kind->inspect)
        s->kind->inspect(s, &lines);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:I, s:o, s:o}", "format", s->kind->name, "description",
        s->kind->doc, "file", s->file.path, "bytes", (json_int_t)s->file.size_bytes, "records",
        s->n_records < 0 ? json_null() : json_integer(s->n_records), "blocks",
        (json_int_t)s->n_blocks, "details", mx_inspect_lines(mx_str_text(&lines)), "first_records",
        list);
    mx_status st = o ? show_records(s, n, out, list)
                     : mx_fail(MX_INPUT, "%s: its name or its header is not UTF-8, which JSON "
                                         "needs; leave format=json out",
                               s->file.path);
    char *text = st ? NULL : json_dumps(o, JSON_INDENT(1));
    mx_str_addf(out, "%s%s", text ? text : "", text ? "\n" : "");
    mx_free(text);
    json_decref(o);
    mx_str_fini(&lines);
    return st;
}

mx_status mx_inspect_data(const char *path, int64_t n, bool json, mx_str *out)
{
    mx_source s;
    MX_TRY(mx_source_open(&s, path, NULL, NULL));
    mx_status st = json ? show_json(&s, n, out) : mx_source_inspect(&s, out);
    if (!st && !json)
        st = show_records(&s, n, out, NULL);
    mx_source_close(&s);
    return st;
}
