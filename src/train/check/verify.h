/* verify.h - a model compared with recorded numbers. */
#ifndef MX_TRAIN_VERIFY_H
#define MX_TRAIN_VERIFY_H

#include "compile/compile.h"
#include "models/model.h"
#include "store/hf_dir.h"
#include "exec/mesh_config.h"

typedef struct {
    const char *golden;  /* file; NULL: MODEL/golden.safetensors */
    double tolerance;    /* ratio of the largest error to the largest magnitude */
    const char *device;
    int n_threads;
    mx_compile_options compile;
    const mx_mesh_plan *mesh; /* on virtual ranks; NULL: one device */
    const mx_config *keys;    /* of its pipeline; NULL: the defaults */
} mx_verify_options;

/* What a 16-bit compute dtype may change in the predictions, in nats a token. */
#define MX_VERIFY_KL 2e-3

/* One compared quantity. */
typedef struct {
    char name[96];
    double error, magnitude; /* largest, absolute */
    char worst[160];         /* the tensor it was found in, for gradients */
    bool ok;
} mx_verify_row;

typedef struct {
    mx_verify_row row[16];
    int n;
} mx_verify_report;

/* Compares everything the golden file has: logits, loss, gradients (grad.safetensors beside it),
 * six AdamW steps, greedy decoding. A status only for what could not be run; the rows say what was
 * out. */
mx_status mx_verify(const char *model_dir, const mx_verify_options *o,
                    mx_verify_report *report) MX_MUST_USE;

#endif
