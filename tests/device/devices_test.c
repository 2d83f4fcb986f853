/* devices_test.c - the kinds of devices, their chips, and a device that plans memory itself. */
#include "../test.h"

#include "device/chips.h"
#include "device/device.h"
#include "store/hf_dir.h"
#include "exec/step.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MX_TEST(a_device_that_is_not_known_is_refused_with_those_that_are)
{
    mx_session *s = NULL;
    MX_CHECK_ERROR(mx_session_open(&s, "tpu", 1), "device=tpu is not known; use auto, cpu or cuda");
    MX_CHECK(s == NULL);
}

/* Of the GPUs that are to be seen, the one at the rank's place on its machine. */
MX_TEST(a_rank_takes_the_gpu_of_its_place)
{
    static const char var[] = "CUDA_VISIBLE_DEVICES";
    char *before = getenv(var) ? strdup(getenv(var)) : NULL;
    unsetenv(var);
    MX_CHECK_OK(mx_device_choose_gpu(2));
    MX_CHECK(strcmp(getenv(var), "2") == 0, "%s", getenv(var));
    setenv(var, "GPU-7f,3,5", 1);
    MX_CHECK_ERROR(mx_device_choose_gpu(3), "CUDA_VISIBLE_DEVICES=GPU-7f,3,5 names 3 GPUs");
    MX_CHECK_OK(mx_device_choose_gpu(1));
    MX_CHECK(strcmp(getenv(var), "3") == 0, "%s", getenv(var));
    MX_CHECK_OK(mx_device_choose_gpu(6)); /* the launcher has chosen */
    MX_CHECK(strcmp(getenv(var), "3") == 0, "%s", getenv(var));
    if (before)
        setenv(var, before, 1);
    else
        unsetenv(var);
    free(before);
}

/* A name that contains another's is not taken for it. */
MX_TEST(chips_are_known_by_what_the_driver_calls_them)
{
    static const struct {
        const char *model;
        double tflops;
    } known[] = {{"NVIDIA H100 80GB HBM3", 989}, {"NVIDIA H100 PCIe", 756}, {"NVIDIA H200", 989},
                 {"NVIDIA GH200 480GB", 990},    {"NVIDIA B200", 2250},
                 {"NVIDIA A100-SXM4-80GB", 312}, {"NVIDIA H20", 148}, {"NVIDIA A10G", 70},
                 {"NVIDIA L40S", 362}, {"NVIDIA GeForce RTX 4070 Ti SUPER", 88.2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const mx_chip *c = mx_chip_of_model(known[i].model);
        MX_CHECK(c && c->flops_per_second[MX_BF16] == 1e12 * known[i].tflops, "%s", known[i].model);
    }
    MX_CHECK(!mx_chip_of_model("NVIDIA GeForce GTX 1080") && !mx_chip_find("this"));
}

/* --- a CPU that plans memory itself: every value has memory of its own, which the sanitizer
 * watches. A kernel that reads or writes beyond a tensor finds no neighbour there. --- */

static mx_status open_planner(mx_device **out, mx_device_traits *traits)
{
    MX_TRY(mx_device_open_cpu(out));
    *traits = *(*out)->traits;
    traits->plans_memory = true;
    (*out)->traits = traits;
    return MX_OK;
}

enum { B = 2, S = 16, STEPS = 2 };

static void write_batch(mx_exec *e, int step, int32_t vocab)
{
    int32_t tokens[B * S], labels[B * S];
    float scale = 1.0f / (B * S), rate = 0.01f, number = (float)step + 1;
    for (int i = 0; i < B * S; i++)
        tokens[i] = (i * 7 + step) % vocab, labels[i] = (i * 5 + 3 * step) % vocab;
    MX_CHECK_OK(mx_exec_write(e, "tokens", tokens));
    MX_CHECK_OK(mx_exec_write(e, "labels", labels));
    MX_CHECK_OK(mx_exec_write(e, "loss_scale", &scale));
    MX_CHECK_OK(mx_exec_write(e, "lr", &rate));
    MX_CHECK_OK(mx_exec_write(e, "step", &number));
}

static void train(const char *family, mx_device *d, float losses[STEPS])
{
    char path[256];
    mx_model_spec m = {0};
    mx_session *s = NULL;
    mx_step step = {0};
    mx_step_options o = {.kind = MX_STEP_TRAIN,
                         .shape = {.batch = B, .seq = S},
                         .optimizer = {.rule = &mx_optimizer_rule_adamw,
                                       .b1 = 0.9,
                                       .b2 = 0.95,
                                       .eps = 1e-8,
                                       .clip = 1},
                         .compile = {.n_threads = 1, .compute = MX_BF16}};
    snprintf(path, sizeof path, "tests/fixtures/models/%s", family);
    mx_hf_dir dir = {0};
    MX_CHECK_OK(mx_hf_dir_open(&dir, path, MX_HF_CONFIG_ONLY));
    MX_CHECK_OK(mx_model_from_json(&m, dir.config, path));
    MX_CHECK_OK(mx_session_open_on(&s, d, 1));
    MX_CHECK_OK(mx_step_open(&step, s, &m, &o));
    MX_CHECK_OK(mx_session_init(s, 3));
    for (int i = 0; i < STEPS; i++) {
        write_batch(step.exec, i, 60);
        MX_CHECK_OK(mx_exec_run(step.exec));
        MX_CHECK_OK(mx_exec_read(step.exec, "loss", &losses[i]));
    }
    mx_session_close(s);
    mx_step_close(&step);
    mx_model_spec_fini(&m);
    mx_hf_dir_close(&dir);
}

MX_TEST(a_device_that_plans_memory_itself_gives_the_same_bits)
{
    static const char *const families[] = {"llama3", "gpt2", "qwen3-moe", "deepseek-v3",
                                           "qwen3-next"};
    for (int i = 0; i < 5; i++) {
        float planned[STEPS], own[STEPS];
        mx_device *d = NULL;
        mx_device_traits traits;
        MX_CHECK_OK(mx_device_open_cpu(&d));
        train(families[i], d, planned);
        MX_CHECK_OK(open_planner(&d, &traits));
        train(families[i], d, own);
        MX_CHECK(memcmp(planned, own, sizeof own) == 0 && planned[0] > 1, "%s: %g and %g",
                 families[i], planned[0], own[0]);
    }
}
