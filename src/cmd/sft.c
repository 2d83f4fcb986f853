/* sft.c - maxc sft: fine-tune a model on answers; resumes automatically. */
#include "cmd/trl_defaults.h"
#include "cmd/verb.h"
#include "train/run/objective.h"
#include "train/run/run.h"

extern const mx_objective mx_objective_sft;

static const mx_objective *objective_of(const mx_config *c)
{
    (void)c;
    return &mx_objective_sft;
}

static mx_status run(mx_invocation *inv)
{
    return mx_run_objective(inv->config, &mx_objective_sft, inv->command_line);
}

/* TRL's. */
static const char *const defaults[] = {MX_TRL_DEFAULTS, "packing_type=bfd", "learning_rate=2e-5",
                                       "per_device_batch_size=8", NULL};

const mx_verb mx_verb_sft = {
    .name = "sft",
    .objective = objective_of,
    .doc = "fine-tune a model on answers: completions, conversations",
    .usage = "[FILE.yml] load_parameters_path=DIR dataset_path=... run_name=NAME [key=value ...]",
    .help = "Records are prompt and completion, messages, instruction and output (Alpaca),\n"
            "conversations (ShareGPT) or text. loss_on=completion (where records have a prompt),\n"
            "assistant (what the assistant wrote) or all says what is trained; `maxc data sft`\n"
            "with the same keys shows it. Runs, checkpoints and metrics are those of `maxc train`.",
    .takes_file = true,
    .like = "train",
    .defaults = defaults,
    .run = run,
};
