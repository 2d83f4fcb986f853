/* dpo.c - maxc dpo: learn from preferences; resumes automatically. */
#include "cmd/trl_defaults.h"
#include "cmd/verb.h"
#include "train/run/objective.h"
#include "train/run/run.h"

#include <string.h>

/* loss_type names an objective of the family, or one of dpo's own losses; MaxText has dpo.algo. */
static const mx_objective *objective_of(const mx_config *c)
{
    const char *type = mx_config_text(c, "loss_type");
    type = *type ? type : mx_config_text(c, "dpo.algo");
    const mx_objective *dpo = NULL;
    for (int i = 0; i < mx_objective_count; i++) {
        const mx_objective *o = mx_objective_table[i];
        bool own = strcmp(o->name, "dpo") == 0;
        if (strcmp(o->verb, "dpo") == 0 && (own || strcmp(o->name, type) == 0))
            dpo = own && dpo ? dpo : o;
    }
    return dpo;
}

static mx_status run(mx_invocation *inv)
{
    return mx_run_objective(inv->config, objective_of(inv->config), inv->command_line);
}

/* TRL's. */
static const char *const defaults[] = {MX_TRL_DEFAULTS, "learning_rate=1e-6",
                                       "per_device_batch_size=8", NULL};

const mx_verb mx_verb_dpo = {
    .name = "dpo",
    .objective = objective_of,
    .doc = "learn from preferences: DPO and its family, ORPO",
    .usage = "[FILE.yml] load_parameters_path=DIR dataset_path=... run_name=NAME [loss_type=...]",
    .help = "Records are prompt, chosen and rejected: texts, or lists of messages.\n"
            "per_device_batch_size counts pairs. loss_type is one of TRL's losses, several of\n"
            "them with loss_weights, or orpo. The reference is the model at the start; with\n"
            "adapters it is the model without them. Runs, checkpoints and metrics are those of\n"
            "`maxc train`.",
    .takes_file = true,
    .like = "train",
    .defaults = defaults,
    .run = run,
};
