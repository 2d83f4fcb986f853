/* plan.h - what a training run will need, before anything is allocated.
 *
 * The programs (programs.h) are compiled exactly as for the run, so their bytes are the run's
 * bytes: every variable by class, inputs and constants, and the scratch memory they have in common,
 * in which activations, their gradients and work space lie.
 *
 * The time is a floor: each node takes at least max(FLOPs / rate, bytes / bandwidth). MFU counts
 * the FLOPs of the model alone, without what is computed again.
 */
#ifndef MX_EXEC_PLAN_H
#define MX_EXEC_PLAN_H

#include "base/memory_available.h"
#include "exec/programs.h"

enum { MX_PLAN_LARGEST = 12 };

/* Values alive at the moment when the scratch memory is fullest, added up over layers. */
typedef struct {
    char name[96]; /* "model.layers.*.mlp.gate_proj" */
    double bytes;
    int n;
} mx_plan_item;

typedef struct {
    mx_batch_plan batch;
    double parameters, trainable;          /* numbers */
    double variables[MX_VAR_KIND_COUNT];   /* bytes, by class */
    double inputs;                         /* bytes, of all programs */
    double activations, workspace;         /* bytes, of the programs that need the most */
    double beside; /* bytes of what is there beside the programs: other models, caches */
    double total;                          /* bytes, on the device */
    double on_host;                        /* bytes beside it, of variables in host memory */
    double offloaded;                      /* ... and of activations */
    double snapshot; /* host memory to copy weights and optimizer to, for saves beside the steps */
    const mx_device_traits *traits;        /* what it was compiled for */
    double flops, model_flops;             /* of one update, on one device */
    double moved_bytes;                    /* read and written by one update */
    double seconds; /* the floor of one update; 0 when the rates are unknown */
    int n_nodes;
    int n_kernels; /* generated, where the device asks for them */
    double compile_seconds;
    mx_plan_item largest[MX_PLAN_LARGEST];
    int n_largest;
} mx_plan;

/* What the device offers; 0: unknown. */
typedef struct {
    const mx_device_traits *traits;
    double memory_bytes, flops_per_second, bytes_per_second;
    const char *kernels_for; /* compile the generated kernels for this architecture; NULL: do not */
} mx_plan_device;

/* Of programs that are compiled. */
void mx_plan_of(mx_plan *p, mx_programs *programs, const mx_batch_plan *batch,
                const mx_plan_device *device);
/* Compiles them for the device; what was compiled is thrown away. */
mx_status mx_plan_make(mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                       const mx_plan_device *device) MX_MUST_USE;

/* A change of keys that makes the run smaller, with what it would need then. */
typedef struct {
    char keys[128]; /* "remat_policy=full" */
    double total;
} mx_plan_advice;
/* Tries changes, least harmful first; gives the number written to `out`. */
int mx_plan_advise(const mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                   mx_plan_advice *out, int cap);
/* MX_MEMORY with advice where it does not fit the device. */
mx_status mx_plan_check(const mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                        mx_memory_available device) MX_MUST_USE;

#endif
