/* reward_library.h - a shared library that judges answers (reward_library; include/maxc_reward.h is
 * its interface). */
#ifndef MX_POST_REWARD_LIBRARY_H
#define MX_POST_REWARD_LIBRARY_H

#include "post/reward.h"

typedef struct mx_reward_library mx_reward_library;

mx_status mx_reward_library_open(mx_reward_library **out, const mx_config *c) MX_MUST_USE;
void mx_reward_library_close(mx_reward_library *r); /* NULL is a no-op */
const char *mx_reward_library_name(const mx_reward_library *r);
/* score[i * stride] for each answer. */
mx_status mx_reward_library_judge(mx_reward_library *r, const mx_reward_input *answers, int64_t n,
                                  double *score, int64_t stride) MX_MUST_USE;

#endif
