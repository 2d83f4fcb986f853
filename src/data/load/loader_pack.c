/* loader_pack.c - the packer thread: documents in order become rows, rows become batches.
 *
 * Bad records travel in their place in the sequence and are judged here, so that whether a run
 * stops, and where, does not depend on timing.
 */
#include "data/image/encode_image.h"
#include "data/load/loader_impl.h"
#include <string.h>

/* Waits for the chunk whose turn it is; NULL when stopped. */
static mx_loader_chunk *wait_chunk(mx_loader *l)
{
    pthread_mutex_lock(&l->lock);
    mx_loader_chunk *c = &l->chunks[l->n_packed % l->n_chunks];
    while (!l->stop && c->state != MX_CHUNK_DONE)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->stop)
        c = NULL;
    pthread_mutex_unlock(&l->lock);
    return c;
}

/* Stop, or count and go on. Takes it->bad. */
static mx_status judge_bad(mx_loader *l, mx_loader_item *it)
{
    mx_status st = it->bad;
    it->bad = MX_OK;
    pthread_mutex_lock(&l->lock);
    mx_bad_records b = {l->o.skip_bad, l->o.bad_budget, l->records, l->bad_records};
    if (b.skip && b.bad == 0 && mx_status_code(st) == MX_INPUT)
        mx_str_add(&l->first_bad, mx_status_text(st));
    st = mx_bad_records_judge(&b, st);
    l->bad_records = b.bad;
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* The window's documents and, for each, where the data stands after it. One entry per record: the
 * two documents of a preference, or the none of a bad record, move the position once. */
static void note_record(mx_loader *l, const mx_loader_item *it)
{
    MX_GROW(l->window_after, l->n_window, l->cap_window_after);
    l->window_after[l->n_window] = it->after;
    if (l->n_window == l->cap_window_which) {
        l->cap_window_which = l->cap_window_after;
        l->window_which = mx_realloc(l->window_which, sizeof(int) * (size_t)l->cap_window_which);
    }
    l->window_which[l->n_window++] = it->which;
}

/* This many records, none of them with a token to train on, mean a mistake in the settings. */
enum { MOST_UNTRAINED = 4096 };

static mx_status nothing_trained(const mx_loader *l, int64_t least)
{
    mx_pack_counts c = mx_packer_counts(l->packer);
    if (c.untrained < least || c.training)
        return MX_OK;
    return mx_fail(MX_INPUT,
                   "%lld records, and nothing to train on in any of them: their answers are empty, "
                   "or cut off by max_target_length=%lld, or loss_on leaves all of it out; `maxc "
                   "data` with the verb and the same keys shows what is trained",
                   (long long)c.untrained, (long long)l->o.pack.seq_len);
}

static mx_status add_record(mx_loader *l, mx_loader_item *it)
{
    pthread_mutex_lock(&l->lock);
    l->records++;
    l->cache_hits += it->cached;
    pthread_mutex_unlock(&l->lock);
    if (it->bad)
        MX_TRY(judge_bad(l, it));
    if (it->n_docs == 2 && l->o.pack.kind != MX_PACK_NONE)
        return mx_fail(MX_USAGE,
                       "the data holds pairs (chosen, rejected), which are not packed; set "
                       "packing=false");
    if (it->n_docs == 2 && !l->o.pack.truncate)
        return mx_fail(MX_USAGE, "pairs (chosen, rejected) cannot be cut into pieces; set "
                       "use_truncation=true");
    MX_TRY(nothing_trained(l, MOST_UNTRAINED));
    if (l->n_window > 1 << 20 && mx_packer_empty(l->packer))
        return mx_fail(MX_INPUT,
                       "a million records in a row hold no text; are these the right columns?");
    note_record(l, it);
    if (it->n_docs == 0) /* a bad record counts as an empty document, so that numbers agree */
        mx_packer_add(l->packer, NULL, NULL, 0);
    bool pair = it->n_docs == 2 && l->o.pack.drop_untrained, trains = true;
    for (int k = 0; k < it->n_docs && pair; k++) /* both sides, or none */
        trains &= mx_packer_trains(l->packer, it->docs[k].trained, it->docs[k].ids.n);
    for (int k = 0; k < it->n_docs && !trains; k++)
        memset(it->docs[k].trained, false, (size_t)it->docs[k].ids.n);
    for (int k = 0; k < it->n_docs; k++) {
        mx_packer_add(l->packer, it->docs[k].ids.ids, it->docs[k].trained, it->docs[k].ids.n);
        mx_packer_note(l->packer, it->docs[k].margin);
    }
    return MX_OK;
}

/* bfd packs an epoch by itself: the longest documents of several would come first otherwise. */
static bool begins_epoch(const mx_loader *l, const mx_loader_item *it)
{
    bool by_itself = l->o.pack.kind == MX_PACK_BFD || l->o.epoch_batches;
    return by_itself && l->mixture.n == 1 && l->n_window > 0 &&
           mx_cursor_epoch_before(&it->after) !=
               mx_cursor_epoch_before(&l->window_after[l->n_window - 1]);
}

/* The first record of a window: may it stand in the batch that is being made? */
static bool turns_epoch(const mx_loader *l, const mx_loader_item *it)
{
    return l->o.epoch_batches && l->mixture.n == 1 && l->n_window == 0 && l->in_batch &&
           mx_cursor_epoch_before(&it->after) != l->last_epoch;
}

static mx_status fill_window(mx_loader *l)
{
    bool epoch_ends = false;
    while (!mx_packer_full(l->packer) && !l->exhausted && !epoch_ends) {
        mx_loader_chunk *c = wait_chunk(l);
        if (!c)
            return MX_OK;
        while (c->taken < c->n && !mx_packer_full(l->packer) && !epoch_ends) {
            mx_loader_item *it = &c->items[c->taken];
            l->epoch_turned = turns_epoch(l, it);
            if (l->epoch_turned)
                return MX_OK;
            epoch_ends = begins_epoch(l, it);
            if (epoch_ends)
                continue;
            l->last_epoch = mx_cursor_epoch_before(&it->after);
            c->taken++;
            MX_TRY(add_record(l, it));
        }
        if (c->taken == c->n) {
            l->exhausted = c->end;
            pthread_mutex_lock(&l->lock);
            c->state = MX_CHUNK_FREE;
            l->n_packed++;
            pthread_cond_broadcast(&l->changed);
            pthread_mutex_unlock(&l->lock);
        }
    }
    mx_packer_close(l->packer, l->exhausted);
    return MX_OK;
}

/* The position moves past the window's records up to where the next window begins. Windows of pairs
 * end at their end, so the packer's document numbers are the record numbers wherever it matters. */
static void next_window(mx_loader *l)
{
    int64_t document, skip, n = l->n_window;
    mx_packer_end(l->packer, &document, &skip);
    if (l->o.pack.kind == MX_PACK_CONCAT)
        n = document < n ? document : n;
    for (int64_t i = 0; i < n; i++)
        l->at.docs.cursors[l->window_which[i]] = l->window_after[i];
    l->at.docs.t += n;
    l->n_window -= n;
    memmove(l->window_after, l->window_after + n, sizeof *l->window_after * (size_t)l->n_window);
    memmove(l->window_which, l->window_which + n, sizeof *l->window_which * (size_t)l->n_window);
    l->at.window++;
    l->at.row = 0;
    l->at.skip = skip;
    mx_packer_next(l->packer, (uint64_t)l->at.window);
}

/* One more row for the batch: of this rank, or of another (counted and forgotten). */
static mx_status take_row(mx_loader *l, mx_batch *b, int64_t row)
{
    int64_t s = b->seq_len, local = row - (int64_t)l->o.rank * b->rows;
    bool mine = local >= 0 && local < b->rows;
    int32_t *base = l->scratch;
    int32_t *out[4] = {base, base + s, base + 2 * s, base + 3 * s};
    if (mine) {
        out[0] = b->tokens + local * s;
        out[1] = b->labels + local * s;
        out[2] = b->segments + local * s;
        out[3] = b->positions + local * s;
    }
    if (mine) {
        b->margins[local] = mx_packer_noted(l->packer, l->at.row);
        b->n_firsts += mx_packer_trains_first(l->packer, l->at.row);
    }
    mx_packer_write(l->packer, l->at.row++, out[0], out[1], out[2], out[3]);
    if (l->o.encoder.images)
        MX_TRY(mx_row_pictures(l->o.encoder.images, out[0], s, mine ? &b->pixels : NULL,
                               &b->n_images, &b->cap_images));
    if (mine)
        b->first_image[local + 1] = b->n_images;
    for (int64_t i = 0; mine && i < s; i++) {
        b->n_tokens += out[2][i] != 0;
        b->n_trained += out[1][i] != MX_NO_LABEL;
    }
    return MX_OK;
}

static void clear_batch(const mx_loader *l, mx_batch *b)
{
    b->n_tokens = b->n_trained = b->n_firsts = b->n_images = 0;
    memset(b->margins, 0, sizeof *b->margins * (size_t)b->rows);
    memset(b->first_image, 0, sizeof *b->first_image * (size_t)(b->rows + 1));
    for (int64_t i = 0; i < b->rows * b->seq_len; i++) {
        b->tokens[i] = l->o.pack.pad_id;
        b->labels[i] = MX_NO_LABEL;
        b->segments[i] = b->positions[i] = 0;
    }
}

/* *full: the batch has rows and is to be given out. */
static mx_status make_batch(mx_loader *l, mx_loader_slot *slot, bool *full)
{
    int64_t row = 0;
    *full = false;
    clear_batch(l, &slot->batch);
    l->epoch_turned = false;
    while (row < l->o.batch_rows && !l->stop) {
        l->in_batch = row > 0;
        if (!mx_packer_closed(l->packer))
            MX_TRY(fill_window(l));
        if (l->exhausted || l->o.pack.kind == MX_PACK_BFD)
            MX_TRY(nothing_trained(l, 1));
        if (l->epoch_turned)
            break;
        while (row < l->o.batch_rows && l->at.row < mx_packer_rows(l->packer))
            MX_TRY(take_row(l, &slot->batch, row++));
        if (l->stop)
            return MX_OK;
        if (l->at.row >= mx_packer_rows(l->packer)) {
            if (l->exhausted)
                break;
            next_window(l);
        }
    }
    *full = row == l->o.batch_rows || (row > 0 && (!l->o.drop_last || l->epoch_turned));
    for (int64_t r = 0; r < slot->batch.rows; r++) /* rows that were not filled have none */
        if (slot->batch.first_image[r + 1] < slot->batch.first_image[r])
            slot->batch.first_image[r + 1] = slot->batch.first_image[r];
    slot->batch.step = l->at.step++;
    mx_loader_at_copy(&slot->after, &l->at);
    return MX_OK;
}

void *mx_loader_packer(void *arg)
{
    mx_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        mx_loader_slot *slot = &l->slots[l->n_made % l->n_slots];
        /* the slot given last is still being read by the caller */
        while (!l->stop && l->n_made - l->n_given >= l->n_slots - 1)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->stop)
            break;
        pthread_mutex_unlock(&l->lock);
        bool full;
        mx_status st = make_batch(l, slot, &full);
        pthread_mutex_lock(&l->lock);
        l->end_counts = slot->counts =
            (mx_loader_counts){.pack = mx_packer_counts(l->packer), .records = l->records,
                               .bad_records = l->bad_records, .cache_hits = l->cache_hits};
        l->error = st;
        l->ended = !st && !full && !l->stop;
        l->n_made += !st && full && !l->stop;
        pthread_cond_broadcast(&l->changed);
        if (st || !full)
            break;
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
