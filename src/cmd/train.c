/* train.c - maxc train: pre-train or fully fine-tune; resumes automatically. */
#include "cmd/verb.h"
#include "train/run/run.h"

static mx_status run(mx_invocation *inv)
{
    return mx_run_train(inv->config, inv->command_line);
}

const mx_verb mx_verb_train = {
    .name = "train",
    .doc = "pre-train or fully fine-tune a model; resumes automatically",
    .usage =
        "[FILE.yml] model_name=NAME run_name=NAME [dataset_path=...] [steps=...] [key=value ...]",
    .help = "Writes everything to base_output_directory/run_name. When that folder holds a\n"
            "checkpoint, the run goes on from it. load_parameters_path=DIR starts from a Hugging\n"
            "Face directory.\n"
            "SIGTERM, SIGINT and SIGUSR1 finish the step, save, and exit with status 75.",
    .takes_file = true,
    .run = run,
};
