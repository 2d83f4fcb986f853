/* wire_test.c - frames: their limits, however they arrive, and what a signature is good for. */
#include "../test.h"
#include "dist/socket.h"
#include "dist/wire.h"
#include <string.h>
#include <sys/socket.h>

static void pair(int fd[2])
{
    MX_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
}

static mx_wire_state hear(const void *p, size_t n, mx_wire_frame *f)
{
    int fd[2];
    pair(fd);
    MX_CHECK(send(fd[0], p, n, 0) == (ssize_t)n);
    memset(f, 0, sizeof *f);
    mx_wire_state st = mx_wire_receive(fd[1], f);
    mx_socket_close(&fd[0]);
    mx_socket_close(&fd[1]);
    return st;
}

/* Eight bytes are enough to know; nothing of the body has been sent. */
MX_TEST(wire_refuses_a_header_before_its_body)
{
    mx_wire_frame f;
    for (int kind = 0; kind < MX_WIRE_KINDS + 3; kind++)
        for (int bytes = 0; bytes < 65536; bytes += bytes < 1100 ? 1 : 1021) {
            uint8_t h[8] = {
                'm', 'x', 'c', '1', (uint8_t)kind, 0, (uint8_t)bytes, (uint8_t)(bytes >> 8)};
            mx_wire_state st = hear(h, sizeof h, &f);
            bool may = st == MX_WIRE_MORE || st == MX_WIRE_WHOLE;
            MX_CHECK(!may || (kind && kind < MX_WIRE_KINDS && bytes <= MX_WIRE_BODY),
                     "kind %d with %d bytes", kind, bytes);
        }
    MX_CHECK(hear("mxc2\1\0\22\0", 8, &f) == MX_WIRE_BROKEN, "another magic");
    MX_CHECK(hear("GET / HTTP/1.1", 14, &f) == MX_WIRE_BROKEN, "HTTP");
    MX_CHECK(hear("mxc1\1\0", 6, &f) == MX_WIRE_MORE, "less than a header");
}

static mx_wire_frame abort_frame(mx_wire_keys *keys)
{
    mx_wire_frame f;
    mx_wire_begin(&f, MX_WIRE_ABORT);
    mx_wire_put_text(&f, "why");
    mx_wire_end(&f, keys);
    return f;
}

MX_TEST(wire_frames_arrive_in_any_pieces)
{
    mx_wire_keys keys = {.agreed = true}, theirs = keys;
    mx_wire_frame out = abort_frame(&keys), in = {0};
    int fd[2];
    char text[8];
    pair(fd);
    for (size_t cut = 1; cut < out.n; cut++) {
        MX_CHECK(send(fd[0], out.bytes, cut, 0) == (ssize_t)cut);
        MX_CHECK(mx_wire_receive(fd[1], &in) == MX_WIRE_MORE, "%zu bytes", cut);
        MX_CHECK(send(fd[0], out.bytes + cut, out.n - cut, 0) == (ssize_t)(out.n - cut));
        MX_CHECK(mx_wire_receive(fd[1], &in) == MX_WIRE_WHOLE && in.kind == MX_WIRE_ABORT);
        theirs.received = 0;
        MX_CHECK(mx_wire_verify(&in, &theirs), "%zu bytes", cut);
        mx_wire_get_text(&in, text, sizeof text);
        MX_CHECK(mx_wire_is_read(&in) && strcmp(text, "why") == 0, "%s", text);
        (void)mx_wire_get_int(&in, 4);
        MX_CHECK(in.bad && !mx_wire_is_read(&in), "read past the end");
    }
    mx_socket_close(&fd[0]);
    MX_CHECK(mx_wire_receive(fd[1], &in) == MX_WIRE_CLOSED, "not closed");
    mx_socket_close(&fd[1]);
}

MX_TEST(wire_signatures_are_for_one_frame_one_way_once)
{
    mx_wire_keys a = {.agreed = true, .out = {{1}}, .in = {{2}}};
    mx_wire_keys b = {.agreed = true, .out = {{2}}, .in = {{1}}}, none = {0};
    mx_wire_frame f = abort_frame(&a), next = abort_frame(&a);
    MX_CHECK(!mx_wire_verify(&next, &b), "the second before the first");
    MX_CHECK(!mx_wire_verify(&f, &a), "back to its sender");
    MX_CHECK(!mx_wire_verify(&f, &none), "before keys were agreed on");
    for (size_t i = 0; i < 8 * f.n; i++) {
        mx_wire_frame g = f;
        g.bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        MX_CHECK(!mx_wire_verify(&g, &b), "bit %zu", i);
    }
    MX_CHECK(mx_wire_verify(&f, &b) && !mx_wire_verify(&f, &b), "once, and only once");
    MX_CHECK(mx_wire_verify(&next, &b), "the next");
}

/* Text that is longer than a frame is cut, and a length inside the body is checked against it. */
MX_TEST(wire_text_is_cut_and_checked)
{
    static char words[3000], text[3000];
    mx_wire_keys keys = {.agreed = true};
    mx_wire_frame f;
    memset(words, 'x', sizeof words - 1);
    mx_wire_begin(&f, MX_WIRE_BLAME);
    mx_wire_put_int(&f, 1, 4);
    mx_wire_put_text(&f, words);
    mx_wire_end(&f, &keys);
    MX_CHECK(!f.bad && f.n <= MX_WIRE_FRAME, "%zu bytes", f.n);
    MX_CHECK(mx_wire_get_int(&f, 4) == 1);
    mx_wire_get_text(&f, text, sizeof text);
    MX_CHECK(mx_wire_is_read(&f) && strlen(text) == MX_WIRE_BODY - 6, "%zu", strlen(text));
    f.at = 4;
    f.bytes[MX_WIRE_HEADER + 5] = 0xff; /* its length, beyond the frame */
    mx_wire_get_text(&f, text, sizeof text);
    MX_CHECK(f.bad && !*text, "read past the end: %zu", strlen(text));
}
