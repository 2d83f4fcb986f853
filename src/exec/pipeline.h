/* pipeline.h - the share of one stage in a pipeline: its programs, its slots, its list of actions.
 *
 *     mx_pipeline p;
 *     mx_graph_init(&p.joint);  loss = ... the forward graph, at global shapes ...
 *     mx_pipeline_plan(&p, loss, &options);      compiles
 *     mx_pipeline_bind(&p, session, group);      takes memory
 *     mx_pipeline_run(&p, &feed);                all microbatches of one step
 *     mx_pipeline_close(&p);                     before the session
 *
 * The programs of a stage run one at a time, in the memory that the session shares among programs
 * (mx_session_share). Gradients are added up in the session's variables NAME.grad; those of weights
 * that several stages have are summed over them.
 */
#ifndef MX_EXEC_PIPELINE_H
#define MX_EXEC_PIPELINE_H

#include "compile/compile.h"
#include "compile/mesh/stages.h"
#include "device/device.h"
#include "exec/pipeline_schedule.h"
#include "ir/process_group.h"

typedef struct {
    mx_pipeline_kind kind;
    int stages, stage;  /* of the axis, and this rank's */
    int repeats;        /* chunks of each stage */
    int microbatches;
    int layers_each;    /* of a chunk; 0: chunks of nearly equal cost */
    const mx_layer_chunks *as; /* the `cut` of another pipeline, to be used again; NULL: none */
    mx_compile_options compile;
} mx_pipeline_options;

/* What the caller does with a microbatch: writes its inputs (names that a program does not use are
 * ignored), and reads the results of the last chunk after its F. */
typedef struct {
    mx_status (*write)(void *ctx, int microbatch, mx_exec *e);
    mx_status (*read)(void *ctx, int microbatch, mx_exec *e);
    void *ctx;
} mx_pipeline_feed;

/* The gradient of a weight that several stages have. */
typedef struct {
    const char *name; /* of the variable with the sum */
    int *holder, n;   /* stages, ascending */
    int tag;          /* the same on all of them */
    mx_graph graph;
    mx_program program;
    mx_exec *exec;
} mx_shared_weight;

typedef struct {
    mx_pipeline_options how;
    mx_graph joint;
    mx_stages stages;
    mx_layer_chunks cut;
    mx_pipeline_schedule schedule;
    double parameters, trainable; /* numbers, of all stages */
    uint64_t *work; /* of each chunk, all stages: equal where the nodes are */
    mx_session *session;
    mx_process_group *group; /* borrows; of the stage axis, for the messages */
    mx_arena arena;
    mx_stage_chunk *chunk; /* owns, this stage's */
    mx_device_buffer *slots; /* owns, of each */
    char **mirror; /* owns, of each: as large, for messages; NULL: the host has the slots */
    mx_exec ***exec;       /* of each, part and slot: [i * MX_STAGE_PARTS + part][slot] */
    mx_shared_weight *shared;
    int n_shared;
    mx_device_buffer others; /* owns: for the gradients of other holders */
    size_t others_bytes;
    char *others_mirror; /* owns: as `mirror`, and room for what this stage sends */
    /* When each action of this stage's list began and ended, mx_clock_now; borrows. NULL: not
     * measured, and no action waits for the device. */
    double *took;
} mx_pipeline;

/* How the model is cut for it. */
mx_stages mx_pipeline_stages(const mx_pipeline_options *o);
/* As far as it goes without compiling: for one whose programs are there (saved_programs.h). */
mx_status mx_pipeline_begin(mx_pipeline *p, const mx_pipeline_options *o) MX_MUST_USE;
/* Takes the graph in p->joint; close it also when it fails. */
mx_status mx_pipeline_plan(mx_pipeline *p, mx_node *loss,
                           const mx_pipeline_options *o) MX_MUST_USE;
/* Does a stage do the work of another one, with no more microbatches in flight? */
bool mx_pipeline_is_like(const mx_pipeline *p, int stage, int other);
/* The programs of another stage, of one that is not bound. */
mx_status mx_pipeline_replan(mx_pipeline *p, int stage) MX_MUST_USE;
mx_status mx_pipeline_bind(mx_pipeline *p, mx_session *s, mx_process_group *group) MX_MUST_USE;
mx_status mx_pipeline_run(mx_pipeline *p, const mx_pipeline_feed *feed) MX_MUST_USE;
void mx_pipeline_close(mx_pipeline *p);

/* How many numbers the weights of a graph have, and those of them that are trained. */
void mx_count_parameters(const mx_graph *g, double *all, double *trained);
/* Bytes of one stage's slots, and the most that a program needs of shared memory beside them. */
size_t mx_pipeline_slot_bytes(const mx_pipeline *p);
size_t mx_pipeline_shared_bytes(const mx_pipeline *p);
/* Of one microbatch on this stage, recomputation not counted. */
double mx_pipeline_flops(const mx_pipeline *p);

/* pipeline_shared.c: weights that other stages have too. */
mx_status mx_pipeline_share_plan(mx_pipeline *p) MX_MUST_USE;
mx_status mx_pipeline_share_bind(mx_pipeline *p) MX_MUST_USE;
mx_status mx_pipeline_sum_shared(mx_pipeline *p) MX_MUST_USE;

#endif
