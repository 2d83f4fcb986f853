/* safetensors.c - the header, checked to the last byte, and reading of ranges.
 *
 * The header comes from strangers. Nothing is allocated from a length in the file before the length
 * has been compared with the file's size; every product and sum is checked for overflow; offsets
 * must be JSON integers (a float, even 8.0, is refused as the reference library refuses it).
 */
#include "store/safetensors.h"

#include "base/io.h"
#include "base/json_doc.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 };
static const uint64_t MAX_HEADER_BYTES = 100000000; /* the reference library's limit */

/* dtypes that exist in the format and that no model family here is stored in */
static const char *const refused_dtypes[] = {"F4", "F6_E2M3", "F6_E3M2", "C64", 0};

/* --- the header ----------------------------------------------------------------------------- */
static mx_status parse_dtype(const char *path, const char *name, const json_t *v, mx_st_tensor *t)
{
    if (!json_is_string(v))
        return mx_fail(MX_INPUT, "%s: tensor %s: \"dtype\" must be a string and is %s", path, name,
                       mx_json_kind(v));
    t->dtype = mx_st_dtype_parse(json_string_value(v));
    if (t->dtype != MX_ST_NONE)
        return MX_OK;
    for (int i = 0; refused_dtypes[i]; i++)
        if (strcmp(refused_dtypes[i], json_string_value(v)) == 0)
            return mx_fail(MX_INPUT, "%s: tensor %s: dtype %s is not supported; convert it to BF16",
                           path, name, json_string_value(v));
    return mx_fail(MX_INPUT, "%s: tensor %s: unknown dtype \"%.40s\"", path, name,
                   json_string_value(v));
}

static mx_status parse_shape(const char *path, const char *name, const json_t *v, mx_st_tensor *t)
{
    if (!json_is_array(v))
        return mx_fail(MX_INPUT, "%s: tensor %s: \"shape\" must be an array and is %s", path, name,
                       mx_json_kind(v));
    if (json_array_size(v) > MX_ST_MAX_DIM)
        return mx_fail(MX_INPUT, "%s: tensor %s: %zu dims, and at most %d are supported", path,
                       name, json_array_size(v), MX_ST_MAX_DIM);
    t->ndim = (int)json_array_size(v);
    t->n = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return mx_fail(MX_INPUT, "%s: tensor %s: dim %d must be an integer >= 0 and is %s",
                           path, name, i, json_is_integer(d) ? "negative" : mx_json_kind(d));
        t->dim[i] = json_integer_value(d);
        if (__builtin_mul_overflow(t->n, t->dim[i], &t->n))
            return mx_fail(MX_INPUT, "%s: tensor %s: its shape has more than 2^63 elements", path,
                           name);
    }
    return MX_OK;
}

static mx_status parse_offsets(const mx_st_file *f, const char *name, const json_t *v,
                               mx_st_tensor *t)
{
    const json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return mx_fail(MX_INPUT, "%s: tensor %s: \"data_offsets\" must be two integers", f->path,
                       name);
    int64_t begin = json_integer_value(b), end = json_integer_value(e);
    uint64_t data_bytes = f->size_bytes - f->data_at;
    if (begin < 0 || end < begin)
        return mx_fail(MX_INPUT, "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] are %s",
                       f->path, name, begin, end, begin < 0 ? "negative" : "reversed");
    if ((uint64_t)end > data_bytes)
        return mx_fail(MX_INPUT,
                       "%s: tensor %s ends at byte %" PRId64 " of the data, and the file "
                       "has %" PRIu64 " bytes of it: truncated; copy or download it again",
                       f->path, name, end, data_bytes);
    int64_t want;
    if (__builtin_mul_overflow(t->n, (int64_t)mx_st_dtype_bytes(t->dtype), &want) ||
        want != end - begin) {
        char buf[200];
        return mx_fail(
            MX_INPUT, "%s: tensor %s: %s does not fill its data_offsets [%" PRId64 ", %" PRId64 "]",
            f->path, name, mx_st_describe(t, buf, sizeof buf), begin, end);
    }
    t->at = f->data_at + (uint64_t)begin;
    t->n_bytes = (uint64_t)want;
    return MX_OK;
}

static mx_status parse_tensor(mx_st_file *f, const char *name, const json_t *v, mx_st_tensor *t)
{
    if (!json_is_object(v))
        return mx_fail(MX_INPUT, "%s: tensor %s must be an object and is %s", f->path, name,
                       mx_json_kind(v));
    if (!*name || strlen(name) > 4096)
        return mx_fail(MX_INPUT, "%s: a tensor name of %zu bytes", f->path, strlen(name));
    t->name = mx_arena_strdup(&f->arena, name);
    t->file = f;
    MX_TRY(parse_dtype(f->path, t->name, json_object_get(v, "dtype"), t));
    MX_TRY(parse_shape(f->path, t->name, json_object_get(v, "shape"), t));
    return parse_offsets(f, t->name, json_object_get(v, "data_offsets"), t);
}

static mx_status parse_metadata(mx_st_file *f, json_t *v)
{
    if (!json_is_object(v))
        return mx_fail(MX_INPUT, "%s: __metadata__ must be an object of strings and is %s", f->path,
                       mx_json_kind(v));
    f->metadata = MX_NEW_N(&f->arena, mx_st_pair, json_object_size(v));
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value)
    {
        if (!json_is_string(value))
            return mx_fail(MX_INPUT, "%s: __metadata__.%.80s must be a string and is %s", f->path,
                           key, mx_json_kind(value));
        f->metadata[f->n_metadata++] = (mx_st_pair){
            mx_arena_strdup(&f->arena, key), mx_arena_strdup(&f->arena, json_string_value(value))};
    }
    return MX_OK;
}

static int by_offset(const void *a, const void *b)
{
    const mx_st_tensor *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(mx_st_tensor *const *)a)->name, (*(mx_st_tensor *const *)b)->name);
}

/* The tensors, sorted by offset, must cover the data exactly. */
static mx_status check_cover(const mx_st_file *f)
{
    uint64_t at = f->data_at;
    for (int64_t i = 0; i < f->n_tensors; i++) {
        const mx_st_tensor *t = &f->tensors[i];
        if (t->at < at)
            return mx_fail(MX_INPUT, "%s: tensors %s and %s overlap at byte %" PRIu64, f->path,
                           f->tensors[i - 1].name, t->name, t->at);
        if (t->at > at)
            return mx_fail(MX_INPUT,
                           "%s: a hole of %" PRIu64 " bytes at byte %" PRIu64 ", before tensor %s",
                           f->path, t->at - at, at, t->name);
        at += t->n_bytes;
    }
    if (at != f->size_bytes)
        return mx_fail(MX_INPUT,
                       "%s: %" PRIu64 " bytes at byte %" PRIu64 " belong to no tensor: the "
                       "file has garbage at its end",
                       f->path, f->size_bytes - at, at);
    return MX_OK;
}

static mx_status parse_root(mx_st_file *f, json_t *root)
{
    if (!json_is_object(root))
        return mx_fail(MX_INPUT, "%s: the header must be an object and is %s", f->path,
                       mx_json_kind(root));
    f->tensors = MX_NEW_N(&f->arena, mx_st_tensor, json_object_size(root));
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            MX_TRY(parse_metadata(f, value));
        else
            MX_TRY(parse_tensor(f, name, value, &f->tensors[f->n_tensors++]));
    }
    qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, by_offset);
    f->by_name = MX_NEW_N(&f->arena, mx_st_tensor *, f->n_tensors);
    for (int64_t i = 0; i < f->n_tensors; i++)
        f->by_name[i] = &f->tensors[i];
    qsort(f->by_name, (size_t)f->n_tensors, sizeof *f->by_name, by_name);
    return check_cover(f);
}

/* The header in memory, as it lies in a file of `size_bytes`: what mx_st_open does after reading.
 * `path` only names it in errors. No data can be read from such a file. */
static mx_status st_parse_header(mx_st_file *f, const char *path, const char *head, size_t n,
                             uint64_t size_bytes)
{
    f->path = mx_arena_strdup(&f->arena, path);
    f->size_bytes = size_bytes;
    f->data_at = 8 + (uint64_t)n;
    MX_ASSERT(f->data_at <= size_bytes, "header of %zu bytes in a file of %" PRIu64, n, size_bytes);
    if (n == 0 || head[0] != '{')
        return mx_fail(MX_INPUT,
                       "%s: the header must begin with '{' at byte 8: not a safetensors "
                       "file",
                       path);
    json_t *root;
    mx_json_limits limits = mx_json_limits_default;
    limits.max_bytes = MAX_HEADER_BYTES;
    limits.max_depth = 4;
    MX_TRY(mx_status_wrap(mx_json_parse(head, n, path, &limits, &root), "safetensors header"));
    mx_status st = parse_root(f, root);
    json_decref(root);
    return st;
}

static mx_status read_header(mx_st_file *f, const char *path)
{
    unsigned char len[8];
    if (f->size_bytes < 8)
        return mx_fail(MX_INPUT, "%s: %" PRIu64 " bytes are too few for a safetensors file", path,
                       f->size_bytes);
    MX_TRY(mx_io_read_at(NULL, f->fd, len, 8, 0, path));
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | len[i];
    if (n == 0 || n > MAX_HEADER_BYTES || n > f->size_bytes - 8)
        return mx_fail(MX_INPUT,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64 " (at "
                       "most %" PRIu64 " are accepted): not a safetensors file, or truncated",
                       path, n, f->size_bytes, MAX_HEADER_BYTES);
    void *head;
    MX_TRY(mx_alloc(&head, n, "a safetensors header"));
    mx_status st = mx_io_read_at(NULL, f->fd, head, n, 8, path);
    if (!st)
        st = st_parse_header(f, path, head, n, f->size_bytes);
    mx_free(head);
    return st;
}

mx_status mx_st_open(mx_st_file *f, const char *path)
{
    *f = (mx_st_file){0};
    MX_TRY(mx_io_open_read(NULL, path, &f->fd, &f->size_bytes));
    f->is_open = true;
    mx_status st = read_header(f, path);
    if (st)
        mx_st_close(f);
    return st;
}

void mx_st_close(mx_st_file *f)
{
    if (f->is_open)
        mx_io_system.close(NULL, f->fd);
    if (f->is_direct)
        mx_io_system.close(NULL, f->direct_fd);
    mx_arena_fini(&f->arena);
    *f = (mx_st_file){0};
}

const mx_st_tensor *mx_st_find(const mx_st_file *f, const char *name)
{
    mx_st_tensor key = {.name = name}, *p = &key;
    if (!f->n_tensors)
        return NULL;
    mx_st_tensor **hit = bsearch(&p, f->by_name, (size_t)f->n_tensors, sizeof *f->by_name, by_name);
    return hit ? *hit : NULL;
}

const char *mx_st_metadata(const mx_st_file *f, const char *key)
{
    for (int i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, key) == 0)
            return f->metadata[i].value;
    return NULL;
}

const char *mx_st_describe(const mx_st_tensor *t, char *buf, size_t cap)
{
    int k = snprintf(buf, cap, "%s (", mx_st_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && k < (int)cap; i++)
        k += snprintf(buf + k, cap - (size_t)k, "%s%" PRId64, i ? ", " : "", t->dim[i]);
    if (k < (int)cap)
        snprintf(buf + k, cap - (size_t)k, ")");
    return buf;
}

/* --- reading -------------------------------------------------------------------------------- */
mx_status mx_st_read(const mx_st_tensor *t, int64_t first, int64_t count, mx_st_dtype to, void *dst,
                     mx_st_scan *scan)
{
    const mx_st_file *f = t->file;
    MX_ASSERT(f->is_open, "%s is not open", f->path);
    MX_ASSERT(first >= 0 && count >= 0 && first <= t->n && count <= t->n - first,
              "%s: elements %" PRId64 "+%" PRId64 " of %" PRId64, t->name, first, count, t->n);
    if (!mx_st_convertible(t->dtype, to))
        return mx_fail(MX_INPUT, "%s: tensor %s is %s and cannot be loaded as %s", f->path, t->name,
                       mx_st_dtype_name(t->dtype), mx_st_dtype_name(to));
    int64_t size = mx_st_dtype_bytes(t->dtype), to_size = mx_st_dtype_bytes(to);
    uint64_t at = t->at + (uint64_t)(first * size);
    if (t->dtype == to) {
        MX_TRY(mx_io_read_at(NULL, f->fd, dst, (size_t)(count * size), at, f->path));
        if (scan)
            mx_st_scan_add(scan, to, dst, count);
        return MX_OK;
    }
    if (!count)
        return MX_OK;
    void *piece;
    int64_t step = PIECE_BYTES / size < count ? PIECE_BYTES / size : count, bad = 0;
    MX_TRY(mx_alloc(&piece, (size_t)(step * size), "a piece of a tensor"));
    mx_status st = MX_OK;
    for (int64_t i = 0; i < count; i += step) {
        int64_t k = count - i < step ? count - i : step;
        MX_TRY_OUT(st, mx_io_read_at(NULL, f->fd, piece, (size_t)(k * size),
                                     at + (uint64_t)(i * size), f->path));
        if (!mx_st_convert(t->dtype, piece, to, (char *)dst + i * to_size, k, scan, &bad))
            MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: tensor %s: element %" PRId64 " does not fit %s",
                                   f->path, t->name, first + i + bad, mx_st_dtype_name(to)));
    }
out:
    mx_free(piece);
    return st;
}

void mx_st_expect(const mx_st_tensor *t, int64_t first, int64_t count)
{
    /* The system takes a long request for its first part. */
    enum { REQUEST = 512 << 10 };
    uint64_t size = (uint64_t)mx_st_dtype_bytes(t->dtype), n = (uint64_t)count * size;
    for (uint64_t i = 0; i < n; i += REQUEST) /* advice: refusal changes nothing but speed */
        (void)posix_fadvise(t->file->fd, (off_t)(t->at + (uint64_t)first * size + i),
                            n - i < REQUEST ? (off_t)(n - i) : REQUEST, POSIX_FADV_WILLNEED);
}

mx_status mx_st_check_finite(const mx_st_seen *seen, int64_t n)
{
    enum { SHOWN = 20 };
    mx_str text = {0};
    int64_t n_bad = 0;
    for (int64_t j = 0; j < n; j++) {
        const mx_st_seen *one = &seen[j];
        if (!one->scan.n_nan && !one->scan.n_inf)
            continue;
        if (n_bad++ < SHOWN)
            mx_str_addf(&text,
                        "\n  %s: %" PRId64 " NaN, %" PRId64 " Inf of %" PRId64 " values (%s)",
                        one->tensor->name, one->scan.n_nan, one->scan.n_inf, one->count,
                        one->tensor->file->path);
    }
    mx_status st = MX_OK;
    if (n_bad)
        st = mx_fail(MX_INPUT, "%" PRId64 " tensors hold values that are not finite:%s%s", n_bad,
                     mx_str_text(&text), n_bad > SHOWN ? "\n  ..." : "");
    mx_str_fini(&text);
    return st;
}
