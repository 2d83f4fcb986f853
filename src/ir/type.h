/* type.h - what a tensor is: a dtype and a static shape. Row-major, contiguous, always. */
#ifndef MX_IR_TYPE_H
#define MX_IR_TYPE_H

#include "base/status.h"
#include "base/str.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MX_F32,
    MX_F64,
    MX_BF16,
    MX_F16,
    MX_I32,
    MX_I64,
    MX_I8,
    MX_U8,
    MX_BOOL,
    MX_F8_E4M3,
    MX_F8_E5M2,
    MX_DTYPE_COUNT
} mx_dtype;

enum { MX_MAX_DIMS = 6 };

typedef struct {
    mx_dtype dtype;
    int ndim;
    int64_t dim[MX_MAX_DIMS]; /* zero beyond ndim */
} mx_type;

size_t mx_dtype_bytes(mx_dtype d);
const char *mx_dtype_name(mx_dtype d);              /* "float32", "bfloat16", ... */
bool mx_dtype_parse(const char *name, mx_dtype *d); /* also "f32", "bf16", ... */
bool mx_dtype_is_float(mx_dtype d);
bool mx_dtype_is_computed(mx_dtype d); /* kernels multiply in it; others are for storage */

int64_t mx_type_count(const mx_type *t); /* elements */
size_t mx_type_bytes(const mx_type *t);
/* No dim is negative, and there are at most 2^46 elements: sums of the bytes of all tensors of a
 * program then stay within 64 bits. */
bool mx_type_fits(const mx_type *t);
bool mx_shape_equal(const mx_type *a, const mx_type *b);
void mx_type_print(mx_str *s, const mx_type *t); /* "bfloat16(4, 512, 768)" */

/* A shape literal: MX_SHAPE(B, S, d) */
typedef struct {
    int ndim;
    int64_t dim[MX_MAX_DIMS];
} mx_shape;
#define MX_COUNT_ARGS(...) ((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define MX_SHAPE(...) ((mx_shape){MX_COUNT_ARGS(__VA_ARGS__), {__VA_ARGS__}})
#define MX_SCALAR ((mx_shape){0})
mx_type mx_type_of(mx_dtype d, mx_shape s);
mx_shape mx_shape_of(const mx_type *t);

#endif
