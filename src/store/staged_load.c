/* staged_load.c - pieces of a few MiB, in the order of the disk, by several threads.
 *
 * Every thread takes the next piece, reads it and hands it on; none waits for another, so while one
 * looks for NaN, others read, and the disk always has several requests to work on.
 *
 *     host memory   the piece is read, and converted, straight into the variable; later pieces are
 *                   prefetched
 *     staging       each thread has staging buffers of its own (device.h): the piece is read into
 *                   one that the device copies from, as it is stored where the device can convert
 *                   it, else as it is wanted
 *     neither       the thread reads the piece into memory of its own and writes it
 *
 * Quantized weights are made into numbers by the thread, a matrix or a few rows at a time, in
 * memory of its own. Beyond that the host needs two buffers a thread, however large the model is.
 */
#include "store/staged_load.h"

#include "ir/placement.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 8 << 20,
    BUFFER_BYTES = PIECE_BYTES + 2 * MX_ST_BLOCK,
    STAGING_THREADS = 12,
    MAX_THREADS = 32,
    QUANT_ELEMENTS = 4 << 20,
    AHEAD = 64 /* pieces that are prefetched */
};

typedef struct {
    const mx_quant_tensor *t; /* not a stack: one of its parts then */
    int64_t first, count;     /* elements of t */
    int64_t at;               /* element of the variable where they go */
    mx_staged_load *load;
} piece;

typedef struct {
    mx_session *session;
    mx_device *device;
    const mx_device_staging *staging; /* NULL: the host writes the variables itself */
    piece *pieces;
    int64_t n, cap;
    atomic_llong next, done;
    atomic_bool stop;
    pthread_mutex_t lock; /* of what follows, and of the loads' scans */
    mx_status failed;     /* the first to fail */
    mx_status no_staging; /* why a thread could not work */
} works;

/* --- what is to be done --------------------------------------------------------------------- */
/* How many elements are read at once: a matrix when transposed, as its blocks are read whole; whole
 * rows of what has scales; else what fits a buffer, as it is stored and as it is wanted. */
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
static void cut(works *w, mx_staged_load *l, const mx_quant_tensor *t, mx_box_span s)
{
    int64_t step = piece_elements(t, l->var->type.dtype);
    for (int64_t i = 0; i < s.n; i += step) {
        MX_GROW(w->pieces, w->n, w->cap);
        w->pieces[w->n++] = (piece){.t = t, .first = s.whole + i, .at = s.local + i, .load = l,
                                    .count = s.n - i < step ? s.n - i : step};
    }
}

/* The same of a tensor that may be a stack of others. */
static void cut_stack(works *w, mx_staged_load *l, mx_box_span s)
{
    const mx_quant_tensor *t = l->from;
    if (t->kind != MX_QUANT_STACK) {
        cut(w, l, t, s);
        return;
    }
    for (int64_t each = t->parts[0]->n; s.n > 0;) {
        int64_t inside = s.whole % each, n = each - inside < s.n ? each - inside : s.n;
        cut(w, l, t->parts[s.whole / each], (mx_box_span){inside, s.local, n});
        s = (mx_box_span){s.whole + n, s.local + n, s.n - n};
    }
}

static void cut_all(works *w, mx_staged_load *l)
{
    const mx_var *v = l->var;
    mx_box_span s = {0, 0, l->from->n};
    MX_ASSERT(s.n == mx_type_count(mx_var_whole(v)), "%s does not fit %s", l->from->name, v->name);
    l->scan = (mx_st_scan){0};
    if (!v->box)
        cut_stack(w, l, s);
    else
        for (mx_box_walk walk = mx_box_begin(v->box, &v->type); mx_box_next(&walk, &s);)
            cut_stack(w, l, s);
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
static mx_st_dtype wanted(const piece *p)
{
    return mx_st_dtype_of(p->load->var->type.dtype);
}

/* Numbers that the host has made, a buffer at a time. */
static mx_status send_made(works *w, void *staging, const piece *p, mx_st_scan *scan)
{
    mx_dtype to = p->load->var->type.dtype;
    size_t size = mx_dtype_bytes(to);
    int64_t step = PIECE_BYTES / (int64_t)size;
    void *made, *buffer;
    MX_TRY(mx_alloc(&made, (size_t)p->count * size, p->t->name));
    mx_status st = mx_quant_read(p->t, p->first, p->count, wanted(p), made, scan);
    for (int64_t i = 0; i < p->count && !st; i += step) {
        int64_t n = p->count - i < step ? p->count - i : step;
        st = w->staging->next(w->device, staging, &buffer);
        if (st)
            break;
        memcpy(buffer, (char *)made + (size_t)i * size, (size_t)n * size);
        mx_upload u = {.dst = mx_var_range(p->load->var, p->at + i, n), .to = to, .src = buffer,
                       .from = to, .n = n};
        st = w->staging->send(w->device, staging, &u);
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

static mx_status send_plain(works *w, void *staging, const piece *p, mx_st_scan *scan)
{
    const mx_st_tensor *t = p->t->data;
    mx_upload u = {.dst = mx_var_range(p->load->var, p->at, p->count),
                   .to = p->load->var->type.dtype, .n = p->count};
    void *buffer;
    MX_TRY(w->staging->next(w->device, staging, &buffer));
    if (device_converts(t->dtype, u.to, &u.from)) {
        MX_TRY(mx_st_fetch(t, p->first, p->count, buffer, &u.src));
        mx_st_scan_add(scan, t->dtype, u.src, p->count);
    } else {
        MX_TRY(mx_st_read(t, p->first, p->count, wanted(p), buffer, scan));
        u.from = u.to;
        u.src = buffer;
    }
    return w->staging->send(w->device, staging, &u);
}

/* Into the variable itself, or into memory of the thread's own and from there. */
static mx_status read_piece(works *w, const piece *p, mx_st_scan *scan)
{
    mx_var *v = p->load->var;
    size_t item = mx_dtype_bytes(v->type.dtype);
    char *host = mx_var_host(w->session, v);
    if (host)
        return mx_quant_read(p->t, p->first, p->count, wanted(p), host + (size_t)p->at * item,
                             scan);
    void *made;
    MX_TRY(mx_alloc(&made, (size_t)p->count * item, p->t->name));
    mx_status st = mx_quant_read(p->t, p->first, p->count, wanted(p), made, scan);
    if (!st)
        st = mx_var_write_part(w->session, v, p->at, p->count, made);
    mx_free(made);
    return st;
}

static mx_status do_piece(works *w, void *staging, const piece *p, mx_st_scan *scan)
{
    if (!w->staging)
        return read_piece(w, p, scan);
    return (p->t->kind == MX_QUANT_PLAIN ? send_plain : send_made)(w, staging, p, scan);
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
    p->load->scan.n_nan += scan->n_nan;
    p->load->scan.n_inf += scan->n_inf;
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *arg)
{
    works *w = arg;
    void *staging = NULL;
    mx_status st =
        w->staging ? w->staging->open(w->device, BUFFER_BYTES, &staging) : MX_OK;
    report(w, &w->no_staging, st);
    for (bool idle = st != MX_OK; !idle && !w->stop;) {
        int64_t i = w->next++;
        if (i >= w->n)
            break;
        if (!w->staging)
            expect(w, i + AHEAD);
        mx_st_scan scan = {0};
        mx_status bad = do_piece(w, staging, &w->pieces[i], &scan);
        add_scan(w, &w->pieces[i], &scan);
        w->done++;
        if (bad)
            w->stop = true;
        report(w, &w->failed, bad);
    }
    if (w->staging)
        report(w, &w->failed, w->staging->close(w->device, staging));
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

mx_status mx_staged_load_all(mx_session *s, mx_staged_load *loads, int64_t n)
{
    works w = {.session = s, .device = mx_session_device(s)};
    w.staging = w.device->staging;
    pthread_mutex_init(&w.lock, NULL);
    for (int64_t i = 0; i < n; i++)
        cut_all(&w, &loads[i]);
    if (w.n)
        qsort(w.pieces, (size_t)w.n, sizeof *w.pieces, by_place);
    for (int64_t i = 0; i < w.n && w.staging; i++)
        mx_st_go_direct(w.pieces[i].t->data->file);
    for (int64_t i = 0; i < AHEAD && !w.staging; i++)
        expect(&w, i);
    /* Without staging two more than work at once: some wait for the disk. */
    int64_t threads = w.staging                           ? STAGING_THREADS
                      : mx_session_traits(s)->host_memory ? mx_session_threads(s) + 2
                                                          : 1; /* a device's `write` is for one */
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    if (w.n)
        work_together(&w, threads < w.n ? threads : w.n);
    if (!w.failed && w.done < w.n) {
        w.failed = w.no_staging;
        w.no_staging = NULL;
    }
    mx_status_free(w.no_staging);
    for (int64_t i = 0; i < n && !w.failed; i++)
        loads[i].var->written = true;
    pthread_mutex_destroy(&w.lock);
    mx_free(w.pieces);
    return w.failed;
}
