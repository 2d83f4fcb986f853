/* quant_form.h - the forms that quant_write.h lists: which tensors a weight becomes, and how their
 * bytes are made. The writer (quant_write.c) fills in a mx_quant_made and calls the form's `make`.
 */
#ifndef MX_STORE_QUANT_FORM_H
#define MX_STORE_QUANT_FORM_H

#include "store/quant_write.h"

enum { MX_QUANT_PARTS = 4 };

/* One weight on its way: as numbers, and as the parts of its form. */
typedef struct {
    int64_t rows, cols, group;
    float *x;
    bool zeros;                   /* groups have zero points */
    const char *dtype;            /* of the model, as its config.json says it */
    const mx_quant_change *given; /* its codes and scales are taken as they are; NULL: none */
    void *part[MX_QUANT_PARTS];
    size_t bytes[MX_QUANT_PARTS];
    double error, squares;
} mx_quant_made;

typedef struct {
    const char *suffix; /* after the weight's name */
    mx_st_dtype dtype;
} mx_quant_part;

struct mx_quant_form {
    const char *name, *method;
    const char *stored; /* the `format` of compressed-tensors, or NULL */
    mx_quant_part part[MX_QUANT_PARTS];
    int n_parts;
    int bits;
    bool is_float;
    /* The dims of part i, and whether the form takes a matrix of this size. */
    int (*dims)(const mx_quant_made *m, int i, int64_t dim[2]);
    bool (*takes)(int64_t rows, int64_t cols, int64_t group);
    void (*make)(mx_quant_made *m);
    const char *needs; /* what `takes` asks of rows */
    bool no_experts;   /* loaders of the form stack experts, and then do not read their scales */
};

#endif
