/* server_read.c - requests are read, and calls go on to the engine. In the readers' threads. */
#include "base/machine.h"
#include "serve/server_impl.h"

enum { MUCH = 1 << 20 }; /* a body beyond this leaves much memory behind */

/* Why so many more answers are not taken now: true. The lock is held. */
static bool refuses(mx_server *s, int64_t parts, mx_api_error *why)
{
    bool broken = s->broken, full = s->n_calls + parts > s->o.most_calls && s->n_calls > 0;
    if (s->draining || broken)
        *why = (mx_api_error){503, broken ? "the engine has failed" : "the server is stopping",
                              NULL, "unavailable"};
    else if (full)
        *why = (mx_api_error){429, "too many requests wait; come back later", NULL, "queue_full"};
    return s->draining || broken || full;
}

/* Hands the call to the engine, unless there are too many: the answer is an error. */
static void enqueue(mx_exchange *x)
{
    mx_server *s = x->server;
    mx_api_error why;
    pthread_mutex_lock(&s->lock);
    bool refused = refuses(s, x->call.n_parts, &why);
    if (!refused) {
        s->n_calls += x->call.n_parts;
        x->holders++; /* before anyone else has it */
        x->next = NULL;
        *(s->fresh ? &s->last_fresh->next : &s->fresh) = x;
        s->last_fresh = x;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    if (refused)
        mx_exchange_refuse(x, &why);
}

static void read_call(mx_exchange *x)
{
    mx_server *s = x->server;
    mx_api_error why;
    int status = 0;
    pthread_mutex_lock(&s->lock);
    bool refused = refuses(s, 1, &why); /* it may cost seconds to read */
    pthread_mutex_unlock(&s->lock);
    if (refused) {
        mx_exchange_refuse(x, &why);
        return;
    }
    x->is_call = mx_api_call_read(&x->call, s->served, x->api, mx_str_text(&x->body), x->body.len,
                                  &status, &x->out);
    mx_exchange_drop_body(x);
    if (x->is_call)
        enqueue(x);
    else
        mx_exchange_give(x, NULL, status, true);
}

void mx_exchange_read(mx_exchange *x)
{
    bool much = x->body.len > MUCH;
    if (mx_exchange_hung_up(x)) {
        mx_exchange_give(x, NULL, 499, true);
    } else if (x->api) {
        read_call(x);
    } else {
        x->endpoint->answer(x);
        mx_exchange_drop_body(x);
        mx_exchange_give(x, NULL, x->status, true);
    }
    mx_exchange_release(x);
    if (much)
        mx_machine_return_memory();
}

mx_status mx_server_on_engine(mx_server *s, mx_status (*run)(void *ctx), void *ctx)
{
    mx_errand e = {.run = run, .ctx = ctx};
    pthread_mutex_lock(&s->lock);
    bool taken = !s->closed && !s->broken;
    if (taken) {
        e.next = s->errands;
        s->errands = &e;
        pthread_cond_signal(&s->wake);
        while (!e.done)
            pthread_cond_wait(&s->errand_done, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return taken ? e.result : mx_fail(MX_STOPPED, "the engine takes no more work");
}
