/* fuzz_data.c - any bytes as a data file of every format.
 *
 *     make MODE=fuzz build/fuzz/fuzz_data
 *
 * The first byte chooses the format, the rest is the file. Reading ends with records or an error
 * of the kind "bad input"; memory stays bounded by max_record_bytes.
 */
#include "data/load/order.h"
#include "data/formats/source.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const kinds[] = {"jsonl", "text", "tokens", "parquet", "arrow", "tfrecord",
                                    "arrayrecord"};

static void check(const mx_record *r)
{
    for (int i = 0; i < r->n_cells; i++) {
        const mx_cell *c = &r->cells[i];
        const char *p = mx_record_data(r, i);
        if (p[c->len_bytes] != 0 ||
            (c->kind == MX_CELL_TEXT && mx_utf8_valid(p, c->len_bytes) < c->len_bytes))
            abort();
    }
}

static void read_all(mx_source *s)
{
    mx_record r = {0};
    bool end = false;
    int64_t n = s->n_records < 0 || s->n_records > 200 ? 200 : s->n_records;
    for (int64_t i = 0; i < n && !end; i++) {
        mx_status st = s->n_records < 0 ? mx_source_next(s, &r, &end)
                                        : mx_source_read(s, mx_permute(s->n_records, 1, i), &r);
        if (st && mx_status_code(st) != MX_INPUT)
            abort();
        if (!st && !end)
            check(&r);
        mx_status_free(st);
    }
    mx_record_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    const mx_source_kind *kind = mx_source_kind_find(kinds[data[0] % 7]);
    int fd = memfd_create("fuzz", 0);
    char path[64];
    if (fd < 0 || write(fd, data + 1, n - 1) != (ssize_t)n - 1)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mx_source s;
    mx_str out = {0};
    mx_source_options o = {.max_record_bytes = 1 << 20, .record_tokens = 8,
                           .text_unit = n % 3 == 0 ? "line" : n % 3 == 1 ? "paragraph" : "file"};
    mx_status st = mx_source_open(&s, path, kind, &o);
    if (st && mx_status_code(st) != MX_INPUT && mx_status_code(st) != MX_USAGE)
        abort();
    if (!st) {
        read_all(&s);
        st = mx_source_inspect(&s, &out);
        mx_source_close(&s);
    }
    mx_status_free(st);
    mx_str_fini(&out);
    close(fd);
    return 0;
}
