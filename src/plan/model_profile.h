/* model_profile.h - the profile of the model that a configuration describes. */
#ifndef MX_PLAN_MODEL_PROFILE_H
#define MX_PLAN_MODEL_PROFILE_H

#include "base/config.h"
#include "plan/profile.h"

/* Compiled with this remat policy; NULL: as the keys say. */
mx_status mx_profile_of(mx_profile *p, const mx_config *cfg, const mx_model_spec *m,
                        const char *remat_policy) MX_MUST_USE;

#endif
