/* wire.c - see wire.h. */
#include "dist/wire.h"

#include "base/utf8.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static const uint32_t MAGIC = 0x3163786d; /* "mxc1" */

static const struct {
    uint16_t least, most; /* bytes of the body */
    bool is_signed;
} kinds[MX_WIRE_KINDS] = {
    [MX_WIRE_HELLO] = {2 + MX_AUTH_NONCE, 2 + MX_AUTH_NONCE, false},
    [MX_WIRE_CHALLENGE] = {3 + MX_AUTH_ID + MX_AUTH_NONCE, 3 + MX_AUTH_ID + MX_AUTH_NONCE, false},
    [MX_WIRE_DENIED] = {3, 3, false},
    [MX_WIRE_CARD] = {20, 128, true},
    [MX_WIRE_PARTS] = {4, MX_WIRE_BODY, true},
    [MX_WIRE_REFUSED] = {7, 128, true},
    [MX_WIRE_WELCOME] = {4 + MX_AUTH_NONCE, 4 + MX_AUTH_NONCE, true},
    [MX_WIRE_MEMBER] = {28, 128, true},
    [MX_WIRE_START] = {0, 0, true},
    [MX_WIRE_GATHER] = {6, 256, true},
    [MX_WIRE_GATHERED] = {8, MX_WIRE_BODY, true},
    [MX_WIRE_BEAT] = {1, MX_WIRE_BODY, true},
    [MX_WIRE_ABORT] = {3, MX_WIRE_BODY, true},
    [MX_WIRE_BLAME] = {6, MX_WIRE_BODY, true},
    [MX_WIRE_VERDICT] = {8, MX_WIRE_BODY, true},
    [MX_WIRE_BYE] = {0, 0, true},
    [MX_WIRE_LINK] = {12, 12, true},
};

bool mx_wire_is_signed(mx_wire_kind kind)
{
    return kinds[kind].is_signed;
}

/* --- writing -------------------------------------------------------------------------------- */

void mx_wire_begin(mx_wire_frame *f, mx_wire_kind kind)
{
    f->kind = kind;
    f->n = f->at = 0;
    f->bad = false;
    mx_wire_put_int(f, MAGIC, 4);
    mx_wire_put_int(f, (uint64_t)kind, 2);
    mx_wire_put_int(f, 0, 2);
}

void mx_wire_put(mx_wire_frame *f, const void *p, size_t n)
{
    f->bad |= n > MX_WIRE_HEADER + (size_t)MX_WIRE_BODY - f->n;
    if (f->bad)
        return;
    if (n)
        memcpy(f->bytes + f->n, p, n);
    f->n += n;
}

void mx_wire_put_int(mx_wire_frame *f, uint64_t v, int bytes)
{
    uint8_t b[8];
    for (int i = 0; i < bytes; i++)
        b[i] = (uint8_t)(v >> 8 * i);
    mx_wire_put(f, b, (size_t)bytes);
}

void mx_wire_put_text(mx_wire_frame *f, const char *text)
{
    size_t n = strlen(text), used = f->n - MX_WIRE_HEADER + 2;
    size_t room = used < kinds[f->kind].most ? kinds[f->kind].most - used : 0;
    n = n < room ? n : room;
    mx_wire_put_int(f, n, 2);
    mx_wire_put(f, text, n);
}

void mx_wire_end(mx_wire_frame *f, mx_wire_keys *keys)
{
    size_t body = f->n - MX_WIRE_HEADER;
    MX_ASSERT(!f->bad && body >= kinds[f->kind].least && body <= kinds[f->kind].most,
              "a frame of kind %d with %zu bytes", (int)f->kind, body);
    f->bytes[6] = (uint8_t)body;
    f->bytes[7] = (uint8_t)(body >> 8);
    if (!kinds[f->kind].is_signed)
        return;
    MX_ASSERT(keys->agreed);
    mx_auth_sign(&keys->out, keys->sent++, f->bytes, f->n, f->bytes + f->n);
    f->n += MX_AUTH_MAC;
}

/* --- reading -------------------------------------------------------------------------------- */

static size_t int_at(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static size_t body_of(const mx_wire_frame *f)
{
    return int_at(f->bytes + 6, 2);
}

/* Of a frame whose header is there; 0: there is no such frame. */
static size_t whole_size(const mx_wire_frame *f)
{
    size_t kind = int_at(f->bytes + 4, 2), body = body_of(f);
    if (int_at(f->bytes, 4) != MAGIC || kind == 0 || kind >= MX_WIRE_KINDS ||
        body < kinds[kind].least || body > kinds[kind].most)
        return 0;
    return MX_WIRE_HEADER + body + (kinds[kind].is_signed ? MX_AUTH_MAC : 0);
}

mx_wire_state mx_wire_receive(int fd, mx_wire_frame *f)
{
    if (f->n >= MX_WIRE_HEADER && f->n == whole_size(f))
        f->n = 0;
    for (;;) {
        size_t want = f->n < MX_WIRE_HEADER ? MX_WIRE_HEADER : whole_size(f);
        if (want == 0)
            return MX_WIRE_BROKEN;
        if (f->n == want) {
            f->kind = (mx_wire_kind)int_at(f->bytes + 4, 2);
            f->at = 0;
            f->bad = false;
            return MX_WIRE_WHOLE;
        }
        ssize_t k = recv(fd, f->bytes + f->n, want - f->n, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            return MX_WIRE_MORE;
        if (k <= 0)
            return MX_WIRE_CLOSED;
        f->n += (size_t)k;
    }
}

bool mx_wire_verify(const mx_wire_frame *f, mx_wire_keys *keys)
{
    uint8_t mac[MX_AUTH_MAC];
    if (!kinds[f->kind].is_signed)
        return true;
    if (!keys->agreed)
        return false;
    size_t n = f->n - MX_AUTH_MAC;
    mx_auth_sign(&keys->in, keys->received, f->bytes, n, mac);
    if (!mx_auth_equal(mac, f->bytes + n, sizeof mac))
        return false;
    keys->received++;
    return true;
}

void mx_wire_get(mx_wire_frame *f, void *p, size_t n)
{
    f->bad |= n > body_of(f) - f->at;
    if (n)
        memset(p, 0, n);
    if (f->bad || !n)
        return;
    memcpy(p, f->bytes + MX_WIRE_HEADER + f->at, n);
    f->at += n;
}

uint64_t mx_wire_get_int(mx_wire_frame *f, int bytes)
{
    uint8_t b[8];
    mx_wire_get(f, b, (size_t)bytes);
    return int_at(b, bytes);
}

void mx_wire_get_text(mx_wire_frame *f, char *out, size_t cap)
{
    size_t n = mx_wire_get_int(f, 2);
    f->bad |= n > body_of(f) - f->at;
    n = f->bad ? 0 : n;
    mx_printable(out, cap, (const char *)f->bytes + MX_WIRE_HEADER + f->at, n);
    f->at += n;
}

bool mx_wire_is_read(const mx_wire_frame *f)
{
    return !f->bad && f->at == body_of(f);
}
