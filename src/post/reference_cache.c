/* reference_cache.c - see reference_cache.h. */
#include "post/reference_cache.h"

#include "base/rng.h"
#include "exec/step.h"
#include "store/st_write.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int64_t hash, start, n;
} entry;

struct mx_reference_cache {
    entry *row; /* by hash */
    int64_t n, cap;
    float *logps;
    int64_t n_logps, cap_logps;
    float *out; /* rows as mx_reference_cache_find gives them */
    int64_t cap_out;
};

static int64_t hash_of(const mx_batch *b, int64_t row)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int64_t i = row * b->seq_len; i < (row + 1) * b->seq_len; i++) {
        h ^= (uint64_t)(uint32_t)b->tokens[i] << 32 ^ (uint32_t)b->labels[i];
        h *= 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (int64_t)h;
}

static int by_hash(const void *a, const void *b)
{
    int64_t x = ((const entry *)a)->hash, y = ((const entry *)b)->hash;
    return x < y ? -1 : x > y;
}

static const entry *find(const mx_reference_cache *c, int64_t hash)
{
    return c->n ? bsearch(&(entry){.hash = hash}, c->row, (size_t)c->n, sizeof *c->row, by_hash)
                : NULL;
}

/* --- computing --- */

static void add_row(mx_reference_cache *c, const mx_batch *b, int64_t row, const float *logps)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->row = mx_realloc(c->row, sizeof *c->row * (size_t)c->cap);
    }
    if (c->n_logps + b->seq_len > c->cap_logps) {
        c->cap_logps = 2 * (c->cap_logps + b->seq_len);
        c->logps = mx_realloc(c->logps, sizeof *c->logps * (size_t)c->cap_logps);
    }
    entry *e = &c->row[c->n++];
    *e = (entry){hash_of(b, row), c->n_logps, 0};
    for (int64_t i = 0; i < b->seq_len; i++)
        if (b->labels[row * b->seq_len + i] >= 0)
            c->logps[e->start + e->n++] = logps[i];
    c->n_logps += e->n;
}

/* Ranks of a mesh read the same rows and ask together; then each knows of all. */
static mx_status fill(mx_reference_cache *c, const mx_objective_run *o, mx_reference *r,
                      mx_loader *l)
{
    int64_t rows = o->microbatch, own = o->comm ? o->rank * rows : 0;
    for (;;) {
        const mx_batch *b;
        const float *logps;
        MX_TRY(mx_loader_next(l, &b));
        if (!b)
            break;
        MX_TRY(mx_reference_run(r, b, own, rows, &logps));
        logps = mx_reference_of_all(r, rows);
        for (int64_t k = 0; k < b->rows; k++)
            add_row(c, b, k, logps + k * b->seq_len);
    }
    if (c->n)
        qsort(c->row, (size_t)c->n, sizeof *c->row, by_hash);
    return MX_OK;
}

static mx_status compute(mx_reference_cache *c, const mx_objective_run *o)
{
    mx_train_data d = {0};
    mx_reference *r = NULL;
    mx_train_data_request q = {.config = o->config, .model_dir = o->model_dir,
                               .vocab = o->model->summary.vocab,
                               .rows = o->microbatch * (o->comm ? o->n_ranks : 1),
                               .model = o->model, .once = true};
    mx_objective_request(o->objective, o->config, &q);
    mx_status st = mx_reference_open(&r, o, 1, false);
    if (!st)
        st = mx_train_data_open(&d, &q);
    if (!st)
        st = fill(c, o, r, d.loader);
    mx_train_data_close(&d);
    mx_reference_close(r);
    return st;
}

/* --- the file --- */

static mx_status save(const mx_reference_cache *c, const char *path)
{
    const mx_st_source all[] = {{.name = "rows", .dtype = mx_st_dtype_of(MX_I64), .ndim = 2,
                                 .dim = {c->n, 3}, .data = c->row},
                                {.name = "logps", .dtype = mx_st_dtype_of(MX_F32), .ndim = 1,
                                 .dim = {c->n_logps}, .data = c->logps}};
    const mx_st_source *list[] = {&all[0], &all[1]};
    mx_st_written done;
    return c->n ? mx_st_write(path, list, 2, &(mx_st_writer){0}, NULL, &done) : MX_OK;
}

static mx_status take(mx_reference_cache *c, const mx_st_file *f)
{
    const mx_st_tensor *rows = mx_st_find(f, "rows"), *logps = mx_st_find(f, "logps");
    bool fits = rows && logps && rows->dtype == mx_st_dtype_of(MX_I64) &&
                logps->dtype == mx_st_dtype_of(MX_F32) && rows->ndim == 2 && rows->dim[1] == 3;
    if (!fits)
        return mx_fail(MX_INPUT, "%s is not what it was written as; remove it, and it is computed "
                       "again", f->path);
    c->n = rows->dim[0];
    c->n_logps = logps->n;
    c->row = mx_realloc(NULL, sizeof *c->row * (size_t)(c->n + 1));
    c->logps = mx_realloc(NULL, sizeof *c->logps * (size_t)(c->n_logps + 1));
    MX_TRY(mx_st_read(rows, 0, rows->n, rows->dtype, c->row, NULL));
    for (int64_t i = 0; i < c->n; i++)
        if (c->row[i].n < 0 || c->row[i].start < 0 || c->row[i].n > c->n_logps ||
            c->row[i].start > c->n_logps - c->row[i].n)
            return mx_fail(MX_INPUT, "%s: row %lld is outside it; remove the file", f->path,
                           (long long)i);
    return mx_st_read(logps, 0, logps->n, logps->dtype, c->logps, NULL);
}

mx_status mx_reference_cache_open(mx_reference_cache **out, const mx_objective_run *o)
{
    mx_reference_cache *c = mx_realloc(NULL, sizeof *c);
    char path[4096];
    *c = (mx_reference_cache){0};
    *out = c;
    snprintf(path, sizeof path, "%s/reference.safetensors", o->folder);
    if (access(path, F_OK) == 0) {
        mx_st_file f = {0};
        MX_TRY(mx_st_open(&f, path));
        mx_status st = take(c, &f);
        mx_st_close(&f);
        return st;
    }
    MX_TRY(mx_status_wrap(compute(c, o), "precompute_ref_log_probs"));
    bool leads = o->comm ? o->comm->rank == 0 : o->rank == 0;
    return leads ? save(c, path) : MX_OK;
}

void mx_reference_cache_close(mx_reference_cache *c)
{
    if (!c)
        return;
    mx_free(c->row);
    mx_free(c->logps);
    mx_free(c->out);
    mx_free(c);
}

mx_status mx_reference_cache_find(mx_reference_cache *c, const mx_batch *b, int64_t row,
                                  int64_t rows, const float **logps)
{
    int64_t S = b->seq_len;
    if (rows * S > c->cap_out) {
        c->cap_out = rows * S;
        c->out = mx_realloc(c->out, sizeof *c->out * (size_t)c->cap_out);
    }
    for (int64_t r = 0; r < rows; r++) {
        const entry *e = find(c, hash_of(b, row + r));
        const int32_t *label = b->labels + (row + r) * S;
        float *to = c->out + r * S;
        int64_t k = 0;
        for (int64_t i = 0; i < S; i++) {
            bool counts = label[i] >= 0;
            if (counts && (!e || k == e->n))
                return mx_fail(MX_INPUT, "a row was not in the data when the reference was asked; "
                               "data that changes needs precompute_ref_log_probs=false");
            to[i] = counts ? c->logps[e->start + k++] : 0;
        }
    }
    *logps = c->out;
    return MX_OK;
}
