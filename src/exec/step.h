/* step.h - a model as programs of a session: logits, loss, gradients, a training step. */
#ifndef MX_EXEC_STEP_H
#define MX_EXEC_STEP_H

#include "compile/compile.h"
#include "device/device.h"
#include "models/model.h"

typedef enum {
    MX_STEP_LOGITS,     /* root logits (B, S, vocab) */
    MX_STEP_NEXT,       /* root logits (B, vocab) of the token `last` (B) int32 of each row; with
                           draw_vocab also root drawn (B) int32, by input sampling (B, 4), and
                           without pages drawn_logp (B, 1) */
    MX_STEP_FEATURES,   /* root features (rows, n d) of the images' tower, and nothing else */
    MX_STEP_LOSS,       /* root loss */
    MX_STEP_GRADS,      /* roots loss, grad:NAME */
    MX_STEP_TRAIN,      /* roots loss, grad_norm; weights and moments change */
    MX_STEP_ACCUMULATE, /* root loss; gradients are added up */
    MX_STEP_APPLY,      /* root grad_norm; the sum is applied */
} mx_step_kind;

typedef struct mx_step_options mx_step_options;
struct mx_step_options {
    mx_step_kind kind;
    int64_t draw_vocab; /* ids to sample tokens from in the program (ops/sample_token.c); 0: none */
    mx_model_shape shape;
    mx_optimizer optimizer;
    mx_compile_options compile;
    double z_loss;
    double temperature; /* that the logits of MX_STEP_NEXT are divided by; 0 means 1 */
    double dropout, attention_dropout; /* of steps that train: exec/dropout.h */
    const char *trainable; /* comma-separated patterns; NULL or "": every weight */
    const char *frozen;    /* of those, patterns that are not; NULL: none */
    /* Builds the loss, the root "loss", of `settings`; NULL: the next token of every document. */
    mx_node *(*loss)(mx_graph *g, const mx_head *h, mx_build *b, const void *settings);
    const void *settings;
    const struct mx_lora *lora;    /* adapters; NULL: none */
};

/* A program with what it was made from. Close before its session. */
typedef struct {
    mx_graph graph;
    mx_program program;
    mx_exec *exec; /* the session's */
} mx_step;

mx_status mx_step_open(mx_step *s, mx_session *session, const mx_model_spec *m,
                       const mx_step_options *o) MX_MUST_USE;
/* Compiles without a session: for plans. */
mx_status mx_step_plan(mx_step *s, const mx_model_spec *m, const mx_step_options *o) MX_MUST_USE;
/* How it is compiled for this session's device. */
mx_step_options mx_step_options_for(const mx_session *session, const mx_step_options *o);
void mx_step_close(mx_step *s);
/* The forward graph of a training step, or of MX_STEP_LOSS, and its loss: for a pipeline
 * (exec/pipeline.h). */
mx_node *mx_step_build(mx_graph *g, const mx_model_spec *m, const mx_step_options *o);
/* The graph of any kind but MX_STEP_APPLY, as it is compiled; its loss, or NULL. */
mx_node *mx_step_graph(mx_graph *g, const mx_model_spec *m, const mx_step_options *o);

/* labels[i] = what position i should predict: the next token's label, -100 where there is none.
 * Rows of `seq`; gives the number of labels that count. */
int64_t mx_shift_labels(const int32_t *labels, int64_t batch, int64_t seq, int32_t *out);

#endif
