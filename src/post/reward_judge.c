/* reward_judge.c - a reward model as a judge of answers: the score of prompt and answer as one
 * text, by the model's own tokenizer. */
#include "exec/model_ref.h"
#include "exec/step.h"
#include "models/classes.h"
#include "ops.h"
#include "post/distill.h"
#include "post/reward_model.h"
#include "post/tokens.h"
#include "text/tokenizer/tokenizer_files.h"

enum { ROWS = 8 };

struct mx_reward_model {
    mx_model_ref model;
    mx_session *session;
    mx_step step;
    mx_tokenizer *tokenizer;
    mx_batch batch;
};

static mx_node *scores(mx_graph *g, const mx_head *h, mx_build *b, const void *settings)
{
    (void)settings;
    mx_node *r = mx_scores_of(g, h, b);
    mx_graph_root(g, "scores", mx_affine(g, r, 1, 0));
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, r), 1, 0));
}

static mx_status open_model(mx_reward_model *m, const mx_config *c, const char *path)
{
    MX_TRY(mx_model_ref_open(&m->model, path, NULL, c));
    int64_t classes = mx_classes_of(m->model.spec.json);
    if (classes != 1)
        return mx_fail(MX_INPUT, "%s gives %s; expected a reward model, as `maxc dpo "
                       "loss_type=reward` writes it (...ForSequenceClassification of one label)",
                       path, classes ? "several scores" : "tokens, not a score");
    if (!m->model.path || !mx_tokenizer_is_in(m->model.path))
        return mx_fail(MX_INPUT, "%s has no tokenizer", path);
    MX_TRY(mx_tokenizer_open(&m->tokenizer, m->model.path, NULL));
    mx_dtype compute = MX_F32;
    mx_dtype_parse(mx_config_text(c, "dtype"), &compute);
    mx_step_options o = {.kind = MX_STEP_LOSS, .loss = scores,
                         .lora = m->model.has_adapter ? &m->model.adapter.lora : NULL,
                         .shape = {.batch = ROWS, .packed = true,
                                   .seq = mx_config_int(c, "max_target_length")},
                         .compile = {.compute = compute, .weights_fixed = true}};
    MX_TRY(mx_session_open(&m->session, mx_config_text(c, "device"),
                           (int)mx_config_int(c, "num_threads")));
    MX_TRY(mx_step_open(&m->step, m->session, &m->model.spec, &o));
    MX_TRY(mx_batch_room(&m->batch, ROWS, o.shape.seq));
    return mx_model_ref_weights(&m->model, m->session, 0);
}

mx_status mx_reward_model_open(mx_reward_model **out, const mx_config *c)
{
    mx_reward_model *m = mx_realloc(NULL, sizeof *m);
    *m = (mx_reward_model){0};
    *out = m;
    return mx_status_wrap(open_model(m, c, mx_config_text(c, "reward_model_path")),
                          "reward_model_path");
}

void mx_reward_model_close(mx_reward_model *m)
{
    if (!m)
        return;
    mx_session_close(m->session);
    mx_step_close(&m->step);
    mx_tokenizer_close(m->tokenizer);
    mx_model_ref_close(&m->model);
    mx_free(m->batch.tokens);
    mx_free(m);
}

/* Row `to`: prompt and answer. A text that is too long loses its end. */
static mx_status put_row(mx_reward_model *m, const mx_reward_input *j, int64_t to)
{
    mx_batch *b = &m->batch;
    mx_tokens ids = {0};
    mx_str text = {0};
    int64_t S = b->seq_len;
    mx_encode_options o = {.add_special = true, .special_in_text = MX_SPECIAL_AS_LIBRARY};
    mx_str_add(&text, j->prompt);
    mx_str_add_n(&text, j->answer, j->n_answer);
    mx_status st = mx_tokenizer_encode(m->tokenizer, mx_str_text(&text), text.len, &o, &ids);
    int64_t n = ids.n < S ? ids.n : S;
    for (int64_t i = 0; i < S && !st; i++) {
        b->tokens[to * S + i] = i < n ? ids.ids[i] : 0;
        b->segments[to * S + i] = i < n;
        b->positions[to * S + i] = i < n ? (int32_t)i : 0;
        b->labels[to * S + i] = MX_NO_LABEL;
    }
    mx_tokens_fini(&ids);
    mx_str_fini(&text);
    return st;
}

mx_status mx_reward_model_judge(mx_reward_model *m, const mx_reward_input *answers, int64_t n,
                                double *score, int stride)
{
    for (int64_t at = 0; at < n; at += ROWS) {
        float value[ROWS];
        for (int64_t i = 0; i < ROWS; i++)
            MX_TRY(put_row(m, &answers[at + i < n ? at + i : n - 1], i));
        MX_TRY(mx_feed_frozen(m->step.exec, &m->batch, 0));
        MX_TRY(mx_scores_feed(m->step.exec, &m->batch, 0, ROWS,
                              mx_scores_pad(m->tokenizer)));
        MX_TRY(mx_exec_run(m->step.exec));
        MX_TRY(mx_exec_read(m->step.exec, "scores", value));
        for (int64_t i = 0; i < ROWS && at + i < n; i++)
            score[(at + i) * stride] = value[i];
    }
    return MX_OK;
}
