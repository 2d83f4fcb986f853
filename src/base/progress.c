/* progress.c - when the lines are written, and where: see progress.h. Their text is in
 * progress_line.c.
 *
 * A separate thread keeps plain lines coming, and the seconds of the live line going, while the run
 * is busy with something long.
 */
#include "base/progress.h"

#include "base/clock.h"
#include "base/shown.h"
#include "base/signals.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const double LIVE_SECONDS = 1; /* between rewrites while nothing comes */

/* --- the terminal --- */
static bool environment_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *v = getenv(names[i]);
        if (v && *v)
            return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

static int columns(const mx_progress *p)
{
    struct winsize w;
    int64_t n;
    const char *env = getenv("COLUMNS");
    if (p->o.width > 0)
        return p->o.width;
    if (ioctl(p->o.fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return env && mx_parse_i64(env, &n) && n > 0 && n < 10000 ? (int)n : 80;
}

/* A terminal that went away, or a full disk, is no reason to stop a run: what cannot be written is
 * dropped. */
static void put_to(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t k = write(fd, text, n);
        if (k <= 0)
            return;
        text += k;
        n -= (size_t)k;
    }
}

static void put(const mx_progress *p, const char *text, size_t n)
{
    put_to(p->o.fd, text, n);
}

/* Text that ends with a newline, led by the time. */
static void put_log(mx_progress *p, const char *text)
{
    char when[32];
    struct tm parts;
    time_t now = time(NULL);
    if (p->o.log_fd <= 0)
        return;
    localtime_r(&now, &parts);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S ", &parts);
    mx_str_clear(&p->entry);
    mx_str_add(&p->entry, when);
    mx_str_add(&p->entry, text);
    put_to(p->o.log_fd, p->entry.text, p->entry.len);
}

static void draw(mx_progress *p)
{
    mx_str_clear(&p->frame);
    mx_str_add(&p->frame, "\r");
    mx_str_add_n(&p->frame, mx_str_text(&p->line), p->line.len);
    mx_str_add(&p->frame, "\x1b[K");
    put(p, p->frame.text, p->frame.len);
    p->drawn = true;
    mx_stop_clears_line(true);
}

/* Above the live line, or as it is. */
static void put_line(mx_progress *p, const char *text)
{
    p->last_said = mx_clock_now();
    if (p->o.mode == MX_PROGRESS_OFF)
        return;
    mx_str_clear(&p->frame);
    mx_str_addf(&p->frame, "%s%s", p->drawn ? "\r\x1b[K" : "", text);
    put(p, p->frame.text, p->frame.len);
    if (p->drawn)
        draw(p);
}

/* --- what is being done --- */

/* "loading weights: 42s so far": the phase, or the step that has not ended. */
static void add_busy(const mx_progress *p, mx_str *out)
{
    char took[32];
    mx_format_duration(took, sizeof took, mx_clock_now() - p->since);
    if (*p->phase)
        mx_str_addf(out, "%s: %s so far", p->phase, took);
    else
        mx_str_addf(out, "step %lld: %s so far", (long long)p->step + 1, took);
}

/* Nothing has come for a while. */
static void tick(mx_progress *p)
{
    double now = mx_clock_now();
    bool silent = now - p->last_said >= p->o.plain_seconds;
    mx_str_clear(&p->busy);
    add_busy(p, &p->busy);
    if (p->live && (*p->phase || !p->n_loss)) {
        mx_str_clear(&p->line);
        mx_str_add(&p->line, mx_str_text(&p->busy));
        mx_progress_cut(&p->line, 0, columns(p) - 1);
        draw(p);
        p->drawn_busy = true;
    }
    if (!silent)
        return;
    mx_str_add(&p->busy, "\n");
    put_log(p, mx_str_text(&p->busy));
    p->last_said = now;
    if (!p->live)
        put_line(p, mx_str_text(&p->busy));
}

static void *tick_on(void *arg)
{
    mx_progress *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        struct timespec until;
        double wait = p->live && LIVE_SECONDS < p->o.plain_seconds ? LIVE_SECONDS
                                                                   : p->o.plain_seconds;
        double at = fmax(p->last_said + p->o.plain_seconds, mx_clock_now());
        at = fmin(at, mx_clock_now() + wait) + 1e-3;
        until = (struct timespec){.tv_sec = (time_t)at, .tv_nsec = (long)(1e9 * fmod(at, 1))};
        pthread_cond_timedwait(&p->wake, &p->lock, &until);
        if (!p->closing)
            tick(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void start_ticks(mx_progress *p)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &a);
    pthread_condattr_destroy(&a);
    p->ticks = pthread_create(&p->ticker, NULL, tick_on, p) == 0; /* without it, fewer messages */
    if (p->ticks)
        pthread_setname_np(p->ticker, "progress");
}

void mx_progress_init(mx_progress *p, const mx_progress_options *o)
{
    double now = mx_clock_now();
    *p = (mx_progress){.o = *o, .last_drawn = -1e9, .last_said = now, .since = now,
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    const char *term = getenv("TERM");
    bool dumb = !term || !*term || strcmp(term, "dumb") == 0;
    p->live =
        o->mode == MX_PROGRESS_LIVE || (o->mode == MX_PROGRESS_AUTO && isatty(o->fd) && !dumb);
    p->utf8 = o->charset == MX_CHARSET_AUTO ? environment_is_utf8() : o->charset == MX_CHARSET_UTF8;
    p->o.plain_every = o->plain_every > 0 ? o->plain_every : 1;
    if (o->plain_seconds > 0 && o->mode != MX_PROGRESS_OFF)
        start_ticks(p);
}

void mx_progress_log_to(mx_progress *p, int fd)
{
    pthread_mutex_lock(&p->lock);
    p->o.log_fd = fd;
    pthread_mutex_unlock(&p->lock);
}

void mx_progress_phase(mx_progress *p, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&p->lock);
    va_start(ap, fmt);
    vsnprintf(p->phase, sizeof p->phase, fmt, ap);
    va_end(ap);
    p->since = mx_clock_now();
    mx_str_clear(&p->busy);
    mx_str_addf(&p->busy, "%s\n", p->phase);
    put_log(p, mx_str_text(&p->busy));
    if (!p->live)
        put_line(p, mx_str_text(&p->busy));
    else
        tick(p);
    pthread_mutex_unlock(&p->lock);
}

void mx_progress_doing(mx_progress *p, const char *what)
{
    pthread_mutex_lock(&p->lock);
    snprintf(p->phase, sizeof p->phase, "%s", what);
    p->since = mx_clock_now();
    pthread_mutex_unlock(&p->lock);
}

void mx_progress_begin(mx_progress *p, int64_t step)
{
    pthread_mutex_lock(&p->lock);
    *p->phase = 0;
    p->step = step;
    p->since = mx_clock_now();
    pthread_mutex_unlock(&p->lock);
}

/* --- steps --- */

static void put_plain(mx_progress *p)
{
    mx_str_clear(&p->busy);
    mx_progress_plain(&p->last, &p->busy);
    put_log(p, mx_str_text(&p->busy));
    p->last_said = mx_clock_now();
    p->plain_step = p->last.step;
    if (!p->live)
        put_line(p, mx_str_text(&p->busy));
}

static void remember(mx_progress *p, const mx_progress_state *s)
{
    p->last = *s;
    snprintf(p->last_checkpoint, sizeof p->last_checkpoint, "%s",
             s->checkpoint ? s->checkpoint : "");
    p->last.checkpoint = p->last_checkpoint;
    p->step = s->step;
    p->since = mx_clock_now();
}

static void draw_last(mx_progress *p)
{
    p->last_drawn = mx_clock_now();
    mx_str_clear(&p->line);
    /* the last column is left free: writing it makes some terminals wrap */
    mx_progress_line(p, &p->last, columns(p) - 1, &p->line);
    draw(p);
    p->drawn_busy = false;
}

static void update(mx_progress *p, const mx_progress_state *s)
{
    double now = mx_clock_now();
    bool first = !p->n_loss, last = s->steps > 0 && s->step >= s->steps;
    bool late = p->o.plain_seconds > 0 && now - p->last_said >= p->o.plain_seconds;
    p->loss[p->n_loss++ % MX_PROGRESS_HISTORY] = s->loss;
    if (p->o.mode == MX_PROGRESS_OFF)
        return;
    remember(p, s);
    if (first || last || late || s->step % p->o.plain_every == 0)
        put_plain(p);
    if (p->live && (last || now - p->last_drawn >= p->o.interval_s))
        draw_last(p);
}

void mx_progress_update(mx_progress *p, const mx_progress_state *s)
{
    pthread_mutex_lock(&p->lock);
    update(p, s);
    pthread_mutex_unlock(&p->lock);
}

void mx_progress_end(mx_progress *p)
{
    pthread_mutex_lock(&p->lock);
    bool shown = p->n_loss && p->o.mode != MX_PROGRESS_OFF;
    if (shown && p->plain_step != p->last.step)
        put_plain(p);
    if (shown && p->live)
        draw_last(p);
    pthread_mutex_unlock(&p->lock);
    mx_progress_doing(p, "ending the run");
}

void mx_progress_say(mx_progress *p, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&p->lock);
    mx_str_clear(&p->busy);
    va_start(ap, fmt);
    mx_str_addv(&p->busy, fmt, ap);
    va_end(ap);
    mx_str_add(&p->busy, "\n");
    mx_replace_controls(p->busy.text);
    put_log(p, mx_str_text(&p->busy));
    put_line(p, mx_str_text(&p->busy));
    pthread_mutex_unlock(&p->lock);
}

void mx_progress_fini(mx_progress *p)
{
    if (p->ticks) {
        pthread_mutex_lock(&p->lock);
        p->closing = true;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->ticker, NULL);
    }
    if (p->drawn && p->n_loss) {
        if (p->drawn_busy) /* the last step stays, what was done after it does not */
            draw_last(p);
        put(p, "\n", 1);
    } else if (p->drawn) {
        put(p, "\r\x1b[K", 4);
    }
    mx_stop_clears_line(false);
    mx_str_fini(&p->line);
    mx_str_fini(&p->frame);
    mx_str_fini(&p->entry);
    mx_str_fini(&p->busy);
    *p = (mx_progress){0};
}
