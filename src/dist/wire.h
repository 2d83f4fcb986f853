/* wire.h - the frames that ranks and their coordinator (coord.h) exchange, as bytes.
 *
 *     byte 0   u32 magic "mxc1"
 *          4   u16 kind
 *          6   u16 bytes of the body
 *          8   body
 *          then, of a signed kind, a MAC of 16 bytes over a counter and everything before it
 *
 * Integers are little-endian. Every kind has limits on its body; a header outside of them is
 * refused before a byte of the body is read, and a reader holds one frame of the largest size, so
 * no peer can make a rank allocate memory.
 *
 * The first frames of a connection agree on keys; a signed frame shows that its sender knows the
 * secret, that it is the next one and that it was made for this connection and direction:
 *
 *     member -> root   HELLO      version, a random number
 *     root -> member   CHALLENGE  version, where the secret is, a random number
 *                      (both derive the two keys of the connection from secret and numbers)
 *     member -> root   CARD       signed: which rank this is; then PARTS: what it was started with
 *     root -> member   DENIED     not signed: the versions or secrets differ
 *                      REFUSED    signed: something else differs
 *                      WELCOME, MEMBER for each rank, START   when all ranks are there
 *     member -> root   GATHER, BEAT, ABORT, BLAME, BYE        coord.h
 *     root -> member   GATHERED, BEAT, VERDICT, BYE
 *
 * A data connection (tcp_mesh.c) begins with one LINK frame, signed with the key of the run.
 */
#ifndef MX_DIST_WIRE_H
#define MX_DIST_WIRE_H

#include "dist/auth.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MX_WIRE_VERSION = 3,
    MX_WIRE_HEADER = 8,
    MX_WIRE_BODY = 1024,
    MX_WIRE_ADDRESS = 16, /* of IPv6; IPv4 has the first four bytes */
    MX_WIRE_FRAME = MX_WIRE_HEADER + MX_WIRE_BODY + MX_AUTH_MAC,
};

typedef enum {
    MX_WIRE_HELLO = 1,
    MX_WIRE_CHALLENGE,
    MX_WIRE_DENIED,
    MX_WIRE_CARD,
    MX_WIRE_PARTS,
    MX_WIRE_REFUSED,
    MX_WIRE_WELCOME,
    MX_WIRE_MEMBER,
    MX_WIRE_START,
    MX_WIRE_GATHER,
    MX_WIRE_GATHERED,
    MX_WIRE_BEAT,
    MX_WIRE_ABORT,
    MX_WIRE_BLAME,
    MX_WIRE_VERDICT,
    MX_WIRE_BYE,
    MX_WIRE_LINK,
    MX_WIRE_KINDS,
} mx_wire_kind;

/* The keys of a connection, one for each direction, and how many frames each has signed. Before
 * they are agreed on (zero-initialised) no signed frame is accepted. */
typedef struct {
    bool agreed;
    mx_auth_key out, in;
    uint64_t sent, received;
} mx_wire_keys;

/* A frame: begun, filled, ended, or as it came. */
typedef struct {
    mx_wire_kind kind;
    uint8_t bytes[MX_WIRE_FRAME];
    size_t n;  /* so far; of a frame that came, with its MAC */
    size_t at; /* of reading the body */
    bool bad;  /* something did not fit, or was missing */
} mx_wire_frame;

/* Writing. What does not fit makes the frame bad. */
void mx_wire_begin(mx_wire_frame *f, mx_wire_kind kind);
void mx_wire_put(mx_wire_frame *f, const void *p, size_t n);
void mx_wire_put_int(mx_wire_frame *f, uint64_t v, int bytes);
void mx_wire_put_text(mx_wire_frame *f, const char *text); /* cut to what fits */
/* Fills in the length and, for a signed kind, signs. */
void mx_wire_end(mx_wire_frame *f, mx_wire_keys *keys);

/* Reading a body from its start. What is missing reads as zeros and makes the frame bad. */
void mx_wire_get(mx_wire_frame *f, void *p, size_t n);
uint64_t mx_wire_get_int(mx_wire_frame *f, int bytes);
void mx_wire_get_text(mx_wire_frame *f, char *out, size_t cap); /* printable (utf8.h) */
/* All of it was read, and there was no less. */
bool mx_wire_is_read(const mx_wire_frame *f);

/* Of DENIED and REFUSED. */
typedef enum {
    MX_WIRE_SECRET = 1, /* it does not know the secret */
    MX_WIRE_ANOTHER_VERSION,
    MX_WIRE_ANOTHER_SIZE,
    MX_WIRE_ANOTHER_JOB,
    MX_WIRE_TWICE,
    MX_WIRE_OTHER_PARTS,
} mx_wire_reason;

typedef enum {
    MX_WIRE_MORE, /* not whole yet */
    MX_WIRE_WHOLE,
    MX_WIRE_CLOSED, /* between frames or inside one */
    MX_WIRE_BROKEN, /* no such frame: another program, or another version */
} mx_wire_state;

/* Reads on with what a socket that does not block has, one frame at most. A frame that was whole is
 * forgotten at the next call. */
mx_wire_state mx_wire_receive(int fd, mx_wire_frame *f);
/* True when it is not a signed kind, or its MAC is that of the next frame. */
bool mx_wire_verify(const mx_wire_frame *f, mx_wire_keys *keys);
bool mx_wire_is_signed(mx_wire_kind kind);

#endif
