/* objective.h - what a run trains a model for, where that is not the next token of every document.
 *
 * An objective is one const struct in its own file of src/post (`const mx_objective
 * mx_objective_NAME`); tools/scan collects them. It says which data it needs, builds its loss over
 * the model's head, and names its metrics by roots "metric:NAME". The run around it (folders,
 * resume, checkpoints, metrics) is the same as `maxc train`'s.
 */
#ifndef MX_TRAIN_OBJECTIVE_H
#define MX_TRAIN_OBJECTIVE_H

#include "base/config.h"
#include "device/device.h"
#include "dist/comm.h"
#include "models/model.h"
#include "train/report/metrics.h"
#include "train/input/train_data.h"

typedef struct mx_objective mx_objective;
typedef struct mx_step_options mx_step_options;

/* What a row of the batch is. */
typedef enum {
    MX_ROWS_DOCUMENTS, /* documents, packed or not */
    MX_ROWS_SAMPLED,   /* made by `next`: there is no loader */
    MX_ROWS_PAIRS,     /* a chosen answer and the rejected one, alternating */
} mx_objective_rows;

enum { MX_HOST_METRICS = 56 };

/* What is kept in memory beside the run's own programs: other models, caches. */
enum { MX_BESIDE = 6 };
typedef struct {
    struct {
        const char *name;
        double bytes;
    } v[MX_BESIDE];
    int n;
} mx_beside;
void mx_beside_add(mx_beside *b, const char *name, double bytes);
double mx_beside_bytes(const mx_beside *b);
/* Adds a program of another model, or of the run's own (then with weights and scratch memory that
 * are there), once compiled. */
struct mx_forward_stages;
typedef struct {
    const struct mx_forward_stages *stages; /* NULL: one program */
    bool own;
} mx_beside_how;
mx_status mx_beside_step(mx_beside *b, const char *name, const mx_model_spec *m,
                         const struct mx_step_options *o, mx_beside_how how) MX_MUST_USE;

/* An objective within a run; kept by the run, one for training. */
typedef struct {
    const mx_objective *objective;
    const void *settings;
    const mx_config *config;
    const mx_model_spec *model;
    const mx_step_options *options; /* the run's programs are compiled with */
    const char *model_dir;          /* load_parameters_path as a folder; NULL: none */
    mx_session *session;
    mx_train_data *data;
    const char *folder; /* of the run */
    int rank, n_ranks;  /* of those that have other rows of a batch */
    /* Of all ranks of a mesh, whose programs run together; NULL: there is none. */
    mx_comm *comm;
    const int *row_leader; /* (n_ranks): of the ranks with the same rows the first, by its number */
    const struct mx_forward_stages *stages; /* (exec/forward.h) NULL: there are none */
    int64_t microbatch; /* rows of one on this rank */
    int64_t fed;        /* rows that `feed` is asked for: a microbatch of training or evaluation */
    int64_t accumulation; /* microbatches of a step */
    const char *position; /* what `position` gave when the checkpoint was written; NULL: none */
    size_t n_position;
    int64_t step;       /* the one that is being made, from 1 */
    void *state;        /* the objective's own */
    void *measured;     /* `measure`'s own */
} mx_objective_run;

struct mx_objective {
    const char *name, *doc;
    const char *verb; /* whose objective it is */
    const char *key;  /* what asks for it beside the verb; NULL: nothing, or loss_type=NAME */
    const char *data; /* what its records hold, one line */
    int place;        /* in lists of them all, from 1: the order in which a model learns */
    mx_objective_rows rows;
    /* Makes the model that is read what it will be, before it is built; NULL: it stays. */
    mx_status (*adapt)(mx_model_spec *m);
    bool sides_apart;  /* as in mx_encoder */
    bool drops_long;   /* as in mx_pack_options */
    bool takes_margins; /* as in mx_encoder */
    bool (*answers_last)(const mx_config *c); /* as in mx_encoder; NULL: no */
    bool mean_of_microbatches; /* the loss is the mean of theirs, each a mean over what it has */
    bool balances; /* TRL adds the model's balance loss of experts, whatever its config says */
    const char *followed; /* of `report`: the number on the status line; NULL: the loss */
    bool is_nll; /* the loss is a mean over tokens of -log p: perplexity means something */
    /* Reads its keys into a struct in the arena; NULL: it has none. */
    mx_status (*read)(const mx_config *c, mx_arena *a, const void **settings);
    /* The loss: a scalar, the root "loss". The input loss_scale is 1 / what `count` counts in the
     * whole step, over all microbatches and ranks. */
    mx_node *(*loss)(mx_graph *g, const mx_head *h, mx_build *b, const void *settings);
    /* Rows of the batch for each of what per_device_batch_size counts; NULL: 1, of a pair 2. */
    int64_t (*rows_each)(const void *settings);
    /* What the loss is a mean over; NULL: tokens that are trained. */
    int64_t (*count)(const mx_objective_run *o, const mx_batch *b);
    /* Around the steps of a run; each may be NULL. `feed` writes what the loss needs besides the
     * rows [row, row + microbatch) of b themselves; `report` gives numbers of the last batch;
     * `position` is where `next` stands in the data, JSON, for checkpoints. */
    mx_status (*open)(mx_objective_run *o);
    /* The device memory that what `open` opens will need, found without a session; NULL: none. */
    mx_status (*beside)(const mx_objective_run *o, mx_beside *out);
    void (*close)(mx_objective_run *o);
    mx_status (*next)(mx_objective_run *o, const mx_batch **b);
    mx_status (*feed)(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row);
    /* In stages: runs the programs whose results `feed` needs, for all microbatches of b. There
     * `feed` is called on each stage at a time of its own, when they could not be run together. */
    mx_status (*ahead)(mx_objective_run *o, const mx_batch *b);
    int (*report)(const mx_objective_run *o, mx_metric *out);
    /* Looks at the numbers of a step that is done: may the run go on? */
    mx_status (*check)(const mx_objective_run *o, int64_t step, const mx_metric *m, int n);
    /* Is the batch that `next` gave one that was trained on before? NULL: never. */
    bool (*repeats)(const mx_objective_run *o);
    void (*position)(const mx_objective_run *o, mx_str *json);
    /* What the model can do by now: numbers, at most MX_HOST_METRICS. Both or neither. */
    mx_status (*measure)(mx_objective_run *o, int64_t step, mx_metric *out, int *n);
    void (*measure_end)(mx_objective_run *o);
};

extern const mx_objective *const mx_objective_table[];
extern const int mx_objective_count;

/* Turns the request for the programs of plain training into that for the objective's. */
struct mx_programs_request;
void mx_objective_apply(const mx_objective *o, const void *settings, const mx_config *c,
                        struct mx_programs_request *q);
/* What `maxc data VERB` and the run itself read, from the same keys. NULL: plain training. */
void mx_objective_request(const mx_objective *o, const mx_config *c, mx_train_data_request *r);

#endif
