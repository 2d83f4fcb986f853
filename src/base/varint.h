/* varint.h - numbers of seven bits a byte, low first, the last byte below 128: protocol buffers,
 * Thrift, Parquet, Riegeli. */
#ifndef MX_BASE_VARINT_H
#define MX_BASE_VARINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MX_VARINT_BYTES = 10 }; /* at most */

/* Moves *p past it; false: it does not end before `end`, or not within ten bytes. */
static inline bool mx_varint_read(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 7 * MX_VARINT_BYTES && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return true;
    }
    return false;
}

/* How many bytes it took. */
static inline size_t mx_varint_write(char out[MX_VARINT_BYTES], uint64_t v)
{
    size_t n = 0;
    do {
        out[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
    return n;
}

#endif
