/* choose.h - mesh=auto: the best layout whose programs can be compiled and then fit.
 *
 * The search orders layouts by what the cost model says. The first is compiled for a rank of
 * every stage; where that cannot be done, or needs more memory than was estimated, the next.
 */
#ifndef MX_PLAN_CHOOSE_H
#define MX_PLAN_CHOOSE_H

#include "plan/search.h"

/* f->machine is given. What is chosen is s->best[0]; f is its forecast. */
mx_status mx_layout_choose(mx_search *s, const mx_search_request *q, mx_forecast *f) MX_MUST_USE;

#endif
