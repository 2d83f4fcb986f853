/* tokens.c - see tokens.h.
 *
 * The facts need all logits of a place. They are made for some rows at a time and reduced at once,
 * so that no more than MOST logits exist together; they are metrics, so nothing is kept of them for
 * the backward pass.
 */
#include "post/tokens.h"

#include "ops.h"
#include <stdio.h>

mx_node *mx_rows_input(mx_graph *g, const char *name, mx_shape shape, mx_dtype dtype,
                       const char *axes)
{
    mx_node *x = mx_input(g, name, shape, dtype);
    x->axes = axes;
    return x;
}

mx_token_logps mx_logps_of(mx_graph *g, const mx_head *h, const mx_build *b, double temperature)
{
    int64_t n = b->batch * b->seq, d = h->hidden->type.dim[2];
    h->hidden->axes = "activation_embed_and_logits_batch,activation_length,";
    mx_token_logps t = {.batch = b->batch, .seq = b->seq, .row_ranks = b->row_ranks,
                        .x = mx_reshape(g, h->hidden, MX_SHAPE(n, d))};
    t.tempered = (h->scale != 0 ? h->scale : 1) / temperature;
    if (h->softcap > 0 && temperature != 1)
        mx_graph_fail(g, "logits that are capped cannot be divided by a temperature of %g yet; "
                      "set temperature=1", temperature);
    t.labels = mx_reshape(g, mx_rows_input(g, "labels", MX_SHAPE(b->batch, b->seq), MX_I32,
                                           MX_ROWS_AXES), MX_SHAPE(n));
    t.counts = mx_greater(g, mx_cast(g, t.labels, MX_F32), mx_constant(g, MX_SCALAR, MX_F32, -0.5));
    mx_node *each = mx_linear_xent(g, t.x, h->weight, t.labels, t.tempered, h->softcap, 0);
    t.logp = mx_affine(g, each, -1, 0);
    t.lse = mx_output(g, each, 1);
    t.scale = mx_input(g, "loss_scale", MX_SCALAR, MX_F32);
    return t;
}

mx_node *mx_row_sums(mx_graph *g, const mx_token_logps *t, mx_node *each)
{
    return mx_row_sum(g, mx_reshape(g, each, MX_SHAPE(t->batch, t->seq)));
}

mx_node *mx_mean_counted(mx_graph *g, mx_node *each, mx_node *counts)
{
    mx_node *n = mx_maximum(g, mx_sum_all(g, counts), mx_constant(g, MX_SCALAR, MX_F32, 1));
    return mx_div(g, mx_sum_all(g, mx_mul(g, each, counts)), n);
}

typedef struct {
    mx_node *fact[4];
} facts;

/* Of places [at, at + n) of every row: each fact (B, n, 1). */
static facts facts_of_places(mx_graph *g, const mx_head *h, const mx_token_logps *t, int64_t at,
                             int64_t n)
{
    int64_t V = h->weight->type.dim[0], d = t->x->type.dim[1];
    mx_node *all = mx_reshape(g, t->x, MX_SHAPE(t->batch, t->seq, d));
    mx_node *z = mx_matmul_as(g, "*d,vd->*v", mx_slice(g, all, 1, at, n), h->weight, MX_F32);
    z = t->tempered != 1 ? mx_affine(g, z, t->tempered, 0) : z;
    if (h->softcap > 0)
        z = mx_affine(g, mx_tanh(g, mx_affine(g, z, 1 / h->softcap, 0)), h->softcap, 0);
    mx_node *top = mx_top_k(g, z, 1), *most = top;
    mx_node *lower = mx_sub(g, z, most);
    mx_node *e = mx_exp(g, lower);
    mx_node *sum = mx_row_sum(g, e);
    /* entropy = log sum e^z' - sum z' e^z' / sum e^z', z' = z - max z */
    mx_node *mean = mx_div(g, mx_row_sum(g, mx_mul(g, e, lower)), sum);
    mx_node *squares = mx_div(g, mx_row_sum(g, mx_mul(g, e, e)), mx_mul(g, sum, sum));
    mx_node *labels = mx_reshape(g, t->labels, MX_SHAPE(t->batch, t->seq));
    mx_node *want = mx_reshape(g, mx_slice(g, labels, 1, at, n), MX_SHAPE(t->batch, n, 1));
    mx_node *hit = mx_cast(g, mx_equal(g, mx_output(g, top, 1), want), MX_F32);
    mx_node *logit = mx_affine(g, mx_row_sum(g, z), 1.0 / (double)V, 0);
    return (facts){{mx_sub(g, mx_log(g, sum), mean), hit, logit, mx_log(g, squares)}};
}

/* Some places of every row at a time: rows may be shared by ranks, and each has its own then. */
mx_token_facts mx_facts_of(mx_graph *g, const mx_head *h, const mx_token_logps *t)
{
    enum { MOST = 1 << 24 };
    int64_t rows = t->row_ranks > 1 ? t->batch / t->row_ranks : t->batch;
    int64_t n = t->batch * t->seq, each = MOST / h->weight->type.dim[0] / rows;
    each = each < 1 ? 1 : each;
    facts all = {{0}};
    for (int64_t at = 0; at < t->seq; at += each) {
        facts some = facts_of_places(g, h, t, at, t->seq - at < each ? t->seq - at : each);
        for (int i = 0; i < 4; i++)
            all.fact[i] = all.fact[i] ? mx_concat(g, 2, (mx_node *[]){all.fact[i], some.fact[i]}, 1)
                                      : some.fact[i];
    }
    for (int i = 0; i < 4; i++)
        all.fact[i] = mx_mul(g, mx_reshape(g, all.fact[i], MX_SHAPE(n)), t->counts);
    return (mx_token_facts){all.fact[0], all.fact[1], all.fact[2], all.fact[3]};
}

mx_status mx_feed_frozen(mx_exec *e, const mx_batch *b, int64_t row)
{
    float one = 1;
    int64_t at = row * b->seq_len;
    MX_TRY(mx_exec_write_rows(e, "tokens", b->tokens + at));
    MX_TRY(mx_exec_write_rows(e, "labels", b->labels + at));
    MX_TRY(mx_exec_write_rows(e, "segments", b->segments + at));
    MX_TRY(mx_exec_write_rows(e, "positions", b->positions + at));
    return mx_exec_write(e, "loss_scale", &one);
}

void mx_metric_root(mx_graph *g, const char *name, mx_node *x)
{
    char full[96];
    snprintf(full, sizeof full, MX_METRIC_ROOT "%s", name);
    mx_graph_root(g, full, mx_affine(g, mx_reshape(g, x, MX_SCALAR), 1, 0));
}

mx_node *mx_loss_root(mx_graph *g, const mx_build *b, mx_node *loss, mx_node *share)
{
    if (b->aux_loss && b->balances) /* a mean over microbatches, as TRL has it */
        share = mx_input(g, "aux_scale", MX_SCALAR, MX_F32);
    if (b->aux_loss)
        loss = mx_add(g, loss, mx_mul(g, b->aux_loss, share));
    return mx_graph_root(g, "loss", loss);
}
