/* teacher.h - the outputs of a teacher model for a batch: logits, all of them or the largest k of
 * each place, and the outputs of its attention layers.
 *
 * It has a session of its own, with weights in the compute dtype. Its family and sizes may be
 * others than the student's; the tokenizer has to be the same.
 */
#ifndef MX_POST_TEACHER_H
#define MX_POST_TEACHER_H

#include "exec/step.h"
#include "train/run/objective.h"

typedef struct mx_teacher mx_teacher;

typedef struct {
    const mx_config *config;
    const char *path;
    const mx_step_options *options; /* of the student: length, packing, compute dtype, mesh */
    int64_t rows;                   /* of a microbatch, on this rank */
    int64_t parts;                  /* ranks of a mesh that have other rows; without one 1 */
    const mx_session *beside;       /* whose ranks it runs with, on a mesh; NULL: alone */
    const mx_tokenizer *tokenizer;  /* of the student; NULL: data are ids */
    const struct mx_forward_stages *stages; /* of the run; NULL: there are none */
    int threads;
    int64_t vocab;                  /* of the student: no more logits than that are given */
    int64_t d_model;                /* of the student, for outputs of attention layers */
    int64_t top_k;                  /* logits of a place that are kept; 0: all */
    const int64_t *layers;          /* whose attention's outputs are wanted */
    int n_layers;
} mx_teacher_request;

/* Of some rows: B rows of S places, K = top_k, or W = mx_teacher_width. On a mesh this rank's part,
 * as the student's inputs lie. Borrowed until the next call. */
typedef struct {
    const float *logits;   /* (B, S, W), or the largest ones, (B, S, K) */
    const int32_t *ids;    /* (B, S, K) whose they are; NULL: all */
    const float *features; /* (layers, B, S, d_model); NULL: none */
} mx_taught;

mx_status mx_teacher_open(mx_teacher **out, const mx_teacher_request *r) MX_MUST_USE;
/* The memory that it will take. */
mx_status mx_teacher_beside(const mx_teacher_request *r, mx_beside *out) MX_MUST_USE;
void mx_teacher_close(mx_teacher *t); /* NULL is a no-op */
/* Logits of a place, of all: the smaller of the two vocabularies. */
int64_t mx_teacher_width(const mx_teacher *t);
/* Rows [row, row + rows) of b. */
mx_status mx_teacher_run(mx_teacher *t, const mx_batch *b, int64_t row, int64_t rows,
                         mx_taught *out) MX_MUST_USE;
/* In stages all ranks ask at once for the rows of b in microbatches of `rows`, and mx_teacher_find
 * gives them where the loss is, on the last stage; on others features alone. Without stages the
 * latter asks by itself. */
mx_status mx_teacher_ahead(mx_teacher *t, const mx_batch *b, int64_t rows) MX_MUST_USE;
mx_status mx_teacher_find(mx_teacher *t, const mx_batch *b, int64_t row, int64_t rows,
                          mx_taught *out) MX_MUST_USE;
/* The run as it would be were the teacher its model: to sample from it. */
void mx_teacher_as_run(const mx_teacher *t, const mx_objective_run *o, mx_objective_run *out);

/* The outputs of attention layers of a model that is built: (layers, B S, d). Sticky error where a
 * layer has no output projection. */
mx_node *mx_attention_outputs(mx_graph *g, const mx_build *b, const int64_t *layers, int n);
/* distill_layer_indices, else all of a model's layers: into the arena. */
mx_status mx_feature_layers(const mx_config *c, int64_t n_layers, mx_arena *a,
                            const int64_t **layers, int *n) MX_MUST_USE;

#endif
