/* pipeline_schedule.h - who does what when in a pipeline: for each stage a list of actions.
 *
 * A model is cut into chunks of layers; with r chunks for each stage, chunk k belongs to stage k
 * mod stages. Every microbatch goes forward (F) through all chunks and back (B), and where weight
 * gradients are separate they follow (W). A schedule is data: made ahead of time, checked,
 * simulated, and run by one loop (pipeline.c).
 *
 *     gpipe        all F, then all B
 *     1f1b         F and B alternating, as soon as there is a B to do
 *     interleaved  the same with several chunks for each stage: a shorter way to fill and drain it
 *     zero_bubble  1f1b with W put off until a stage would be idle (ZB-H1)
 *
 * Any number of microbatches is possible. B and W of a chunk come in the order of microbatches, so
 * that sums of gradients have the bits of one device that takes one after the other.
 */
#ifndef MX_EXEC_PIPELINE_SCHEDULE_H
#define MX_EXEC_PIPELINE_SCHEDULE_H

#include "base/arena.h"
#include <stdbool.h>

typedef enum {
    MX_PIPELINE_GPIPE,
    MX_PIPELINE_1F1B,
    MX_PIPELINE_INTERLEAVED,
    MX_PIPELINE_ZB_H1,
    MX_PIPELINE_FORWARD, /* F alone: evaluation */
    MX_PIPELINE_KINDS
} mx_pipeline_kind;

typedef enum {
    MX_DO_F,
    MX_DO_B,
    MX_DO_W,
    MX_DO_RECEIVE,      /* what F reads, from the chunk before */
    MX_DO_SEND,         /* to the chunk after */
    MX_DO_POST_GRAD,    /* there is room for what B reads: its sender need not wait */
    MX_DO_RECEIVE_GRAD, /* what B reads, from the chunk after */
    MX_DO_SEND_GRAD,    /* to the chunk before */
    MX_DO_AWAIT,        /* until what was sent from the slot has been taken: it is needed */
    MX_DO_KINDS
} mx_action_kind;

typedef struct {
    mx_action_kind kind;
    int chunk, microbatch;
    int slot; /* of the chunk: where this microbatch's values lie */
} mx_action;

typedef struct {
    mx_action *action;
    int n, cap;
} mx_action_list;

typedef struct {
    mx_pipeline_kind kind;
    int stages, repeats, chunks, microbatches;
    bool split;           /* there are W */
    mx_action_list *list; /* owns, one for each stage */
    int *n_slots;         /* of each chunk: microbatches in flight */
} mx_pipeline_schedule;

/* By name; false when there is none. */
bool mx_pipeline_kind_parse(const char *name, mx_pipeline_kind *out);
const char *mx_pipeline_kind_name(mx_pipeline_kind k);

/* repeats: chunks of each stage. An error where the kind and the numbers do not go together. */
mx_status mx_pipeline_schedule_init(mx_pipeline_schedule *s, mx_pipeline_kind kind, int stages,
                                    int repeats, int microbatches) MX_MUST_USE;
void mx_pipeline_schedule_fini(mx_pipeline_schedule *s);

/* Time that actions take, the same for all chunks. B is without W. */
typedef struct {
    double f, b, w, message;
} mx_pipeline_costs;

typedef struct {
    double end;  /* of the last action */
    double busy; /* of one stage */
} mx_pipeline_times;

/* Plays the schedule: an error where something is missing, done twice or out of order, a slot is
 * taken twice, or stages would wait for each other. */
mx_status mx_pipeline_simulate(const mx_pipeline_schedule *s, mx_pipeline_costs c,
                               mx_pipeline_times *out) MX_MUST_USE;

#endif
