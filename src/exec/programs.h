/* programs.h - the programs of a training run.
 *
 *     step    forward, backward and update; or, where gradients are accumulated, without the update
 *     apply   the update by accumulated gradients
 *     eval    the loss of a batch of evaluation
 *
 * On a mesh with stages a pipeline (exec/pipeline.h) takes the place of `step`.
 *
 * All are compiled before memory is taken for any, so what they need together is known first
 * (plan.h). Only one of them runs at a time: they have one scratch memory, as large as the largest
 * needs it, and each its own inputs and constants.
 */
#ifndef MX_EXEC_PROGRAMS_H
#define MX_EXEC_PROGRAMS_H

#include "compile/mesh/partition.h"
#include "exec/batch_plan.h"
#include "exec/pipeline.h"
#include "exec/step_config.h"

typedef struct mx_programs_request {
    mx_step_options options; /* how all of them are compiled; kinds and batches are set here */
    mx_batch_plan batch;
    int64_t eval_batch;  /* sequences of a batch of evaluation; 0: there is none */
    int64_t eval_parts;  /* such batches that `eval_steps` counts as one: microbatches of stages */
    mx_pipeline_options pipeline; /* stages 0: there is none */
    int64_t mtp_eval;    /* the MTP module whose predictions an evaluation counts; 0: none */
    bool always_applies; /* accumulates one microbatch as well: several processes do */
    bool gradients_only; /* a pipeline without the update: gradients are whole sums over ranks */
} mx_programs_request;

/* Zero-initialise. Close after the session they were opened in. */
typedef struct {
    mx_step step, apply, eval;
    bool accumulates, evaluates;
    bool pipelined; /* there is no step, but: */
    mx_pipeline pipeline, eval_pipeline; /* in place of step and eval; close before the session */
    mx_process_group *stages; /* its ranks, borrowed; to be set before it is opened */
} mx_programs;

/* Who runs them: how many ranks, and how many of these have rows of their own. on: the rank of a
 * mesh that they are compiled for; NULL: each has the whole model. */
typedef struct {
    int64_t ranks, data_ranks;
    const mx_partition *on;
} mx_programs_ranks;
/* What the keys say. Texts live in the arena. */
mx_status mx_programs_configure(mx_programs_request *q, const mx_config *cfg,
                                const mx_model_spec *m, mx_programs_ranks by,
                                mx_arena *a) MX_MUST_USE;
/* How the keys cut the model for the stages of this rank's mesh; c may be NULL: the defaults. */
void mx_pipeline_configure(mx_pipeline_options *p, const mx_config *c, const mx_model_spec *m,
                           const mx_partition *on);
/* Into how many microbatches `rows` sequences of a data rank are divided. */
mx_status mx_pipeline_parts(const mx_config *c, int stages, int64_t rows,
                            int64_t *out) MX_MUST_USE;
/* Sequences of a program's batch, of which a rank has n: on a mesh programs are built whole. */
int64_t mx_programs_rows(const mx_programs_request *q, int64_t n);
/* Which of them the request asks for; none is compiled. */
void mx_programs_begin(mx_programs *p, const mx_programs_request *q);
/* The pipeline of an evaluation: one batch at a time, through the stages that have the weights. */
mx_pipeline_options mx_programs_eval_pipeline(const mx_programs *p, const mx_programs_request *q);
mx_status mx_programs_plan(mx_programs *p, const mx_model_spec *m,
                           const mx_programs_request *q) MX_MUST_USE;
/* The same of another stage of the pipeline, before they are opened. */
mx_status mx_programs_replan(mx_programs *p, const mx_model_spec *m, const mx_programs_request *q,
                             int stage) MX_MUST_USE;
/* Takes the memory and binds what was planned. */
mx_status mx_programs_open(mx_programs *p, mx_session *s) MX_MUST_USE;
void mx_programs_close_pipelines(mx_programs *p); /* before the session */
void mx_programs_close(mx_programs *p);

/* Those that there are, for loops over them: gives their number. */
enum { MX_PROGRAMS = 3 };
int mx_programs_list(mx_programs *p, mx_step *list[MX_PROGRAMS]);

#endif
