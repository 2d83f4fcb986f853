/* forward.h - a forward program of a model beside the steps of a run: one program, or, on a mesh
 * with stages, a pipeline that every batch goes through stage by stage. All ranks open it, run it
 * and share its results together.
 */
#ifndef MX_EXEC_FORWARD_H
#define MX_EXEC_FORWARD_H

#include "exec/pipeline.h"
#include "exec/step.h"

/* The stages that a run has. */
typedef struct mx_forward_stages {
    mx_pipeline_options how; /* how its own model is cut */
    mx_process_group *group; /* of the stage axis; NULL in plans */
} mx_forward_stages;

typedef struct {
    mx_step step;         /* without stages */
    mx_pipeline pipeline; /* with them */
    bool piped;
    bool failed; /* messages may be under way */
} mx_forward;

/* Compiles; on: NULL without stages. mx_forward_close also when it fails. */
mx_status mx_forward_plan(mx_forward *f, const mx_model_spec *m, const mx_step_options *o,
                          const mx_forward_stages *on) MX_MUST_USE;
/* The same, bound to a session. */
mx_status mx_forward_open(mx_forward *f, mx_session *s, const mx_model_spec *m,
                          const mx_step_options *o, const mx_forward_stages *on) MX_MUST_USE;
/* Before the session of a pipeline. Without stages the session keeps what it runs. */
void mx_forward_close(mx_forward *f);

/* Another model than the run's is cut by its own layers. */
mx_forward_stages mx_forward_other(const mx_forward_stages *on);
/* What was built, of all stages. */
const mx_graph *mx_forward_graph(const mx_forward *f);
/* On this rank: what it adds to a session that has the weights, and what it needs by itself. */
void mx_forward_bytes(const mx_forward *f, double *added, double *by_itself);
double mx_forward_caches(const mx_forward *f); /* among both */

/* feed: `write` for every program that runs here, `read` where the results are, on the last stage.
 */
mx_status mx_forward_run(mx_forward *f, const mx_pipeline_feed *feed) MX_MUST_USE;
/* What `read` has got, to the other stages. */
mx_status mx_forward_share(const mx_forward *f, void *data, size_t bytes) MX_MUST_USE;

#endif
