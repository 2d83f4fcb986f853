/* perplexity.c - windows of a text through the loss program, one after the other. */
#include "train/check/perplexity.h"

#include "exec/quant_config.h"
#include "exec/step.h"
#include <math.h>
#include <string.h>

/* Window `at`: its sum of losses is added, and the tokens that counted. The last one is short; what
 * is missing has no labels. */
static mx_status add_window(mx_step *step, const mx_perplexity_of *of, int64_t at, int32_t *row,
                            double *sum, int64_t *count)
{
    int32_t *tokens = row, *labels = row + of->length, *shifted = row + 2 * of->length;
    int64_t n = of->n - at < of->length ? of->n - at : of->length;
    for (int64_t i = 0; i < of->length; i++) {
        tokens[i] = i < n ? of->ids[at + i] : of->ids[at];
        labels[i] = i < n ? tokens[i] : -100;
    }
    int64_t asked = mx_shift_labels(labels, 1, of->length, shifted);
    float scale = 1, loss;
    MX_TRY(mx_exec_write(step->exec, "tokens", tokens));
    MX_TRY(mx_exec_write(step->exec, "labels", shifted));
    MX_TRY(mx_exec_write(step->exec, "loss_scale", &scale));
    MX_TRY(mx_exec_run(step->exec));
    MX_TRY(mx_exec_read(step->exec, "loss", &loss));
    *sum += loss;
    *count += asked;
    return MX_OK;
}

mx_status mx_perplexity(const mx_model_ref *m, const mx_perplexity_of *of, double *out)
{
    mx_arena arena = {0};
    mx_session *session = NULL;
    mx_step step = {0};
    int32_t *row = mx_realloc(NULL, sizeof *row * 3 * (size_t)of->length);
    double sum = 0;
    int64_t count = 0;
    mx_status st;
    const mx_quantization *activations = NULL;
    MX_TRY_OUT(st, mx_quant_activations(&activations, m->spec.json, &arena));
    MX_TRY_OUT(st, mx_session_open(&session, of->device, of->n_threads));
    mx_step_options o = {.kind = MX_STEP_LOSS, .shape = {.batch = 1, .seq = of->length},
                         .compile = {.compute = of->compute, .weights_fixed = true,
                                     .quantization = activations,
                                     .n_threads = mx_session_threads(session)}};
    MX_TRY_OUT(st, mx_step_open(&step, session, &m->spec, &o));
    MX_TRY_OUT(st, mx_model_ref_weights(m, session, 0));
    for (int64_t at = 0; at + 1 < of->n && !st; at += of->length)
        st = add_window(&step, of, at, row, &sum, &count);
    *out = exp(sum / (double)(count ? count : 1));
out:
    mx_step_close(&step);
    mx_session_close(session);
    mx_arena_fini(&arena);
    mx_free(row);
    return st;
}
