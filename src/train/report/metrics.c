/* metrics.c - appending lines and records, surviving a full disk, cutting back on resume. */
#include "train/report/metrics.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { JSONL, COPY, EVENTS, N_FILES };

typedef struct {
    int fd; /* -1: not used */
    char *path;
    off_t good;      /* bytes that hold whole records */
    int64_t dropped; /* since the last record that was written */
} log_file;

struct mx_metrics {
    mx_arena arena; /* holds itself */
    mx_metrics_options o;
    const mx_io *io;
    log_file file[N_FILES];
    mx_str line, record, problem;
    int64_t dropped;
};

static void note(mx_metrics *m, const char *path, const char *what)
{
    if (!m->problem.len)
        mx_str_addf(&m->problem, "%s: %s", path, what);
}

/* --- numbers as JSON --- */
static void put_number(mx_str *s, double v)
{
    if (isnan(v) || isinf(v)) {
        mx_str_add(s, isnan(v) ? "\"NaN\"" : v > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        return;
    }
    char buf[40];
    for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back the same */
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    mx_str_add(s, buf);
}

static void put_text(mx_str *s, const char *text)
{
    mx_str_add(s, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            mx_str_add(s, "\\");
        if ((unsigned char)*text < 0x20)
            mx_str_addf(s, "\\u%04x", *text);
        else
            mx_str_add_n(s, text, 1);
    }
    mx_str_add(s, "\"");
}

/* --- cutting back --- */
static const char head[] = "{\"step\": ";

/* The "step" of a line our writer made, or -1. */
static int64_t step_of(const char *line, size_t n)
{
    size_t k = sizeof head - 1;
    int64_t v = 0;
    if (n <= k || memcmp(line, head, k) != 0)
        return -1;
    for (; k < n && line[k] >= '0' && line[k] <= '9' && v < INT64_MAX / 10 - 10; k++)
        v = v * 10 + (line[k] - '0');
    return v;
}

/* Can it be the beginning of such a line, with zeros that a power loss has left? */
static bool is_torn(const char *line, size_t n)
{
    n = strnlen(line, n);
    return memcmp(line, head, n < sizeof head - 1 ? n : sizeof head - 1) == 0;
}

/* Where the lines before start_step end. Lines that are not ours are kept. */
static mx_status keep_bytes(const mx_io *io, const char *path, uint64_t size, int64_t start_step,
                            off_t *keep)
{
    char *text;
    size_t n;
    *keep = 0;
    if (size == 0)
        return MX_OK;
    MX_TRY(mx_io_read_file(io, path, (size_t)size, &text, &n));
    mx_status st = MX_OK;
    for (size_t at = 0; at < n;) {
        const char *eol = memchr(text + at, '\n', n - at);
        if (!eol && !is_torn(text + at, n - at))
            st = mx_fail(MX_USAGE,
                         "%s: expected lines of metrics and found something else at its end, which "
                         "would be lost; name another file", path);
        if (!eol || step_of(text + at, n - at) >= start_step)
            break;
        at = (size_t)(eol - text) + 1;
        *keep = (off_t)at;
    }
    mx_free(text);
    return st;
}

static mx_status open_lines(mx_metrics *m, log_file *f, const char *path)
{
    struct stat about;
    f->path = mx_arena_strdup(&m->arena, path);
    int fd = m->io->open(m->io->ctx, path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "cannot open %s for the metrics", path);
    f->fd = fd;
    if (fstat(fd, &about))
        return mx_fail_errno(MX_DEVICE, "cannot look at %s", path);
    if (!S_ISREG(about.st_mode)) /* a pipe or terminal given as metrics_file */
        return MX_OK;
    MX_TRY(keep_bytes(m->io, path, (uint64_t)about.st_size, m->o.start_step, &f->good));
    if (f->good < about.st_size && ftruncate(fd, f->good))
        return mx_fail_errno(MX_DEVICE, "cannot remove the lines of repeated steps from %s", path);
    return MX_OK;
}

/* Appends n bytes as one record; on failure what was written of it is taken back. */
static bool append(mx_metrics *m, log_file *f, const mx_str *s)
{
    mx_status st = mx_io_write_all(m->io, f->fd, mx_str_text(s), s->len, f->path);
    if (!st) {
        f->good += (off_t)s->len;
        f->dropped = 0;
        return true;
    }
    note(m, f->path, mx_status_text(st));
    mx_status_free(st);
    (void)!ftruncate(f->fd, f->good); /* fails on a pipe, where nothing can be taken back */
    f->dropped++;
    m->dropped++;
    return false;
}

static mx_status open_events(mx_metrics *m, const char *run_dir, double now)
{
    char name[160];
    mx_str start = {0};
    const char *dir = mx_arena_printf(&m->arena, "%s/tensorboard", run_dir);
    MX_TRY(mx_io_make_dir(m->io, dir));
    mx_event_file_name(name, sizeof name, now);
    log_file *f = &m->file[EVENTS];
    f->path = mx_arena_printf(&m->arena, "%s/%s", dir, name);
    f->fd =
        m->io->open(m->io->ctx, f->path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return mx_fail_errno(MX_DEVICE, "cannot create %s", f->path);
    mx_event_version(&start, now);
    if (m->o.start_step > 0)
        mx_event_start(&start, now, m->o.start_step);
    append(m, f, &start);
    mx_str_fini(&start);
    return MX_OK;
}

mx_status mx_metrics_open(mx_metrics **out, const char *run_dir, const mx_metrics_options *o)
{
    mx_arena own = {0};
    mx_metrics *m = MX_NEW(&own, mx_metrics);
    m->arena = own;
    m->o = o ? *o : (mx_metrics_options){0};
    m->io = m->o.io ? m->o.io : &mx_io_system;
    m->o.now = m->o.now ? m->o.now : mx_clock_wall;
    *out = NULL;
    for (int k = 0; k < N_FILES; k++)
        m->file[k].fd = -1;
    mx_status st =
        open_lines(m, &m->file[JSONL], mx_arena_printf(&m->arena, "%s/metrics.jsonl", run_dir));
    if (!st && m->o.copy)
        st = open_lines(m, &m->file[COPY], m->o.copy);
    if (!st && m->o.tensorboard)
        st = open_events(m, run_dir, m->o.now());
    if (st)
        mx_status_free(mx_metrics_close(m));
    else
        *out = m;
    return st;
}

/* --- logging --- */
static void format_line(mx_str *s, int64_t step, double now, int64_t dropped, const mx_metric *v,
                        int n)
{
    mx_str_clear(s);
    mx_str_addf(s, "{\"step\": %lld, \"time\": %.3f", (long long)step, now);
    for (int i = 0; i < n; i++) {
        mx_str_add(s, ", ");
        put_text(s, v[i].name);
        mx_str_add(s, ": ");
        put_number(s, v[i].value);
    }
    if (dropped)
        mx_str_addf(s, ", \"dropped\": %lld", (long long)dropped);
    mx_str_add(s, "}\n");
}

void mx_metrics_log(mx_metrics *m, int64_t step, const mx_metric *v, int n)
{
    double now = m->o.now();
    for (int k = JSONL; k <= COPY; k++)
        if (m->file[k].fd >= 0) {
            format_line(&m->line, step, now, m->file[k].dropped, v, n);
            append(m, &m->file[k], &m->line);
        }
    if (m->file[EVENTS].fd >= 0) {
        mx_str_clear(&m->record);
        mx_event_scalars(&m->record, now, step, v, n);
        append(m, &m->file[EVENTS], &m->record);
    }
}

int64_t mx_metrics_dropped(const mx_metrics *m)
{
    return m->dropped;
}

const char *mx_metrics_problem(const mx_metrics *m)
{
    return mx_str_text(&m->problem);
}

mx_status mx_metrics_close(mx_metrics *m)
{
    mx_status st = MX_OK;
    if (!m)
        return MX_OK;
    for (int k = 0; k < N_FILES; k++)
        if (m->file[k].fd >= 0 && m->io->close(m->io->ctx, m->file[k].fd))
            note(m, m->file[k].path, strerror(errno));
    if (m->problem.len)
        st = mx_fail(MX_DEVICE, "%lld records of metrics were lost: %s; training was not affected",
                     (long long)m->dropped, mx_str_text(&m->problem));
    mx_str_fini(&m->line);
    mx_str_fini(&m->record);
    mx_str_fini(&m->problem);
    mx_arena own = m->arena;
    mx_arena_fini(&own);
    return st;
}

/* --- reading back --- */
static bool number_of(const json_t *j, double *out)
{
    const char *s = json_string_value(j);
    *out = json_is_number(j) ? json_number_value(j) : NAN;
    if (s && strcmp(s, "NaN") != 0)
        *out = strcmp(s, "Infinity") == 0 ? INFINITY : -INFINITY;
    return j && (s || json_is_number(j));
}

mx_status mx_metrics_read(const char *path, const char *name, mx_arena *a, mx_series *out)
{
    char *text;
    size_t n;
    *out = (mx_series){0};
    MX_TRY(mx_io_read_file(NULL, path, (size_t)1 << 32, &text, &n));
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    out->x = MX_NEW_N(a, double, lines + 1);
    out->y = MX_NEW_N(a, double, lines + 1);
    mx_status st = MX_OK;
    int64_t line = 1;
    for (size_t at = 0; !st && at < n; line++) {
        const char *eol = memchr(text + at, '\n', n - at);
        size_t len = eol ? (size_t)(eol - text) - at : n - at;
        json_error_t e;
        json_t *j = json_loadb(text + at, len, 0, &e);
        double x, y;
        if (!j && eol)
            st = mx_fail(MX_INPUT, "%s:%lld: not a JSON object: %s", path, (long long)line, e.text);
        else if (j && number_of(json_object_get(j, "step"), &x) &&
                 number_of(json_object_get(j, name), &y)) {
            out->x[out->n] = x;
            out->y[out->n++] = y;
        }
        json_decref(j);
        at += len + 1;
    }
    mx_free(text);
    return st;
}
