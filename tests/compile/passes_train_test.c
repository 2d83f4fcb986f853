/* passes_train_test.c - whole training programs of a small transformer: whatever remat, fusion,
 * precision and accumulation do, the numbers must stay. */
#include "compile/compile.h"
#include "device/device.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* B sequences, S tokens, d model, H heads of D, f feed-forward, v vocabulary. */
enum { B = 2, S = 6, d = 8, H = 2, D = 4, f = 12, v = 20, LAYERS = 3 };
enum { MAX_VARS = 40, MAX_SIZE = 256 };

static mx_node *dense(mx_graph *g, mx_node *x, const char *name, int64_t in, int64_t out)
{
    mx_node *w = mx_param(g, name, MX_SHAPE(out, in), "mlp,embed", MX_NORMAL(0.3));
    return mx_matmul(g, "*d,fd->*f", x, w);
}

static mx_node *attend(mx_graph *g, mx_node *x)
{
    mx_node *part[3];
    const char *const name[3] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++)
        part[i] = mx_reshape(g, dense(g, x, name[i], d, H * D), MX_SHAPE(B, S, H, D));
    mx_node *a = mx_attention(g, part[0], part[1], part[2],
                              (mx_attention_attr){.causal = true, .scale = 0.5},
                              (mx_attention_extra){0});
    return dense(g, mx_reshape(g, a, MX_SHAPE(B, S, H * D)), "o", H * D, d);
}

static mx_node *feed_forward(mx_graph *g, mx_node *x)
{
    mx_node *both = dense(g, x, "gate_up", d, 2 * f);
    mx_node *part = mx_split(g, both, 2, (int64_t[]){f, f});
    mx_node *h = mx_mul(g, mx_silu(g, part), mx_output(g, part, 1));
    return dense(g, mx_name(g, "mlp_hidden", h), "down", f, d);
}

/* The mean loss of predicting `labels` from `tokens`. */
static mx_node *model(mx_graph *g)
{
    mx_node *tokens = mx_input(g, "tokens", MX_SHAPE(B, S), MX_I32);
    mx_node *labels = mx_input(g, "labels", MX_SHAPE(B * S), MX_I32);
    mx_node *table = mx_param(g, "embed", MX_SHAPE(v, d), "vocab,embed", MX_NORMAL(0.5));
    mx_node *x = mx_embed(g, table, tokens);
    for (int l = 0; l < LAYERS; l++) {
        mx_scope(g, "layers.%d", l);
        x = mx_add(g, x, attend(g, mx_rms_norm(g, x, "norm1", 1e-5, false)));
        x = mx_add(g, x, feed_forward(g, mx_rms_norm(g, x, "norm2", 1e-5, false)));
        x = mx_scope_end(g, x);
    }
    x = mx_reshape(g, mx_rms_norm(g, x, "norm", 1e-5, false), MX_SHAPE(B * S, d));
    mx_node *loss = mx_linear_xent(g, x, table, labels, 1, 0, 0);
    loss = mx_affine(g, mx_sum_all(g, loss), 1.0 / (B * S), 0);
    return mx_graph_root(g, "loss", loss);
}

static void write_batch(mx_exec *e, int shift)
{
    int32_t tokens[B * S], labels[B * S];
    for (int i = 0; i < B * S; i++) {
        tokens[i] = (i * 7 + shift) % v;
        labels[i] = (i * 5 + 3 * shift) % v;
    }
    MX_CHECK_OK(mx_exec_write(e, "tokens", tokens));
    MX_CHECK_OK(mx_exec_write(e, "labels", labels));
}

/* Loss, gradients or weights of one program. */
typedef struct {
    float loss, norm;
    int n;
    float value[MAX_VARS][MAX_SIZE];
    double activation_bytes;
} outcome;

static void read_all(mx_session *s, mx_exec *e, bool gradients, outcome *out)
{
    out->n = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *w = mx_session_var(s, i);
        if (w->attr.kind != MX_VAR_WEIGHT)
            continue;
        MX_ASSERT(out->n < MAX_VARS && mx_type_count(&w->type) <= MAX_SIZE);
        char name[128];
        snprintf(name, sizeof name, "grad:%s", w->name);
        if (gradients)
            MX_CHECK_OK(mx_exec_read(e, name, out->value[out->n++]));
        else
            MX_CHECK_OK(mx_var_read(s, w, out->value[out->n++]));
    }
}

/* Compiles and runs one step of loss and gradients. */
static void gradients(const mx_compile_options *o, outcome *out)
{
    mx_graph g;
    mx_program p;
    mx_session *s = NULL;
    mx_exec *e = NULL;
    memset(out, 0, sizeof *out);
    mx_graph_init(&g);
    MX_CHECK_OK(mx_compile_training(&g, model(&g), MX_GRADS_KEEP, NULL, o, &p));
    MX_CHECK_OK(mx_session_open(&s, "cpu", o->n_threads));
    MX_CHECK_OK(mx_session_add(s, &p, &e));
    MX_CHECK_OK(mx_session_init(s, 7));
    MX_CHECK_OK(mx_session_refresh_copies(s));
    write_batch(e, 1);
    MX_CHECK_OK(mx_exec_run(e));
    MX_CHECK_OK(mx_exec_read(e, "loss", &out->loss));
    read_all(s, e, true, out);
    out->activation_bytes = p.bytes.activations;
    mx_session_close(s);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

static void compare(const outcome *a, const outcome *b, const char *what)
{
    MX_CHECK(a->loss == b->loss, "%s: the loss is %.9g, expected %.9g", what, a->loss, b->loss);
    MX_CHECK(a->n == b->n && memcmp(a->value, b->value, sizeof a->value) == 0,
             "%s: gradients differ", what);
}

MX_TEST(remat_policies_give_the_same_bits)
{
    static const mx_remat policy[] = {{"elementwise", NULL}, {"minimal", NULL}, {"full", NULL},
                                      {"custom", "mlp_hidden"}};
    static outcome none, other;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    gradients(&o, &none);
    MX_CHECK(none.n > 20 && none.loss > 1 && none.loss < 6, "%d weights, loss %g", none.n,
             none.loss);
    for (int i = 0; i < 4; i++) {
        o.remat = policy[i];
        gradients(&o, &other);
        compare(&other, &none, policy[i].policy);
        /* A few per cent for padding, which shows at this size. */
        double limit = (i > 1 ? 0.95 : 1.05) * none.activation_bytes;
        MX_CHECK(other.activation_bytes < limit, "%s: %g bytes of activations, %g without",
                 policy[i].policy, other.activation_bytes, none.activation_bytes);
    }
    o.remat = (mx_remat){"some", NULL};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    MX_CHECK_ERROR(mx_compile_training(&g, model(&g), MX_GRADS_KEEP, NULL, &o, &p),
                   "remat_policy=some is not known");
    mx_graph_fini(&g);
}

MX_TEST(fusion_of_a_training_step_keeps_the_bits)
{
    static outcome fused, plain;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    gradients(&o, &fused);
    o.no_fuse = true;
    gradients(&o, &plain);
    compare(&fused, &plain, "fusion");
    o.n_threads = 1;
    gradients(&o, &fused);
    compare(&fused, &plain, "one thread");
}

MX_TEST(bfloat16_training_follows_float32)
{
    static outcome wide, narrow;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    gradients(&o, &wide);
    o.compute = MX_BF16;
    gradients(&o, &narrow);
    MX_CHECK(fabsf(narrow.loss - wide.loss) < 0.02f * wide.loss, "%g and %g", narrow.loss,
             wide.loss);
    for (int i = 0; i < wide.n; i++) {
        double dot = 0, a = 0, b = 0;
        for (int k = 0; k < MAX_SIZE; k++) {
            dot += wide.value[i][k] * narrow.value[i][k];
            a += wide.value[i][k] * wide.value[i][k];
            b += narrow.value[i][k] * narrow.value[i][k];
        }
        double cosine = dot / sqrt(a * b);
        MX_CHECK(cosine > 0.995, "gradient %d points elsewhere: cosine %g", i, cosine);
    }
}

/* --- updates --- */

/* Two batches: either two steps' gradients accumulated and applied at once, or one step of a single
 * batch. Gives the weights afterwards. */
static void update(mx_grads_use use, const mx_optimizer *opt, outcome *out)
{
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    mx_graph g, apply_graph;
    mx_program p, apply_program;
    mx_session *s = NULL;
    mx_exec *e = NULL, *apply = NULL;
    float lr = 0.1f, step = 1;
    mx_graph_init(&g);
    mx_graph_init(&apply_graph);
    memset(out, 0, sizeof *out);
    MX_CHECK_OK(mx_compile_training(&g, model(&g), use, opt, &o, &p));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    MX_CHECK_OK(mx_session_add(s, &p, &e));
    if (use == MX_GRADS_ACCUMULATE) {
        MX_CHECK_OK(mx_compile_apply(&apply_graph, &g, opt, &o, &apply_program));
        MX_CHECK_OK(mx_session_add(s, &apply_program, &apply));
    }
    MX_CHECK_OK(mx_session_init(s, 7));
    for (int i = 0; i < (apply ? 3 : 1); i++) { /* the first sum is thrown away by `first` */
        float first = i < 2;
        write_batch(e, apply ? i : 1);
        MX_CHECK_OK(mx_exec_write(e, "first", &first));
        MX_CHECK_OK(mx_exec_write(e, "lr", &lr));
        MX_CHECK_OK(mx_exec_write(e, "step", &step));
        MX_CHECK_OK(mx_exec_run(e));
        MX_CHECK_OK(mx_exec_read(e, "loss", &out->loss));
    }
    if (apply) {
        MX_CHECK_OK(mx_exec_write(apply, "lr", &lr));
        MX_CHECK_OK(mx_exec_write(apply, "step", &step));
        MX_CHECK_OK(mx_exec_run(apply));
    }
    MX_CHECK_OK(mx_exec_read(apply ? apply : e, "grad_norm", &out->norm));
    read_all(s, e, false, out);
    mx_session_close(s);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    if (apply)
        mx_program_fini(&apply_program);
    mx_graph_fini(&apply_graph);
}

/* Weights before any step. */
static void initial(outcome *out)
{
    mx_graph g;
    mx_program p;
    mx_session *s = NULL;
    mx_exec *e = NULL;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    mx_graph_init(&g);
    model(&g);
    MX_CHECK_OK(mx_compile_forward(&g, &o, &p));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    MX_CHECK_OK(mx_session_add(s, &p, &e));
    MX_CHECK_OK(mx_session_init(s, 7));
    memset(out, 0, sizeof *out);
    read_all(s, e, false, out);
    mx_session_close(s);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

static double norm_of(const outcome *o)
{
    double sum = 0;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < MAX_SIZE; k++)
            sum += (double)o->value[i][k] * o->value[i][k];
    return sqrt(sum);
}

/* w - rate * grad against what the update left, everywhere. */
static void expect_step(const outcome *before, const outcome *grad, double rate,
                        const outcome *after)
{
    double worst = 0;
    for (int i = 0; i < before->n; i++)
        for (int k = 0; k < MAX_SIZE; k++) {
            double want = before->value[i][k] - rate * grad->value[i][k];
            worst = fmax(worst, fabs(want - after->value[i][k]));
        }
    MX_CHECK(worst < 1e-6, "weights are off by %g", worst);
}

MX_TEST(sgd_steps_clip_by_the_global_norm)
{
    static outcome before, grad, after;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    initial(&before);
    gradients(&o, &grad);
    double norm = norm_of(&grad), clip = norm / 3;
    update(MX_GRADS_APPLY, &(mx_optimizer){.rule = &mx_optimizer_rule_sgd}, &after);
    MX_CHECK(fabs(after.norm - norm) < 1e-5 * norm, "norm %g, expected %g", after.norm, norm);
    expect_step(&before, &grad, 0.1, &after);
    update(MX_GRADS_APPLY, &(mx_optimizer){.rule = &mx_optimizer_rule_sgd, .clip = clip}, &after);
    expect_step(&before, &grad, 0.1 * clip / (norm + 1e-6), &after);
    update(MX_GRADS_APPLY, &(mx_optimizer){.rule = &mx_optimizer_rule_sgd, .clip = 2 * norm},
           &after);
    expect_step(&before, &grad, 0.1, &after);
}

MX_TEST(accumulated_gradients_are_sums)
{
    static outcome before, one, two, after;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    initial(&before);
    gradients(&o, &one); /* batch 1 */
    update(MX_GRADS_ACCUMULATE, &(mx_optimizer){.rule = &mx_optimizer_rule_sgd}, &after);
    /* after = before - 0.1 (g1 + g2): take g2 from it and check the norm of the sum. */
    two = one;
    for (int i = 0; i < one.n; i++)
        for (int k = 0; k < MAX_SIZE; k++)
            two.value[i][k] = 10 * (before.value[i][k] - after.value[i][k]);
    double norm = norm_of(&two);
    MX_CHECK(fabs(after.norm - norm) < 1e-4 * norm, "norm %g, expected %g", after.norm, norm);
    for (int i = 0; i < one.n; i++)
        for (int k = 0; k < MAX_SIZE; k++)
            two.value[i][k] -= one.value[i][k];
    MX_CHECK(norm_of(&two) > 0.1 * norm && norm_of(&two) < 10 * norm, "the other batch's gradient "
             "has norm %g", norm_of(&two));
}

MX_TEST(adamw_moves_by_the_rate_at_first)
{
    static outcome before, grad, after;
    mx_compile_options o = {.n_threads = 2, .compute = MX_F32};
    initial(&before);
    gradients(&o, &grad);
    mx_optimizer adam = {.rule = &mx_optimizer_rule_adamw,
                         .b1 = 0.9,
                         .b2 = 0.95,
                         .eps = 1e-12,
                         .weight_decay = 0.5,
                         .no_decay = "*norm*"};
    update(MX_GRADS_APPLY, &adam, &after);
    /* In step 1 the corrected moments are g and g^2: w moves by lr times the sign of g. */
    for (int i = 0; i < before.n; i++)
        for (int k = 0; k < MAX_SIZE; k++) {
            double w = before.value[i][k], g = grad.value[i][k];
            if (fabs(g) < 1e-6)
                continue;
            double moved = w - after.value[i][k], sign = g > 0 ? 1 : -1;
            bool decayed = fabs(moved - 0.1 * (sign + 0.5 * w)) < 1e-4;
            bool plain = fabs(moved - 0.1 * sign) < 1e-4;
            MX_CHECK(decayed || plain, "weight %d[%d] moved by %g, gradient %g", i, k, moved, g);
        }
}

MX_TEST(a_step_allocates_nothing)
{
    mx_compile_options o = {.n_threads = 2, .compute = MX_BF16};
    mx_optimizer adam = {
        .rule = &mx_optimizer_rule_adamw, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .clip = 1};
    mx_graph g;
    mx_program p;
    mx_session *s = NULL;
    mx_exec *e = NULL;
    float lr = 0.01f, losses[6];
    mx_graph_init(&g);
    MX_CHECK_OK(mx_compile_training(&g, model(&g), MX_GRADS_APPLY, &adam, &o, &p));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    MX_CHECK_OK(mx_session_add(s, &p, &e));
    MX_CHECK_OK(mx_session_init(s, 7));
    int64_t count = 0;
    for (int i = 0; i < 6; i++) {
        float step = (float)(i + 1);
        count = i == 1 ? mx_alloc_count() : count;
        write_batch(e, 1);
        MX_CHECK_OK(mx_exec_write(e, "lr", &lr));
        MX_CHECK_OK(mx_exec_write(e, "step", &step));
        MX_CHECK_OK(mx_exec_run(e));
        MX_CHECK_OK(mx_exec_read(e, "loss", &losses[i]));
    }
    MX_CHECK(mx_alloc_count() == count, "%lld allocations after the first step",
             (long long)(mx_alloc_count() - count));
    MX_CHECK(losses[5] < losses[0] - 0.1f, "the loss went from %g to %g", losses[0], losses[5]);
    mx_session_close(s);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

/* A source that the optimizer pass made late (a weight's copy) would hold the forward pass up, and
 * what the backward pass computes again would go ahead and be kept. */
MX_TEST(nothing_waits_for_a_source)
{
    mx_compile_options o = {.n_threads = 2, .compute = MX_BF16, .remat = {.policy = "full"}};
    mx_optimizer adam = {
        .rule = &mx_optimizer_rule_adamw, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .clip = 1};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    MX_CHECK_OK(mx_compile_training(&g, model(&g), MX_GRADS_APPLY, &adam, &o, &p));
    int sources = 0, again = 0;
    while (sources < p.n && p.order[sources]->op->kind == MX_SOURCE)
        sources++;
    for (int i = sources; i < p.n; i++) {
        MX_CHECK(p.order[i]->op->kind != MX_SOURCE, "%s comes after %d others", p.order[i]->name,
                 i - sources);
        again += p.order[i]->recomputed;
    }
    MX_CHECK(sources > 20 && again > 3, "%d sources, %d nodes computed again", sources, again);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}
