/* haul.c - pieces of a few MiB, in the order of the disk, by several threads.
 *
 * Every thread takes the next piece, reads it and hands it on; none waits for another, so while one
 * looks for NaN, others read, and the disk always has several requests to work on.
 *
 *     CPU     the piece is read, and converted, straight into the variable; pieces a little further
 *             on have been asked for
 *     device  each thread has a lane (device.h): the piece is read into a slot that the device
 *             copies from, as it is stored where the device can convert it, else as it is wanted
 *
 * Quantised weights are made into numbers by the thread, a matrix or a few rows at a time, in
 * memory of its own. Beyond that the host needs N_LANES * 2 slots, however large the model is.
 */
#include "store/haul.h"

#include "ir/placement.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 8 << 20,
    SLOT_BYTES = PIECE_BYTES + 2 * MX_ST_BLOCK,
    N_LANES = 12,
    MAX_THREADS = 32,
    QUANT_ELEMENTS = 4 << 20,
    AHEAD = 64 /* pieces that are asked for before they are read */
};

typedef struct {
    const mx_quant_tensor *t; /* not a stack: one of its parts then */
    int64_t first, count;     /* elements of t */
    int64_t at;               /* element of the variable where they go */
    mx_haul *haul;
} piece;

typedef struct {
    mx_device *device;
    bool lanes; /* else the host writes the variables itself */
    piece *pieces;
    int64_t n, cap;
    atomic_llong next, done;
    atomic_bool stop;
    pthread_mutex_t lock; /* of what follows, and of the hauls' scans */
    mx_status failed;     /* the first to fail */
    mx_status no_lane;    /* why a thread could not work */
} works;

/* --- what is to be done --------------------------------------------------------------------- */
/* How many elements are read at once: a matrix when transposed, as its blocks are read whole; whole
 * rows of what has scales; else what fits a slot, as it is stored and as it is wanted. */
static int64_t piece_elements(const mx_quant_tensor *t, mx_dtype to)
{
    if (t->kind == MX_QUANT_PLAIN) {
        int64_t from = mx_st_dtype_bytes(t->data->dtype), size = (int64_t)mx_dtype_bytes(to);
        return PIECE_BYTES / (from > size ? from : size);
    }
    int64_t width = t->transposed ? t->rows * t->cols : t->cols;
    return width > 0 && width < QUANT_ELEMENTS ? QUANT_ELEMENTS / width * width
           : width > 0                         ? width
                                               : QUANT_ELEMENTS;
}

/* Elements [first, first + n) of t, to `at` of the variable. */
static void cut(works *w, mx_haul *h, const mx_quant_tensor *t, mx_box_span s)
{
    int64_t step = piece_elements(t, h->var->type.dtype);
    for (int64_t i = 0; i < s.n; i += step) {
        MX_GROW(w->pieces, w->n, w->cap);
        w->pieces[w->n++] = (piece){.t = t, .first = s.whole + i, .at = s.local + i, .haul = h,
                                    .count = s.n - i < step ? s.n - i : step};
    }
}

/* The same of a tensor that may be a stack of others. */
static void cut_stack(works *w, mx_haul *h, mx_box_span s)
{
    const mx_quant_tensor *t = h->from;
    if (t->kind != MX_QUANT_STACK) {
        cut(w, h, t, s);
        return;
    }
    for (int64_t each = t->parts[0]->n; s.n > 0;) {
        int64_t inside = s.whole % each, n = each - inside < s.n ? each - inside : s.n;
        cut(w, h, t->parts[s.whole / each], (mx_box_span){inside, s.local, n});
        s = (mx_box_span){s.whole + n, s.local + n, s.n - n};
    }
}

static void cut_all(works *w, mx_haul *h)
{
    const mx_var *v = h->var;
    mx_box_span s = {0, 0, h->from->n};
    MX_ASSERT(s.n == mx_type_count(mx_var_whole(v)), "%s does not fit %s", h->from->name, v->name);
    h->scan = (mx_st_scan){0};
    if (!v->box)
        cut_stack(w, h, s);
    else
        for (mx_box_walk walk = mx_box_begin(v->box, &v->type); mx_box_next(&walk, &s);)
            cut_stack(w, h, s);
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    const mx_st_tensor *s = x->t->data, *t = y->t->data;
    if (s->file != t->file)
        return (s->file > t->file) - (s->file < t->file);
    if (s->at != t->at)
        return (s->at > t->at) - (s->at < t->at);
    return (x->first > y->first) - (x->first < y->first);
}

static void expect(const works *w, int64_t i)
{
    if (i < w->n && w->pieces[i].t->kind == MX_QUANT_PLAIN)
        mx_st_expect(w->pieces[i].t->data, w->pieces[i].first, w->pieces[i].count);
}

/* --- one piece ------------------------------------------------------------------------------ */
static char *place_of(const piece *p)
{
    const mx_var *v = p->haul->var;
    return (char *)v->data + (size_t)p->at * mx_dtype_bytes(v->type.dtype);
}

static mx_st_dtype wanted(const piece *p)
{
    return mx_st_dtype_of(p->haul->var->type.dtype);
}

/* Numbers that the host has made, a slot at a time. */
static mx_status send_made(works *w, void *lane, const piece *p, mx_st_scan *scan)
{
    mx_dtype to = p->haul->var->type.dtype;
    size_t size = mx_dtype_bytes(to);
    int64_t step = PIECE_BYTES / (int64_t)size;
    void *made, *slot;
    MX_TRY(mx_alloc(&made, (size_t)p->count * size, p->t->name));
    mx_status st = mx_quant_read(p->t, p->first, p->count, wanted(p), made, scan);
    for (int64_t i = 0; i < p->count && !st; i += step) {
        int64_t n = p->count - i < step ? p->count - i : step;
        st = w->device->lane_slot(w->device, lane, &slot);
        if (st)
            break;
        memcpy(slot, (char *)made + (size_t)i * size, (size_t)n * size);
        st = w->device->lane_send(w->device, lane,
                                  &(mx_freight){.dst = place_of(p) + (size_t)i * size, .to = to,
                                                .src = slot, .from = to, .n = n});
    }
    mx_free(made);
    return st;
}

/* Can the device turn one into the other? */
static bool device_converts(mx_st_dtype stored, mx_dtype to, mx_dtype *from)
{
    if (!mx_st_dtype_graph(stored, from))
        return false;
    bool both = (*from == MX_F32 || *from == MX_BF16) && (to == MX_F32 || to == MX_BF16);
    return both || *from == to;
}

static mx_status send_plain(works *w, void *lane, const piece *p, mx_st_scan *scan)
{
    const mx_st_tensor *t = p->t->data;
    mx_freight f = {.dst = place_of(p), .to = p->haul->var->type.dtype, .n = p->count};
    void *slot;
    MX_TRY(w->device->lane_slot(w->device, lane, &slot));
    if (device_converts(t->dtype, f.to, &f.from)) {
        MX_TRY(mx_st_fetch(t, p->first, p->count, slot, &f.src));
        mx_st_scan_add(scan, t->dtype, f.src, p->count);
    } else {
        MX_TRY(mx_st_read(t, p->first, p->count, wanted(p), slot, scan));
        f.from = f.to;
        f.src = slot;
    }
    return w->device->lane_send(w->device, lane, &f);
}

static mx_status do_piece(works *w, void *lane, const piece *p, mx_st_scan *scan)
{
    if (!w->lanes)
        return mx_quant_read(p->t, p->first, p->count, wanted(p), place_of(p), scan);
    return (p->t->kind == MX_QUANT_PLAIN ? send_plain : send_made)(w, lane, p, scan);
}

/* --- the threads ---------------------------------------------------------------------------- */
static void report(works *w, mx_status *where, mx_status st)
{
    pthread_mutex_lock(&w->lock);
    if (st && *where)
        mx_status_free(st);
    else if (st)
        *where = st;
    pthread_mutex_unlock(&w->lock);
}

static void add_scan(works *w, const piece *p, const mx_st_scan *scan)
{
    if (!scan->n_nan && !scan->n_inf)
        return;
    pthread_mutex_lock(&w->lock);
    p->haul->scan.n_nan += scan->n_nan;
    p->haul->scan.n_inf += scan->n_inf;
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *arg)
{
    works *w = arg;
    void *lane = NULL;
    mx_status st = w->lanes ? w->device->lane_open(w->device, SLOT_BYTES, &lane) : MX_OK;
    report(w, &w->no_lane, st);
    for (bool idle = st != MX_OK; !idle && !w->stop;) {
        int64_t i = w->next++;
        if (i >= w->n)
            break;
        if (!w->lanes)
            expect(w, i + AHEAD);
        mx_st_scan scan = {0};
        mx_status bad = do_piece(w, lane, &w->pieces[i], &scan);
        add_scan(w, &w->pieces[i], &scan);
        w->done++;
        if (bad)
            w->stop = true;
        report(w, &w->failed, bad);
    }
    if (w->lanes)
        report(w, &w->failed, w->device->lane_close(w->device, lane));
    return NULL;
}

/* The caller is one of the threads: where no other can be had, it does everything. */
static void work_together(works *w, int64_t n_threads)
{
    pthread_t thread[MAX_THREADS];
    int started = 0;
    while (started + 1 < n_threads && !pthread_create(&thread[started], NULL, work, w))
        started++;
    work(w);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}

mx_status mx_haul_all(mx_session *s, mx_haul *hauls, int64_t n)
{
    works w = {.device = mx_session_device(s)};
    w.lanes = w.device->lane_open != NULL;
    pthread_mutex_init(&w.lock, NULL);
    for (int64_t i = 0; i < n; i++)
        cut_all(&w, &hauls[i]);
    if (w.n)
        qsort(w.pieces, (size_t)w.n, sizeof *w.pieces, by_place);
    for (int64_t i = 0; i < w.n && w.lanes; i++)
        mx_st_go_direct(w.pieces[i].t->data->file);
    for (int64_t i = 0; i < AHEAD && !w.lanes; i++)
        expect(&w, i);
    /* On the CPU two more than work at once: some wait for the disk. */
    int64_t threads = w.lanes ? N_LANES : mx_session_threads(s) + 2;
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    if (w.n)
        work_together(&w, threads < w.n ? threads : w.n);
    if (!w.failed && w.done < w.n) {
        w.failed = w.no_lane;
        w.no_lane = NULL;
    }
    mx_status_free(w.no_lane);
    for (int64_t i = 0; i < n && !w.failed; i++)
        hauls[i].var->written = true;
    pthread_mutex_destroy(&w.lock);
    mx_free(w.pieces);
    return w.failed;
}
