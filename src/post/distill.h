/* distill.h - distillation: what its parts share.
 *
 * The student learns the distributions of a teacher, live (teacher.h) or recorded (teacher_file.h).
 */
#ifndef MX_POST_DISTILL_H
#define MX_POST_DISTILL_H

#include "train/run/objective.h"

/* A weight that changes over the run. */
typedef struct {
    double first, last;
    enum { MX_STAYS, MX_LINEAR, MX_COSINE } how;
} mx_distill_schedule;
/* At `step`, counted from 0, of `steps`. */
double mx_distill_schedule_at(const mx_distill_schedule *c, int64_t step, int64_t steps);

typedef struct {
    bool gkd;           /* TRL's generalized divergence, else MaxText's loss */
    double jsd;         /* GKD: the teacher's share of the mixture; 0 and 1: KL of one another */
    double on_policy;   /* GKD: share of the steps whose answers the student gives itself */
    bool seq_kd;        /* GKD: the others' answers are the teacher's */
    double temperature; /* of such answers */
    int64_t max_completion;
    mx_distill_schedule alpha, kd_temperature, beta; /* distill_alpha, _temperature, _beta */
    bool cosine;        /* feature loss, else squares */
    bool features;      /* there is one */
    const int64_t *layers;
    int n_layers;
    int64_t top_k;      /* teacher's logits of a place; 0: all */
    int64_t width;      /* of them all, of a recorded teacher its vocabulary */
    int64_t steps;
    const char *teacher; /* path */
    const char *recorded; /* folder; "": the teacher is live */
} mx_distill;

mx_status mx_distill_read(const mx_config *c, mx_arena *a, const void **out) MX_MUST_USE;
/* The objective's loss over the graph. Inputs: teacher_logits (B, S, W), or teacher_logits and
 * teacher_ids (B, S, K); teacher_features (layers, B, S, d); distill_alpha, distill_temperature,
 * distill_beta. */
mx_node *mx_distill_build(mx_graph *g, const mx_head *h, mx_build *b, const void *settings);
/* The step's weights into a program. */
mx_status mx_distill_feed_weights(const mx_distill *s, int64_t step, mx_exec *e) MX_MUST_USE;

/* A batch of `rows` rows to be filled: one allocation, owned by tokens. */
mx_status mx_batch_room(mx_batch *b, int64_t rows, int64_t seq) MX_MUST_USE;

#endif
