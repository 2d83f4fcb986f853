/* crc32c.h - CRC-32C (Castagnoli), the checksum of TFRecord files and TensorBoard events. */
#ifndef MX_BASE_CRC32C_H
#define MX_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t mx_crc32c(const void *data, size_t n);
/* As it is stored: rotated and shifted, so that a checksum of data that holds checksums stays
 * useful. */
static inline uint32_t mx_crc32c_masked(const void *data, size_t n)
{
    uint32_t c = mx_crc32c(data, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

#endif
