/* source.h - where records come from: one kind per file format, one mx_source per open file.
 *
 * A record is a set of named cells (columns). Text is UTF-8; anything nested (a list of messages)
 * is given as JSON text whatever the format, so the code above knows one representation; token ids
 * are int32. A format is one file with one `const mx_source_kind mx_source_kind_NAME`; the table is
 * scanned out of src/data/formats, so adding a format means adding a file.
 *
 * Three ways of access, from the kind of storage:
 *   random  n_records >= 0, n_blocks = 0   any record at about the same cost (ArrayRecord, lines,
 *                                          token files): shuffled by a global permutation
 *   blocks  n_records >= 0, n_blocks > 0   records live in blocks that are decoded whole (Parquet
 *                                          row groups, Arrow batches): blocks are shuffled, and
 *                                          the records within each
 *   stream  n_records = -1                 only `next` (compressed lines): shuffled in windows
 * A source is used by one thread at a time.
 */
#ifndef MX_DATA_SOURCE_H
#define MX_DATA_SOURCE_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"
#include "data/formats/shard.h"

typedef enum {
    MX_CELL_NULL,
    MX_CELL_TEXT,  /* UTF-8, checked */
    MX_CELL_JSON,  /* the text of a JSON value: numbers, booleans, lists, objects */
    MX_CELL_BYTES, /* anything else (images) */
    MX_CELL_IDS,   /* int32 token ids, 4-byte aligned */
} mx_cell_kind;

typedef struct {
    mx_cell_kind kind;
    size_t name_at, at, len_bytes; /* in the record's bytes */
} mx_cell;

/* Owns its memory and keeps it from record to record. Zero-initialised is empty. */
typedef struct {
    mx_cell *cells;
    int n_cells, cap_cells;
    mx_str bytes;
    /* for messages: where it begins in its file (-1: there is no such place), which one it is */
    int64_t offset, number;
    const char *path; /* borrowed from the source; NULL: made up */
} mx_record;

void mx_record_clear(mx_record *r);
void mx_record_fini(mx_record *r);
void mx_record_add(mx_record *r, const char *name, mx_cell_kind kind, const void *data, size_t n);
/* The same in two steps, for values that are decoded in place: room for n bytes, then how many it
 * was. */
char *mx_record_reserve(mx_record *r, const char *name, size_t name_len, mx_cell_kind kind,
                        size_t n);
void mx_record_commit(mx_record *r, size_t n);
int mx_record_find(const mx_record *r, const char *name); /* -1: no such cell */
const char *mx_record_name(const mx_record *r, int i);
const char *mx_record_data(const mx_record *r, int i); /* NUL-terminated; borrowed */

typedef struct {
    const char *const *columns; /* names wanted; NULL: all. Borrowed while open */
    int n_columns;
    const char *text_unit;      /* "file" (default: blocks of a file), "line", "paragraph" */
    int64_t record_tokens;      /* predictions per record of token ids; default 2048 */
    const char *token_type;     /* of headerless .bin: "uint16" (default), "uint32", "int32" */
    int64_t vocab_size;         /* random tokens: ids below it; token files: checked. 0: unknown */
    uint64_t seed;              /* synthetic data */
    int64_t n_synthetic;        /* documents of a synthetic source; default 2^40 */
    size_t max_record_bytes;    /* default 256 MiB */
} mx_source_options;

typedef struct mx_source_kind mx_source_kind;
typedef struct mx_source {
    const mx_source_kind *kind;
    mx_source_options options;
    mx_shard_file file;           /* owned; closed by mx_source_close after the kind's close */
    int64_t n_records;       /* -1: a stream */
    int64_t n_blocks;
    int64_t *block_first;    /* owns; n_blocks + 1 record numbers */
    int64_t record;          /* streams: number of the record that `next` will give */
    int64_t consumed;        /* streams: bytes of the file that they came from so far, about */
    bool broken;             /* streams: set by `next` when nothing can be read after an error */
    void *state;             /* the kind's own */
} mx_source;

struct mx_source_kind {
    const char *name, *doc;
    const char *suffixes;    /* " .jsonl .json " with spaces around each; "" when it has no file */
    /* First bytes of a file whose name says nothing; NULL: never. */
    bool (*sniff)(const uint8_t *head, size_t n);
    bool no_file;            /* synthetic: nothing to open */
    mx_status (*open)(mx_source *s);
    mx_status (*read)(mx_source *s, int64_t i, mx_record *r);     /* random and blocks */
    mx_status (*next)(mx_source *s, mx_record *r, bool *end);     /* streams */
    mx_status (*rewind)(mx_source *s);                            /* streams */
    void (*inspect)(mx_source *s, mx_str *out); /* adds what the format has to say; may be NULL */
    void (*close)(mx_source *s);                /* must accept a half-open source */
};
extern const mx_source_kind *const mx_source_kind_table[]; /* ends in NULL */
extern const int mx_source_kind_count;

const mx_source_kind *mx_source_kind_find(const char *name); /* NULL: unknown */
/* The kind of a file, from its name and then from its first bytes. */
mx_status mx_source_kind_detect(const char *path, const mx_source_kind **out) MX_MUST_USE;

/* Which of n blocks record x is in: the largest k with first[k] <= x, of n + 1 rising numbers. */
static inline int64_t mx_block_of(const int64_t *first, int64_t n, int64_t x)
{
    int64_t lo = 0, hi = n;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (first[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* kind NULL: detected. `path` is ignored by kinds without a file. */
mx_status mx_source_open(mx_source *s, const char *path, const mx_source_kind *kind,
                         const mx_source_options *o) MX_MUST_USE;
/* Record i; errors carry the file, the record and the offset. Streams: mx_source_next. */
mx_status mx_source_read(mx_source *s, int64_t i, mx_record *r) MX_MUST_USE;
mx_status mx_source_next(mx_source *s, mx_record *r, bool *end) MX_MUST_USE;
mx_status mx_source_rewind(mx_source *s) MX_MUST_USE;
/* Puts the record's file, number and offset before a message; OK stays OK. */
mx_status mx_record_place(mx_status st, const mx_record *r) MX_MUST_USE;
/* "a, b, c": the columns of the first record of a file, all of them; nothing if it has none. */
void mx_source_columns(const char *path, mx_str *out);
/* Is this column asked for? */
bool mx_source_wants(const mx_source *s, const char *name, size_t len);
/* What is in the file, as `key: value` lines. */
mx_status mx_source_inspect(mx_source *s, mx_str *out) MX_MUST_USE;
void mx_source_close(mx_source *s);

/* Number of leading bytes of valid UTF-8 (n when all is). */
static inline size_t mx_utf8_valid(const char *s, size_t n)
{
    return mx_utf8_valid_prefix((const uint8_t *)s, n);
}

#endif
