/* coord_link.c - frames to and from one other rank; see coord_impl.h. */
#include "dist/coord_impl.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

mx_coord_link *mx_coord_link_new(mx_arena *a)
{
    mx_coord_link *l = MX_NEW(a, mx_coord_link);
    l->fd = -1;
    return l;
}

mx_wire_keys mx_coord_agree(const mx_auth_key *secret, const mx_coord_nonces *n, bool is_root)
{
    mx_auth_key up = mx_auth_derive(secret, "member to root", n, sizeof *n);
    mx_auth_key down = mx_auth_derive(secret, "root to member", n, sizeof *n);
    return (mx_wire_keys){.agreed = true, .in = is_root ? up : down, .out = is_root ? down : up};
}

bool mx_coord_link_queue(mx_coord_link *l, mx_wire_frame *f)
{
    if (l->out_at == l->out_n)
        l->out_at = l->out_n = 0;
    if (l->out_n + f->n + MX_AUTH_MAC > sizeof l->out)
        return false;
    mx_wire_end(f, &l->keys);
    memcpy(l->out + l->out_n, f->bytes, f->n);
    l->out_n += f->n;
    return true;
}

bool mx_coord_link_flush(mx_coord_link *l)
{
    while (l->out_at < l->out_n) {
        ssize_t k =
            send(l->fd, l->out + l->out_at, l->out_n - l->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EAGAIN)
            return true;
        if (k <= 0)
            return false;
        l->out_at += (size_t)k;
    }
    return true;
}

bool mx_coord_link_is_idle(const mx_coord_link *l)
{
    return l->out_at == l->out_n;
}

bool mx_coord_link_is_delivered(const mx_coord_link *l)
{
    int left = 0;
    return mx_coord_link_is_idle(l) && (ioctl(l->fd, SIOCOUTQ, &left) || left == 0);
}
