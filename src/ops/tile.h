/* tile.h - elementwise ops written once, as an expression.
 *
 *     MX_TILE2(mul, a * b)
 * makes mul_f32 and mul_f64, loops over a run of elements, and mul_expr, the expression as text,
 * from which the GPU's generated kernels are written. Inside the expression the operands are a, b
 * and c; functions are the MX_T_* names below, which pick the float or the double form by type (and
 * are macros of the same name in the GPU prelude).
 */
#ifndef MX_OPS_TILE_H
#define MX_OPS_TILE_H

#include "base/simd.h"
#include "base/vmath.h"
#include "ir/graph.h"
#include "ops.h"
#include <math.h>

#define MX_T_EXP(x) _Generic((x), float: mx_vexpf, double: exp)(x)
#define MX_T_LOG(x) _Generic((x), float: mx_vlogf, double: log)(x)
#define MX_T_TANH(x) _Generic((x), float: mx_vtanhf, double: tanh)(x)
#define MX_T_ERF(x) _Generic((x), float: mx_verff, double: erf)(x)
#define MX_T_SQRT(x) _Generic((x), float: sqrtf, double: sqrt)(x)
#define MX_T_FLOOR(x) _Generic((x), float: floorf, double: floor)(x)
#define MX_T_SIN(x) _Generic((x), float: sinf, double: sin)(x)
#define MX_T_COS(x) _Generic((x), float: cosf, double: cos)(x)
#define MX_T_SIGMOID(x) (1 / (1 + MX_T_EXP(-(x))))
/* The share of x that gelu_tanh lets through: (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715
 * x^3), which is the logistic function of 2u. */
#define MX_T_GELU_GATE(x)                                                                          \
    MX_T_SIGMOID((real)1.5957691216057308 * ((x) + (real)0.044715 * (x) * (x) * (x)))

#define MX_TILE_EACH(T, take, expr)                                                                \
    _Pragma("omp simd") for (int64_t i = 0; i < t->n; i++)                                         \
    {                                                                                              \
        take;                                                                                      \
        out[i] = (T)(expr);                                                                        \
    }
#define MX_TILE_LOOP(T, suffix, name, load, take, expr)                                            \
    static MX_CLONES void name##_##suffix(const mx_tile *t)                                        \
    {                                                                                              \
        typedef T real;                                                                            \
        const T *pa = t->in[0];                                                                    \
        T *out = t->out;                                                                           \
        load;                                                                                      \
        MX_TILE_EACH(real, take, expr)                                                             \
    }
/* Of two operands one may be a single number, which stays in a register. */
#define MX_TILE_LOOP2(T, suffix, name, expr)                                                       \
    static MX_CLONES void name##_##suffix(const mx_tile *t)                                        \
    {                                                                                              \
        typedef T real;                                                                            \
        const T *pa = t->in[0], *pb = t->in[1];                                                    \
        T *out = t->out;                                                                           \
        if (t->single == 1) {                                                                      \
            const real a = pa[0];                                                                  \
            MX_TILE_EACH(real, real b = pb[i], expr)                                               \
        } else if (t->single == 2) {                                                               \
            const real b = pb[0];                                                                  \
            MX_TILE_EACH(real, real a = pa[i], expr)                                               \
        } else {                                                                                   \
            MX_TILE_EACH(real, real a = pa[i]; real b = pb[i], expr)                               \
        }                                                                                          \
    }

/* The text is taken here, before the macros in it are expanded. */
#define MX_TILE1(name, expr)                                                                       \
    MX_TILE_LOOP(float, f32, name, (void)0, real a = pa[i], expr)                                  \
    MX_TILE_LOOP(double, f64, name, (void)0, real a = pa[i], expr)                                 \
    static const char name##_expr[] = #expr;
#define MX_TILE2(name, expr)                                                                       \
    MX_TILE_LOOP2(float, f32, name, expr)                                                          \
    MX_TILE_LOOP2(double, f64, name, expr)                                                         \
    static const char name##_expr[] = #expr;
#define MX_TILE3_LOAD const real *pb = t->in[1]; const real *pc = t->in[2]
#define MX_TILE3_TAKE real a = pa[i]; real b = pb[i]; real c = pc[i]
#define MX_TILE3(name, expr)                                                                       \
    MX_TILE_LOOP(float, f32, name, MX_TILE3_LOAD, MX_TILE3_TAKE, expr)                             \
    MX_TILE_LOOP(double, f64, name, MX_TILE3_LOAD, MX_TILE3_TAKE, expr)                            \
    static const char name##_expr[] = #expr;

/* The fields of an elementwise op that follow from its tiles; _OF: that takes other dtypes. */
#define MX_ELEMENTWISE_OF(id, takes)                                                               \
    .name = #id, .kind = MX_ELEMENTWISE, .tile_f32 = id##_f32, .tile_f64 = id##_f64,               \
    .expr = id##_expr, .dtypes = (takes)
#define MX_ELEMENTWISE_FIELDS(id) MX_ELEMENTWISE_OF(id, MX_NUMBERS)

#endif
