/* load.h - reading and writing tensors of any dtype, one element or one run at a time.
 * The run functions are what elementwise kernels convert tiles with. */
#ifndef MX_OPS_LOAD_H
#define MX_OPS_LOAD_H

#include "ir/op.h"

double mx_load_f64(const mx_tensor *t, int64_t i);
void mx_store_f64(const mx_tensor *t, int64_t i, double v);

/* n elements from element i on, converted. bf16 and f16 are the fast ones besides a plain copy. */
void mx_load_run_f32(const mx_tensor *t, int64_t i, int64_t n, float *out);
void mx_load_run_f64(const mx_tensor *t, int64_t i, int64_t n, double *out);
void mx_store_run_f32(const mx_tensor *t, int64_t i, int64_t n, const float *in);
void mx_store_run_f64(const mx_tensor *t, int64_t i, int64_t n, const double *in);
/* n elements from element i of `from` on to element k of `to` on, whatever their dtypes. */
void mx_convert_run(const mx_tensor *from, int64_t i, const mx_tensor *to, int64_t k, int64_t n);

#endif
