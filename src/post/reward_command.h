/* reward_command.h - a program that judges answers.
 *
 * It is started once, as `sh -c COMMAND`, in several copies (reward_workers). It reads a JSON
 * object a line, {"prompt", "completion", "tokens", "truncated", and the record's columns}, and
 * writes one line for each, in order: a number, null (cannot be judged), or {"reward": number}. A
 * line that takes longer than reward_timeout, an end, or anything else is an error with what the
 * program said last on standard error. By default it runs without network and may gain no rights
 * (reward_sandbox).
 */
#ifndef MX_POST_REWARD_COMMAND_H
#define MX_POST_REWARD_COMMAND_H

#include "post/reward.h"

typedef struct mx_reward_command mx_reward_command;

mx_status mx_reward_command_open(mx_reward_command **out, const mx_config *c) MX_MUST_USE;
void mx_reward_command_close(mx_reward_command *r); /* NULL is a no-op */
/* score[i * stride] for each answer. */
mx_status mx_reward_command_judge(mx_reward_command *r, const mx_reward_input *answers, int64_t n,
                                  double *score, int64_t stride) MX_MUST_USE;

#endif
