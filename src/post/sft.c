/* sft.c - supervised fine-tuning: the next token of answers.
 *
 *     loss = sum of -log p over the trained tokens / their number in the whole step
 * over all microbatches and ranks. With loss_type=dft each token's loss is weighted by its own
 * probability, without gradient. entropy and mean_token_accuracy are means over the trained tokens
 * of a microbatch.
 */
#include "exec/step.h"
#include "ops.h"
#include "post/tasks.h"
#include "post/tokens.h"
#include "train/run/objective.h"
#include <string.h>

typedef struct {
    bool dft;
} settings;

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    const char *type = mx_config_text(c, "loss_type");
    settings *s = MX_NEW(a, settings);
    s->dft = strcmp(type, "dft") == 0;
    *out = s;
    if (*type && !s->dft && strcmp(type, "nll") != 0)
        return mx_fail(MX_USAGE, "%s: loss_type=%s is not one of sft's: nll, dft",
                       mx_config_where(c, "loss_type"), type);
    return MX_OK;
}

static mx_node *loss(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, 1);
    mx_node *each = mx_affine(g, t.logp, -1, 0);
    if (s->dft)
        each = mx_mul(g, each, mx_detach(g, mx_exp(g, t.logp)));
    if (b->training) {
        mx_token_facts f = mx_facts_of(g, h, &t);
        mx_metric_root(g, "entropy", mx_mean_counted(g, f.entropy, t.counts));
        mx_metric_root(g, "mean_token_accuracy", mx_mean_counted(g, f.top1, t.counts));
    }
    mx_node *share = mx_mul(g, mx_sum_all(g, t.counts), t.scale);
    return mx_loss_root(g, b, mx_mul(g, mx_sum_all(g, each), t.scale), share);
}

/* Tokens that are trained. Of rows that are not packed TRL counts a first token too where
 * transformers does not know that the model's loss shifts labels: GPT-2's. */
static int64_t count(const mx_objective_run *o, const mx_batch *b)
{
    bool firsts = strcmp(o->model->family->name, "gpt2") == 0 && !o->options->shape.packed &&
                  strcmp(mx_config_text(o->config, "semantics"), "trl") == 0;
    return b->n_trained + (firsts ? b->n_firsts : 0);
}

const mx_objective mx_objective_sft = {
    .name = "sft",
    .doc = "the next token of answers",
    .verb = "sft",
    .data = "prompt and completion, messages, instruction and output, conversations, text",
    .place = 1,
    .rows = MX_ROWS_DOCUMENTS,
    .balances = true,
    .is_nll = true,
    .read = read,
    .loss = loss,
    .count = count,
    .measure = mx_tasks_measure,
    .measure_end = mx_tasks_close,
};
