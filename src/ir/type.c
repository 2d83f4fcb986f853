/* type.c - the dtype table and shape arithmetic. */
#include "ir/type.h"

#include <string.h>

static const struct {
    const char *name, *brief;
    size_t bytes;
    bool is_float, is_computed;
} dtype[MX_DTYPE_COUNT] = {
    [MX_F32] = {"float32", "f32", 4, true, true},
    [MX_F64] = {"float64", "f64", 8, true, true},
    [MX_BF16] = {"bfloat16", "bf16", 2, true, true},
    [MX_F16] = {"float16", "f16", 2, true},
    [MX_I32] = {"int32", "i32", 4, false},
    [MX_I64] = {"int64", "i64", 8, false},
    [MX_I8] = {"int8", "i8", 1, false},
    [MX_U8] = {"uint8", "u8", 1, false},
    [MX_BOOL] = {"bool", "bool", 1, false},
    [MX_F8_E4M3] = {"float8_e4m3fn", "fp8", 1, true},
    [MX_F8_E5M2] = {"float8_e5m2", "fp8_e5m2", 1, true},
};

size_t mx_dtype_bytes(mx_dtype d)
{
    return dtype[d].bytes;
}

const char *mx_dtype_name(mx_dtype d)
{
    return dtype[d].name;
}

bool mx_dtype_is_float(mx_dtype d)
{
    return dtype[d].is_float;
}

bool mx_dtype_is_computed(mx_dtype d)
{
    return dtype[d].is_computed;
}

bool mx_dtype_parse(const char *name, mx_dtype *d)
{
    for (int i = 0; i < MX_DTYPE_COUNT; i++)
        if (strcmp(name, dtype[i].name) == 0 || strcmp(name, dtype[i].brief) == 0) {
            *d = (mx_dtype)i;
            return true;
        }
    return false;
}

int64_t mx_type_count(const mx_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

bool mx_type_fits(const mx_type *t)
{
    const int64_t most = (int64_t)1 << 46;
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0 || (t->dim[i] && n > most / t->dim[i]))
            return false;
        n *= t->dim[i];
    }
    return true;
}

size_t mx_type_bytes(const mx_type *t)
{
    return (size_t)mx_type_count(t) * dtype[t->dtype].bytes;
}

bool mx_shape_equal(const mx_type *a, const mx_type *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(int64_t) * (size_t)a->ndim) == 0;
}

void mx_type_print(mx_str *s, const mx_type *t)
{
    mx_str_addf(s, "%s(", dtype[t->dtype].name);
    for (int i = 0; i < t->ndim; i++)
        mx_str_addf(s, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    mx_str_add(s, ")");
}

mx_type mx_type_of(mx_dtype d, mx_shape s)
{
    mx_type t = {.dtype = d, .ndim = s.ndim};
    memcpy(t.dim, s.dim, sizeof(int64_t) * (size_t)s.ndim);
    return t;
}

mx_shape mx_shape_of(const mx_type *t)
{
    mx_shape s = {.ndim = t->ndim};
    memcpy(s.dim, t->dim, sizeof s.dim);
    return s;
}
