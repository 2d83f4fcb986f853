/* grpo.c - maxc grpo: learn from rewards; resumes automatically. */
#include "cmd/trl_defaults.h"
#include "cmd/verb.h"
#include "train/run/objective.h"
#include "train/run/run.h"

extern const mx_objective mx_objective_grpo;

static const mx_objective *objective_of(const mx_config *c)
{
    (void)c;
    return &mx_objective_grpo;
}

static mx_status run(mx_invocation *inv)
{
    return mx_run_objective(inv->config, &mx_objective_grpo, inv->command_line);
}

/* TRL's. */
static const char *const defaults[] = {MX_TRL_DEFAULTS,           "learning_rate=1e-6",
                                       "per_device_batch_size=1", "rl.num_generations=8",
                                       "rl.grpo_beta=0",          NULL};

const mx_verb mx_verb_grpo = {
    .name = "grpo",
    .objective = objective_of,
    .doc = "learn from rewards, relative to a group of own answers: GRPO and its family",
    .usage = "[FILE.yml] load_parameters_path=DIR dataset_path=... reward=... run_name=NAME",
    .help = "Records have a prompt (text or messages) and what rewards need (answer, solution).\n"
            "num_generations answers are sampled to each, with the weights that are trained;\n"
            "per_device_batch_size counts prompts. reward= names built-in rewards,\n"
            "reward_command= a program that judges. rollout_path=FILE trains on recorded groups\n"
            "instead.",
    .takes_file = true,
    .like = "train",
    .defaults = defaults,
    .run = run,
};
