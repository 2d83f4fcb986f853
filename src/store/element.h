/* element.h - the element types a safetensors file can hold, and conversion between them.
 *
 * These are the file's types, by the file's names; each of the graph's dtypes (ir/type.h) is one of
 * them. F8_E4M3 is the "FN" variant (no infinities, NaN = 0x7f, largest 448);
 * F8_E8M0 is a power of two, 2^(b-127), NaN = 0xff: a block scale.
 */
#ifndef MX_STORE_ELEMENT_H
#define MX_STORE_ELEMENT_H

#include "base/status.h"
#include "ir/type.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MX_ST_NONE,
    MX_ST_F64,
    MX_ST_F32,
    MX_ST_BF16,
    MX_ST_F16,
    MX_ST_F8_E4M3,
    MX_ST_F8_E5M2,
    MX_ST_F8_E8M0,
    MX_ST_I64,
    MX_ST_U64,
    MX_ST_I32,
    MX_ST_U32,
    MX_ST_I16,
    MX_ST_U16,
    MX_ST_I8,
    MX_ST_U8,
    MX_ST_BOOL,
    MX_ST_N_DTYPES
} mx_st_dtype;

const char *mx_st_dtype_name(mx_st_dtype d);     /* "BF16" */
mx_st_dtype mx_st_dtype_parse(const char *name); /* MX_ST_NONE when unknown */
int mx_st_dtype_bytes(mx_st_dtype d);

mx_st_dtype mx_st_dtype_of(mx_dtype d);               /* the file's type of a graph's dtype */
bool mx_st_dtype_graph(mx_st_dtype d, mx_dtype *out); /* the reverse; false when there is none */

/* What was seen while loading, added up over calls. */
typedef struct {
    int64_t n_nan, n_inf;
} mx_st_scan;

/* Whether a file element of type `from` can be loaded as `to`. Every type loads as every float
 * type; integers and BOOL load as integers when each value fits; floats never load as integers. */
bool mx_st_convertible(mx_st_dtype from, mx_st_dtype to);

/* Converts n elements; src and dst need no alignment beyond their element's, and must not overlap.
 * Rounding is to nearest even; overflow gives infinity. `scan` (may be NULL) counts NaN and Inf of
 * the source. Fails only for an integer that does not fit `to`: then *bad is its index. */
bool mx_st_convert(mx_st_dtype from, const void *src, mx_st_dtype to, void *dst, int64_t n,
                   mx_st_scan *scan, int64_t *bad) MX_MUST_USE;

/* Counts NaN and Inf of n elements. */
void mx_st_scan_add(mx_st_scan *scan, mx_st_dtype d, const void *p, int64_t n);

#endif
