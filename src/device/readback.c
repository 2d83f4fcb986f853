/* readback.c - numbers of a run that are read while the next one goes on. */
#include "device/session_impl.h"

mx_status mx_readback_open(mx_readback *r, mx_session *s, int n)
{
    mx_device *d = s->device;
    void *host = NULL;
    size_t bytes = sizeof(double) * ((size_t)n / 2 + 1);
    *r = (mx_readback){.session = s, .n = n};
    MX_TRY(d->readback ? d->readback->open(d, bytes + sizeof(double), &host, &r->mark)
                       : mx_alloc(&host, bytes + sizeof(double), "the numbers of a step"));
    r->value = host;
    r->clock = (double *)((char *)host + bytes);
    return MX_OK;
}

mx_status mx_readback_copy(mx_readback *r, mx_exec *e, const char *name, int i)
{
    const mx_type *t = mx_exec_type(e, name);
    return mx_readback_copy_part(r, e, name, &(mx_readback_part){0, t ? mx_type_count(t) : 0, i});
}

mx_status mx_readback_copy_part(mx_readback *r, mx_exec *e, const char *name,
                                const mx_readback_part *p)
{
    const mx_type *t = mx_exec_type(e, name);
    mx_device *d = r->session->device;
    MX_ASSERT(t && mx_dtype_bytes(t->dtype) == sizeof(float) &&
                  p->from + p->n <= mx_type_count(t) && p->to + p->n <= r->n,
              "the program has no %s of at most %d numbers", name, (int)(r->n - p->to));
    mx_device_buffer whole = mx_exec_buffer(e, name);
    mx_device_buffer from = mx_device_range(whole, sizeof(float) * (size_t)p->from,
                                            sizeof(float) * (size_t)p->n);
    float *to = &r->value[p->to];
    return r->mark ? d->readback->copy(d, to, from) : d->read(d, to, from);
}

mx_status mx_readback_clock(mx_readback *r)
{
    mx_device *d = r->session->device;
    return r->mark ? d->readback->clock(d, r->clock) : MX_OK;
}

mx_status mx_readback_mark(mx_readback *r)
{
    mx_device *d = r->session->device;
    return r->mark ? d->readback->mark(d, r->mark) : MX_OK;
}

mx_status mx_readback_wait(mx_readback *r)
{
    mx_device *d = r->session->device;
    return r->mark ? d->readback->wait(d, r->mark) : MX_OK;
}

void mx_readback_close(mx_readback *r)
{
    if (r->mark)
        r->session->device->readback->close(r->session->device, r->value, r->mark);
    else
        mx_free(r->value);
    *r = (mx_readback){0};
}
