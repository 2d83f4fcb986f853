/* search.h - the best layout of a run on a machine: mesh=auto.
 *
 * All meshes of data, stage, fsdp, context, tensor and expert whose degrees the model and the batch
 * allow, with microbatches, chunks of stages and remat policies, for one global batch. Those that
 * do not fit by the cost model are dropped; a bound orders the rest, and the best of that order
 * are simulated.
 */
#ifndef MX_PLAN_SEARCH_H
#define MX_PLAN_SEARCH_H

#include "plan/forecast.h"

enum { MX_SEARCH_REMATS = 3 };

typedef struct {
    mx_mesh mesh;
    mx_layout layout; /* of that mesh, which it does not point to */
    int remat;        /* of the search's */
    double bound;     /* seconds */
    mx_step_time time;
    mx_rank_memory memory;
} mx_plan_choice;

typedef struct {
    const mx_topology *machine;
    const mx_model_spec *model;
    const mx_config *config;
    int64_t sequences; /* of an update */
    bool stages;       /* also pipelines */
    bool simulate_all; /* not only the best by their bounds */
    const char *remat; /* the only policy; NULL: whichever is best */
} mx_search_request;

typedef struct {
    const char *remat[MX_SEARCH_REMATS]; /* policies that were tried */
    const mx_profile *profile[MX_SEARCH_REMATS]; /* with each policy, in the arena */
    mx_arena arena;
    int n_remats;
    mx_plan_choice *best; /* in the order of their times; owns */
    int n;
    int64_t tried, too_large; /* layouts; of those, that do not fit */
    mx_rank_memory least;     /* of those that do not, the one that needs the least memory */
    mx_mesh least_mesh;
} mx_search;

mx_status mx_search_run(mx_search *s, const mx_search_request *q) MX_MUST_USE;
void mx_search_fini(mx_search *s);
/* Gives the forecast its mesh, batch, microbatches and remat policy: see mx_forecast_make. */
void mx_search_take(const mx_search *s, int i, const mx_search_request *q, mx_forecast *f);
/* The keys of choice i, "mesh=fsdp=8 remat_policy=full ...": what maxc train takes. */
void mx_search_keys(const mx_search *s, int i, mx_str *out);
/* Of a chip's memory, what a layout may be planned to need: the rest is left for the driver and the
 * buffers of communicators. */
double mx_search_usable_bytes(const mx_plan_chip *c);
/* What makes choice i slower than the first, or what limits the first, in a few words. */
void mx_search_reason(const mx_search *s, int i, mx_str *out);

#endif
