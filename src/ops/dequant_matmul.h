/* dequant_matmul.h - attributes of the op of that name. */
#ifndef MX_OPS_DEQUANT_MATMUL_H
#define MX_OPS_DEQUANT_MATMUL_H

#include <stdbool.h>

typedef struct {
    bool wide;   /* y is float32, whatever x is */
    bool panels; /* codes and scales lie in panels (ops/panels.h) */
} mx_dequant_attr;

#endif
