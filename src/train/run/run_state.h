/* run_state.h - what the parts of a training run share; private to src/train/run. */
#ifndef MX_TRAIN_RUN_STATE_H
#define MX_TRAIN_RUN_STATE_H

#include "base/progress.h"
#include "data/load/loader.h"
#include "dist/comm_group.h"
#include "store/run_lock.h"
#include "exec/batch_plan.h"
#include "exec/forward.h"
#include "train/report/goodput.h"
#include "train/report/metrics.h"
#include "exec/plan.h"
#include "train/run/objective.h"
#include "train/run/ramp.h"
#include "train/run/schedule.h"
#include "train/run/state.h"
#include "train/input/train_data.h"
#include "exec/virtual_ranks.h"
#include "train/run/watchdog.h"

typedef struct mx_run_profile mx_run_profile;

enum { MX_RUN_METRICS = 24 }; /* at most, besides those that the program adds */

/* A step that was started; what is below `got` is known once it was settled (run_step.c). */
typedef struct {
    int64_t step; /* counted from 1 */
    bool in_flight;
    float loss_limit, norm_limit; /* infinite: none */
    double lr, wait_s, began, done, flops;
    mx_comm_mark comm_from, comm_to; /* between them are this rank's collectives */
    int64_t tokens, trained, counted; /* counted: what the loss is a mean over */
    int64_t microbatches; /* that were run */
    bool repeats; /* its tokens were trained on, and counted, before */
    mx_metric host[MX_HOST_METRICS]; /* of the objective, about the batch */
    int n_host;
    mx_readback got;
    float loss, grad_norm;
    bool skipped;
    double step_s;
    mx_comm_seconds comm;
} mx_inflight_step;

/* What the loop asks for as it goes; read once, before the first step. */
typedef struct {
    int64_t checkpoint_period, eval_interval, eval_start_step, eval_steps, rollback_after_skips;
    int64_t task_interval; /* 0: there are no tasks */
    int64_t max_checkpoint_failures;
    bool abort_on_nan_loss, abort_on_inf_loss;
    bool save_on_start, save_on_completion, save_on_signal, save_always;
    double target_eval_loss, step_timeout;
} mx_run_rules;

/* Who else is in the run. Owned by run_join.c, which finds them, and run_ranks.c, which asks what
 * they know before each step. */
typedef struct {
    mx_launch launch;       /* which rank this is, of how many */
    mx_coord *coord;        /* of the processes of this run */
    mx_comm *comm;          /* the ranks of this run; one, usually */
    mx_comm_groups *groups; /* of processes on a mesh, by its axes; NULL: none */
    mx_comm *writers; /* the same ranks, for the writers of checkpoints; NULL: none or alone */
    bool leads;       /* this is rank 0 */
    bool rank0_reports; /* rank 0 says why the run fails (coord.h) */
    int data_rank, data_ranks; /* who has which rows of a batch */
    bool stops, writer_busy;   /* some rank was asked to stop, is still writing a checkpoint */
    int64_t failed_saves;      /* in a row, as far as any rank knows */
    mx_span *summed;           /* gradients, with capacity for one more */
    int n_summed;
} mx_run_ranks;

/* The folder of the run, as far as this start has a right to it. Owned by run_folder.c. */
typedef struct {
    mx_run_lock lock;
    const char *made; /* the first folder of the path that this start made; NULL: none */
    bool accepted;    /* the start is written down */
    bool finished;    /* before it began: nothing is left to do */
} mx_run_claim;

/* Batches, and the program of their size. Owned by run_batch.c; buffers by run_setup.c. */
typedef struct {
    mx_ramp ramp;
    int64_t stage;      /* of the ramp */
    mx_exec *now;       /* the program of the present batch size: step's, or small's */
    mx_step small;      /* of a stage of the ramp */
    int64_t microbatch; /* sequences of it */
    mx_batch gathered;  /* from pieces, with a ramp */
    double stage_flops; /* of a step of the stage */
    float *pixels;      /* of a microbatch, with images, as the program takes them */
    int32_t *places;    /* (3, rows, length), where tokens have them */
} mx_run_batch;

/* Steps on their way, and what is known of the last ones. Owned by run_step.c. */
typedef struct {
    mx_inflight_step inflight[2];
    const char **extra; /* roots of the program to be logged: "metric:NAME" */
    int n_extra;
    mx_metric *metric;
    bool has_lm_loss;      /* a root of its own beside the loss */
    double frozen_squares; /* sum of the squares of weights that are not trained */
    double last_done, last_clock, mean_step_s;
    int64_t n_timed; /* steps that this start has reported */
    mx_spikes spikes; /* cap 0: spikes are not looked for */
    double last_eval; /* NAN: none yet; run_eval.c's */
} mx_run_steps;

/* What users see as it goes. Opened by run_setup.c, written to by all. */
typedef struct {
    mx_metrics *metrics;
    mx_progress progress;
    double flops_per_step, peak_flops;
    bool measures_peak;      /* the chip's rate is not known: it is measured now and then */
    mx_run_profile *profile; /* NULL: none, or over; run_profile.c's */
} mx_run_report;

/* Checkpoints, and what was restored from them. Owned by run_save.c; local_* by
 * run_local_checkpoint.c. */
typedef struct {
    mx_ckpt *ckpt;              /* NULL: checkpointing is off */
    mx_passthrough passthrough; /* of the checkpoint the run began with or goes on from */
    mx_model_files files;       /* tokenizer and the like */
    const char *config_text;    /* of config.yml */
    bool snapshots;        /* saves go on beside steps, from a copy of the state */
    int64_t own_step;      /* the run's checkpoint that the state was last read from, -1: none */
    int64_t rolled_to;     /* the checkpoint the run went back to last, -1: never */
    int rolled_times;      /* in a row, to that one */
    int failures_said;     /* failed saves in a row that were reported */
    const char *local_dir; /* for the state when saves fail; NULL: none */
    int64_t local_step;    /* the step kept there that the run began with; -1: none */
    int local_failed;      /* how often the state could not be kept there */
} mx_run_saving;

/* Goodput, memory and the watchdog. Owned by run_watch.c. */
typedef struct {
    int log_fd; /* log.txt; 0: none */
    mx_watchdog *watchdog;
    mx_goodput goodput;
    bool accounts;                   /* goodput is recorded */
    double account_saved;            /* when, seconds since 1970 */
    double opened, compiled;         /* when, seconds since 1970 */
    double read_bytes, read_seconds; /* of the weights of load_parameters_path; 0: none */
    double start_rss_bytes;
    int64_t device_free; /* of a device with its own memory, before the run takes any; 0: unknown */
} mx_run_watching;

typedef struct {
    const mx_config *c;
    mx_arena arena;
    mx_objective_run goal; /* objective NULL: none */
    mx_forward_stages stages; /* what it runs beside the steps, on a mesh with stages */
    /* NULL: one device, or processes that each have the whole model */
    const mx_mesh_rank *mesh_rank;
    const char *folder;
    const char *weights_dir; /* load_parameters_path as a folder here; NULL: not given */
    mx_run_rules rules;
    mx_schedule schedule;
    int64_t steps; /* of the whole run */
    mx_model_spec model;
    mx_session *session;
    mx_programs_request request; /* what the programs are made from */
    mx_programs programs;
    mx_plan plan;
    mx_train_data data, eval_data;
    mx_run_state at; /* where the run is; at.step counts steps that were started */
    mx_run_ranks ranks;
    mx_run_claim claim;
    mx_run_batch batch;
    mx_run_steps loop;
    mx_run_report report;
    mx_run_saving saving;
    mx_run_watching watch;
} mx_run;

/* What a run is started with. */
typedef struct {
    const mx_config *config;
    const mx_objective *objective; /* NULL: none */
    const char *command_line;
    const char *note; /* what was chosen for it, to be said first; NULL or "": nothing */
    mx_status refused; /* owns: why there is no mesh; said when the ranks have met */
} mx_run_start;

/* run_mesh.c: puts a mesh for the ranks there are in the place of mesh=auto; the note says which
 * and why. */
mx_status mx_run_choose_mesh(const mx_run_start *s, const mx_launch *launch,
                             mx_str *note) MX_MUST_USE;

/* run_setup.c: everything before the first step. */
mx_status mx_run_open(mx_run *r, const mx_run_start *s, const mx_mesh_rank *mesh_rank) MX_MUST_USE;
void mx_run_close(mx_run *r);
/* The data of training or evaluation, in batches of `rows`. */
mx_status mx_run_open_data(mx_run *r, mx_train_data *d, int64_t rows,
                           bool evaluation) MX_MUST_USE;
/* The newest whole checkpoint of the run itself, in the arena; NULL when there is none. */
mx_status mx_run_newest(mx_run *r, const char **path) MX_MUST_USE;
/* metrics.jsonl from the step after the present one on. */
mx_status mx_run_open_metrics(mx_run *r) MX_MUST_USE;
/* run_folder.c: the folder, of rank 0. Locked, with the same configuration as before. */
mx_status mx_run_folder_open(mx_run *r) MX_MUST_USE;
mx_status mx_run_check_finished(mx_run *r) MX_MUST_USE; /* sets `finished`, and says so */
mx_status mx_run_folder_accept(mx_run *r, const char *command_line) MX_MUST_USE;
void mx_run_folder_leave(mx_run *r); /* a start that was not accepted leaves nothing */
/* run_plan.c: session and programs; MX_MEMORY before anything large is allocated. */
mx_status mx_run_programs_open(mx_run *r) MX_MUST_USE;
void mx_run_say_plan(mx_run *r);
mx_status mx_run_write_plan(const mx_run *r) MX_MUST_USE; /* plan.txt */
double mx_run_planned_bytes(const mx_run *r);
/* run_mesh.c: the step time as the planner predicts it, beside the real one. */
void mx_run_say_time(mx_run *r, double real);
/* run_watch.c: log, crash reports, watchdog, the account of time and memory. */
mx_status mx_run_check_crashes(mx_run *r) MX_MUST_USE; /* is it worth starting? */
void mx_run_log_open(mx_run *r);
mx_status mx_run_watch_open(mx_run *r) MX_MUST_USE;
void mx_run_spend(mx_run *r, mx_goodput_kind on); /* time from now on belongs to this */
void mx_run_step_begins(mx_run *r);
void mx_run_step_done(mx_run *r, int64_t step);
void mx_run_saved(mx_run *r);                     /* a save has begun at the present step */
void mx_run_check_saves(mx_run *r);               /* says so when checkpoints fail */
void mx_run_watch_close(mx_run *r, mx_status st); /* prints and records; st is borrowed */
void mx_run_measure_peak(mx_run *r);              /* raises peak_flops */
double mx_run_now(void);                          /* seconds since 1970 */
double mx_run_rss_bytes(void);                    /* the most memory this process has had */
/* run_profile.c: the time of every node, for the steps of profile_steps. */
mx_status mx_run_profile_open(mx_run *r) MX_MUST_USE;
void mx_run_profile_begin(mx_run *r);
void mx_run_profile_take(mx_run *r, const mx_exec *e); /* e has run */
void mx_run_profile_end(mx_run *r, bool run_is_over);
/* run_profile_stages.c: a pipeline. Each step that is measured, on all ranks. */
void mx_run_profile_stages_begin(mx_run *r);
mx_status mx_run_profile_stages_take(mx_run *r) MX_MUST_USE;
void mx_run_profile_stages_end(mx_run *r);
/* run_batch.c: the batch, and the program of its size. */
mx_status mx_run_batch_open(mx_run *r) MX_MUST_USE;
void mx_run_batch_close(mx_run *r);
mx_status mx_run_batch_enter(mx_run *r) MX_MUST_USE; /* that of the step after at.step */
/* NULL when there is no more data. */
mx_status mx_run_next_batch(mx_run *r, const mx_batch **out) MX_MUST_USE;
/* run_objective.c: the run's objective, where it has one. */
mx_status mx_run_objective_read(mx_run *r) MX_MUST_USE; /* its keys, once the batch is planned */
/* What it will keep beside the run's programs, once a session is open. */
mx_status mx_run_objective_beside(mx_run *r, mx_beside *out) MX_MUST_USE;
mx_status mx_run_objective_open(mx_run *r) MX_MUST_USE; /* once there are weights */
/* What the loss of a batch is a mean over. */
int64_t mx_run_counted(const mx_run *r, const mx_batch *b);
/* run_step.c: one step. */
mx_status mx_run_inflight_open(mx_run *r) MX_MUST_USE;
void mx_run_inflight_close(mx_run *r);
mx_status mx_run_feed(mx_run *r, mx_exec *e, const mx_batch *b, int64_t row,
                      float scale) MX_MUST_USE;
/* Starts the step after at.step and counts it; *end: there is no more data. */
mx_status mx_run_launch(mx_run *r, bool *end) MX_MUST_USE;
/* Waits for a step, reports it and decides what follows from it; nothing when that was done. */
mx_status mx_run_settle(mx_run *r, int64_t step) MX_MUST_USE;
/* run_join.c: how ranks meet. First which one this is, then all of them. */
mx_status mx_run_ranks_find(mx_run *r) MX_MUST_USE;
mx_status mx_run_ranks_open(mx_run *r) MX_MUST_USE;
/* Tells the session of a process where the groups of its collectives are. */
void mx_run_set_groups(mx_run *r);
/* run_ranks.c: what ranks do together. */
/* Can several ranks run this? Once variables are known. */
mx_status mx_run_ranks_check(mx_run *r) MX_MUST_USE;
/* Adds up what a rank counted in its rows; ranks that have the same rows count once. */
mx_status mx_run_sum_rows(mx_run *r, int64_t *v, int n) MX_MUST_USE;
/* Is this the rank that says what the last stage of a pipeline knows? */
bool mx_run_speaks(const mx_run *r);
/* Adds up gradients, and these numbers, over ranks; on a mesh the programs have done that. */
mx_status mx_run_sum_gradients(mx_run *r, float *numbers, int n) MX_MUST_USE;
mx_status mx_run_poll(mx_run *r) MX_MUST_USE; /* before each step */
/* run_local_checkpoint.c: where the state goes when checkpoints cannot be written. */
mx_status mx_run_local_checkpoint_open(mx_run *r) MX_MUST_USE;
/* A whole checkpoint kept there whose step is above `newer_than`; NULL when there is none. */
mx_status mx_run_local_checkpoint_newest(mx_run *r, int64_t newer_than,
                                         const char **path) MX_MUST_USE;
/* Keeps the state there. Always an error, with which the run ends, or (`kept` false) could. */
mx_status mx_run_local_checkpoint_save(mx_run *r, const char *why, bool *kept) MX_MUST_USE;
/* What was kept is not needed any more once a step as late is durable. */
void mx_run_local_checkpoint_clear(mx_run *r, int64_t durable_step);
/* run_save.c: the whole state as a checkpoint of `c`; every step has been settled. */
mx_status mx_run_save_to(mx_run *r, mx_ckpt *c) MX_MUST_USE;
mx_status mx_run_save(mx_run *r) MX_MUST_USE; /* nothing where checkpoints are off */
bool mx_run_saves_at(mx_run *r, int64_t step);
/* After too many failed saves: an error with which the run ends. */
mx_status mx_run_give_up_saving(mx_run *r) MX_MUST_USE;
/* Back to the newest checkpoint, but on with the data where it is. */
mx_status mx_run_roll_back(mx_run *r) MX_MUST_USE;
/* The end of a run: its last state is durable, or kept elsewhere, or that is an error. */
mx_status mx_run_save_last(mx_run *r, bool stopped) MX_MUST_USE;
/* run_eval.c */
mx_status mx_run_evaluate(mx_run *r) MX_MUST_USE;
bool mx_run_evaluates_at(const mx_run *r, int64_t step);
/* What the objective measures (task_path): on the rank that leads, by its weights. */
bool mx_run_measures_at(const mx_run *r, int64_t step);
mx_status mx_run_measure(mx_run *r) MX_MUST_USE;
/* run_loop.c: what to do about a step that changed nothing. */
mx_status mx_run_after_skip(mx_run *r, const mx_inflight_step *f) MX_MUST_USE;

#endif
