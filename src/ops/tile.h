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
#define MX_T_SIN(x) _Generic((x), float: sinf, double: sin)(x)
#define MX_T_COS(x) _Generic((x), float: cosf, double: cos)(x)
#define MX_T_SIGMOID(x) (1 / (1 + MX_T_EXP(-(x))))
/* The share of x that gelu_tanh lets through: (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715
 * x^3), which is the logistic function of 2u. */
#define MX_T_GELU_GATE(x)                                                                          \
    MX_T_SIGMOID((real)1.5957691216057308 * ((x) + (real)0.044715 * (x) * (x) * (x)))

#define MX_TILE_LOOP(T, suffix, name, load, expr)                                                  \
    static MX_CLONES void name##_##suffix(const mx_tile *t)                                        \
    {                                                                                              \
        typedef T real;                                                                            \
        load(T);                                                                                   \
        T *out = t->out;                                                                           \
        _Pragma("omp simd") for (int64_t i = 0; i < t->n; i++)                                     \
        {                                                                                          \
            T a = pa[i], b = pb[i], c = pc[i];                                                     \
            (void)a, (void)b, (void)c;                                                             \
            out[i] = (real)(expr);                                                                 \
        }                                                                                          \
    }
/* Operands that an op does not have read operand a: always there, and unused. */
#define MX_TILE_LOAD1(T) const T *pa = t->in[0], *pb = pa, *pc = pa
#define MX_TILE_LOAD2(T) const T *pa = t->in[0], *pb = t->in[1], *pc = pa
#define MX_TILE_LOAD3(T) const T *pa = t->in[0], *pb = t->in[1], *pc = t->in[2]

/* The text is taken here, before the macros in it are expanded. */
#define MX_TILE1(name, expr)                                                                       \
    MX_TILE_LOOP(float, f32, name, MX_TILE_LOAD1, expr)                                            \
    MX_TILE_LOOP(double, f64, name, MX_TILE_LOAD1, expr)                                           \
    static const char name##_expr[] = #expr;
#define MX_TILE2(name, expr)                                                                       \
    MX_TILE_LOOP(float, f32, name, MX_TILE_LOAD2, expr)                                            \
    MX_TILE_LOOP(double, f64, name, MX_TILE_LOAD2, expr)                                           \
    static const char name##_expr[] = #expr;
#define MX_TILE3(name, expr)                                                                       \
    MX_TILE_LOOP(float, f32, name, MX_TILE_LOAD3, expr)                                            \
    MX_TILE_LOOP(double, f64, name, MX_TILE_LOAD3, expr)                                           \
    static const char name##_expr[] = #expr;

/* The fields of an elementwise op that follow from its tiles. */
#define MX_ELEMENTWISE_FIELDS(id)                                                                  \
    .name = #id, .kind = MX_ELEMENTWISE, .tile_f32 = id##_f32, .tile_f64 = id##_f64,               \
    .expr = id##_expr

#endif
