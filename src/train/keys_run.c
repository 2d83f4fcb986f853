/* keys_run.c - keys of the run, its device, its metrics and profiles. The columns are those of
 * mx_key (base/key.h). */
#include "train/keys.h"

#define BOOL MX_KEY_BOOL
#define INT MX_KEY_INT
#define FLOAT MX_KEY_FLOAT
#define TEXT MX_KEY_STRING
#define ENUM MX_KEY_ENUM
#define LIST MX_KEY_LIST
#define RUN MX_SECTION_RUN
#define DEVICE MX_SECTION_DEVICE
#define METRICS MX_SECTION_METRICS
#define PROFILE MX_SECTION_PROFILE
#define FIXED MX_KEY_FIXED
#define PLANNED MX_KEY_PLANNED
#define PATH MX_KEY_PATH

const mx_key mx_keys_run[] = {
    {"run_name", TEXT, RUN, "", 0,
     "name of the run and of its folder; a run of that name is resumed", "name experiment_name", 0,
     MX_BY_TRAIN, "run_name=second"},
    {"model_name", TEXT, RUN, "default", 0, "a file in configs/models without .yml, or default",
     "model base_model", FIXED, MX_BY_STEP, "model_name=qwen3-0.6b"},
    {"base_output_directory", TEXT, RUN, "runs", 0, "folder in which run folders are made",
     "output_dir out_dir output_directory", PATH, "train bench", "base_output_directory=out"},
    {"base_config", LIST, RUN, "", 0, "files read before this one; it overrides them", "defaults",
     PATH, "train plan bench data", "base_config=common.yml",
     .seen_by = "tests/base/config_test.c"},
    {"log_config", BOOL, RUN, "false", 0, "print the resolved configuration at the start", 0, 0,
     MX_BY_TRAIN, "log_config=true"},
    {"data_shuffle_seed", INT, RUN, "0", "0..", "seed of the order of the data", "data_seed", FIXED,
     MX_BY_DATA, "data_shuffle_seed=1"},
    {"init_weights_seed", INT, RUN, "0", "0..", "seed of the initial weights", "model_seed", FIXED,
     MX_BY_TRAIN, "init_weights_seed=1"},

    {"device", ENUM, DEVICE, "auto", "auto|cpu|cuda=gpu=gpu_multiprocess~nvidia",
     "where it runs; auto takes a GPU when there is one", "=hardware backend accelerator", 0,
     "train bench generate verify", "device=cuda"},
    {"num_threads", INT, DEVICE, "0", "0..1024", "CPU threads; 0 takes every core allowed",
     "threads n_threads omp_num_threads", 0, "train plan bench generate", "num_threads=2"},
    {"deterministic", BOOL, DEVICE, "true", 0, "equal runs give equal bits",
     "use_deterministic_algorithms", 0, MX_BY_TRAIN, "deterministic=false"},
    {"gemm_search", BOOL, DEVICE, "false", 0,
     "on a GPU: time the algorithms for each product once and keep the fastest on disk",
     "autotune xla_gpu_autotune_level", 0, MX_BY_TRAIN, "gemm_search=true"},
    {"compile_cache_dir", TEXT, DEVICE, "", 0,
     "compiled kernels; empty for the user's cache folder", 0, PLANNED | PATH,
     .instead = "set XDG_CACHE_HOME, whose folder maxc holds them"},

    {"metrics_file", TEXT, METRICS, "", 0, "a second copy of metrics.jsonl", 0, PATH, MX_BY_TRAIN,
     "metrics_file=copy.jsonl"},
    {"enable_tensorboard", BOOL, METRICS, "true", 0, "write TensorBoard event files", "tensorboard",
     0, MX_BY_TRAIN, "enable_tensorboard=false"},
    {"enable_wandb", BOOL, METRICS, "false", 0, "log to Weights & Biases", "use_wandb report_to",
     PLANNED,
     .instead =
         "leave it out; `wandb sync --sync-tensorboard RUN/tensorboard` reads the event files"},
    {"record_internal_nn_metrics", BOOL, METRICS, "false", 0,
     "mean and spread of activations by layer", 0, PLANNED},
    {"step_timeout_seconds", FLOAT, METRICS, "0", "0..1e9",
     "a step that takes longer dumps every thread's stack; 0: 20 times the median", "watchdog", 0,
     MX_BY_TRAIN, "step_timeout_seconds=30", .seen_by = "tests/cli/faults.sh"},
    {"enable_goodput_recording", BOOL, METRICS, "true", 0, "account for every second of the run", 0,
     0, MX_BY_TRAIN, "enable_goodput_recording=false"},
    {"reuse_example_batch", INT, METRICS, "0", "0..", "repeat one batch, to time compute alone", 0,
     PLANNED},

    {"profiler", ENUM, PROFILE, "", "|trace=xplane|!nsys", "write a trace of the profiled steps", 0,
     0, MX_BY_TRAIN, "profiler=trace"},
    {"profile_steps", TEXT, PROFILE, "", 0, "a:b profiles steps a to b; overrides the next two", 0,
     0, MX_BY_TRAIN, "profile_steps=2:3 profiler=trace"},
    {"skip_first_n_steps_for_profiler", INT, PROFILE, "1", "0..", "steps before the trace starts",
     0, 0, MX_BY_TRAIN, "skip_first_n_steps_for_profiler=2 profiler=trace"},
    {"profiler_steps", INT, PROFILE, "5", "1..", "steps in the trace", 0, 0, MX_BY_TRAIN,
     "profiler_steps=1 profiler=trace"},
    {"profile_periodically_period", INT, PROFILE, "-1", "-1|1..", "trace again after so many steps",
     0, PLANNED},
    {"dump_ir", TEXT, PROFILE, "", 0, "print the graph after this pass (or: all)",
     "dump_hlo dump_jaxpr", 0, "train plan bench verify", "dump_ir=build"},
    {0},
};
