/* forecast.h - a run on a mesh, before there is one: memory, traffic, time.
 *
 * Memory and traffic come from the programs of one rank of every stage, compiled for its part of
 * the mesh as the run would compile them, and are those of the stage that needs the most memory.
 * All ranks of a stage need the same. While layouts are searched, memory comes from the model of
 * costs (cost.h). Time comes from the simulation.
 */
#ifndef MX_PLAN_FORECAST_H
#define MX_PLAN_FORECAST_H

#include "plan/simulate.h"
#include "plan/topology.h"
#include "plan/traffic.h"
#include "exec/mesh_config.h"
#include "exec/plan.h"

enum { MX_FORECAST_POINTS = 480 };

typedef struct {
    mx_topology machine;
    const mx_device_traits *traits; /* that programs are compiled for; NULL: a GPU's */
    mx_mesh mesh;
    mx_layout layout; /* of that mesh */
    mx_batch_plan batch;
    mx_profile profile;
    const mx_profile *known; /* the same, where a search has it already; or NULL */
    mx_run_kind run;
    mx_layer_costs costs;
    mx_step_time time;
    int worst_stage;                  /* that needs the most memory */
    mx_plan plan;                     /* of one rank of it */
    mx_traffic_table traffic;         /* likewise */
    mx_rank_memory memory, estimate;  /* estimate: by the cost model */
    double fragmentation;             /* bytes between values that no other has the size for */
    double model_flops;               /* of an update on all chips, nothing computed again */
    double room; /* bytes: once a stage needs more, no other is compiled; 0: all are */
    double curve[MX_FORECAST_POINTS]; /* bytes alive over a microbatch */
    int n_curve;
    char remat[40];
} mx_forecast;

/* How the keys have weights, gradients and optimizer state stored and multiplied. */
mx_status mx_run_kind_of(mx_run_kind *r, const mx_config *c, const mx_model_spec *m) MX_MUST_USE;
/* The rates of GEMMs that this recipe quantizes; NULL: none does. */
void mx_run_kind_quantize(mx_run_kind *run, const mx_quant_recipe *r);
/* f->machine and f->mesh are given; a choice of a search also gives batch, remat and the layout's
 * microbatches and chunks. */
mx_status mx_forecast_make(mx_forecast *f, const mx_config *c, const mx_model_spec *m) MX_MUST_USE;
/* The same without compiling the ranks' programs: memory is estimated, traffic not known. */
mx_status mx_forecast_time(mx_forecast *f, const mx_config *c, const mx_model_spec *m) MX_MUST_USE;
mx_cost_request mx_forecast_request(const mx_forecast *f);
double mx_forecast_tokens(const mx_forecast *f); /* per second, of all chips */
double mx_forecast_mfu(const mx_forecast *f);

#endif
