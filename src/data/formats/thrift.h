/* thrift.h - reading the Thrift compact protocol, as far as Parquet uses it.
 *
 * A struct is fields, each a byte (delta of the field id << 4 | type), zigzag-varint id when the
 * delta is 0, then the value; a zero byte ends it. Errors stick in the reader: a damaged input
 * reads as zeros and empty lists from there on, and the caller looks at `bad` once at the end.
 *
 *     int id; mx_thrift_type type;
 *     for (mx_thrift_begin(r); mx_thrift_field(r, &id, &type);)
 *         if (id == 3) rows = mx_thrift_int(r, type); else mx_thrift_skip(r, type);
 */
#ifndef MX_DATA_THRIFT_H
#define MX_DATA_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MX_THRIFT_DEPTH = 32 };
typedef enum {
    MX_T_TRUE = 1, MX_T_FALSE = 2, MX_T_BYTE = 3, MX_T_I16 = 4, MX_T_I32 = 5, MX_T_I64 = 6,
    MX_T_DOUBLE = 7, MX_T_BINARY = 8, MX_T_LIST = 9, MX_T_SET = 10, MX_T_MAP = 11, MX_T_STRUCT = 12,
} mx_thrift_type;

typedef struct {
    const uint8_t *start, *p, *end;
    const char *bad;               /* NULL: fine so far */
    int depth, last[MX_THRIFT_DEPTH]; /* field ids of the structs we are in */
} mx_thrift;

void mx_thrift_init(mx_thrift *r, const void *data, size_t n);
void mx_thrift_begin(mx_thrift *r); /* a struct */
bool mx_thrift_field(mx_thrift *r, int *id, mx_thrift_type *type); /* false: the struct has ended */
int64_t mx_thrift_int(mx_thrift *r, mx_thrift_type type);   /* booleans too */
const char *mx_thrift_binary(mx_thrift *r, mx_thrift_type type, size_t *n); /* borrowed */
int64_t mx_thrift_list(mx_thrift *r, mx_thrift_type type, mx_thrift_type *element);
void mx_thrift_skip(mx_thrift *r, mx_thrift_type type);

#endif
