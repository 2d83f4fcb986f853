/* hf_save.c - division into shards, their writing in parallel, the index.
 *
 * Shards are cut in the order the tensors are given: a shard is closed when the next tensor would
 * take it over the limit. Each worker takes the next shard; the disk is the limit long before the
 * hashing is, so a few threads are enough.
 */
#include "store/hf_save.h"

#include "base/json_doc.h"
#include "base/str.h"
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_THREADS = 16, MAX_METADATA = 32 };
#define FORMAT ((mx_st_pair){"format", "pt"}) /* transformers asks for it */
static const size_t MAX_EXTRA_BYTES = (size_t)1 << 30;

typedef struct {
    const char *dir;
    const mx_st_source **tensors;
    const mx_hf_save_opts *opts;
    mx_st_writer writer;
    mx_hf_saved *out;
    atomic_int next, failed;
    pthread_mutex_t lock;
    mx_status first_bad;
} save_job;

int64_t mx_hf_split_stacks(const mx_st_source *t, int64_t n, mx_arena *a, mx_st_source **out)
{
    int64_t total = 0, k = 0;
    for (int64_t i = 0; i < n; i++)
        total += strchr(t[i].name, '*') && t[i].ndim ? t[i].dim[0] : 1;
    *out = MX_NEW_N(a, mx_st_source, total + 1);
    for (int64_t i = 0; i < n; i++) {
        const char *star = strchr(t[i].name, '*');
        if (!star || !t[i].ndim) {
            (*out)[k++] = t[i];
            continue;
        }
        mx_st_source one = t[i];
        one.ndim--;
        memmove(one.dim, one.dim + 1, sizeof one.dim[0] * (size_t)one.ndim);
        uint64_t bytes = mx_st_source_bytes(&one);
        for (int64_t e = 0; e < t[i].dim[0]; e++) {
            one.name = mx_arena_printf(a, "%.*s%" PRId64 "%s", (int)(star - t[i].name), t[i].name,
                                       e, star + 1);
            if (t[i].data && !t[i].box)
                one.data = (const char *)t[i].data + (uint64_t)e * bytes;
            one.skip = t[i].skip + (uint64_t)e * bytes;
            (*out)[k++] = one;
        }
    }
    return total;
}

void mx_hf_plan_shards(const mx_st_source *t, int64_t n, const mx_hf_save_opts *opts, mx_arena *a,
                       mx_hf_saved *out)
{
    uint64_t limit = opts->max_shard_bytes ? opts->max_shard_bytes : MX_HF_SHARD_BYTES, bytes = 0;
    mx_hf_shard *shards = MX_NEW_N(a, mx_hf_shard, n + 1);
    int k = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t b = mx_st_source_bytes(&t[i]);
        if (shards[k].count && bytes + b > limit) {
            shards[++k].first = i;
            bytes = 0;
        }
        bytes += b;
        shards[k].count++;
        out->total_bytes += b;
    }
    const char *stem = opts->stem ? opts->stem : "model";
    out->shards = shards;
    out->n_shards = k + 1;
    for (int i = 0; i <= k; i++)
        shards[i].name = k ? mx_arena_printf(a, "%s-%05d-of-%05d.safetensors", stem, i + 1, k + 1)
                           : mx_arena_printf(a, "%s.safetensors", stem);
}

int mx_hf_shard_rank(const mx_hf_save_opts *opts, int shard)
{
    return opts->n_ranks > 1 ? (shard + opts->first_rank) % opts->n_ranks : opts->rank;
}

static void *write_shards(void *arg)
{
    save_job *job = arg;
    mx_str path = {0};
    for (int i; (i = atomic_fetch_add(&job->next, 1)) < job->out->n_shards;) {
        if (atomic_load(&job->failed))
            break;
        if (mx_hf_shard_rank(job->opts, i) != job->opts->rank)
            continue;
        mx_hf_shard *s = &job->out->shards[i];
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", job->dir, s->name);
        mx_status st = mx_st_write(path.text, job->tensors + s->first, s->count, &job->writer,
                                   job->out->digests + s->first, &s->st);
        if (!st)
            continue;
        atomic_store(&job->failed, 1);
        pthread_mutex_lock(&job->lock);
        job->first_bad = mx_status_join(job->first_bad, st);
        pthread_mutex_unlock(&job->lock);
    }
    mx_str_fini(&path);
    return NULL;
}

static mx_status run_job(save_job *job, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int n = n_threads > MAX_THREADS ? MAX_THREADS : n_threads, started = 0;
    if (n > job->out->n_shards)
        n = job->out->n_shards;
    while (started < n - 1 && !pthread_create(&threads[started], NULL, write_shards, job))
        started++;
    write_shards(job); /* the caller's thread works too, also when no other could be started */
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return job->first_bad;
}

static mx_status write_index(const char *dir, const char *stem, const mx_st_source *t,
                             mx_hf_saved *out, mx_arena *a, const mx_io *io)
{
    json_t *map = json_object();
    for (int i = 0; i < out->n_shards; i++)
        for (int64_t j = 0; j < out->shards[i].count; j++)
            json_object_set_new(map, t[out->shards[i].first + j].name,
                                json_string(out->shards[i].name));
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                             (json_int_t)out->total_bytes, "weight_map", map);
    char *text = mx_json_text(root, 2);
    out->index_name = mx_arena_printf(a, "%s.safetensors.index.json", stem);
    out->index_bytes = strlen(text);
    out->index_digest = mx_digest_of(text, strlen(text));
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", dir, out->index_name);
    mx_status st = mx_io_write_file(io, path.text, text, strlen(text));
    mx_str_fini(&path);
    mx_free(text);
    json_decref(root);
    return st;
}

/* --- by ranks that have parts of tensors --- */

static mx_st_file_of file_of(const mx_hf_boxes *b, int shard)
{
    const mx_hf_shard *s = &b->saved->shards[shard];
    return (mx_st_file_of){.tensors = b->tensors + s->first, .n = s->count,
                           .digests = b->saved->digests + s->first,
                           .mine = mx_hf_shard_rank(b->opts, shard) == b->opts->rank};
}

void mx_hf_boxes_plan(mx_hf_boxes *b, const mx_st_source *tensors, int64_t n, mx_arena *arena)
{
    const mx_hf_save_opts *o = b->opts;
    mx_st_pair *meta = MX_NEW_N(arena, mx_st_pair, o->n_metadata + 1);
    const mx_st_source **list = MX_NEW_N(arena, const mx_st_source *, n + 1);
    *b->saved = (mx_hf_saved){.digests = MX_NEW_N(arena, mx_digest, n + 1)};
    mx_hf_plan_shards(tensors, n, o, arena, b->saved);
    meta[0] = FORMAT;
    for (int i = 0; i < o->n_metadata; i++)
        meta[i + 1] = o->metadata[i];
    for (int64_t i = 0; i < n; i++)
        list[i] = &tensors[i];
    b->tensors = list;
    b->writer = o->writer;
    b->writer.metadata = meta;
    b->writer.n_metadata = o->n_metadata + 1;
}

mx_status mx_hf_boxes_do(mx_hf_boxes *b, mx_hf_boxes_phase phase)
{
    mx_status st = MX_OK;
    mx_str path = {0};
    for (int i = 0; i < b->saved->n_shards && !st; i++) {
        mx_st_file_of of = file_of(b, i);
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", b->dir, b->saved->shards[i].name);
        if (phase == MX_BOXES_PUT)
            st = mx_st_boxes_put(path.text, &of, &b->writer);
        else if (of.mine && phase == MX_BOXES_BEGIN)
            st = mx_st_boxes_begin(path.text, &of, &b->writer);
        else if (of.mine)
            st = mx_st_boxes_end(path.text, &of, &b->writer, &b->saved->shards[i].st);
    }
    mx_str_fini(&path);
    return st || phase != MX_BOXES_END ? st : mx_io_sync_dir(b->opts->writer.io, b->dir);
}

/* Whether `name` is a weight file of this stem ("stem.safetensors", "stem-00001-of-00002...", the
 * index) that the present save did not write. */
static bool is_stale(const char *name, const char *stem, const mx_hf_saved *out)
{
    size_t n = strlen(stem);
    if (strncmp(name, stem, n) != 0)
        return false;
    for (int i = 0; i < out->n_shards; i++)
        if (strcmp(name, out->shards[i].name) == 0)
            return false;
    name += n;
    if (strcmp(name, ".safetensors.index.json") == 0)
        return out->n_shards == 1;
    int i = 0, k = 0, used = 0;
    bool shard =
        sscanf(name, "-%5d-of-%5d.safetensors%n", &i, &k, &used) == 2 && used > 0 && !name[used];
    return shard || strcmp(name, ".safetensors") == 0;
}

static mx_status remove_stale(const char *dir, const char *stem, const mx_hf_saved *out,
                              const mx_io *io)
{
    DIR *d = opendir(dir);
    if (!d)
        return mx_fail_errno(MX_DEVICE, "%s: cannot list", dir);
    mx_status st = MX_OK;
    mx_str path = {0};
    for (struct dirent *e; !st && (e = readdir(d));) {
        if (!is_stale(e->d_name, stem, out))
            continue;
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", dir, e->d_name);
        if (io->unlink(io->ctx, path.text))
            st = mx_fail_errno(MX_DEVICE, "%s: cannot remove the weights of an earlier save",
                               path.text);
    }
    mx_str_fini(&path);
    closedir(d);
    return st;
}

mx_status mx_hf_save_shards(const char *dir, const mx_st_source *tensors, int64_t n,
                            const mx_hf_save_opts *opts, mx_arena *arena, mx_hf_saved *out)
{
    mx_st_pair meta[MAX_METADATA] = {FORMAT};
    MX_ASSERT(opts->n_metadata < MAX_METADATA, "%d metadata pairs", opts->n_metadata);
    for (int i = 0; i < opts->n_metadata; i++)
        meta[i + 1] = opts->metadata[i];
    *out = (mx_hf_saved){.digests = MX_NEW_N(arena, mx_digest, n + 1)};
    mx_hf_plan_shards(tensors, n, opts, arena, out);
    save_job job = {.dir = dir,
                    .out = out,
                    .opts = opts,
                    .writer = opts->writer,
                    .lock = PTHREAD_MUTEX_INITIALIZER};
    job.writer.metadata = meta;
    job.writer.n_metadata = opts->n_metadata + 1;
    if (!job.writer.io)
        job.writer.io = &mx_io_system;
    job.tensors = MX_NEW_N(arena, const mx_st_source *, n + 1);
    for (int64_t i = 0; i < n; i++)
        job.tensors[i] = &tensors[i];
    MX_TRY(run_job(&job, opts->n_threads));
    return mx_io_sync_dir(job.writer.io, dir);
}

mx_status mx_hf_save_index(const char *dir, const mx_st_source *tensors,
                           const mx_hf_save_opts *opts, mx_arena *arena, mx_hf_saved *out)
{
    const char *stem = opts->stem ? opts->stem : "model";
    const mx_io *io = opts->writer.io ? opts->writer.io : &mx_io_system;
    if (out->n_shards > 1) {
        MX_TRY(write_index(dir, stem, tensors, out, arena, io));
        MX_TRY(mx_io_sync_dir(io, dir));
    }
    return remove_stale(dir, stem, out, io);
}

static mx_status hf_save_tensors(const char *dir, const mx_st_source *tensors, int64_t n,
                             const mx_hf_save_opts *opts, mx_arena *arena, mx_hf_saved *out)
{
    MX_TRY(mx_hf_save_shards(dir, tensors, n, opts, arena, out));
    return mx_hf_save_index(dir, tensors, opts, arena, out);
}

mx_status mx_hf_save_extra(const char *dir, const mx_hf_extra *extra, const mx_io *io,
                           uint64_t *size_bytes, mx_digest *digest)
{
    char *copied = NULL;
    const void *data = extra->data;
    size_t n = extra->n_bytes;
    if (!data) {
        MX_TRY(mx_io_read_file(NULL, extra->from, MAX_EXTRA_BYTES, &copied, &n));
        data = copied;
    }
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", dir, extra->name);
    mx_status st = mx_io_write_file(io, path.text, data, n);
    if (size_bytes)
        *size_bytes = n;
    if (digest)
        *digest = mx_digest_of(data, n);
    mx_str_fini(&path);
    mx_free(copied);
    return st;
}

mx_status mx_hf_save(const char *dir, const mx_st_source *tensors, int64_t n,
                     const mx_hf_extra *extras, int n_extras, const mx_hf_save_opts *opts)
{
    mx_arena arena = {0};
    mx_hf_saved saved;
    mx_hf_save_opts plain = {0};
    if (!opts)
        opts = &plain;
    mx_st_source *parts;
    int64_t n_parts = mx_hf_split_stacks(tensors, n, &arena, &parts);
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_io_make_dir(opts->writer.io, dir));
    for (int i = 0; i < n_extras; i++)
        MX_TRY_OUT(st, mx_hf_save_extra(dir, &extras[i], opts->writer.io, NULL, NULL));
    st = hf_save_tensors(dir, parts, n_parts, opts, &arena, &saved);
out:
    mx_arena_fini(&arena);
    return st;
}
