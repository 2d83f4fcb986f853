/* pack.c - see pack.h. A window is a pool of token ids and an array of pieces that point into it;
 * packing moves no tokens, it only decides on the row and the order of the pieces. */
#include "data/load/pack.h"

#include "data/load/order.h"
#include "data/load/random.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t at, n;      /* tokens of the pool */
    int64_t doc;
    float note;
    int64_t row, order; /* where it went; order of placing within the window */
    bool more; /* the document goes on after it: ids[at + n] is the label of the last place */
} piece;

typedef struct {
    int64_t used, segments, first; /* places taken; pieces; index in `sorted` of its first piece */
} bin;

struct mx_packer {
    mx_pack_options o;
    int32_t *ids;
    uint8_t *trained;
    int64_t n_ids, cap_ids, cap_trained;
    int64_t *doc_at; /* (n_docs) where each begins in the pool */
    int64_t n_docs, cap_docs;
    piece *pieces, *sorted;
    int64_t n_pieces, cap_pieces, cap_sorted;
    bin *bins;
    int64_t n_bins, cap_bins;
    int64_t *from; /* (S + 1) first fit: no row before from[n] has room for n tokens */
    int64_t skip, end_doc, end_skip;
    bool closed;
    uint64_t window;
    mx_pack_counts counts;
};

mx_packer *mx_packer_new(const mx_pack_options *o)
{
    MX_ASSERT(o->seq_len > 0, "seq_len=%lld", (long long)o->seq_len);
    mx_packer *p = mx_realloc(NULL, sizeof *p);
    *p = (mx_packer){.o = *o};
    if (p->o.window_rows <= 0) {
        int64_t rows = ((int64_t)1 << 20) / o->seq_len;
        p->o.window_rows = rows < 16 ? 16 : rows > 1024 ? 1024 : rows;
    }
    return p;
}

void mx_packer_free(mx_packer *p)
{
    if (!p)
        return;
    mx_free(p->ids);
    mx_free(p->trained);
    mx_free(p->doc_at);
    mx_free(p->pieces);
    mx_free(p->sorted);
    mx_free(p->bins);
    mx_free(p->from);
    mx_free(p);
}

/* --- adding --- */

static void add_piece(mx_packer *p, int64_t at, int64_t n, bool more)
{
    MX_GROW(p->pieces, p->n_pieces, p->cap_pieces);
    p->pieces[p->n_pieces++] = (piece){.at = at, .n = n, .doc = p->n_docs - 1, .more = more};
}

static int64_t longest(const mx_packer *p)
{
    return p->o.exact ? p->o.seq_len : p->o.seq_len + 1;
}

/* Cuts the last document into pieces of at most S. concat cuts when rows are made. */
static void cut(mx_packer *p, int64_t at, int64_t n)
{
    int64_t s = p->o.seq_len;
    if (p->o.kind == MX_PACK_CONCAT) {
        add_piece(p, at, n, false);
        return;
    }
    int64_t most = longest(p);
    if (n > most && p->o.truncate) {
        p->counts.truncated++;
        p->counts.truncated_tokens += n - most;
        n = most;
    }
    while (n > s) {
        add_piece(p, at, s, true);
        at += s;
        n -= s;
        if (n == 1)
            return; /* the one token left is the label of the last place: nothing is lost */
    }
    add_piece(p, at, n, false);
}

/* What keep_end cuts from a document's start. */
static int64_t cut_from_start(const mx_packer *p, int64_t n)
{
    bool cuts = p->o.keep_end && p->o.truncate && p->o.kind == MX_PACK_NONE && n > longest(p);
    return cuts ? n - longest(p) : 0;
}

bool mx_packer_trains(const mx_packer *p, const uint8_t *trained, int64_t n)
{
    int64_t most = longest(p);
    if (p->o.drop_long && n > most)
        return false;
    trained += cut_from_start(p, n);
    if (p->o.truncate && n > most)
        n = most;
    return n > 1 && memchr(trained + 1, true, (size_t)(n - 1)) != NULL;
}

void mx_packer_add(mx_packer *p, const int32_t *ids, const uint8_t *trained, int64_t n)
{
    MX_ASSERT(!p->closed, "a document is added to a closed window");
    int64_t before = cut_from_start(p, n);
    p->counts.truncated += before > 0;
    p->counts.truncated_tokens += before;
    ids += before;
    trained += before;
    n -= before;
    if (p->o.drop_untrained && n) {
        bool trains = mx_packer_trains(p, trained, n);
        p->counts.training += trains;
        p->counts.untrained += !trains;
        if (!trains && p->o.kind == MX_PACK_NONE && !(p->o.exact && trained[0]))
            n = 0; /* TRL keeps a row for a first token that would be trained: an empty text's */
    }
    int64_t skip = p->n_docs == 0 ? p->skip : 0;
    MX_GROW(p->doc_at, p->n_docs, p->cap_docs);
    p->doc_at[p->n_docs++] =
        p->n_ids - skip; /* so that an offset in the document keeps its meaning */
    if (!skip) {
        p->counts.documents++;
        p->counts.empty += n == 0;
    }
    if (n <= skip)
        return;
    ids += skip;
    trained += skip;
    n -= skip;
    if (p->n_ids + n > p->cap_ids) {
        p->cap_ids = p->n_ids + n > 2 * p->cap_ids ? p->n_ids + n : 2 * p->cap_ids;
        p->ids = mx_realloc(p->ids, sizeof *p->ids * (size_t)p->cap_ids);
        p->trained = mx_realloc(p->trained, (size_t)p->cap_ids);
    }
    memcpy(p->ids + p->n_ids, ids, sizeof *ids * (size_t)n);
    memcpy(p->trained + p->n_ids, trained, (size_t)n);
    p->n_ids += n;
    cut(p, p->n_ids - n, n);
}

void mx_packer_note(mx_packer *p, float x)
{
    piece *last = p->n_pieces ? &p->pieces[p->n_pieces - 1] : NULL;
    if (last && last->doc == p->n_docs - 1)
        last->note = x;
}

float mx_packer_noted(const mx_packer *p, int64_t row)
{
    MX_ASSERT(row >= 0 && row < mx_packer_rows(p), "row %lld", (long long)row);
    const bin *b = &p->bins[row];
    return b->segments == 1 ? p->sorted[b->first].note : 0;
}

bool mx_packer_trains_first(const mx_packer *p, int64_t row)
{
    MX_ASSERT(row >= 0 && row < mx_packer_rows(p), "row %lld", (long long)row);
    const bin *b = &p->bins[row];
    return b->segments > 0 && p->trained[p->sorted[b->first].at];
}

void mx_packer_skip(mx_packer *p, int64_t skip)
{
    MX_ASSERT(p->n_docs == 0, "skip in a window of %lld documents", (long long)p->n_docs);
    p->skip = skip;
}

bool mx_packer_full(const mx_packer *p)
{
    return p->o.kind == MX_PACK_NONE ? p->n_pieces >= p->o.window_rows
                                     : p->n_ids >= p->o.window_rows * p->o.seq_len;
}

bool mx_packer_empty(const mx_packer *p)
{
    return p->n_ids == 0;
}

/* --- packing --- */

static void place(mx_packer *p, piece *c, int64_t row)
{
    if (row == p->n_bins) {
        MX_GROW(p->bins, p->n_bins, p->cap_bins);
        p->bins[p->n_bins++] = (bin){0};
    }
    c->row = row;
    c->order = p->bins[row].segments++;
    p->bins[row].used += c->n;
}

static bool fits(const mx_packer *p, int64_t row, int64_t n)
{
    const bin *b = &p->bins[row];
    return p->o.seq_len - b->used >= n && (!p->o.max_segments || b->segments < p->o.max_segments);
}

/* Room only shrinks, so that a search for a size begins where the last one for it ended: a document
 * of a million pieces beside a short one does not walk over all rows for each. */
static void pack_first_fit(mx_packer *p)
{
    size_t bytes = sizeof *p->from * (size_t)(p->o.seq_len + 1);
    if (!p->from)
        p->from = mx_realloc(NULL, bytes);
    memset(p->from, 0, bytes);
    for (int64_t i = 0; i < p->n_pieces; i++) {
        int64_t n = p->pieces[i].n, row = p->from[n];
        while (row < p->n_bins && !fits(p, row, n))
            row++;
        p->from[n] = row;
        place(p, &p->pieces[i], row);
    }
}

static int longest_first(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : (x->at > y->at) - (x->at < y->at);
}

static void pack_best_fit(mx_packer *p)
{
    qsort(p->pieces, (size_t)p->n_pieces, sizeof *p->pieces, longest_first);
    int64_t open = 0; /* rows before it are full */
    for (int64_t i = 0; i < p->n_pieces; i++) {
        int64_t best = p->n_bins, room = p->o.seq_len + 1;
        while (open < p->n_bins && !fits(p, open, 1))
            open++;
        for (int64_t row = open; row < p->n_bins && room > p->pieces[i].n; row++)
            if (p->o.seq_len - p->bins[row].used < room && fits(p, row, p->pieces[i].n)) {
                best = row;
                room = p->o.seq_len - p->bins[row].used;
            }
        place(p, &p->pieces[i], best);
    }
}

/* p->sorted, with room for the pieces there are; it grows to twice that, and so soon no more. */
static piece *sorting_room(mx_packer *p)
{
    if (p->n_pieces > p->cap_sorted) {
        p->cap_sorted = 2 * p->n_pieces;
        p->sorted = mx_realloc(p->sorted, sizeof *p->sorted * (size_t)p->cap_sorted);
    }
    return p->sorted;
}

/* End to end. A piece that crosses a row's end is cut there; the array grows as it is walked. */
static void pack_concat(mx_packer *p, bool last)
{
    int64_t s = p->o.seq_len, whole = last ? INT64_MAX : p->n_ids / s, row = 0;
    int64_t n = p->n_pieces;
    piece *in = sorting_room(p); /* not used before the pieces are placed */
    if (n)
        memcpy(in, p->pieces, sizeof *in * (size_t)n);
    p->n_pieces = 0;
    for (int64_t i = 0; i < n && row < whole; i++)
        for (piece c = in[i]; c.n > 0 && row < whole;) {
            int64_t room = s - (row < p->n_bins ? p->bins[row].used : 0);
            bool segments_full = p->o.max_segments && row < p->n_bins &&
                                 p->bins[row].segments >= p->o.max_segments;
            if (room == 0 || segments_full) {
                row++;
                continue;
            }
            int64_t k = c.n < room ? c.n : room;
            MX_GROW(p->pieces, p->n_pieces, p->cap_pieces);
            piece *q = &p->pieces[p->n_pieces++];
            *q = (piece){.at = c.at, .n = k, .doc = c.doc, .more = k < c.n};
            place(p, q, row);
            c.at += k;
            c.n -= k;
            p->end_doc = c.n ? c.doc : c.doc + 1;
            p->end_skip = c.n ? c.at - p->doc_at[c.doc] : 0;
            row += p->bins[row].used == s;
        }
    if (last || p->n_ids < s) { /* an empty window, or the end: everything is used */
        p->end_doc = p->n_docs;
        p->end_skip = 0;
    }
}

/* Counting sort of the pieces by row, in the order of placing. */
static void sort_by_row(mx_packer *p)
{
    sorting_room(p);
    for (int64_t row = 0, at = 0; row < p->n_bins; row++) {
        p->bins[row].first = at;
        at += p->bins[row].segments;
    }
    for (int64_t i = 0; i < p->n_pieces; i++)
        p->sorted[p->bins[p->pieces[i].row].first + p->pieces[i].order] = p->pieces[i];
}

void mx_packer_close(mx_packer *p, bool last)
{
    MX_ASSERT(!p->closed, "a window is closed twice");
    p->closed = true;
    p->n_bins = 0;
    p->end_doc = p->n_docs;
    p->end_skip = 0;
    if (p->o.kind == MX_PACK_FIRST_FIT)
        pack_first_fit(p);
    else if (p->o.kind == MX_PACK_BEST_FIT || p->o.kind == MX_PACK_BFD)
        pack_best_fit(p);
    else if (p->o.kind == MX_PACK_CONCAT)
        pack_concat(p, last);
    else
        for (int64_t i = 0; i < p->n_pieces; i++)
            place(p, &p->pieces[i], i);
    sort_by_row(p);
}

bool mx_packer_closed(const mx_packer *p)
{
    return p->closed;
}

int64_t mx_packer_rows(const mx_packer *p)
{
    return p->closed ? p->n_bins : 0;
}

void mx_packer_end(const mx_packer *p, int64_t *document, int64_t *skip)
{
    *document = p->end_doc;
    *skip = p->end_skip;
}

/* --- rows --- */

void mx_packer_write(mx_packer *p, int64_t row, int32_t *tokens, int32_t *labels, int32_t *segments,
                     int32_t *positions)
{
    MX_ASSERT(row >= 0 && row < mx_packer_rows(p), "row %lld", (long long)row);
    if (p->o.kind == MX_PACK_BEST_FIT) /* rows were filled longest first: undo that for training */
        row = mx_permute(p->n_bins, mx_mix_key(p->o.seed, p->window), row);
    const bin *b = &p->bins[row];
    int64_t s = p->o.seq_len, at = 0;
    for (int64_t k = 0; k < b->segments; k++) {
        const piece *c = &p->sorted[b->first + k];
        memcpy(tokens + at, p->ids + c->at, sizeof *tokens * (size_t)c->n);
        int64_t known = c->more ? c->n : c->n - 1; /* places whose next token is in the pool */
        for (int64_t i = 0; i < c->n; i++) {
            bool train = i < known && p->trained[c->at + i + 1];
            labels[at + i] = train ? p->ids[c->at + i + 1] : MX_NO_LABEL;
            p->counts.trained_tokens += train;
            segments[at + i] = (int32_t)(k + 1);
            positions[at + i] = (int32_t)i;
        }
        at += c->n;
    }
    p->counts.tokens += at;
    p->counts.rows++;
    p->counts.places += s;
    for (; at < s; at++) {
        tokens[at] = p->o.pad_id;
        labels[at] = MX_NO_LABEL;
        segments[at] = positions[at] = 0;
    }
}

void mx_packer_next(mx_packer *p, uint64_t window)
{
    int64_t doc = p->end_doc, skip = p->end_skip;
    p->n_pieces = p->n_bins = 0;
    p->closed = false;
    p->window = window;
    p->skip = skip;
    int64_t n_docs = p->n_docs - doc, from = doc < p->n_docs ? p->doc_at[doc] + skip : p->n_ids;
    int64_t left = p->n_ids - from;
    if (left) {
        memmove(p->ids, p->ids + from, sizeof *p->ids * (size_t)left);
        memmove(p->trained, p->trained + from, (size_t)left);
    }
    p->n_ids = left;
    p->n_docs = 0;
    for (int64_t i = 0; i < n_docs; i++) {
        int64_t begin = p->doc_at[doc + i] - from;
        int64_t end = doc + i + 1 < doc + n_docs ? p->doc_at[doc + i + 1] - from : left;
        p->doc_at[p->n_docs++] = begin;
        begin = begin < 0 ? 0 : begin;
        if (end > begin)
            add_piece(p, begin, end - begin, false);
    }
}

mx_pack_counts mx_packer_counts(const mx_packer *p)
{
    return p->counts;
}
