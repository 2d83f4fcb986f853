/* distill.c - maxc distill: learn the distributions of a teacher; resumes automatically. */
#include "cmd/trl_defaults.h"
#include "cmd/verb.h"
#include "post/teacher_file.h"
#include "train/run/objective.h"
#include "train/run/run.h"

extern const mx_objective mx_objective_distill, mx_objective_distill_recorded;

static const mx_objective *objective_of(const mx_config *c)
{
    bool recorded = *mx_config_text(c, "offline_data_dir");
    return recorded ? &mx_objective_distill_recorded : &mx_objective_distill;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    if (*mx_config_text(c, "write_teacher"))
        return mx_teacher_write(c);
    return mx_run_objective(c, objective_of(c), inv->command_line);
}

/* MaxText's weights; what TRL's trainers have otherwise. */
static const char *const defaults[] = {MX_TRL_DEFAULTS,
                                       "packing_type=bfd",
                                       "learning_rate=2e-5",
                                       "per_device_batch_size=8",
                                       "decode_sampling_temperature=0.9",
                                       "max_completion_length=128",
                                       NULL};

const mx_verb mx_verb_distill = {
    .name = "distill",
    .objective = objective_of,
    .doc = "learn the distributions of a teacher: MaxText's loss, GKD",
    .usage = "[FILE.yml] load_parameters_path=DIR teacher_path=DIR dataset_path=... run_name=NAME",
    .help = "Records are those of `maxc sft`; the teacher may be of another size or family, with\n"
            "the same tokenizer. loss_type=gkd is TRL's GKD, with answers of the student's own\n"
            "(lmbda). write_teacher=DIR distill_top_k=64 writes what the teacher thinks of the\n"
            "data and trains nothing; offline_data_dir=DIR trains on that.",
    .takes_file = true,
    .like = "train",
    .defaults = defaults,
    .run = run,
};
