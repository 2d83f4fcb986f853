/* model_profile.c - see model_profile.h. */
#include "plan/model_profile.h"

#include "exec/step_config.h"
#include <string.h>

enum { SEQUENCES = 2 };

mx_status mx_profile_of(mx_profile *p, const mx_config *cfg, const mx_model_spec *m,
                        const char *remat_policy)
{
    mx_arena arena = {0};
    mx_step_options o;
    mx_step step = {0};
    mx_status st = mx_step_configure(&o, cfg, m, MX_STEP_ACCUMULATE, SEQUENCES, &arena);
    if (st)
        goto out;
    o.compile.device = &mx_cuda_traits;
    if (remat_policy && strcmp(remat_policy, "custom") != 0) /* which the keys describe */
        MX_ASSERT(mx_remat_find(remat_policy, &o.compile.remat), "remat_policy=%s", remat_policy);
    MX_TRY_OUT(st, mx_profile_model(p, m, o.shape.seq));
    MX_TRY_OUT(st, mx_step_plan(&step, m, &o));
    mx_profile_program(p, &step.program, SEQUENCES);
    mx_step_close(&step);
out:
    mx_arena_fini(&arena);
    return st;
}
