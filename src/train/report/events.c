/* events.c - writing Event protobufs in TFRecord framing. Six field kinds are needed, so the wire
 * format is written here rather than generated: a varint is seven bits a byte, low first. */
#include "train/report/events.h"

#include "base/crc32c.h"
#include "base/varint.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(mx_str *s, uint64_t v)
{
    char b[MX_VARINT_BYTES];
    mx_str_add_n(s, b, mx_varint_write(b, v));
}

static void put_key(mx_str *s, int field, int kind)
{
    put_varint(s, (uint64_t)field << 3 | (uint64_t)kind);
}

/* Hosts are little-endian, as the file is. */
static void put_double(mx_str *s, int field, double v)
{
    put_key(s, field, FIXED64);
    mx_str_add_n(s, (const char *)&v, sizeof v);
}

static void put_float(mx_str *s, int field, float v)
{
    put_key(s, field, FIXED32);
    mx_str_add_n(s, (const char *)&v, sizeof v);
}

static void put_bytes(mx_str *s, int field, const char *p, size_t n)
{
    put_key(s, field, BYTES);
    put_varint(s, n);
    mx_str_add_n(s, p, n);
}

static void put_int(mx_str *s, int field, int64_t v)
{
    put_key(s, field, VARINT);
    put_varint(s, (uint64_t)v);
}

/* A record is written in place: room for its head, the event, then the head is filled in. Nothing
 * is allocated once `out` has grown to its size. */
static size_t record_begin(mx_str *out, double wall_time)
{
    static const char room[12];
    size_t at = out->len;
    mx_str_add_n(out, room, sizeof room);
    put_double(out, 1, wall_time);
    return at;
}

static void record_end(mx_str *out, size_t at)
{
    char *head = out->text + at, *body = head + 12;
    uint64_t length = out->len - at - 12;
    uint32_t head_crc = mx_crc32c_masked(&length, sizeof length);
    uint32_t body_crc = mx_crc32c_masked(body, length);
    memcpy(head, &length, sizeof length);
    memcpy(head + 8, &head_crc, sizeof head_crc);
    mx_str_add_n(out, (const char *)&body_crc, sizeof body_crc);
}

void mx_event_version(mx_str *out, double wall_time)
{
    static const char version[] = "brain.Event:2";
    size_t at = record_begin(out, wall_time);
    put_bytes(out, 3, version, sizeof version - 1);
    record_end(out, at);
}

void mx_event_start(mx_str *out, double wall_time, int64_t step)
{
    size_t at = record_begin(out, wall_time);
    put_int(out, 2, step);
    put_bytes(out, 7, "\x08\x01", 2); /* status = START */
    record_end(out, at);
}

static size_t varint_bytes(uint64_t v)
{
    size_t n = 1;
    while (v >>= 7)
        n++;
    return n;
}

/* tag and simple_value, each with its one-byte key */
static size_t value_bytes(const mx_metric *v)
{
    size_t n = strlen(v->name);
    return 1 + varint_bytes(n) + n + 1 + 4;
}

void mx_event_scalars(mx_str *out, double wall_time, int64_t step, const mx_metric *v, int n)
{
    size_t at = record_begin(out, wall_time), summary = 0;
    for (int i = 0; i < n; i++)
        summary += 1 + varint_bytes(value_bytes(&v[i])) + value_bytes(&v[i]);
    put_int(out, 2, step);
    put_key(out, 5, BYTES);
    put_varint(out, summary);
    for (int i = 0; i < n; i++) {
        put_key(out, 1, BYTES);
        put_varint(out, value_bytes(&v[i]));
        put_bytes(out, 1, v[i].name, strlen(v[i].name));
        put_float(out, 2, (float)v[i].value);
    }
    record_end(out, at);
}

void mx_event_file_name(char *buf, size_t cap, double wall_time)
{
    char host[65] = {0};
    if (gethostname(host, sizeof host - 1) || !host[0] || strchr(host, '/'))
        snprintf(host, sizeof host, "localhost");
    snprintf(buf, cap, "events.out.tfevents.%010lld.%s.%d", (long long)wall_time, host,
             (int)getpid());
}
