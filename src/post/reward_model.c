/* reward_model.c - maxc dpo loss_type=reward: a model that gives the better of two answers the
 * higher score, as TRL trains it.
 *
 *     loss = mean over pairs of -ls(r_c - r_r - margin) + coefficient (r_c + r_r)^2
 * r is a linear function of the last token's hidden state (score.weight); margin is what the record
 * says, 0 where it says nothing.
 */
#include "post/reward_model.h"

#include "compile/lora.h"
#include "models/classes.h"
#include "ops.h"
#include "post/pairs.h"
#include <string.h>

typedef struct {
    double center;
} settings;

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    settings *s = MX_NEW(a, settings);
    const char *const *saved;
    bool lora = mx_config_bool(c, "lora.enable_lora"), has_score = false;
    for (int i = 0, n = mx_config_list(c, "modules_to_save", &saved); i < n; i++)
        has_score |= mx_lora_names(saved[i], "score");
    *s = (settings){.center = mx_config_float(c, "center_rewards_coefficient")};
    *out = s;
    if (*mx_config_text(c, "task_path"))
        return mx_fail(MX_USAGE, "%s: a reward model gives scores and does not answer tasks; leave "
                       "task_path out", mx_config_where(c, "task_path"));
    if (lora && !has_score)
        return mx_fail(MX_USAGE, "%s: the head of a reward model is new, and adapters leave it as "
                       "it is; set modules_to_save=score", mx_config_where(c, "lora.enable_lora"));
    return MX_OK;
}

mx_node *mx_scores_of(mx_graph *g, const mx_head *h, const mx_build *b)
{
    int64_t d = h->hidden->type.dim[2];
    mx_node *last = mx_rows_input(g, "last", MX_SHAPE(b->batch, b->seq), MX_F32, MX_ROWS_AXES);
    h->hidden->axes = "activation_embed_and_logits_batch,activation_length,";
    mx_node *zero = mx_constant(g, MX_SCALAR, h->hidden->type.dtype, 0);
    mx_node *is_last = mx_reshape(g, last, MX_SHAPE(b->batch, b->seq, 1));
    mx_node *only = mx_where(g, is_last, h->hidden, zero);
    mx_node *x = mx_sum_to(g, only, MX_SHAPE(b->batch, 1, d));
    return mx_matmul_as(g, "*d,fd->*f", mx_reshape(g, x, MX_SHAPE(b->batch, d)), h->weight, MX_F32);
}

/* The largest of sign c and sign j over the pairs that are there: (1, 1). */
static mx_node *most_of(mx_graph *g, mx_node *c, mx_node *j, mx_node *there, double sign)
{
    mx_node *both = mx_maximum(g, mx_affine(g, c, sign, 0), mx_affine(g, j, sign, 0));
    both = mx_where(g, there, both, mx_constant(g, MX_SCALAR, MX_F32, -1e30));
    return mx_row_max(g, mx_reshape(g, both, MX_SHAPE(1, mx_type_count(&both->type))));
}

static void metrics(mx_graph *g, mx_node *c, mx_node *j, mx_node *there)
{
    mx_metric_root(g, "min_reward", mx_affine(g, most_of(g, c, j, there, -1), -1, 0));
    mx_metric_root(g, "max_reward", most_of(g, c, j, there, 1));
    mx_metric_root(g, "mean_reward",
                   mx_mean_counted(g, mx_affine(g, mx_add(g, c, j), 0.5, 0), there));
    mx_metric_root(g, "accuracy", mx_mean_counted(g, mx_greater(g, c, j), there));
    mx_metric_root(g, "margin", mx_mean_counted(g, mx_sub(g, c, j), there));
}

static mx_node *loss(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_node *r = mx_scores_of(g, h, b), *scale = mx_input(g, "loss_scale", MX_SCALAR, MX_F32);
    mx_node *labels = mx_rows_input(g, "labels", MX_SHAPE(b->batch, b->seq), MX_I32, MX_ROWS_AXES);
    mx_node *most = mx_side(g, mx_row_max(g, mx_cast(g, labels, MX_F32)), 0);
    mx_node *there = mx_greater(g, most, mx_constant(g, MX_SCALAR, MX_F32, -0.5));
    mx_node *c = mx_side(g, r, 0), *j = mx_side(g, r, 1), *sum = mx_add(g, c, j);
    mx_graph_root(g, "scores", mx_affine(g, r, 1, 0));
    mx_node *margins = mx_rows_input(g, "margins", MX_SHAPE(b->batch), MX_F32, MX_BATCH_AXES);
    mx_node *margin = mx_side(g, mx_reshape(g, margins, MX_SHAPE(b->batch, 1)), 0);
    mx_node *each = mx_affine(g, mx_log_sigmoid(g, mx_sub(g, mx_sub(g, c, j), margin)), -1, 0);
    if (s->center > 0)
        each = mx_add(g, each, mx_affine(g, mx_mul(g, sum, sum), s->center, 0));
    if (b->training)
        metrics(g, c, j, there);
    mx_node *total = mx_sum_all(g, mx_mul(g, each, there));
    return mx_loss_root(g, b, mx_mul(g, total, scale), mx_mul(g, mx_sum_all(g, there), scale));
}

int32_t mx_scores_pad(const mx_tokenizer *t)
{
    int32_t pad = t ? mx_tokenizer_pad(t) : -1;
    return pad < 0 && t ? mx_tokenizer_eos(t) : pad;
}

mx_status mx_scores_feed(mx_exec *e, const mx_batch *b, int64_t row, int64_t rows, int32_t pad)
{
    int64_t S = b->seq_len;
    float *last = mx_realloc(NULL, sizeof *last * (size_t)(rows * S));
    memset(last, 0, sizeof *last * (size_t)(rows * S));
    for (int64_t i = 0; i < rows; i++) {
        int64_t n = S;
        const int32_t *segments = b->segments + (row + i) * S, *tokens = b->tokens + (row + i) * S;
        while (n > 1 && (!segments[n - 1] || tokens[n - 1] == pad))
            n--;
        last[i * S + n - 1] = 1;
    }
    mx_status st = mx_exec_write_rows(e, "last", last);
    mx_free(last);
    return st;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    MX_TRY(mx_exec_write(e, "margins", b->margins + row));
    return mx_scores_feed(e, b, row, o->fed, mx_scores_pad(o->data->tokenizer));
}

const mx_objective mx_objective_reward = {
    .name = "reward",
    .doc = "a reward model: one score, higher for the better answer",
    .verb = "dpo",
    .data = "prompt, chosen and rejected",
    .place = 6,
    .rows = MX_ROWS_PAIRS,
    .adapt = mx_classes_make_reward,
    .read = read,
    .loss = loss,
    .drops_long = true,
    .takes_margins = true,
    .count = mx_count_pairs,
    .mean_of_microbatches = true,
    .feed = feed,
};
