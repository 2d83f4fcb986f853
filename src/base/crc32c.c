/* crc32c.c - the processor's instruction where it has one (SSE4.2), otherwise four bits at a time
 * with a table of 16: the polynomial 0x1edc6f41, reflected 0x82f63b78. */
#include "base/crc32c.h"

#include <string.h>

static const uint32_t table[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};

static uint32_t portable(uint32_t c, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = c >> 4 ^ table[c & 15];
        c = c >> 4 ^ table[c & 15];
    }
    return c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t hardware(uint32_t c, const uint8_t *p, size_t n)
{
    uint64_t w, c64 = c;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        c64 = __builtin_ia32_crc32di(c64, w);
    }
    c = (uint32_t)c64;
    for (; n; p++, n--)
        c = __builtin_ia32_crc32qi(c, *p);
    return c;
}
#endif

uint32_t mx_crc32c(const void *data, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~hardware(~0u, data, n);
#endif
    return ~portable(~0u, data, n);
}
