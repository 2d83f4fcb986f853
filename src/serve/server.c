/* server.c - the engine's side: calls in, steps, answers out. */
#include "serve/server.h"

#include "base/clock.h"
#include "base/signals.h"
#include "serve/server_impl.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How often clients are polled for having disconnected. */
static const double POLL_S = 0.5;

bool mx_server_healthy(mx_server *s, mx_str *why)
{
    pthread_mutex_lock(&s->lock);
    double idle = mx_clock_now() - s->last_step;
    if (s->broken)
        mx_str_addf(why, "the engine has failed: %s", s->broken);
    else if (!s->idle && idle > s->o.stuck_s)
        mx_str_addf(why, "the engine has made no step for %.3g s", idle);
    else if (s->draining)
        mx_str_add(why, "the server is stopping");
    pthread_mutex_unlock(&s->lock);
    return !why->len;
}

/* --- calls --- */

/* The engine's side of a call is over. */
static void drop(mx_server *s, mx_exchange *x, bool gone)
{
    for (int i = 0; i < x->call.n_parts; i++) {
        mx_request *r = x->call.part[i].r;
        if (!r)
            continue;
        pthread_mutex_lock(&s->lock);
        mx_server_metrics_add(&s->metrics, r, x->call.o.max_new, gone && !r->finish);
        pthread_mutex_unlock(&s->lock);
        mx_engine_cancel(s->engine, r);
        x->call.part[i].r = NULL;
    }
    pthread_mutex_lock(&s->lock);
    s->n_calls -= x->call.n_parts;
    pthread_mutex_unlock(&s->lock);
    for (mx_exchange **at = &s->calls; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    mx_exchange_release(x);
}

static void fail_call(mx_server *s, mx_exchange *x, mx_status why)
{
    mx_str text = {0};
    int status;
    x->call.stream = x->streams; /* one that has not begun gets a status */
    mx_api_call_fail(&x->call, why, &status, &text);
    mx_exchange_give(x, &text, status, true);
    mx_str_fini(&text);
    drop(s, x, false);
}

/* What other threads wait for. */
static void run_errands(mx_server *s)
{
    pthread_mutex_lock(&s->lock);
    mx_errand *e = s->errands;
    s->errands = NULL;
    pthread_mutex_unlock(&s->lock);
    for (mx_errand *next; e; e = next) {
        next = e->next;
        mx_status st = e->run(e->ctx);
        pthread_mutex_lock(&s->lock);
        e->result = st;
        e->done = true;
        pthread_cond_broadcast(&s->errand_done);
        pthread_mutex_unlock(&s->lock);
    }
}

static void admit(mx_server *s, mx_exchange *x)
{
    mx_api_call *c = &x->call;
    mx_status st = MX_OK;
    x->next = s->calls;
    s->calls = x;
    pthread_mutex_lock(&s->lock);
    mx_server_metrics_call(&s->metrics, c->n);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < c->n_parts && !st; i++) {
        mx_part *p = &c->part[i];
        mx_request_options o = c->o;
        o.stream = (uint64_t)(i % c->best_of);
        o.owner = p;
        o.constraint = p->constraint;
        st = mx_engine_admit(s->engine, &c->prompts[p->prompt], &o, &p->r);
        if (!st)
            p->constraint = NULL; /* the engine's now */
    }
    if (st)
        fail_call(s, x, st);
    else if (c->stream)
        mx_exchange_stream(x);
}

static mx_exchange *exchange_of(mx_api_call *c)
{
    return (mx_exchange *)((char *)c - offsetof(mx_exchange, call));
}

static void give_news(mx_server *s, mx_request *r)
{
    mx_part *p = r->owner;
    mx_exchange *x = exchange_of(p->call);
    if (r->finish == MX_FINISH_ERROR) {
        mx_status why = r->error;
        r->error = MX_OK;
        fail_call(s, x, why);
        return;
    }
    pthread_mutex_lock(&s->lock);
    mx_server_metrics_news(&s->metrics, r, &p->n_timed, &p->timed_at);
    pthread_mutex_unlock(&s->lock);
    mx_str text = {0};
    bool done = mx_api_call_news(p->call, p, &text);
    mx_exchange_give(x, &text, 200, done);
    mx_str_fini(&text);
    if (done) {
        drop(s, x, false);
    } else if (r->finish) { /* other answers of the call go on */
        pthread_mutex_lock(&s->lock);
        mx_server_metrics_add(&s->metrics, r, p->call->o.max_new, false);
        pthread_mutex_unlock(&s->lock);
        mx_engine_cancel(s->engine, r);
        p->r = NULL;
    }
}

/* Calls that have taken too long and, where `polls`, those whose clients have gone. */
static void poll_calls(mx_server *s, bool polls)
{
    for (mx_exchange *x = s->calls, *next; x; x = next) {
        next = x->next;
        if (polls && mx_exchange_hung_up(x)) {
            mx_exchange_give(x, NULL, 499, true);
            drop(s, x, true);
        } else if (s->o.call_s > 0 && mx_clock_now() - x->began > s->o.call_s) {
            fail_call(s, x, mx_fail(MX_DEVICE, "the request took longer than %g s", s->o.call_s));
        }
    }
}

/* --- the loop --- */

/* New calls; waits for one where there is nothing to do. */
static mx_exchange *take_fresh(mx_server *s, bool idle)
{
    pthread_mutex_lock(&s->lock);
    mx_engine_counts now = mx_engine_count(s->engine);
    bool moved = idle || now.steps != s->counts.steps;
    if (now.steps != s->counts.steps)
        mx_server_metrics_step(&s->metrics, now.batch_tokens - s->counts.batch_tokens);
    s->counts = now;
    if (idle && !s->fresh && !s->errands) {
        struct timespec t = mx_clock_after(0.2);
        pthread_cond_timedwait(&s->wake, &s->lock, &t);
    }
    mx_exchange *x = s->fresh;
    s->idle = idle && !x;
    if (moved)
        s->last_step = mx_clock_now();
    s->fresh = NULL;
    pthread_mutex_unlock(&s->lock);
    return x;
}

static void break_down(mx_server *s, mx_status why)
{
    fprintf(stderr, "error: the engine has failed: %s\n", mx_status_text(why));
    pthread_mutex_lock(&s->lock);
    s->broken = mx_strdup(mx_status_text(why));
    pthread_mutex_unlock(&s->lock);
    while (s->calls)
        fail_call(s, s->calls, mx_fail(MX_DEVICE, "the engine has failed"));
}

/* A signal has come: no new calls, those under way are finished as long as there is time. */
static bool drained(mx_server *s)
{
    int sig = mx_stop_signal();
    if (!sig)
        return false;
    bool first = !s->draining;
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    int64_t left = s->n_calls;
    pthread_mutex_unlock(&s->lock);
    if (first)
        fprintf(stderr, "stopping: %lld requests are finished first\n", (long long)left);
    return left == 0 || mx_stop_age() > s->o.drain_s || mx_stop_count() > 1;
}

/* Those that wait are run, and no more are taken. */
static void close_errands(mx_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_mutex_unlock(&s->lock);
    run_errands(s);
}

/* Answers that are complete still have to be written. */
static void flush_and_stop(mx_server *s)
{
    close_errands(s);
    mx_readers_stop(s->readers); /* they refuse the rest, as it drains */
    while (s->calls)
        fail_call(s, s->calls, mx_fail(MX_STOPPED, "the server has stopped"));
    for (mx_exchange *x = take_fresh(s, false), *next; x; x = next) {
        next = x->next;
        x->next = s->calls;
        s->calls = x;
        fail_call(s, x, mx_fail(MX_STOPPED, "the server has stopped"));
    }
    double start = mx_clock_now();
    for (bool open = true; open && mx_clock_now() - start < 2;) {
        const union MHD_DaemonInfo *i =
            s->mhd.get_daemon_info(s->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        open = i && i->num_connections > 0;
        struct timespec t = {.tv_nsec = 20000000};
        nanosleep(&t, NULL);
    }
    mx_http_stop(s);
}

mx_status mx_server_run(mx_server *s)
{
    double polled = 0;
    while (!drained(s)) {
        for (mx_exchange *x = take_fresh(s, !mx_engine_busy(s->engine)), *next; x; x = next) {
            next = x->next;
            admit(s, x);
        }
        run_errands(s);
        mx_status st = mx_engine_step(s->engine);
        if (st) {
            break_down(s, st);
            mx_status_free(st);
        }
        for (mx_request *r; !st && (r = mx_engine_take(s->engine));)
            give_news(s, r);
        bool polls = mx_clock_now() - polled > POLL_S;
        poll_calls(s, polls);
        if (polls)
            mx_links_sweep(&s->links);
        polled = polls ? mx_clock_now() : polled;
    }
    flush_and_stop(s);
    return MX_OK;
}

/* --- open, close --- */

mx_status mx_server_open(mx_server **out, mx_engine *e, const mx_served *served,
                         const mx_server_options *o)
{
    mx_server *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_server){.engine = e, .served = served, .o = *o, .last_step = mx_clock_now()};
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &a);
    pthread_condattr_destroy(&a);
    pthread_cond_init(&s->errand_done, NULL);
    mx_links_init(&s->links);
    pthread_mutex_init(&s->lock, NULL);
    s->counts = mx_engine_count(e);
    *out = NULL;
    mx_status st = mx_readers_start(&s->readers, mx_exchange_read);
    if (!st)
        st = mx_http_start(s);
    if (st)
        mx_server_close(s);
    else
        *out = s;
    return st;
}

void mx_server_close(mx_server *s)
{
    if (!s)
        return;
    close_errands(s);
    mx_readers_stop(s->readers);
    mx_http_stop(s);
    mx_readers_close(s->readers);
    mx_links_fini(&s->links);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->errand_done);
    pthread_mutex_destroy(&s->lock);
    mx_free(s->broken);
    mx_free(s);
}
