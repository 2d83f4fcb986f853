/* runs_test.c - runs of post-training stop, go on and are refused as those of train are. */
#include "post_run.h"

#include "../test.h"
#include "base/str.h"
#include "store/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest difference of two checkpoints' tensors. */
static double difference(const char *a, const char *b, const char *file)
{
    char path[2][700];
    mx_st_file f[2] = {0};
    double most = 0;
    const char *of[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/checkpoints/4/%s", of[i], file);
        MX_CHECK_OK(mx_st_open(&f[i], path[i]));
    }
    for (int64_t i = 0; i < f[0].n_tensors; i++) {
        const mx_st_tensor *x = &f[0].tensors[i], *y = mx_st_find(&f[1], x->name);
        float *v = calloc(2 * (size_t)x->n + 1, sizeof *v);
        MX_CHECK(y && y->n == x->n, "%s", x->name);
        MX_CHECK_OK(mx_st_read(x, 0, x->n, mx_st_dtype_of(MX_F32), v, NULL));
        MX_CHECK_OK(mx_st_read(y, 0, y->n, mx_st_dtype_of(MX_F32), v + x->n, NULL));
        for (int64_t k = 0; k < x->n; k++)
            most = fmax(most, fabs(v[k] - v[x->n + k]));
        free(v);
    }
    for (int i = 0; i < 2; i++)
        mx_st_close(&f[i]);
    return most;
}

MX_TEST(post_runs_resume_with_the_same_bits)
{
    static const struct {
        const char *verb, *settings, *file;
    } runs[] = {
        {"sft", "lora.enable_lora=true lora.lora_dropout=0.3 attention_dropout=0.2 dataset_path="
                POST "text.jsonl", "adapter_model.safetensors"},
        {"sft", "lora.enable_lora=true lora_weight_qtype=nf4 load_parameters_path=" POST
                "qlora_model dataset_path=" POST "text.jsonl", "adapter_model.safetensors"},
        {"dpo", "dataset_path=" POST "pairs.jsonl", "model.safetensors"},
        {"dpo", "lora.enable_lora=true dataset_path=" POST "pairs.jsonl",
         "adapter_model.safetensors"},
        {"grpo", "dataset_path=" POST "pairs.jsonl max_target_length=32 num_generations=4 "
                 "max_completion_length=6 reward=format reward_pattern=[^a-m]* beta=0.1",
         "model.safetensors"},
    };
    char folder[300], settings[800], a[400], b[400];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const char *how = "lr_schedule_type=constant enable_data_shuffling=true";
        char name[2][16];
        snprintf(name[0], 16, "whole%zu", i);
        snprintf(name[1], 16, "parts%zu", i);
        snprintf(settings, sizeof settings, "%s %s steps=4", runs[i].settings, how);
        MX_CHECK_OK(post_run(runs[i].verb, folder, name[0], settings));
        snprintf(settings, sizeof settings, "%s %s steps=2", runs[i].settings, how);
        MX_CHECK_OK(post_run(runs[i].verb, folder, name[1], settings));
        snprintf(settings, sizeof settings, "%s %s steps=4", runs[i].settings, how);
        MX_CHECK_OK(post_run(runs[i].verb, folder, name[1], settings));
        snprintf(a, sizeof a, "%s/%s", folder, name[0]);
        snprintf(b, sizeof b, "%s/%s", folder, name[1]);
        double off = difference(a, b, runs[i].file);
        MX_CHECK(off == 0, "%s %s: %g", runs[i].verb, runs[i].settings, off);
    }
    post_remove(folder);
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    MX_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

#define MESSAGES                                                                                   \
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": "        \
    "\"assistant\", \"content\": \"b\"}], "

MX_TEST(post_refuses_what_it_cannot_train_on)
{
    static const struct {
        const char *verb, *data, *settings, *error;
    } bad[] = {
        {"sft", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "", "maxc dpo"},
        {"train", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "packing=false",
         "maxc dpo"},
        {"dpo", "{\"prompt\": \"a\", \"completion\": \"b\"}", "", "expected preferences"},
        {"dpo", "{\"chosen\": \"b\", \"rejected\": \"c\", \"prompt\": \"a\"}",
         "loss_type=sigmod", "not one of dpo's losses: sigmoid"},
        {"dpo", "{\"chosen\": \"b\", \"rejected\": \"c\", \"prompt\": \"a\"}",
         "loss_type=exo_pair", "infinite without label smoothing"},
        {"sft", "{\"completion\": \"b\"}", "", "no column to train on"},
        {"sft", "{\"text\": \"b c d e f g\"}", "loss_type=ipo", "not one of sft's"},
        {"sft", "{\"text\": \"b c d e f g\"}", "lora.enable_lora=true lora_module_path=nothing",
         "matches none of them"},
        {"sft", "{\"text\": \"b c d e f g\"}", "lora.enable_lora=true modules_to_save=norm,tail",
         "modules_to_save=tail matches no module"},
        {"sft", MESSAGES "\"chat_template_kwargs\": {\"enable_thinking\": false}}", "",
         "variables of the chat template are not read"},
        {"dpo", MESSAGES "\"label\": true, \"chat_template_kwargs\": {\"x\": 1}}",
         "loss_type=kto per_device_batch_size=2", "variables of the chat template are not read"},
        {"sft", "{\"prompt\": null, \"completion\": \"b\"}", "",
         "column \"prompt\" is null, and \"completion\" is not"},
        {"sft", "{\"text\": \"b c d e f g\"}", "adapter=" POST "model", "no adapter"},
        {"grpo", "{\"prompt\": \"a\"}", "max_completion_length=8", "set reward=exact"},
        {"grpo", "{\"prompt\": \"a\"}", "max_completion_length=8 reward=excat",
         "there is no reward `excat`"},
        {"grpo", "{\"prompt\": \"a\"}", "max_completion_length=64 reward=exact",
         "leaves no room for a prompt"},
        {"grpo", "{\"text\": \"a\"}", "max_completion_length=8 reward=exact",
         "expected a prompt"},
        {"grpo", "{\"prompt\": \"a\"}", "max_completion_length=8 reward=exact loss_type=ppo",
         "not one of grpo's: dapo, grpo"},
    };
    char folder[300], name[32], settings[800];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(folder, "bad.jsonl", bad[i].data);
        snprintf(name, sizeof name, "bad%zu", i);
        snprintf(settings, sizeof settings, "dataset_path=%s/bad.jsonl %s", folder,
                 bad[i].settings);
        MX_CHECK_ERROR(post_run(bad[i].verb, folder, name, settings), bad[i].error);
    }
    /* an answer that is cut off leaves nothing to train on */
    put(folder, "cut.jsonl", "{\"prompt\": \"one three five seven nine one three five\", "
        "\"completion\": \" x\"}\n");
    snprintf(settings, sizeof settings, "dataset_path=%s/cut.jsonl max_target_length=8", folder);
    MX_CHECK_ERROR(post_run("sft", folder, "cut", settings), "nothing to train on");
    post_remove(folder);
}

/* An adapter of another model: what does not fit is named. */
MX_TEST(post_adapters_of_other_models_are_refused)
{
    char folder[300], settings[600];
    post_folder(folder, sizeof folder);
    snprintf(settings, sizeof settings, "load_parameters_path=tests/fixtures/models/qwen3 "
             "adapter=" POST "lora_plain dataset_type=synthetic max_target_length=16");
    MX_CHECK_ERROR(post_run("sft", folder, "other", settings), "is for another model");
    post_remove(folder);
}

/* Documents that share a row are trained as if each had one of its own. */
MX_TEST(post_packing_changes_nothing)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    const char *data = "dataset_path=" POST "text.jsonl steps=1 gradient_accumulation_steps=1 "
                       "num_epoch=1";
    char apart[500], packed[500];
    snprintf(apart, sizeof apart, "%s per_device_batch_size=12", data);
    snprintf(packed, sizeof packed, "%s per_device_batch_size=4 packing=true", data);
    MX_CHECK_OK(post_run("sft", folder, "apart", apart));
    MX_CHECK_OK(post_run("sft", folder, "packed", packed));
    json_t *a = post_metrics(folder, "apart"), *b = post_metrics(folder, "packed");
    static const char *const names[] = {"loss", "grad_norm", "entropy", "num_tokens"};
    for (int i = 0; i < 4; i++)
        MX_CHECK(fabs(post_number(a, 0, names[i]) / post_number(b, 0, names[i]) - 1) < 1e-5,
                 "%s: %g apart, %g packed", names[i], post_number(a, 0, names[i]),
                 post_number(b, 0, names[i]));
    json_decref(a);
    json_decref(b);
    post_remove(folder);
}
