/* coord_channels.c - in which collective calls this process is, for its heartbeat to tell. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/utf8.h"
#include <stdio.h>

mx_status mx_coord_channel_open(mx_coord *c, int *channel, uint32_t *opened)
{
    for (int i = 0; i < MX_COORD_CHANNELS; i++)
        if (!c->channel[i].open) {
            c->channel[i].open = true;
            *opened = c->channel[i].opened = ++c->channels_opened;
            atomic_store(&c->channel[i].number, (uint64_t)c->channel[i].opened << 40);
            *channel = i;
            return MX_OK;
        }
    return mx_fail(MX_DEVICE, "more than %d communicators at a time", MX_COORD_CHANNELS);
}

void mx_coord_channel_close(mx_coord *c, int channel)
{
    mx_coord_leave(c, channel);
    c->channel[channel].open = false;
}

static int64_t now_ns(void)
{
    return (int64_t)(mx_clock_now() * 1e9);
}

static void enter(mx_coord_channel *l, const char *call, uint64_t number, int peer)
{
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock) == 0)
        atomic_store(&l->clock, clock);
    atomic_store(&l->call, call);
    atomic_store(&l->peer, peer);
    atomic_store(&l->is_message, peer >= 0);
    atomic_store(&l->number, (uint64_t)l->opened << 40 | number);
    atomic_store(&l->since_ns, now_ns());
}

void mx_coord_enter(mx_coord *c, int channel, const char *call, uint64_t number)
{
    enter(&c->channel[channel], call, number, -1);
}

void mx_coord_enter_with(mx_coord *c, int channel, const char *call, uint64_t number, int peer)
{
    enter(&c->channel[channel], call, number, peer);
}

void mx_coord_waits_for(mx_coord *c, int channel, int peer)
{
    atomic_store(&c->channel[channel].peer, peer);
}

void mx_coord_progress(mx_coord *c, int channel)
{
    atomic_store(&c->channel[channel].since_ns, now_ns());
}

void mx_coord_leave(mx_coord *c, int channel)
{
    atomic_store(&c->channel[channel].since_ns, 0);
}

void mx_coord_look_at_channels(mx_coord *c, double now)
{
    for (int i = 0; i < MX_COORD_CHANNELS; i++) {
        mx_coord_channel *l = &c->channel[i];
        bool in_call = atomic_load(&l->since_ns) != 0;
        double ran_for = in_call ? mx_clock_of(atomic_load(&l->clock)) : 0;
        if (!in_call || ran_for != l->ran_for_s)
            l->ran_at = now;
        l->ran_for_s = ran_for;
    }
}

void mx_coord_forgive_waits(mx_coord *c, double seconds)
{
    for (int i = 0; i < MX_COORD_CHANNELS; i++) {
        int64_t since = atomic_load(&c->channel[i].since_ns);
        c->channel[i].ran_at += seconds;
        if (since) /* unless the call has just ended, or moved */
            atomic_compare_exchange_strong(&c->channel[i].since_ns, &since,
                                           since + (int64_t)(seconds * 1e9));
    }
}

mx_coord_channel_state mx_coord_own_channel(const mx_coord *c, int channel)
{
    const mx_coord_channel *l = &c->channel[channel];
    int64_t since = atomic_load(&l->since_ns);
    const char *call = atomic_load(&l->call);
    mx_coord_channel_state s = {.number = atomic_load(&l->number),
                                .waits_s = -1,
                                .peer = atomic_load(&l->peer),
                                .is_message = atomic_load(&l->is_message)};
    snprintf(s.call, sizeof s.call, "%s", call ? call : "");
    if (since) {
        s.waits_s = 1e-9 * (double)(now_ns() - since);
        s.still_s = mx_clock_now() - l->ran_at;
    }
    return s;
}

static uint64_t in_ms(double s)
{
    return s < 0 ? 0 : s > 4e6 ? 4000000000u : (uint64_t)(s * 1000);
}

void mx_coord_queue_beat(mx_coord *c, mx_coord_link *l, double now)
{
    mx_wire_frame frame, *f = &frame;
    int n = MX_COORD_CHANNELS;
    while (n > 0 && !atomic_load(&c->channel[n - 1].number))
        n--;
    mx_wire_begin(f, MX_WIRE_BEAT);
    mx_wire_put_int(f, (uint64_t)n, 1);
    for (int i = 0; i < n; i++) {
        mx_coord_channel_state s = mx_coord_own_channel(c, i);
        mx_wire_put_int(f, s.number, 8);
        mx_wire_put_int(f, s.waits_s < 0 ? UINT32_MAX : in_ms(s.waits_s), 4);
        mx_wire_put_int(f, in_ms(s.still_s), 4);
        mx_wire_put_int(f, (uint64_t)(s.peer + 1), 4);
        mx_wire_put_int(f, s.is_message, 1);
        mx_wire_put(f, s.call, sizeof s.call);
    }
    if (mx_coord_link_queue(l, f))
        l->beat_at = now;
}

void mx_coord_queue_bye(mx_coord *c, mx_coord_link *l, double now)
{
    mx_wire_frame f;
    if (l->said_bye || c->why[0])
        return;
    mx_coord_queue_beat(c, l, now);
    mx_wire_begin(&f, MX_WIRE_BYE);
    l->said_bye = mx_coord_link_queue(l, &f);
}

bool mx_coord_take_beat(mx_rank *m, mx_wire_frame *f)
{
    int n = (int)mx_wire_get_int(f, 1);
    if (n > MX_COORD_CHANNELS)
        return false;
    for (int i = 0; i < n; i++) {
        mx_coord_channel_state *s = &m->channel[i];
        char call[MX_COORD_CALL];
        s->number = mx_wire_get_int(f, 8);
        uint64_t ms = mx_wire_get_int(f, 4);
        s->waits_s = ms == UINT32_MAX ? -1 : 1e-3 * (double)ms;
        s->still_s = 1e-3 * (double)mx_wire_get_int(f, 4);
        s->peer = (int)(uint32_t)(mx_wire_get_int(f, 4) - 1);
        s->is_message = mx_wire_get_int(f, 1) != 0;
        mx_wire_get(f, call, sizeof call);
        mx_printable(s->call, sizeof s->call, call, sizeof call);
    }
    for (int i = n; i < MX_COORD_CHANNELS; i++)
        m->channel[i] = (mx_coord_channel_state){.waits_s = -1, .peer = -1};
    return mx_wire_is_read(f);
}
