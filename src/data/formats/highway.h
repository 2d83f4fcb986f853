/* highway.h - HighwayHash64, the checksum of Riegeli and ArrayRecord files. */
#ifndef MX_DATA_HIGHWAY_H
#define MX_DATA_HIGHWAY_H

#include <stddef.h>
#include <stdint.h>

uint64_t mx_highway64(const uint64_t key[4], const void *data, size_t n);

#endif
