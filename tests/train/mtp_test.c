/* mtp_test.c - the acceptance rate of an MTP layer, against the same count
 * made from whole logits. */
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "ops.h"
#include "store/weights.h"
#include "train/report/metrics.h"
#include "exec/step.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, SEQ = 24, VOCAB = 160 };
static const char fixture[] = "tests/fixtures/models/deepseek-v3-mtp";

/* A program with the logits of the model and of its first layer behind the last. */
static void open_logits(mx_step *s, mx_session *session, const mx_model_spec *m, mx_model_shape z)
{
    mx_build b;
    mx_graph_init(&s->graph);
    mx_head own = mx_model_build(&s->graph, m, z, &b), draft = own;
    draft.hidden = own.mtp[0];
    mx_graph_root(&s->graph, "own", mx_model_logits(&s->graph, &own));
    mx_graph_root(&s->graph, "draft", mx_model_logits(&s->graph, &draft));
    mx_compile_options o = {.n_threads = 1};
    MX_CHECK_OK(mx_compile_forward(&s->graph, &o, &s->program));
    MX_CHECK_OK(mx_session_add(session, &s->program, &s->exec));
}

static int best(const float *x)
{
    int k = 0;
    for (int i = 1; i < VOCAB; i++)
        k = x[i] > x[k] ? i : k;
    return k;
}

typedef struct {
    int32_t tokens[ROWS * SEQ], labels[ROWS * SEQ], segments[ROWS * SEQ], positions[ROWS * SEQ];
} batch;

static void feed(mx_exec *e, const batch *b)
{
    float scale = 1;
    MX_CHECK_OK(mx_exec_write(e, "tokens", b->tokens));
    MX_CHECK_OK(mx_exec_write(e, "segments", b->segments));
    MX_CHECK_OK(mx_exec_write(e, "positions", b->positions));
    if (mx_exec_type(e, "labels")) {
        MX_CHECK_OK(mx_exec_write(e, "labels", b->labels));
        MX_CHECK_OK(mx_exec_write(e, "loss_scale", &scale));
    }
    MX_CHECK_OK(mx_exec_run(e));
}

/* The head reads four words only, so that drafts are right by chance often enough to count. */
static void narrow_head(mx_session *s)
{
    mx_var *v = mx_session_find(s, "lm_head.weight");
    float w[VOCAB * 32];
    MX_CHECK_OK(mx_var_read(s, v, w));
    memset(w + 4 * 32, 0, sizeof w - sizeof *w * 4 * 32);
    MX_CHECK_OK(mx_var_write(s, v, w));
}

MX_TEST(mtp_acceptance_counts_drafts_that_the_model_repeats)
{
    mx_hf_dir dir = {0};
    mx_model_spec m = {0};
    mx_session *session = NULL;
    mx_step eval = {0}, logits = {0};
    static float own[ROWS * SEQ * VOCAB], draft[ROWS * SEQ * VOCAB];
    float accepted, asked;
    batch b = {0};
    for (int i = 0; i < ROWS * SEQ; i++) {
        int at = i % SEQ;
        b.tokens[i] = 3 + i * 41 % 150;
        b.labels[i] = at == 7 || at == SEQ - 1 ? -100 : b.tokens[i + 1];
        b.segments[i] = at < 10 ? 1 : 2;
        b.positions[i] = at < 10 ? at : at - 10;
    }
    MX_CHECK_OK(mx_hf_dir_open(&dir, fixture, MX_HF_ALL));
    json_object_set_new(dir.config, "mtp_num_layers", json_integer(1));
    MX_CHECK_OK(mx_model_from_json(&m, dir.config, fixture));
    MX_CHECK_OK(mx_session_open(&session, "cpu", 1));
    mx_step_options o = {.kind = MX_STEP_LOSS, .compile = {.n_threads = 1},
                         .shape = {.batch = ROWS, .seq = SEQ, .packed = true, .mtp_eval = 1}};
    MX_CHECK_OK(mx_step_open(&eval, session, &m, &o));
    open_logits(&logits, session, &m, o.shape);
    MX_CHECK_OK(mx_weights_load(session, &m, &dir, (mx_load_options){0}));
    MX_CHECK_OK(mx_session_init(session, 0));
    narrow_head(session);
    feed(eval.exec, &b);
    feed(logits.exec, &b);
    MX_CHECK_OK(mx_exec_read(eval.exec, "mtp_accepted", &accepted));
    MX_CHECK_OK(mx_exec_read(eval.exec, "mtp_asked", &asked));
    MX_CHECK_OK(mx_exec_read(logits.exec, "own", own));
    MX_CHECK_OK(mx_exec_read(logits.exec, "draft", draft));
    int want = 0, of = 0;
    for (int i = 0; i < ROWS * SEQ; i++) {
        bool in = i % SEQ < SEQ - 1 && b.segments[i] == b.segments[i + 1] && b.labels[i + 1] >= 0;
        of += in;
        want += in && best(draft + i * VOCAB) == best(own + (i + 1) * VOCAB);
    }
    MX_CHECK(accepted == (float)want && asked == (float)of, "%g of %g, expected %d of %d", accepted,
             asked, want, of);
    MX_CHECK(want > 2 && want < of - 2, "%d of %d says little", want, of);
    o.shape.mtp_eval = 2;
    mx_step none = {0};
    MX_CHECK_ERROR(mx_step_plan(&none, &m, &o),
                   "mtp_eval_target_module=2, but the model has 1 MTP layers");
    mx_session_close(session);
    mx_step_close(&eval);
    mx_step_close(&logits);
    mx_model_spec_fini(&m);
    mx_hf_dir_close(&dir);
}

MX_TEST(mtp_acceptance_is_a_metric_of_evaluations)
{
    char folder[256], path[512];
    mx_arena a = {0};
    mx_series s = {0};
    tiny_folder(folder, sizeof folder);
    const char *args[] = {"load_parameters_path=tests/fixtures/models/deepseek-v3-mtp",
                          "dataset_type=synthetic", "steps=2", "eval_interval=1", "eval_steps=1",
                          "mtp_num_layers=1", "mtp_eval_target_module=1",
                          "enable_checkpointing=false", NULL};
    MX_CHECK_OK(tiny_train(folder, "mtp", args));
    snprintf(path, sizeof path, "%s/mtp/r/metrics.jsonl", folder);
    MX_CHECK_OK(mx_metrics_read(path, "eval/mtp_acceptance_rate_percent", &a, &s));
    MX_CHECK(s.n == 2, "%lld values", (long long)s.n);
    for (int64_t i = 0; i < s.n; i++)
        MX_CHECK(s.y[i] >= 0 && s.y[i] <= 100, "%g %%", s.y[i]);
    mx_arena_fini(&a);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}
