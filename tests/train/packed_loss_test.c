/* packed_loss_test.c - a document has the loss in a packed row that it has alone, for every
 * packer, with global (llama3), windowed (mistral, gemma3) and compressed attention. */
#include "../test.h"

#include "data/load/pack.h"
#include "data/load/random.h"
#include "store/weights.h"
#include "exec/step.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DOCS = 9, S = 32, ROWS_MAX = 16 };

typedef struct {
    mx_hf_dir dir;
    mx_model_spec model;
    mx_session *session;
    mx_step step;
    int32_t ids[DOCS][S];
    int64_t n[DOCS];
    float alone[DOCS];
} setup;

static mx_status open_setup(setup *s, const char *family)
{
    char path[256];
    snprintf(path, sizeof path, "tests/fixtures/models/%s", family);
    MX_TRY(mx_hf_dir_open(&s->dir, path, MX_HF_ALL));
    MX_TRY(mx_model_from_json(&s->model, s->dir.config, path));
    MX_TRY(mx_session_open(&s->session, "cpu", 1));
    mx_step_options o = {.kind = MX_STEP_LOSS, .shape = {.batch = 1, .seq = S, .packed = true}};
    o.compile.n_threads = mx_session_threads(s->session);
    MX_TRY(mx_step_open(&s->step, s->session, &s->model, &o));
    MX_TRY(mx_weights_load(s->session, &s->model, &s->dir, (mx_load_options){0}));
    MX_TRY(mx_session_init(s->session, 0));
    mx_draws d = {mx_mix_key(1, 2), 0};
    for (int k = 0; k < DOCS; k++) {
        s->n[k] = 2 + (int64_t)mx_draw_below(&d, 18);
        for (int64_t i = 0; i < s->n[k]; i++)
            s->ids[k][i] = (int32_t)mx_draw_below(&d, 140);
    }
    return MX_OK;
}

/* Sum of the losses of the labelled places of one row. */
static float row_loss(setup *s, const int32_t row[4][S])
{
    static const char *const names[4] = {"tokens", "labels", "segments", "positions"};
    float one = 1, loss = NAN;
    for (int i = 0; i < 4; i++)
        MX_CHECK_OK(mx_exec_write(s->step.exec, names[i], row[i]));
    MX_CHECK_OK(mx_exec_write(s->step.exec, "loss_scale", &one));
    MX_CHECK_OK(mx_exec_run(s->step.exec));
    MX_CHECK_OK(mx_exec_read(s->step.exec, "loss", &loss));
    return loss;
}

/* The document that the part of a row from `at` on is the beginning of, -1 when it is no
 * beginning. */
static int document_at(const setup *s, const int32_t row[4][S], int at, int n)
{
    for (int k = 0; k < DOCS; k++)
        if (s->n[k] == n && memcmp(s->ids[k], row[0] + at, sizeof(int32_t) * (size_t)n) == 0)
            return k;
    return -1;
}

static void check_row(setup *s, const int32_t row[4][S], bool alone, int *n_checked)
{
    for (int at = 0, end; at < S && row[2][at]; at = end) {
        int32_t one[4][S];
        for (end = at; end < S && row[2][end] == row[2][at];)
            end++;
        int k = document_at(s, row, at, end - at);
        if (k < 0)
            continue; /* concat cut it: its second half has lost its beginning */
        memcpy(one, row, sizeof one);
        for (int i = 0; i < S; i++)
            one[1][i] = i >= at && i < end ? row[1][i] : MX_NO_LABEL;
        float loss = row_loss(s, (const int32_t(*)[S])one);
        if (alone)
            s->alone[k] = loss;
        MX_CHECK(fabsf(loss - s->alone[k]) <= 1e-6f * fabsf(s->alone[k]) + 1e-6f,
                 "document %d of %d tokens at %d: %.8g, alone %.8g", k, end - at, at, (double)loss,
                 (double)s->alone[k]);
        ++*n_checked;
    }
}

static void run(const char *family)
{
    setup s = {0};
    mx_status st = open_setup(&s, family);
    bool ok = !st;
    MX_CHECK_OK(st);
    for (int kind = MX_PACK_NONE; ok && kind <= MX_PACK_CONCAT; kind++) {
        uint8_t trained[S];
        int32_t row[4][S];
        int checked = 0;
        memset(trained, 1, sizeof trained);
        mx_packer *p = mx_packer_new(&(mx_pack_options){.kind = (mx_pack_kind)kind, .seq_len = S});
        for (int k = 0; k < DOCS; k++)
            mx_packer_add(p, s.ids[k], trained, s.n[k]);
        mx_packer_close(p, true);
        for (int64_t r = 0; r < mx_packer_rows(p); r++) {
            mx_packer_write(p, r, row[0], row[1], row[2], row[3]);
            check_row(&s, (const int32_t(*)[S])row, kind == MX_PACK_NONE, &checked);
        }
        MX_CHECK(kind == MX_PACK_CONCAT ? checked >= DOCS / 2 : checked == DOCS,
                 "%d documents of %d", checked, DOCS);
        mx_packer_free(p);
    }
    mx_session_close(s.session);
    mx_step_close(&s.step);
    mx_model_spec_fini(&s.model);
    mx_hf_dir_close(&s.dir);
}

MX_TEST(packed_loss_is_unpacked_loss_global) { run("llama3"); }
MX_TEST(packed_loss_is_unpacked_loss_windowed) { run("mistral"); }
MX_TEST(packed_loss_is_unpacked_loss_mixed) { run("gemma3"); }
/* Windows of V4 begin with each document, wherever it lies in the row. */
MX_TEST(packed_loss_is_unpacked_loss_compressed) { run("deepseek-v4"); }
