/* mesh_run.h - a model on a mesh of virtual ranks, beside the same model on one device.
 *
 *     mesh_run r;
 *     mesh_run_open(&r, &(mesh_case){.dir = DIR, .batch = 8, .seq = 16});
 *     mesh_run_check(&r, mesh, 2e-5);
 *     mesh_run_close(&r);
 */
#ifndef MX_TESTS_MESH_RUN_H
#define MX_TESTS_MESH_RUN_H

#include "compile/mesh/partition.h"
#include "exec/step.h"

typedef struct {
    const char *dir;  /* with the model's config.json */
    int layers;       /* where the model shall have others than it says */
    mx_dtype dtype;   /* of weights and arithmetic */
    mx_dtype compute; /* where it is another */
    int64_t batch, seq;
    bool packed;      /* two documents in a row */
    int64_t images;   /* in the whole batch */
    int steps;        /* of training; 0: loss and gradients */
    int microbatches; /* accumulated in each of them; 0: none, one program does everything */
    mx_optimizer optimizer;
    mx_remat remat;
    mx_partition how; /* all but mesh, rules and rank */
    const char *rules[4]; /* set beside the defaults */
    /* Initial value of element i of a whole weight, where it shall be another than x. */
    double (*initial)(const mx_var *v, int64_t i, double x);
} mesh_case;

typedef struct {
    mesh_case c;
    mx_model_spec model;
    mx_axis_rules rules;
    mx_step step, apply; /* on one device, run */
    mx_session *session;
    double largest;      /* gradient */
    /* Of the last mesh: */
    double worst;
    char where[512], refused[1024];
    int n_collectives;
} mesh_run;

void mesh_run_open(mesh_run *r, const mesh_case *c);
void mesh_run_close(mesh_run *r);
/* Runs the mesh and fills in `worst`: the largest difference of the loss, of a gradient, or of a
 * trained weight, relative to the largest number of that tensor. The sequences of collectives of
 * all ranks must be the same. False when the mesh is refused, which `refused` explains. */
bool mesh_run_try(mesh_run *r, mx_mesh mesh);
/* The same, and a check that it is not refused and `worst` is below the limit. */
void mesh_run_check(mesh_run *r, mx_mesh mesh, double limit);

/* The inputs of a microbatch, of those that the program has. */
void mesh_write_inputs(const mesh_case *c, mx_exec *e, int microbatch);

/* "fsdp=2,tensor=4" and back; text of at most `cap` bytes. */
mx_mesh mesh_parse(const char *text);
const char *mesh_text(const mx_mesh *m, char *out, size_t cap);

#endif
