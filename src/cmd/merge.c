/* merge.c - maxc merge MODEL adapter=DIR output=DIR: a model with an adapter's changes in its
 * weights. Computed in float32 from the model as it is stored, written in its own dtype. */
#include "base/file.h"
#include "cmd/verb.h"
#include "store/weights.h"
#include "train/input/model_files.h"
#include "exec/model_ref.h"
#include "exec/step.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    mx_model_ref model;
    mx_session *session;
    mx_step step;
    mx_model_files files;
} state;

/* What most of the model's matrices are stored in. */
static mx_dtype stored_dtype(const mx_hf_dir *d)
{
    for (int64_t i = 0; i < d->n_tensors; i++)
        if (d->tensors[i]->ndim == 2)
            return d->tensors[i]->dtype == mx_st_dtype_of(MX_BF16) ? MX_BF16 : MX_F32;
    return MX_F32;
}

static mx_status save_files(const state *s, const char *dir)
{
    for (int i = 0; i < s->files.n; i++) {
        uint64_t bytes;
        mx_digest digest;
        MX_TRY(mx_hf_save_extra(dir, &s->files.v[i], &mx_io_system, &bytes, &digest));
    }
    return MX_OK;
}

static mx_status merge(state *s, mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *adapter = mx_config_text(c, "lora.lora_restore_path"),
               *output = mx_config_text(c, "output");
    MX_TRY(mx_model_ref_open(&s->model, inv->args[0], inv->home, c));
    if (*adapter)
        MX_TRY(mx_model_ref_adapt(&s->model, adapter));
    if (!s->model.has_adapter)
        return mx_fail(MX_USAGE, "there is no adapter to merge; set adapter=DIR");
    if (!*output || access(output, F_OK) == 0)
        return mx_fail(MX_USAGE, "output=%s %s; give a folder that does not exist yet", output,
                       *output ? "is there already" : "is missing");
    const mx_lora *l = &s->model.adapter.lora;
    mx_step_options o = {.kind = MX_STEP_LOGITS, .shape = {.batch = 1, .seq = 8}, .lora = l,
                         .compile = {.compute = MX_F32}};
    MX_TRY(mx_session_open(&s->session, "cpu", 0));
    MX_TRY(mx_step_open(&s->step, s->session, &s->model.spec, &o));
    MX_TRY(mx_model_ref_weights(&s->model, s->session, 0));
    MX_TRY(mx_adapter_merge(s->session, l));
    MX_TRY(mx_model_files_read(&s->files, &(mx_model_files_from){.model = s->model.path}));
    MX_TRY(mx_weights_save(s->session, &s->model.spec, output, stored_dtype(&s->model.dir)));
    MX_TRY(save_files(s, output));
    printf("%s: %s with %d adapters of %s\n", output, s->model.path, l->n_only,
           s->model.adapter.dir.path);
    return MX_OK;
}

static mx_status run(mx_invocation *inv)
{
    state s = {0};
    mx_status st = merge(&s, inv);
    mx_model_files_close(&s.files);
    mx_session_close(s.session);
    mx_step_close(&s.step);
    mx_model_ref_close(&s.model);
    return st;
}

static const mx_key keys[] = {
    {"output", MX_KEY_STRING, 0, "", 0, "folder to write, not there yet",
     .flags = MX_KEY_PATH, .example = "output=merged", .seen_by = "tests/post/keys_test.c"},
    {0},
};

const mx_verb mx_verb_merge = {
    .name = "merge",
    .doc = "a model with an adapter merged into its weights",
    .usage = "MODEL [adapter=DIR] output=DIR",
    .help = "MODEL is the model that the adapter is for, or the adapter's folder or run itself.\n"
            "The result is a Hugging Face directory in the model's own dtype.",
    .min_args = 1,
    .max_args = 1,
    .keys = keys,
    .run = run,
};
