/* progress.h - what a run shows while it works: one live line on a terminal, plain lines elsewhere.
 *
 *     1,200/5,000 24% ━━━╺──── │ loss 3.214 ↘ ▇▅▃▂ │ 52.1k tok/s
 *     step 1200/5000  loss 3.2140  52.1k tok/s  MFU 41.3%  eta 12m40s  saved 1000
 * The live line is rewritten in place and never wraps: fields that do not fit are left out, the
 * least needed first. TERM=dumb, and any file or pipe, get plain lines without a single escape
 * sequence. Characters beyond ASCII are used only where the locale's environment says UTF-8.
 *
 * Plain lines, which also go to the log, are written for the first step and the last, every
 * plain_every steps, and so that no more than plain_seconds pass without one: also before the first
 * step ("loading weights: 30s so far") and within a long one ("step 7: 30s so far").
 *
 * Nothing here allocates after the first update. One thread at a time.
 */
#ifndef MX_BASE_PROGRESS_H
#define MX_BASE_PROGRESS_H

#include "base/str.h"
#include <pthread.h>

/* What is unknown is NaN (doubles) or NULL. */
typedef struct {
    int64_t step, steps; /* steps 0: not known */
    double loss;
    const char *loss_name; /* where another number stands in its place: "reward"; NULL: "loss" */
    double tokens_per_s;
    double mfu; /* 0..1 */
    double eta_s;
    const char *checkpoint; /* "saved 1000", "writing 1200 (43%)", "FAILED: disk full" */
} mx_progress_state;

typedef struct {
    int fd;              /* 1 or 2, usually */
    double interval_s;   /* between rewrites of the live line; 0 is every update */
    int64_t plain_every; /* steps between plain lines; 0 is 1 */
    double plain_seconds; /* at most between plain lines; 0: as the steps come */
    /* off: nothing but the log */
    enum { MX_PROGRESS_AUTO, MX_PROGRESS_LIVE, MX_PROGRESS_PLAIN, MX_PROGRESS_OFF } mode;
    int width; /* columns; 0 asks the terminal */
    enum { MX_CHARSET_AUTO, MX_CHARSET_UTF8, MX_CHARSET_ASCII } charset;
    int log_fd; /* messages and plain lines go here too, each with its time; 0: nowhere */
} mx_progress_options;

enum { MX_PROGRESS_HISTORY = 64 };
typedef struct {
    mx_progress_options o;
    bool live, utf8, drawn, drawn_busy; /* drawn_busy: the line is what is being done */
    double last_drawn, last_said;     /* seconds, monotonic */
    double loss[MX_PROGRESS_HISTORY]; /* ring of recent losses */
    int64_t n_loss;
    mx_str line, frame, entry, busy;
    mx_progress_state last; /* as updated last, */
    char last_checkpoint[96];
    int64_t plain_step; /* and the step of the last plain line */
    char phase[160]; /* what is being done; "": steps */
    int64_t step;    /* the last that ended */
    double since;    /* when it did, or the phase began */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t ticker;
    bool ticks, closing;
} mx_progress;

void mx_progress_init(mx_progress *p, const mx_progress_options *o);
/* A log for everything that is printed from now on; 0: none. */
void mx_progress_log_to(mx_progress *p, int fd);
/* What is being done from now on: "compiling", "loading weights". */
void mx_progress_phase(mx_progress *p, const char *fmt, ...) MX_PRINTF(2, 3);
/* The same, printed only when it takes long. */
void mx_progress_doing(mx_progress *p, const char *what);
void mx_progress_begin(mx_progress *p, int64_t step); /* from now on steps, after this one */
void mx_progress_update(mx_progress *p, const mx_progress_state *s);
void mx_progress_end(mx_progress *p); /* no more steps: prints the last one, if it was not */
/* A message of its own line: printed above the live line, or as it is. A newline is added. */
void mx_progress_say(mx_progress *p, const char *fmt, ...) MX_PRINTF(2, 3);
/* Leaves the last state on the screen and moves below it. Zero-initialised is a no-op. */
void mx_progress_fini(mx_progress *p);

/* The pieces, for tests and for other displays. */
void mx_progress_line(const mx_progress *p, const mx_progress_state *s, int width, mx_str *out);
void mx_progress_plain(const mx_progress_state *s, mx_str *out);
void mx_progress_cut(mx_str *s, size_t from, int width); /* to this many columns, between
                                                          * characters */
/* "12m40s", "3h05m", "2d4h", "40s" into the caller's buffer, which is returned. */
const char *mx_format_duration(char *buf, size_t cap, double seconds);
/* Columns a text takes on a terminal (UTF-8; wide characters are not used here). */
int mx_text_columns(const char *text);

#endif
