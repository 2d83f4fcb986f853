/* distill_test.c - distillation from a live and from a recorded teacher. */
#include "post_run.h"

#include "../test.h"
#include "post/distill.h"
#include <math.h>
#include <stdio.h>

#define TEACHER " teacher_path=" POST "teacher"
#define DATA "dataset_path=" POST "chat.jsonl num_epoch=1" TEACHER

static void check_equal(const char *folder, const char *a, const char *b, const char *name)
{
    json_t *x = post_metrics(folder, a), *y = post_metrics(folder, b);
    MX_CHECK(json_array_size(x) == json_array_size(y) && json_array_size(x) > 0, "%zu, %zu steps",
             json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++)
        MX_CHECK(post_number(x, i, name) == post_number(y, i, name),
                 "step %zu, %s: %s %.9g, %s %.9g", i + 1, name, a, post_number(x, i, name), b,
                 post_number(y, i, name));
    json_decref(x);
    json_decref(y);
}

/* write_teacher, offline_data_dir: what a teacher has said is what it says. */
MX_TEST(post_recorded_teachers_are_live_ones)
{
    char folder[300], settings[900];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("distill", folder, "live", DATA " distill_top_k=7 steps=3 "
                         "per_device_batch_size=1"));
    snprintf(settings, sizeof settings, DATA " distill_top_k=7 write_teacher=%s/said", folder);
    MX_CHECK_OK(post_run("distill", folder, "none", settings));
    MX_CHECK_ERROR(post_run("distill", folder, "none", settings), "is there already");
    snprintf(settings, sizeof settings, "offline_data_dir=%s/said steps=3 per_device_batch_size=1",
             folder);
    MX_CHECK_OK(post_run("distill", folder, "recorded", settings));
    check_equal(folder, "live", "recorded", "loss");
    check_equal(folder, "live", "recorded", "grad_norm");
    snprintf(settings, sizeof settings, "offline_data_dir=%s/said steps=3 max_target_length=32",
             folder);
    MX_CHECK_ERROR(post_run("distill", folder, "short", settings), "set max_target_length=64");
    post_remove(folder);
}

/* A run that goes on has the same answers of its own and the same place in recorded data. */
MX_TEST(post_distillation_goes_on_with_the_same_bits)
{
    static const char own[] = "dataset_path=" POST "chat.jsonl" TEACHER
                              " loss_type=gkd lmbda=0.5 max_completion_length=4";
    char folder[300], settings[900], how[500];
    post_folder(folder, sizeof folder);
    snprintf(settings, sizeof settings, DATA " distill_top_k=5 write_teacher=%s/said", folder);
    MX_CHECK_OK(post_run("distill", folder, "none", settings));
    for (int i = 0; i < 2; i++) {
        char whole[32], parts[32];
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(parts, sizeof parts, "parts%d", i);
        snprintf(how, sizeof how, i ? "offline_data_dir=%s/said" : "%s", i ? folder : own);
        for (int k = 0; k < 3; k++) {
            snprintf(settings, sizeof settings, "%s lr_schedule_type=constant steps=%d "
                     "enable_data_shuffling=true", how, k == 1 ? 2 : 4);
            MX_CHECK_OK(post_run("distill", folder, k ? parts : whole, settings));
        }
        check_equal(folder, whole, parts, "loss");
        check_equal(folder, whole, parts, "param_norm");
    }
    post_remove(folder);
}

MX_TEST(post_distillation_refuses_what_cannot_be)
{
    static const struct {
        const char *settings, *error;
    } bad[] = {
        {"dataset_path=" POST "chat.jsonl", "there is no teacher"},
        {DATA " loss_type=ipo", "not one of distill's"},
        {DATA " distill_top_k=5 write_teacher=/tmp/maxc-no-such-folder mesh=fsdp=2",
         "asks the teacher on one device"},
        {DATA " loss_type=gkd packing=true", "one prompt a row"},
        {DATA " loss_type=gkd max_completion_length=64", "leaves no room"},
        {DATA " loss_type=gkd lmbda=0 beta=2", "is a share"},
        {DATA " distill_top_k=500", "more than the vocabulary"},
        {DATA " distill_beta=1 distill_layer_indices=2", "there is no layer 2"},
        {DATA " write_teacher=said", "set distill_top_k=64"},
        {"offline_data_dir=" POST "model", "write_teacher=DIR"},
        {"offline_data_dir=" POST "model distill_beta=1", "has no features"},
        {"dataset_path=" POST "chat.jsonl distill_beta=1 teacher_path=" POST "teacher_qwen",
         "set distill_layer_indices"},
        {"dataset_path=" POST "chat.jsonl distill_beta=1 distill_layer_indices=0 teacher_path=" POST
         "teacher_qwen", "set distill_beta=0"},
        {"dataset_path=" POST "chat.jsonl teacher_path=tests/fixtures/vision/gemma3",
         "another tokenizer"},
    };
    char folder[300], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(name, sizeof name, "bad%zu", i);
        MX_CHECK_ERROR(post_run("distill", folder, name, bad[i].settings), bad[i].error);
    }
    post_remove(folder);
}

MX_TEST(post_schedules_go_from_first_to_last)
{
    mx_distill_schedule c = {.first = 1, .last = 3, .how = MX_LINEAR};
    MX_CHECK(mx_distill_schedule_at(&c, 0, 4) == 1 && mx_distill_schedule_at(&c, 2, 4) == 2 &&
             mx_distill_schedule_at(&c, 9, 4) == 3, "linear");
    c.how = MX_COSINE;
    MX_CHECK(mx_distill_schedule_at(&c, 0, 4) == 1 &&
                 fabs(mx_distill_schedule_at(&c, 2, 4) - 2) < 1e-12 &&
                 mx_distill_schedule_at(&c, 4, 4) == 3, "cosine");
    c.how = MX_STAYS;
    MX_CHECK(mx_distill_schedule_at(&c, 3, 4) == 1, "constant");
}
