/* verify_run.h - a program of the model that is verified, on one device, on a rank of a mesh, or as
 * a rank's share in a pipeline. */
#ifndef MX_TRAIN_VERIFY_RUN_H
#define MX_TRAIN_VERIFY_RUN_H

#include "exec/programs.h"
#include "exec/virtual_ranks.h"

/* Where it runs. */
typedef struct {
    const mx_mesh_rank *mesh_rank; /* NULL: one device */
    const mx_config *keys;         /* of a pipeline; NULL: its defaults */
    const char *device;
    int n_threads;
    bool whole; /* rows are not shared among microbatches */
} mx_verify_place;

/* Zero-initialise. */
typedef struct {
    mx_step_kind kind;
    mx_session *session;  /* owns */
    mx_step step;         /* without stages: what has a loss */
    mx_programs programs; /* with stages: the same */
    mx_forward forward;   /* logits */
    bool piped;
    bool speaks;  /* loss and logits are known here: on the last stage */
    int64_t rows; /* of a microbatch */
} mx_verify_run;

/* kind: MX_STEP_LOGITS, MX_STEP_LOSS, MX_STEP_GRADS or MX_STEP_TRAIN. Weights are the caller's to
 * load. Close it also when it fails. */
mx_status mx_verify_run_open(mx_verify_run *r, const mx_model_spec *m, const mx_step_options *o,
                             const mx_verify_place *on) MX_MUST_USE;
void mx_verify_run_close(mx_verify_run *r);
/* Once, `feed` as in mx_pipeline_run; what it reads is the loss of a microbatch, or all logits. */
mx_status mx_verify_run_forward(mx_verify_run *r, const mx_pipeline_feed *feed) MX_MUST_USE;
/* The program with the update's inputs and its norm, and the update itself where it is another. */
mx_exec *mx_verify_run_last(const mx_verify_run *r);
mx_status mx_verify_run_update(mx_verify_run *r) MX_MUST_USE;

/* A gradient of this rank's. */
typedef struct {
    const mx_var *weight;
    const mx_type *type; /* NULL: it has none */
    bool elsewhere;      /* its weight is another stage's */
    int64_t first;       /* where the tensor begins in the whole of the weight */
} mx_verify_gradient;
/* Of a checkpoint's tensor. One expert's lies in the stack of all: its name has a `*` where the
 * tensor's has a number. */
mx_verify_gradient mx_verify_gradient_find(const mx_verify_run *r, const char *tensor);
/* n elements of the tensor as far as this rank has them: elsewhere `out` stays as it is. */
mx_status mx_verify_gradient_read(const mx_verify_run *r, const mx_verify_gradient *g, int64_t n,
                                  float *out) MX_MUST_USE;

/* The result called `name`, as floats whatever it is computed in. */
mx_status mx_verify_result(mx_exec *e, const char *name, float *out) MX_MUST_USE;

#endif
