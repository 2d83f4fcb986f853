/* engine_mtp_test.c - drafts of an MTP layer change nothing but the number of steps, and are those
 * of the layer in training. */
#include "../test.h"

#include "infer/engine.h"
#include "store/safetensors.h"
#include <string.h>

static const char fixture[] = "tests/fixtures/models/deepseek-v3-mtp";
enum { N_PROMPT = 9, NEW = 20, N = N_PROMPT + NEW, N_ANSWERS = 5 };

static void open_model(mx_model_ref *m)
{
    MX_CHECK_OK(mx_model_ref_open(m, fixture, NULL, NULL));
}

typedef struct {
    int32_t ids[N_ANSWERS][N];
    float log_prob[N_ANSWERS][N];
    mx_engine_counts counts;
} answers;

/* Prompts of several lengths, of which two begin alike, greedy and drawn. */
static void answer(const mx_model_ref *m, int64_t drafts, bool mtp, int64_t step_tokens, answers *a)
{
    mx_engine *e;
    mx_request *r[N_ANSWERS];
    mx_engine_options o = {.model = m,
                           .device = "cpu",
                           .n_threads = 1,
                           .compute = MX_F32,
                           .sequences = 3,
                           .step_tokens = step_tokens,
                           .max_length = 64,
                           .cache_tokens = 112,
                           .draft_tokens = drafts,
                           .mtp = mtp};
    *a = (answers){0};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    for (int i = 0; i < N_ANSWERS; i++) {
        int32_t ids[N_PROMPT];
        mx_tokens prompt = {.ids = ids, .n = N_PROMPT};
        for (int k = 0; k < N_PROMPT; k++)
            ids[k] = (int32_t)(3 + (k * 7 + (i > 1 ? i * 13 : 0)) % 150);
        mx_request_options q = {.sampling = {.repetition_penalty = 1, .seed = 5},
                                .stream = (uint64_t)i,
                                .max_new = NEW,
                                .log_probs = true};
        q.sampling.temperature = i % 2 ? 0.8 : 0;
        MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r[i]));
    }
    while (mx_engine_busy(e))
        MX_CHECK_OK(mx_engine_step(e));
    a->counts = mx_engine_count(e);
    for (int i = 0; i < N_ANSWERS; i++) {
        MX_CHECK(r[i]->finish == MX_FINISH_LENGTH && r[i]->tokens.n == N, "answer %d", i);
        memcpy(a->ids[i], r[i]->tokens.ids, sizeof a->ids[i]);
        memcpy(a->log_prob[i], r[i]->log_prob, sizeof a->log_prob[i]);
    }
    mx_engine_close(e);
}

MX_TEST(engine_mtp_drafts_change_nothing)
{
    mx_model_ref m;
    answers plain, drafting;
    open_model(&m);
    answer(&m, 0, false, 64, &plain);
    for (int64_t drafts = 1; drafts <= 3; drafts++) {
        answer(&m, drafts, true, 16, &drafting);
        for (int i = 0; i < N_ANSWERS; i++)
            for (int k = N_PROMPT; k < N; k++)
                MX_CHECK(plain.ids[i][k] == drafting.ids[i][k] &&
                             memcmp(&plain.log_prob[i][k], &drafting.log_prob[i][k], 4) == 0,
                         "%d drafts, answer %d, token %d: %d (%.9g), without %d (%.9g)",
                         (int)drafts, i, k, drafting.ids[i][k], drafting.log_prob[i][k],
                         plain.ids[i][k], plain.log_prob[i][k]);
        MX_CHECK(drafting.counts.drafted > 0, "no drafts");
        MX_CHECK(drafting.counts.accepted <= drafting.counts.drafted, "more are right than made");
    }
    mx_model_ref_close(&m);
}

/* How many of the first n tokens' drafts the model itself repeats: what training counts. */
static int64_t repeated(mx_model_ref *m, const int32_t *ids, int64_t n)
{
    mx_session *s;
    mx_step step;
    int32_t labels[N];
    float accepted = 0, scale = 1;
    mx_step_options o = {.kind = MX_STEP_LOSS,
                         .compile = {.compute = MX_F32},
                         .shape = {.batch = 1, .seq = n, .mtp_eval = 1}};
    for (int64_t i = 0; i < n; i++)
        labels[i] = i + 1 < n ? ids[i + 1] : 0;
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    MX_CHECK_OK(mx_step_open(&step, s, &m->spec, &o));
    MX_CHECK_OK(mx_model_ref_weights(m, s, 0));
    MX_CHECK_OK(mx_exec_write(step.exec, "tokens", ids));
    MX_CHECK_OK(mx_exec_write(step.exec, "labels", labels));
    MX_CHECK_OK(mx_exec_write(step.exec, "loss_scale", &scale));
    MX_CHECK_OK(mx_exec_run(step.exec));
    MX_CHECK_OK(mx_exec_read(step.exec, "mtp_accepted", &accepted));
    mx_step_close(&step);
    mx_session_close(s);
    return (int64_t)(accepted + 0.5f);
}

/* Alone and greedy, one draft a step: right where the layer in training predicts what the model
 * does. The draft of token t comes from position t - 2. */
MX_TEST(engine_mtp_drafts_are_those_of_training)
{
    mx_model_ref m;
    mx_engine *e;
    mx_request *r;
    int32_t ids[N_PROMPT];
    mx_tokens prompt = {.ids = ids, .n = N_PROMPT};
    open_model(&m);
    for (int k = 0; k < N_PROMPT; k++)
        ids[k] = 3 + k * 7 % 150;
    mx_engine_options o = {.model = &m, .device = "cpu", .n_threads = 1, .compute = MX_F32,
                           .sequences = 1, .max_length = 64, .cache_tokens = 64,
                           .draft_tokens = 1, .mtp = true};
    mx_request_options q = {.sampling = {.repetition_penalty = 1}, .max_new = NEW};
    MX_CHECK_OK(mx_engine_open(&e, &o));
    MX_CHECK_OK(mx_engine_admit(e, &prompt, &q, &r));
    while (mx_engine_busy(e))
        MX_CHECK_OK(mx_engine_step(e));
    /* right[t]: the draft of token t is what the model draws */
    int64_t right[N + 1] = {0}, before = repeated(&m, r->tokens.ids, N_PROMPT);
    for (int64_t n = N_PROMPT + 1; n <= N; n++) {
        int64_t now = repeated(&m, r->tokens.ids, n);
        right[n] = now - before; /* of n tokens, the last draft is of token n, from n - 2 */
        before = now;
    }
    int64_t drafted = 0, accepted = 0;
    for (int64_t n = N_PROMPT + 1; n < N;) { /* tokens that are there; one more comes anyway */
        bool more = n + 1 < N;
        drafted += more;
        accepted += more && right[n];
        n += 1 + (more && right[n]);
    }
    mx_engine_counts c = mx_engine_count(e);
    MX_CHECK(c.drafted == drafted && c.accepted == accepted,
             "%d of %d drafts were right, by the layer in training %d of %d", (int)c.accepted,
             (int)c.drafted, (int)accepted, (int)drafted);
    mx_engine_close(e);
    mx_model_ref_close(&m);
}

MX_TEST(engine_mtp_needs_mtp_layers)
{
    mx_model_ref m;
    mx_engine *e;
    MX_CHECK_OK(mx_model_ref_open(&m, "tests/fixtures/models/llama3", NULL, NULL));
    mx_engine_options o = {.model = &m, .device = "cpu", .n_threads = 1, .compute = MX_F32,
                           .sequences = 1, .max_length = 48, .draft_tokens = 1, .mtp = true};
    MX_CHECK_ERROR(mx_engine_open(&e, &o), "speculative_method=ngram");
    mx_model_ref_close(&m);
}
