/* quantize.c - maxc quantize MODEL output=DIR: a Hugging Face directory with quantized weights. */
#include "base/file.h"
#include "cmd/verb.h"
#include "store/quant_write.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/input/model_files.h"
#include "train/check/calibrate.h"
#include "train/check/perplexity.h"
#include "train/input/tokenizer_path.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 512 };

static mx_status check_ids(const mx_tokens *ids, const char *path, int64_t vocab)
{
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->ids[i] >= vocab)
            return mx_fail(MX_INPUT, "%s: token %lld has the id %d, but the model has %lld tokens; "
                           "name the model's own tokenizer (tokenizer_path=)", path, (long long)i,
                           ids->ids[i], (long long)vocab);
    return MX_OK;
}

/* The tokens of the text `key` names, as many as `most` says at most. */
static mx_status read_text(mx_invocation *inv, const mx_model_ref *m, const char *key,
                           const char *most_key, mx_tokens *ids)
{
    const mx_config *c = inv->config;
    const char *path = mx_config_text(c, key), *at;
    mx_arena a = {0};
    mx_tokenizer *tok = NULL;
    char *text;
    size_t n;
    mx_status st;
    MX_TRY_OUT(st, mx_tokenizer_from_config(&tok, c, m->path, &a, &at));
    MX_TRY_OUT(st, mx_file_read(&a, path, (size_t)1 << 28, &text, &n));
    MX_TRY_OUT(st, mx_tokenizer_encode(tok, text, n, &(mx_encode_options){0}, ids));
    MX_TRY_OUT(st, mx_tokenizer_check_model(tok, m->spec.summary.vocab));
    MX_TRY_OUT(st, check_ids(ids, path, m->spec.summary.vocab));
    int64_t most = mx_config_int(c, most_key);
    ids->n = ids->n < most ? ids->n : most;
    if (ids->n < 2)
        st = mx_fail(MX_INPUT, "%s: expected at least two tokens of text", path);
out:
    mx_tokenizer_close(tok);
    mx_arena_fini(&a);
    return st;
}

static mx_perplexity_of text_of(const mx_config *c, const mx_tokens *ids)
{
    return (mx_perplexity_of){.ids = ids->ids, .n = ids->n, .length = WINDOW, .compute = MX_F32,
                              .device = mx_config_text(c, "device"),
                              .n_threads = (int)mx_config_int(c, "num_threads")};
}

static mx_status judge(mx_invocation *inv, const mx_model_ref *before, const char *output,
                       const mx_tokens *ids)
{
    const mx_config *c = inv->config;
    mx_model_ref after = {0};
    mx_perplexity_of of = text_of(c, ids);
    double a = 0, b = 0;
    mx_status st;
    MX_TRY_OUT(st, mx_perplexity(before, &of, &a));
    MX_TRY_OUT(st, mx_model_ref_open(&after, output, inv->home, c));
    MX_TRY_OUT(st, mx_perplexity(&after, &of, &b));
    printf("perplexity   %.4f before, %.4f after (%+.2f %%), %lld tokens of %s\n", a, b,
           100 * (b / a - 1), (long long)ids->n, mx_config_text(c, "eval_text"));
out:
    mx_model_ref_close(&after);
    return st;
}

static mx_status check_calibration(const mx_config *c)
{
    const char *method = mx_config_text(c, "calibration");
    const char *form = mx_config_text(c, "quantization");
    bool none = strcmp(method, "absmax") == 0, text = *mx_config_text(c, "calibration_text") != 0;
    if (!none && !text)
        return mx_fail(MX_USAGE, "calibration=%s needs a text like those that the model will read: "
                       "calibration_text=FILE", method);
    if (none && text)
        return mx_fail(MX_USAGE, "calibration_text= is read by calibration=gptq and smoothquant, "
                       "not by absmax");
    if (none)
        return MX_OK;
    if (strcmp(form, "nf4") == 0 || strcmp(form, "fp8_blockwise") == 0)
        return mx_fail(MX_USAGE, "calibration=%s goes with quantization=fp8, int8 or int4, not "
                       "with %s", method, form);
    return MX_OK;
}

/* NULL: weights are not stored so. */
static const mx_quant_form *form_of(const mx_config *c)
{
    const char *name = mx_config_text(c, "quantization");
    if (strcmp(name, "int4") == 0 && !mx_config_bool(c, "symmetric"))
        return mx_quant_form_find("int4_asymmetric");
    if (strcmp(name, "int8") == 0 && mx_config_bool(c, "quantize_activations"))
        return mx_quant_form_find("int8_w8a8");
    return mx_quant_form_find(name);
}

static mx_status check(mx_invocation *inv, const mx_model_ref *m)
{
    const char *output = mx_config_text(inv->config, "output");
    const char *name = mx_config_text(inv->config, "quantization");
    bool inner = strcmp(name, "int4_asymmetric") == 0 || strcmp(name, "int8_w8a8") == 0;
    if (!*name)
        return mx_fail(MX_USAGE, "quantization is not set; weights are stored as quantization=fp8, "
                       "fp8_blockwise, int8, int4 or nf4");
    if (!form_of(inv->config) || inner)
        return mx_fail(MX_USAGE, "%s: weights are stored as quantization=fp8, fp8_blockwise, int8, "
                       "int4 or nf4, not as `%s`", mx_config_where(inv->config, "quantization"),
                       name);
    bool rows = strcmp(name, "fp8") == 0 || strcmp(name, "int8") == 0;
    if (mx_config_bool(inv->config, "quantize_activations") && !rows)
        return mx_fail(MX_USAGE, "quantize_activations=true goes with quantization=fp8 or int8, "
                       "not with %s", name);
    if (!mx_config_bool(inv->config, "symmetric") && strcmp(name, "int4") != 0)
        return mx_fail(MX_USAGE, "symmetric=false goes with quantization=int4, not with %s", name);
    if (*mx_config_text(inv->config, "keep_8bit") && strcmp(name, "int4") != 0)
        return mx_fail(MX_USAGE, "keep_8bit= goes with quantization=int4, not with %s", name);
    int64_t group = mx_config_int(inv->config, "group_size");
    if (group > 0 && (group < 8 || group % 8))
        return mx_fail(MX_USAGE, "%s is %lld; expected a multiple of 8, or 0",
                       mx_config_where(inv->config, "group_size"), (long long)group);
    if (!*output)
        return mx_fail(MX_USAGE, "output=DIR is missing: the folder to write");
    if (access(output, F_OK) == 0)
        return mx_fail(MX_USAGE, "output=%s is there already; name a new folder", output);
    if (!m->has_weights)
        return mx_fail(MX_INPUT, "%s has no weights; give a Hugging Face directory, a run or a "
                       "checkpoint", inv->args[0]);
    if (strcmp(m->spec.family->name, "gpt2") == 0)
        return mx_fail(MX_INPUT, "%s: GPT-2 stores its matrices (in, out), for which transformers "
                       "has no quantized form", inv->args[0]);
    return check_calibration(inv->config);
}

/* GPTQ or SmoothQuant, if they are asked for. */
static mx_status calibrate(mx_invocation *inv, const mx_model_ref *m, mx_quant_write_options *o,
                           mx_calibrated *out)
{
    const mx_config *c = inv->config;
    const char *method = mx_config_text(c, "calibration");
    mx_tokens ids = {0};
    mx_status st;
    if (strcmp(method, "absmax") == 0)
        return MX_OK;
    MX_TRY_OUT(st, read_text(inv, m, "calibration_text", "calibration_tokens", &ids));
    bool gptq = strcmp(method, "gptq") == 0;
    mx_calibrate_of of = {.method = gptq ? MX_CALIBRATE_GPTQ : MX_CALIBRATE_SMOOTH, .write = o,
                          .text = text_of(c, &ids), .act_order = mx_config_bool(c, "act_order"),
                          .smoothing = mx_config_float(c, "smoothing"),
                          .rounds = (int)mx_config_int(c, "calibration_rounds"),
                          .most_bytes = (size_t)mx_config_int(c, "calibration_memory") << 20};
    MX_TRY_OUT(st, mx_calibrate(m, &of, out));
    o->changes = &out->changes;
    o->actorder = gptq && of.act_order ? "weight" : NULL;
    printf("calibrated   %d weights by %s, %lld tokens of %s\n", out->n_calibrated, method,
           (long long)(ids.n / WINDOW * WINDOW), mx_config_text(c, "calibration_text"));
    if (gptq && out->outputs.whole > 0)
        printf("             outputs of these weights are off by %.3g %%\n",
               100 * sqrt(fmax(out->outputs.lost, 0) / out->outputs.whole));
out:
    mx_tokens_fini(&ids);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_ref m = {0};
    mx_model_files files = {0};
    mx_tokens ids = {0};
    mx_calibrated calibrated = {0};
    mx_quant_written w = {0};
    const char *output = mx_config_text(c, "output");
    mx_quant_write_options o = {.form = form_of(c),
                                .group = mx_config_int(c, "group_size"),
                                .activations = mx_config_bool(c, "quantize_activations"),
                                .keep = mx_config_text(c, "keep"),
                                .eight = mx_config_text(c, "keep_8bit")};
    bool judged = *mx_config_text(c, "eval_text") != 0;
    mx_status st;
    MX_TRY_OUT(st, mx_model_ref_open(&m, inv->args[0], inv->home, c));
    MX_TRY_OUT(st, check(inv, &m));
    if (!o.group)
        MX_TRY_OUT(st, mx_quant_group(&m.dir, &o, &o.group));
    MX_TRY_OUT(st, mx_quant_check_patterns(&m.dir, &o));
    if (judged)
        MX_TRY_OUT(st, read_text(inv, &m, "eval_text", "eval_tokens", &ids));
    MX_TRY_OUT(st, calibrate(inv, &m, &o, &calibrated));
    MX_TRY_OUT(st, mx_model_files_read(&files, &(mx_model_files_from){.model = m.path}));
    o.more = files.v;
    o.n_more = files.n;
    MX_TRY_OUT(st, mx_quant_write(&m.dir, output, &o, &w));
    printf("%s: %lld weights quantized, %lld as they were; %.1f MB of %.1f, %.2f bits a number; "
           "weights are off by %.3g %%\n", output, (long long)w.n_quantized, (long long)w.n_kept,
           w.bytes_after / 1e6, w.bytes_before / 1e6, w.bits, 100 * w.error);
    for (const char *line = w.unfit, *end; (end = strchr(line, '\n')); line = end + 1)
        printf("note: kept as it is: %.*s\n", (int)(end - line), line);
    if (judged)
        st = judge(inv, &m, output, &ids);
    else
        printf("perplexity   not measured; eval_text=FILE names a text\n");
out:
    mx_tokens_fini(&ids);
    mx_model_files_close(&files);
    mx_model_ref_close(&m);
    mx_calibrated_fini(&calibrated);
    return st;
}

#define SEEN .seen_by = "tests/cli/quantize.sh"
#define CALIBRATES .seen_by = "tests/cli/qat.sh"
static const mx_key keys[] = {
    {"output", MX_KEY_STRING, 0, "", 0,
     "folder to write", 0, MX_KEY_PATH, 0,
     "output=quantized quantization=int8", SEEN},
    {"group_size", MX_KEY_INT, 0, "0", "0..4096",
     "of int4: weights of a row under one scale; 0: 32 for models of less than 1B weights, beyond "
     "them the largest of 128, 64 and 32 that divides all rows", 0, 0, 0,
     "group_size=32 output=quantized quantization=int4", SEEN},
    {"symmetric", MX_KEY_BOOL, 0, "true", 0,
     "of int4: values lie around 0; false: each group has a zero point of its own too", 0, 0, 0,
     "symmetric=false output=quantized quantization=int4", SEEN},
    {"quantize_activations", MX_KEY_BOOL, 0, "false", 0,
     "fp8, int8: who loads it computes with 8-bit activations too, a scale for each token", 0, 0, 0,
     "quantize_activations=true output=quantized quantization=int8", SEEN},
    {"keep", MX_KEY_STRING, 0, "", 0,
     "patterns of weights that stay as they are, with commas", 0, 0, 0,
     "keep=*.mlp.* output=quantized quantization=int8", SEEN},
    {"keep_8bit", MX_KEY_STRING, 0, "", 0,
     "of int4: patterns of weights that take 8 bits, as int8 does, with commas", 0, 0, 0,
     "keep_8bit=*.down_proj.* output=quantized quantization=int4", SEEN},
    {"calibration", MX_KEY_ENUM, 0, "absmax", "absmax|gptq|smoothquant",
     "how values are rounded: by the weights alone, or by what they do to a text", 0, 0, 0,
     "calibration=gptq calibration_text=text.txt output=quantized quantization=int4", CALIBRATES},
    {"calibration_text", MX_KEY_STRING, 0, "", 0,
     "text to calibrate with, like those that the model will read", 0, MX_KEY_PATH, 0,
     "calibration_text=text.txt calibration=gptq output=quantized quantization=int4", CALIBRATES},
    {"calibration_tokens", MX_KEY_INT, 0, "65536", "512..",
     "as many of its tokens at most", 0, 0, 0,
     "calibration_tokens=512 calibration_text=text.txt calibration=gptq output=quantized "
     "quantization=int4", CALIBRATES},
    {"calibration_memory", MX_KEY_INT, 0, "4096", "0..",
     "gptq: MiB for sums of inputs, and as many for what a round leaves to the next; with less, "
     "there are more rounds, each from the tokens on", 0, 0, 0,
     "calibration_memory=1 calibration_text=text.txt calibration=gptq output=quantized "
     "quantization=int4", CALIBRATES},
    {"calibration_rounds", MX_KEY_INT, 0, "0", "0..",
     "gptq: rounds at least; each reads what earlier ones have rounded and makes good their error; "
     "0: one for each tensor that matrices read", 0, 0, 0,
     "calibration_rounds=2 calibration_text=text.txt calibration=gptq output=quantized "
     "quantization=int4", CALIBRATES},
    {"act_order", MX_KEY_BOOL, 0, "true", 0,
     "gptq: columns with the largest inputs are rounded first", "desc_act", 0, 0,
     "act_order=false calibration_text=text.txt calibration=gptq output=quantized "
     "quantization=int4", CALIBRATES},
    {"smoothing", MX_KEY_FLOAT, 0, "0.5", "0..1",
     "smoothquant: how much of the inputs' range goes over into weights", "smoothing_strength", 0,
     0, "smoothing=0.6 calibration_text=text.txt calibration=smoothquant output=quantized "
     "quantization=int8", CALIBRATES},
    {"eval_text", MX_KEY_STRING, 0, "", 0,
     "text by which perplexity is measured before and after", 0, MX_KEY_PATH, 0,
     "eval_text=text.txt output=quantized quantization=int8", SEEN},
    {"eval_tokens", MX_KEY_INT, 0, "16384", "2..",
     "as many of its tokens at most", 0, 0, 0,
     "eval_tokens=100 eval_text=text.txt output=quantized quantization=int8", SEEN},
    {0}};

const mx_verb mx_verb_quantize = {
    .name = "quantize",
    .doc = "a model with weights of 8 or 4 bits",
    .usage = "MODEL output=DIR quantization=int8 [eval_text=FILE]",
    .help = "Writes a Hugging Face directory in a form that transformers and vLLM load:\n"
            "fp8, int8 and int4 as compressed-tensors, fp8_blockwise as DeepSeek V3's, nf4 as\n"
            "bitsandbytes'. Embeddings, the head, norms, routers and vision encoders stay as they\n"
            "are. maxc reads the directory like any other.",
    .min_args = 1,
    .max_args = 1,
    .keys = keys,
    .run = run,
};
