/* loader.c - the threads, and the rings between them.
 *
 *     reader -> chunks -> tokenizers -> chunks, in order -> packer -> slots -> mx_loader_next
 *
 * A chunk is up to 32 records; chunk k lives in chunks[k % n_chunks] and goes through the states
 * FREE, READ, BUSY, DONE and back. A slot is a batch. One lock and one condition serve all: states
 * change a few thousand times a second at most. Memory of chunks and slots is reused, so a settled
 * loader allocates only for a record longer than all before.
 * The packer is in loader_pack.c.
 */
#include "data/load/loader.h"
#include "base/clock.h"
#include "base/memory_available.h"
#include "base/signals.h"

#include "data/image/encode_image.h"
#include "data/load/loader_impl.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

/* How long a request to stop may go unnoticed while the first batch is awaited. */
#define STOP_SECONDS 0.2

void mx_loader_at_copy(mx_loader_at *to, const mx_loader_at *from)
{
    mx_cursor *cursors = to->docs.cursors;
    *to = *from;
    to->docs.cursors = cursors;
    memcpy(cursors, from->docs.cursors, sizeof *cursors * (size_t)from->docs.n);
}

/* --- memory --- */

/* Every item gets the room that the largest so far has had, so that all have enough after one
 * round, and not when each of them has met a long record. */
static void make_room(mx_loader *l, mx_loader_item *it)
{
    mx_str *s = &it->record.bytes;
    mx_document *d = &it->docs[0];
    if (s->cap < (size_t)l->most_bytes) {
        s->cap = (size_t)l->most_bytes;
        s->text = mx_realloc(s->text, s->cap);
    }
    if (d->ids.cap < l->most_ids) {
        d->ids.cap = l->most_ids;
        d->ids.ids = mx_realloc(d->ids.ids, sizeof *d->ids.ids * (size_t)d->ids.cap);
    }
    if (d->cap_trained < l->most_ids) {
        d->cap_trained = l->most_ids;
        d->trained = mx_realloc(d->trained, (size_t)d->cap_trained);
    }
}

static void raise_to(_Atomic int64_t *most, int64_t to)
{
    int64_t seen = *most;
    while (seen < to && !atomic_compare_exchange_weak(most, &seen, to))
        ;
}

static void note_room(mx_loader *l, const mx_loader_item *it)
{
    raise_to(&l->most_bytes, (int64_t)it->record.bytes.cap);
    raise_to(&l->most_ids, it->docs[0].ids.cap);
    raise_to(&l->most_ids, it->docs[0].cap_trained);
}

/* --- reading --- */

static void read_chunk(mx_loader *l, mx_loader_chunk *c)
{
    size_t bytes = 0;
    c->n = c->taken = 0;
    c->end = false;
    while (c->n < MX_CHUNK_RECORDS && bytes < MX_CHUNK_BYTES && !c->end) {
        mx_loader_item *it = &c->items[c->n];
        it->n_docs = 0;
        make_room(l, it);
        it->bad = mx_mixture_next(&l->mixture, &it->record, &it->which, &c->end);
        if (c->end && !it->bad)
            break;
        it->after = l->mixture.at.cursors[it->which];
        bytes += it->record.bytes.len;
        c->n++;
        if (it->bad && mx_status_code(it->bad) != MX_INPUT)
            c->end = true; /* the disk fails: more of the same would follow */
    }
}

static void *reader_main(void *arg)
{
    mx_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    for (bool end = false; !end;) {
        mx_loader_chunk *c = &l->chunks[l->n_read % l->n_chunks];
        while (!l->stop && c->state != MX_CHUNK_FREE)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->stop)
            break;
        pthread_mutex_unlock(&l->lock);
        read_chunk(l, c);
        end = c->end;
        pthread_mutex_lock(&l->lock);
        c->state = MX_CHUNK_READ;
        l->n_read++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- tokenizing --- */

/* Where the record is; and of one that has no column we know, what it has instead. Once is enough,
 * so that is looked up only when it ends the run. */
static mx_status explain(const mx_loader *l, mx_status st, const mx_record *r)
{
    mx_str columns = {0};
    if (r->n_cells == 0 && r->path && !l->o.skip_bad)
        mx_source_columns(r->path, &columns);
    if (columns.len)
        st = mx_status_wrap(st, "the columns are %s", columns.text);
    mx_str_fini(&columns);
    return r->path ? mx_record_place(st, r) : st;
}

static void encode_item(mx_loader *l, mx_loader_item *it)
{
    it->cached = false;
    if (it->bad)
        return;
    mx_cache_key key = {0};
    if (l->cache) {
        key = mx_token_cache_key(l->cache, &it->record);
        it->cached = mx_token_cache_get(l->cache, key, it->docs, &it->n_docs);
        if (it->cached)
            return;
    }
    it->bad = mx_encode_record(&l->o.encoder, &it->record, it->docs, &it->n_docs);
    if (it->bad) {
        it->n_docs = 0;
        it->bad = explain(l, it->bad, &it->record);
    } else if (l->cache)
        mx_token_cache_put(l->cache, key, it->docs, it->n_docs);
}

static mx_loader_chunk *oldest_read(mx_loader *l)
{
    for (int64_t k = l->n_packed; k < l->n_read; k++)
        if (l->chunks[k % l->n_chunks].state == MX_CHUNK_READ)
            return &l->chunks[k % l->n_chunks];
    return NULL;
}

static void *tokenizer_main(void *arg)
{
    mx_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        mx_loader_chunk *c = NULL;
        while (!l->stop && !(c = oldest_read(l)))
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->stop)
            break;
        c->state = MX_CHUNK_BUSY;
        pthread_mutex_unlock(&l->lock);
        for (int i = 0; i < c->n && !l->stop; i++) {
            encode_item(l, &c->items[i]);
            note_room(l, &c->items[i]);
        }
        pthread_mutex_lock(&l->lock);
        c->state = MX_CHUNK_DONE;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- life --- */

static mx_status start(mx_loader *l)
{
    void *(*mains[2])(void *) = {reader_main, mx_loader_packer};
    l->stop = l->ended = false;
    for (int i = 0; i < l->o.n_threads + 2; i++) {
        int rc = pthread_create(&l->threads[i], NULL, i < 2 ? mains[i] : tokenizer_main, l);
        if (rc)
            return mx_fail(MX_MEMORY,
                           "a thread to read data could not be started: %s; is memory short, or "
                           "the number of threads limited? loader_threads=1 needs the fewest",
                           strerror(rc));
        l->n_running++;
    }
    return MX_OK;
}

static void stop(mx_loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_running; i++)
        pthread_join(l->threads[i], NULL);
    l->n_running = 0;
}

/* Everything back to the state before the first record; the position is l->given. */
static void reset(mx_loader *l)
{
    for (int i = 0; i < l->n_chunks; i++) {
        for (int k = 0; k < MX_CHUNK_RECORDS; k++) {
            mx_status_free(l->chunks[i].items[k].bad);
            l->chunks[i].items[k].bad = MX_OK;
        }
        l->chunks[i].state = MX_CHUNK_FREE;
    }
    if (l->o.encoder.images)
        mx_image_table_clear(l->o.encoder.images->table);
    l->n_read = l->n_packed = l->n_made = l->n_given = l->n_window = 0;
    l->exhausted = false;
    mx_status_free(l->error);
    l->error = MX_OK;
    mx_loader_at_copy(&l->at, &l->given);
    l->mixture.at.t = l->at.docs.t;
    memcpy(l->mixture.at.cursors, l->at.docs.cursors, sizeof(mx_cursor) * (size_t)l->at.docs.n);
    mx_packer_free(l->packer);
    l->packer = mx_packer_new(&l->o.pack);
    mx_packer_next(l->packer, (uint64_t)l->at.window);
    mx_packer_skip(l->packer, l->at.skip);
}

mx_status mx_loader_restart(mx_loader *l, const mx_loader_at *at)
{
    stop(l);
    mx_loader_at_copy(&l->given, at);
    reset(l);
    return start(l);
}

static uint64_t shape_hash(const mx_loader *l)
{
    const mx_encoder *e = &l->o.encoder;
    mx_str s = {0};
    for (int k = 0; k < l->mixture.n; k++)
        mx_str_addf(&s, "%016llx %.17g\n", (unsigned long long)mx_dataset_hash(l->mixture.sets[k]),
                    l->o.datasets[k].weight);
    mx_str_addf(&s, "%d %lld %lld %lld %d", l->o.pack.kind, (long long)l->o.pack.seq_len,
                (long long)l->o.pack.max_segments, (long long)l->o.pack.window_rows,
                l->o.pack.truncate + 2 * l->o.pack.exact + 4 * l->o.pack.drop_untrained +
                    8 * l->o.pack.keep_end);
    mx_str_addf(&s, " %d %d %d %d %d", e->add_bos, e->add_eos, mx_encoder_mode(e),
                e->parse_special, e->tokenizer ? mx_tokenizer_vocab_size(e->tokenizer) : 0);
    if (e->images)
        mx_str_addf(&s, " %lld %lld %lld %lld %d", (long long)e->images->processor.spec.size,
                    (long long)e->images->processor.spec.max_tiles,
                    (long long)e->images->processor.spec.min_pixels,
                    (long long)e->images->processor.spec.max_pixels, e->images->processor.crops);
    uint64_t h = XXH3_64bits(s.text, s.len);
    mx_str_fini(&s);
    return h;
}

/* The batches that are held at a time; in double, for the product may be beyond 64 bits. */
static mx_status check_memory(const mx_loader *l)
{
    double rows = (double)(l->o.batch_rows / l->o.n_ranks), s = (double)l->o.pack.seq_len;
    double bytes = l->n_slots * rows * (4 * sizeof(int32_t) * s + sizeof(int64_t));
    mx_memory_available left = mx_memory_available_now();
    if (bytes <= (double)left.bytes)
        return MX_OK;
    char needs[32], has[32];
    return mx_fail(MX_MEMORY,
                   "%d batches of %.0f rows of %.0f tokens are held at a time; they need %s, which "
                   "does not fit in the %s that %s; use a smaller per_device_batch_size, "
                   "gradient_accumulation_steps or prefetch_batches",
                   l->n_slots, rows, s, mx_format_bytes(needs, sizeof needs, bytes),
                   mx_format_bytes(has, sizeof has, (double)left.bytes), left.why);
}

static void make_slots(mx_loader *l)
{
    int64_t rows = l->o.batch_rows / l->o.n_ranks, s = l->o.pack.seq_len;
    l->slots = MX_NEW_N(&l->arena, mx_loader_slot, l->n_slots);
    for (int i = 0; i < l->n_slots; i++) {
        int32_t *p = MX_NEW_N(&l->arena, int32_t, 4 * rows * s);
        l->slots[i].batch = (mx_batch){.tokens = p,
                                       .labels = p + rows * s,
                                       .segments = p + 2 * rows * s,
                                       .positions = p + 3 * rows * s,
                                       .rows = rows,
                                       .margins = MX_NEW_N(&l->arena, float, rows),
                                       .first_image = MX_NEW_N(&l->arena, int64_t, rows + 1),
                                       .seq_len = s};
        l->slots[i].after.docs.cursors = MX_NEW_N(&l->arena, mx_cursor, l->mixture.n);
    }
    l->scratch = MX_NEW_N(&l->arena, int32_t, 4 * s);
    l->at.docs = (mx_mixture_position){.n = l->mixture.n,
                                       .cursors = MX_NEW_N(&l->arena, mx_cursor, l->mixture.n)};
    l->given.docs = (mx_mixture_position){.n = l->mixture.n,
                                          .cursors = MX_NEW_N(&l->arena, mx_cursor, l->mixture.n)};
}

static mx_status check(const mx_loader_options *o)
{
    if (o->pack.seq_len < 1 || o->batch_rows < 1)
        return mx_fail(MX_USAGE, "a batch of %lld rows of %lld tokens: both must be at least 1",
                       (long long)o->batch_rows, (long long)o->pack.seq_len);
    if (o->rank < 0 || o->rank >= o->n_ranks || o->batch_rows % o->n_ranks)
        return mx_fail(MX_USAGE,
                       "a batch of %lld rows does not divide over %d data ranks (this is rank %d); "
                       "change per_device_batch_size",
                       (long long)o->batch_rows, o->n_ranks, o->rank);
    return MX_OK;
}

/* Columns that are not asked for are not decoded. */
static mx_status open_mixture(mx_loader *l)
{
    const mx_encoder *e = &l->o.encoder;
    mx_dataset_options *sets = mx_arena_copy(&l->arena, l->o.datasets,
                                             sizeof *sets * (size_t)l->o.n_datasets);
    int n = e->columns ? e->n_columns : mx_example_n_columns;
    const char **columns = MX_NEW_N(&l->arena, const char *, n + 3);
    memcpy(columns, e->columns ? e->columns : mx_example_columns, sizeof *columns * (size_t)n);
    if (e->images) {
        columns[n++] = e->images->column;
        columns[n++] = MX_IMAGES_COLUMN;
    }
    if (e->takes_margins)
        columns[n++] = MX_MARGIN_COLUMN;
    for (int k = 0; k < l->o.n_datasets; k++)
        if (!sets[k].source.columns) {
            sets[k].source.columns = columns;
            sets[k].source.n_columns = n;
        }
    l->o.datasets = sets;
    return mx_mixture_open(&l->mixture, sets, l->o.n_datasets);
}

/* Before the threads begin, with the datasets that are open anyway. Pictures take too long. */
static void look_at_data(mx_loader *l)
{
    if (!(l->o.sample_seconds > 0) || l->o.encoder.images)
        return;
    l->samples = MX_NEW_N(&l->arena, mx_data_sample, l->mixture.n);
    for (int k = 0; k < l->mixture.n; k++)
        l->samples[k] = mx_data_sample_take(l->mixture.sets[k], &l->o.encoder, &l->o.pack,
                                            l->o.sample_seconds / l->mixture.n);
}

const mx_data_sample *mx_loader_samples(const mx_loader *l)
{
    return l->samples;
}

mx_status mx_loader_open(mx_loader **out, const mx_loader_options *o)
{
    *out = NULL;
    mx_loader *l = mx_realloc(NULL, sizeof *l);
    *l = (mx_loader){.o = *o};
    l->o.n_ranks = o->n_ranks ? o->n_ranks : 1;
    l->o.n_threads = o->n_threads > 0 ? o->n_threads : 1;
    l->o.n_ahead = o->n_ahead > 0 ? o->n_ahead : 2;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    mx_status st;
    MX_TRY_OUT(st, check(&l->o));
    MX_TRY_OUT(st, open_mixture(l));
    l->hash = shape_hash(l);
    if (o->cache_dir && *o->cache_dir && !o->encoder.images)
        MX_TRY_OUT(st, mx_token_cache_open(&l->cache, o->cache_dir, &l->o.encoder));
    l->n_chunks = 2 * l->o.n_threads + 2;
    l->chunks = MX_NEW_N(&l->arena, mx_loader_chunk, l->n_chunks);
    l->threads = MX_NEW_N(&l->arena, pthread_t, l->o.n_threads + 2);
    l->n_slots = l->o.n_ahead + 2; /* one in the caller's hands, one being made */
    MX_TRY_OUT(st, check_memory(l));
    make_slots(l);
    look_at_data(l);
    reset(l);
    MX_TRY_OUT(st, start(l));
out:
    if (st)
        mx_loader_close(l);
    else
        *out = l;
    return st;
}

/* Whether there is neither a batch nor an end nor an error; with the lock. */
static bool is_waited_for(const mx_loader *l)
{
    return l->n_made == l->n_given && !l->error && !l->ended;
}

static mx_status error_of(const mx_loader *l)
{
    return mx_fail(mx_status_code(l->error), "%s", mx_status_text(l->error));
}

mx_status mx_loader_ready(mx_loader *l)
{
    pthread_mutex_lock(&l->lock);
    while (is_waited_for(l) && !mx_stop_signal()) {
        struct timespec t = mx_clock_after(STOP_SECONDS);
        pthread_cond_clockwait(&l->changed, &l->lock, CLOCK_MONOTONIC, &t);
    }
    mx_status st = MX_OK;
    if (is_waited_for(l))
        st = mx_fail(MX_STOPPED, "stopped while the first batch was read; nothing was begun");
    else if (l->n_made == l->n_given && l->error)
        st = error_of(l);
    pthread_mutex_unlock(&l->lock);
    return st;
}

mx_status mx_loader_next(mx_loader *l, const mx_batch **batch)
{
    *batch = NULL;
    pthread_mutex_lock(&l->lock);
    double from = mx_clock_now();
    while (is_waited_for(l))
        pthread_cond_wait(&l->changed, &l->lock);
    l->wait_seconds += mx_clock_now() - from;
    mx_status st = MX_OK;
    if (l->n_made > l->n_given) {
        mx_loader_slot *slot = &l->slots[l->n_given++ % l->n_slots];
        mx_loader_at_copy(&l->given, &slot->after);
        l->given_counts = slot->counts;
        *batch = &slot->batch;
        pthread_cond_broadcast(&l->changed);
    } else if (l->error) {
        st = error_of(l);
    } else {
        l->given_counts = l->end_counts;
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

mx_loader_counts mx_loader_report(mx_loader *l)
{
    pthread_mutex_lock(&l->lock);
    mx_loader_counts c = l->given_counts;
    c.wait_seconds = l->wait_seconds;
    c.first_bad = l->first_bad.len ? l->first_bad.text : NULL;
    pthread_mutex_unlock(&l->lock);
    return c;
}

void mx_loader_close(mx_loader *l)
{
    if (!l)
        return;
    stop(l);
    for (int i = 0; l->chunks && i < l->n_chunks; i++)
        for (int k = 0; k < MX_CHUNK_RECORDS; k++) {
            mx_loader_item *it = &l->chunks[i].items[k];
            mx_record_fini(&it->record);
            mx_document_fini(&it->docs[0]);
            mx_document_fini(&it->docs[1]);
            mx_status_free(it->bad);
        }
    for (int i = 0; l->slots && i < l->n_slots; i++)
        mx_free(l->slots[i].batch.pixels);
    mx_status_free(l->error);
    mx_token_cache_close(l->cache);
    mx_packer_free(l->packer);
    mx_mixture_close(&l->mixture);
    mx_str_fini(&l->first_bad);
    mx_free(l->window_after);
    mx_free(l->window_which);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    mx_arena_fini(&l->arena);
    mx_free(l);
}
