/* dataset.c - see dataset.h.
 *
 * Random access: record number permute(N, key(seed, epoch), index) of the N records of all files.
 * Blocks: the G blocks of all files come in the order permute(G, ...); `first` holds the running
 * sum of their sizes in that order for the current epoch (G integers), and the record inside the
 * block is permute(size, key(seed, epoch, block), .). Streams: files in the order permute(F, ...),
 * each cut into windows of shuffle_window records; the window is held in memory and given in a
 * permuted order. The cursor names the window, so going to a place costs decompressing one file up
 * to it.
 *
 * Descriptors: all files are opened once to count records; at most OPEN_MAX_FILES stay open.
 */
#include "data/load/dataset.h"

#include "data/load/folder.h"
#include "data/load/random.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { OPEN_MAX_FILES = 32, SAMPLES = 64, SAMPLE_BYTES = 4096 };

struct mx_dataset {
    mx_arena arena;
    mx_dataset_options o;
    const mx_source_kind *kind;
    mx_source *files; /* (n_files) */
    int n_files;
    int64_t *file_first;  /* (n_files + 1) record numbers; random access */
    int64_t n_records;    /* -1: streams */
    int64_t bytes;
    int64_t n_blocks, *block_file, *block_in_file, *first; /* blocks; first is the epoch's */
    int64_t first_epoch;  /* the epoch that `first` was made for; -1: none */
    int recent[OPEN_MAX_FILES], n_recent; /* files with an open descriptor, latest last */
    /* streams: the window in memory, and where the open file stands */
    mx_record *window;
    mx_status
        *bad; /* (window) errors of records that could not be read, given when their turn comes */
    int64_t win_epoch, win_file, win_record, win_n;
    int64_t win_taken; /* records of the window's order given away: they are no longer in it */
    bool win_last;     /* no record follows the window in its file */
};

/* --- files --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Where the data may be instead: the first file that is in a folder of this folder. */
static mx_status no_files_in(const char *dir, mx_arena *a)
{
    char **names;
    int n;
    MX_TRY(mx_folder_files(dir, a, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *slash = strrchr(names[i], '/');
        if (slash && !mx_is_dataset_card(names[i]))
            return mx_fail(MX_INPUT,
                           "%s: there are no data files in this folder itself, but in %s/%.*s; "
                           "name that, or a pattern of files",
                           dir, dir, (int)(slash - names[i]), names[i]);
    }
    return mx_fail(MX_INPUT, "%s: there are no data files in this folder", dir);
}

static mx_status expand_one(const char *pattern, mx_arena *a, char ***v, int *n, int *cap)
{
    char *dir = mx_arena_printf(a, "%s/*", pattern);
    struct stat st;
    bool is_dir = stat(pattern, &st) == 0 && S_ISDIR(st.st_mode);
    bool exists = is_dir || stat(pattern, &st) == 0; /* a name with [ ] in it is still a name */
    glob_t g = {0};
    int rc = exists && !is_dir ? 0 : glob(is_dir ? dir : pattern, GLOB_TILDE, NULL, &g);
    int before = *n;
    for (size_t i = 0; rc == 0 && i < (exists && !is_dir ? 1 : g.gl_pathc); i++) {
        const char *path = exists && !is_dir ? pattern : g.gl_pathv[i];
        if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (is_dir && mx_is_dataset_card(path))
            continue;
        MX_GROW(*v, *n, *cap);
        (*v)[(*n)++] = mx_arena_strdup(a, path);
    }
    globfree(&g);
    if (*n == before && is_dir)
        return no_files_in(pattern, a);
    if (*n == before && exists)
        return mx_fail(MX_INPUT, "%s: not a regular file; data is read from files", pattern);
    if (*n == before)
        return mx_fail(MX_INPUT,
                       "%s: no such data file, and nothing matches it as a pattern; check "
                       "the path (dataset_path, or the key it came from)",
                       pattern);
    qsort(*v + before, (size_t)(*n - before), sizeof **v, by_name);
    return MX_OK;
}

mx_status mx_paths_expand(const char *paths, mx_arena *a, char ***out, int *n)
{
    char **v = NULL;
    int cap = 0;
    mx_status st = MX_OK;
    *n = 0;
    for (const char *p = paths; !st && *p;) {
        size_t k = strcspn(p, ",");
        if (k)
            st = expand_one(mx_arena_printf(a, "%.*s", (int)k, p), a, &v, n, &cap);
        p += k + (p[k] == ',');
    }
    if (!st && *n == 0)
        st = mx_fail(MX_USAGE, "no data files were named; set dataset_path");
    *out = v ? mx_arena_copy(a, v, sizeof *v * (size_t)*n) : NULL;
    mx_free(v);
    return st;
}

/* --- opening --- */

static mx_status open_files(mx_dataset *d, char **paths)
{
    d->files = MX_NEW_N(&d->arena, mx_source, d->n_files);
    d->file_first = MX_NEW_N(&d->arena, int64_t, d->n_files + 1);
    bool stream = false;
    for (int i = 0; i < d->n_files; i++) {
        const char *path = paths ? paths[i] : "";
        MX_TRY(mx_source_open(&d->files[i], path, d->kind, &d->o.source));
        mx_source *s = &d->files[i];
        if (i == 0 && !d->kind)
            d->kind = s->kind;
        if (s->kind != d->files[0].kind)
            return mx_fail(MX_INPUT,
                           "%s is %s and %s is %s: the files of one dataset must be of one "
                           "kind; name two datasets",
                           s->file.path, s->kind->name, d->files[0].file.path,
                           d->files[0].kind->name);
        mx_shard_park(&s->file);
        d->bytes += s->file.size_bytes;
        d->n_blocks += s->n_blocks;
        stream = stream || s->n_records < 0;
        d->file_first[i + 1] = d->file_first[i] + (s->n_records < 0 ? 0 : s->n_records);
    }
    d->n_records = stream ? -1 : d->file_first[d->n_files];
    if (d->n_records == 1 && d->o.held_share > 0)
        return mx_fail(MX_INPUT, "%s: one record cannot be divided between training and evaluation",
                       d->files[0].file.path);
    if (d->n_records == 0)
        return mx_fail(MX_INPUT, "%s: no records in any of the %d files",
                       paths ? paths[0] : d->kind->name, d->n_files);
    return MX_OK;
}

static void list_blocks(mx_dataset *d)
{
    d->block_file = MX_NEW_N(&d->arena, int64_t, d->n_blocks);
    d->block_in_file = MX_NEW_N(&d->arena, int64_t, d->n_blocks);
    d->first = MX_NEW_N(&d->arena, int64_t, d->n_blocks + 1);
    d->first_epoch = -1;
    int64_t b = 0;
    for (int i = 0; i < d->n_files; i++)
        for (int64_t k = 0; k < d->files[i].n_blocks; k++, b++) {
            d->block_file[b] = i;
            d->block_in_file[b] = k;
        }
}

mx_status mx_dataset_open(mx_dataset **out, const mx_dataset_options *o)
{
    mx_dataset *d = mx_realloc(NULL, sizeof *d);
    *d = (mx_dataset){.o = *o, .win_epoch = -1};
    char **paths = NULL;
    mx_status st = MX_OK;
    if (o->kind && *o->kind && !(d->kind = mx_source_kind_find(o->kind)))
        st = mx_fail(MX_USAGE, "dataset_type=%s is not a kind of data file", o->kind);
    if (!st && d->kind && d->kind->no_file)
        d->n_files = 1;
    else if (!st)
        st = mx_paths_expand(o->paths ? o->paths : "", &d->arena, &paths, &d->n_files);
    if (d->o.shuffle_window <= 0)
        d->o.shuffle_window = 1024;
    if (!st)
        st = open_files(d, paths);
    if (!st && d->n_records >= 0 && d->n_blocks)
        list_blocks(d);
    if (!st && d->n_records < 0) {
        d->window = MX_NEW_N(&d->arena, mx_record, d->o.shuffle_window);
        d->bad = MX_NEW_N(&d->arena, mx_status, d->o.shuffle_window);
    }
    if (st) {
        mx_dataset_close(d);
        d = NULL;
    }
    *out = d;
    return st;
}

void mx_dataset_close(mx_dataset *d)
{
    if (!d)
        return;
    for (int i = 0; d->files && i < d->n_files; i++)
        mx_source_close(&d->files[i]);
    for (int64_t i = 0; d->window && i < d->o.shuffle_window; i++) {
        mx_record_fini(&d->window[i]);
        mx_status_free(d->bad[i]);
    }
    mx_arena_fini(&d->arena);
    mx_free(d);
}

/* Keeps the latest files open and parks the one that was not used longest. */
static mx_source *touch(mx_dataset *d, int64_t file)
{
    int i = 0;
    while (i < d->n_recent && d->recent[i] != file)
        i++;
    if (i == d->n_recent && d->n_recent == OPEN_MAX_FILES) {
        mx_shard_park(&d->files[d->recent[0]].file);
        i = 0;
    } else if (i == d->n_recent) {
        d->n_recent++;
    }
    memmove(d->recent + i, d->recent + i + 1, sizeof *d->recent * (size_t)(d->n_recent - 1 - i));
    d->recent[d->n_recent - 1] = (int)file;
    return &d->files[file];
}

/* --- order --- */

static uint64_t epoch_key(const mx_dataset *d, int64_t epoch, uint64_t what)
{
    return mx_mix_key(mx_mix_key(d->o.seed, (uint64_t)epoch), what);
}

static int64_t shuffled(const mx_dataset *d, int64_t n, uint64_t key, int64_t i)
{
    return d->o.shuffle ? mx_permute(n, key, i) : i;
}

/* Whether the record belongs to the half that is given. */
static bool is_wanted(const mx_dataset *d, int64_t file, int64_t record)
{
    static const uint64_t held_key = 0x68656c64;
    double share = d->o.held_share;
    if (share <= 0)
        return true;
    bool held;
    if (d->n_records >= 0) {
        int64_t n = (int64_t)(share * (double)d->n_records + 0.5);
        n = n < 1 ? 1 : n >= d->n_records ? d->n_records - 1 : n;
        held = mx_permute(d->n_records, held_key, d->file_first[file] + record) < n;
    } else {
        uint64_t h = mx_mix_key(mx_mix_key(held_key, (uint64_t)file), (uint64_t)record);
        held = (double)(h >> 11) * 0x1p-53 < share;
    }
    return held == d->o.held_out;
}

/* A record by its file and its number there. */
typedef struct {
    int64_t file, record;
} place;

static place locate_random(mx_dataset *d, const mx_cursor *c)
{
    int64_t i = shuffled(d, d->n_records, epoch_key(d, c->epoch, 0), c->index);
    int64_t file = mx_block_of(d->file_first, d->n_files, i);
    return (place){file, i - d->file_first[file]};
}

static place locate_in_block(mx_dataset *d, const mx_cursor *c)
{
    uint64_t key = epoch_key(d, c->epoch, 1);
    if (d->first_epoch != c->epoch) {
        d->first_epoch = c->epoch;
        for (int64_t k = 0; k < d->n_blocks; k++) {
            int64_t b = shuffled(d, d->n_blocks, key, k);
            const int64_t *f = d->files[d->block_file[b]].block_first + d->block_in_file[b];
            d->first[k + 1] = d->first[k] + f[1] - f[0];
        }
    }
    int64_t k = mx_block_of(d->first, d->n_blocks, c->index), b = shuffled(d, d->n_blocks, key, k);
    int64_t n = d->first[k + 1] - d->first[k];
    int64_t i = shuffled(d, n, mx_mix_key(key, (uint64_t)b), c->index - d->first[k]);
    int64_t file = d->block_file[b];
    return (place){file, d->files[file].block_first[d->block_in_file[b]] + i};
}

static mx_status read_indexed(mx_dataset *d, mx_cursor *c, mx_record *r, bool *end)
{
    for (;;) {
        place at = d->n_blocks ? locate_in_block(d, c) : locate_random(d, c);
        if (++c->index == d->n_records) {
            c->index = 0;
            c->epoch++;
        }
        if (is_wanted(d, at.file, at.record))
            return mx_source_read(touch(d, at.file), at.record, r);
        *end = d->o.n_epochs && c->epoch >= d->o.n_epochs;
        if (*end)
            return MX_OK;
    }
}

/* --- streams --- */

static mx_status stream_next(mx_source *s, mx_record *r, bool *end)
{
    if (s->n_records < 0)
        return mx_source_next(s, r, end);
    *end = s->record >= s->n_records;
    return *end ? MX_OK : mx_source_read(s, s->record++, r);
}

static mx_status load_window(mx_dataset *d, const mx_cursor *c)
{
    int64_t file = shuffled(d, d->n_files, epoch_key(d, c->epoch, 2), c->file);
    mx_source *s = touch(d, file);
    bool end = false;
    bool follows = c->epoch == d->win_epoch && c->file == d->win_file &&
                   c->record == d->win_record + d->win_n && s->record == c->record;
    d->win_epoch = -1;
    if (!follows) {
        if (s->n_records < 0)
            MX_TRY(mx_source_rewind(s));
        else
            s->record = c->record;
        while (s->record < c->record && !end) {
            mx_status_free(d->bad[0]);
            d->bad[0] = stream_next(s, &d->window[0], &end);
        }
    }
    d->win_n = 0;
    while (!end && d->win_n < d->o.shuffle_window) {
        int64_t i = d->win_n;
        mx_status_free(d->bad[i]);
        d->bad[i] = stream_next(s, &d->window[i], &end);
        d->win_n += !end;
    }
    d->win_taken = 0;
    d->win_last = end;
    d->win_epoch = c->epoch;
    d->win_file = c->file;
    d->win_record = c->record;
    return MX_OK;
}

/* Goes to the window of the next record of a stream; *end when all epochs are over. */
static mx_status find_window(mx_dataset *d, mx_cursor *c, bool *end)
{
    for (int64_t empty = 0;;) {
        if (c->epoch != d->win_epoch || c->file != d->win_file || c->record != d->win_record ||
            c->index < d->win_taken)
            MX_TRY(load_window(d, c));
        if (c->index < d->win_n)
            return MX_OK;
        empty = d->win_n ? 0 : empty + 1;
        if (empty > 2 * d->n_files)
            return mx_fail(MX_INPUT, "%s: no records in any of the %d files", d->files[0].file.path,
                           d->n_files);
        c->record += d->win_n;
        c->index = 0;
        if (d->win_last) {
            c->record = 0;
            c->file++;
        }
        if (c->file == d->n_files) {
            c->file = 0;
            c->epoch++;
        }
        *end = d->o.n_epochs && c->epoch >= d->o.n_epochs;
        if (*end)
            return MX_OK;
    }
}

static mx_status read_stream(mx_dataset *d, mx_cursor *c, mx_record *r, bool *end)
{
    int64_t i, began = c->epoch;
    bool wanted = false;
    while (!wanted) {
        MX_TRY(find_window(d, c, end));
        if (*end)
            return MX_OK;
        if (c->epoch > began + 1)
            return mx_fail(MX_INPUT, "%s: a held-out share of %g leaves no record on the %s side",
                           d->files[0].file.path, d->o.held_share,
                           d->o.held_out ? "evaluation" : "training");
        uint64_t key =
            mx_mix_key(epoch_key(d, c->epoch, 3), (uint64_t)(c->file << 40) + (uint64_t)c->record);
        i = shuffled(d, d->win_n, key, c->index++);
        d->win_taken = c->index;
        int64_t file = shuffled(d, d->n_files, epoch_key(d, c->epoch, 2), c->file);
        wanted = is_wanted(d, file, c->record + i);
    }
    mx_record t = *r; /* the caller's memory goes into the window: nothing is copied */
    *r = d->window[i];
    d->window[i] = t;
    mx_status st = d->bad[i];
    d->bad[i] = MX_OK;
    return st;
}

mx_status mx_dataset_next(mx_dataset *d, mx_cursor *c, mx_record *r, bool *end)
{
    *end = d->o.n_epochs && c->epoch >= d->o.n_epochs;
    if (*end)
        return MX_OK;
    if (d->n_records < 0)
        return read_stream(d, c, r, end);
    if (c->index < 0 || c->index >= d->n_records)
        return mx_fail(MX_INPUT,
                       "the position in the data is record %lld of %lld: it was saved with other "
                       "files",
                       (long long)c->index, (long long)d->n_records);
    return read_indexed(d, c, r, end);
}

double mx_dataset_guess(const mx_dataset *d)
{
    double records = 0, bytes = 0;
    if (d->kind->no_file)
        return 0;
    if (d->n_records >= 0)
        return (double)d->n_records;
    for (int i = 0; i < d->n_files; i++) {
        const mx_source *s = &d->files[i];
        records += (double)(s->n_records < 0 ? s->record : s->n_records);
        bytes += (double)(s->n_records < 0 ? s->consumed : s->file.size_bytes);
    }
    return bytes > 0 ? records / bytes * (double)d->bytes : 0;
}

int mx_dataset_files(const mx_dataset *d)
{
    return d->kind->no_file ? 0 : d->n_files;
}

uint64_t mx_dataset_hash(const mx_dataset *d)
{
    mx_str s = {0};
    mx_str_addf(&s, "%s %d %llu %lld", d->kind->name, d->o.shuffle, (unsigned long long)d->o.seed,
                (long long)(d->n_records < 0 ? d->o.shuffle_window : 0));
    if (d->o.held_share > 0)
        mx_str_addf(&s, " %.17g %d", d->o.held_share, d->o.held_out);
    for (int i = 0; i < d->n_files && d->files[i].file.path; i++) {
        const char *base = strrchr(d->files[i].file.path, '/'); /* folders may move between runs */
        mx_str_addf(&s, "\n%s %lld", base ? base + 1 : d->files[i].file.path,
                    (long long)d->files[i].file.size_bytes);
    }
    uint64_t h = XXH3_64bits(s.text, s.len);
    mx_str_fini(&s);
    return h;
}

/* With a descriptor of its own: the dataset's are the loading thread's. */
static mx_status sample_at(const char *path, int64_t at, XXH3_state_t *h)
{
    uint8_t bytes[SAMPLE_BYTES];
    mx_shard_file f = {0};
    mx_status st = mx_shard_open(&f, path);
    int64_t left = st ? 0 : f.size_bytes - at;
    size_t n = (size_t)(left < SAMPLE_BYTES ? left : SAMPLE_BYTES);
    if (!st)
        st = mx_shard_read(&f, at, bytes, n);
    if (!st)
        XXH3_64bits_update(h, bytes, n);
    mx_shard_close(&f);
    return st;
}

mx_status mx_dataset_sample(const mx_dataset *d, uint64_t *hash)
{
    XXH3_state_t *h = XXH3_createState();
    mx_status st = MX_OK;
    int64_t before = 0; /* bytes of the files before file i */
    XXH3_64bits_reset(h);
    for (int i = 0, k = 0; i < d->n_files && d->files[i].file.path; i++) {
        int64_t size = d->files[i].file.size_bytes;
        for (; k < SAMPLES && d->bytes * k / SAMPLES < before + size && !st; k++)
            st = sample_at(d->files[i].file.path, d->bytes * k / SAMPLES - before, h);
        before += size;
    }
    *hash = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return st;
}

mx_status mx_bad_records_judge(mx_bad_records *b, mx_status st)
{
    if (!b->skip || mx_status_code(st) != MX_INPUT)
        return st;
    b->bad++;
    if (b->bad > 10 && (double)b->bad > b->budget * (double)b->records)
        return mx_status_wrap(st,
                              "%lld of %lld records are bad, more than bad_record_budget=%g "
                              "allows; the latest",
                              (long long)b->bad, (long long)b->records, b->budget);
    mx_status_free(st);
    return MX_OK;
}
