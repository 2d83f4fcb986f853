/* model_text.c - see model_text.h. */
#include "cmd/model_text.h"

#include "base/file.h"
#include "exec/step_config.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/input/tokenizer_path.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A note where the weights or the tokenizer are not the model's own. */
static mx_status open_tokenizer(mx_model_text *m, const mx_config *c)
{
    const char *dir = m->ref.path, *at;
    bool given = *mx_config_text(c, "tokenizer_path") != 0, own = dir && mx_tokenizer_is_in(dir);
    bool bytes = !given && !own &&
                 (!dir || access(mx_arena_printf(&m->arena, "%s/state.json", dir), R_OK) == 0);
    if (!m->ref.has_weights)
        fprintf(stderr, "note: the weights are random: a name from configs/models has none\n");
    if (bytes)
        fprintf(stderr,
                "note: text is read and written as bytes: %s has no tokenizer; "
                "tokenizer_path= names one\n",
                dir ? dir : "the model");
    MX_TRY(mx_tokenizer_from_config(&m->tok, c, bytes ? NULL : dir, &m->arena, &at));
    if (strcmp(mx_config_text(c, "use_chat_template"), "false") == 0)
        return MX_OK;
    bool there = false;
    if (given && mx_dir_exists(at))
        MX_TRY(mx_chat_template_in_dir(at, &there));
    mx_status st = mx_chat_from_config(&m->chat, c, there ? at : dir, &m->arena, NULL), advice;
    if (!st)
        return MX_OK;
    advice = mx_fail(mx_status_code(st), "%s; use_chat_template=false takes the prompt as it is",
                     mx_status_text(st));
    mx_status_free(st);
    return advice;
}

bool mx_drafts_by_mtp(const mx_config *c)
{
    return mx_config_int(c, "speculative_tokens") > 0 &&
           strcmp(mx_config_text(c, "speculative_method"), "mtp") == 0;
}

mx_sampling mx_sampling_of(const mx_config *c)
{
    const char *how = mx_config_text(c, "decode_sampling_strategy");
    mx_sampling s = {.temperature = mx_config_float(c, "decode_sampling_temperature"),
                     .top_k = mx_config_int(c, "decode_sampling_top_k"),
                     .top_p = mx_config_float(c, "decode_sampling_nucleus_p"),
                     .min_p = mx_config_float(c, "min_p"),
                     .repetition_penalty = mx_config_float(c, "repetition_penalty"),
                     .presence_penalty = mx_config_float(c, "presence_penalty"),
                     .frequency_penalty = mx_config_float(c, "frequency_penalty"),
                     .seed = (uint64_t)mx_config_int(c, "seed")};
    bool asked = mx_config_is_set(c, "decode_sampling_temperature") || s.top_k > 0 ||
                 (s.top_p > 0 && s.top_p < 1) || s.min_p > 0;
    if (strcmp(how, "greedy") == 0 || (!*how && !asked))
        s.temperature = 0;
    return s;
}

mx_status mx_model_text_open(mx_model_text *m, const mx_invocation *inv)
{
    const mx_config *c = inv->config;
    MX_TRY(mx_model_ref_open(&m->ref, inv->args[0], inv->home, c));
    MX_TRY(open_tokenizer(m, c));
    m->n_stop_ids = mx_stop_ids(&m->ref, m->tok, m->stop_ids, MX_MAX_STOP_IDS);
    MX_TRY(mx_compute_dtype(c, "float32", &m->compute));
    return mx_tokenizer_check_model(m->tok, m->ref.spec.summary.vocab);
}

void mx_model_text_close(mx_model_text *m)
{
    mx_chat_template_close(m->chat);
    mx_tokenizer_close(m->tok);
    mx_model_ref_close(&m->ref);
    mx_arena_fini(&m->arena);
    *m = (mx_model_text){0};
}
