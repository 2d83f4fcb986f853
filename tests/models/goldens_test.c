/* goldens_test.c - every family in tests/fixtures/models against the numbers recorded there, and
 * the same model run in other ways: unfused, recomputed, in bfloat16. */
#include "../test.h"
#include "../device/test_devices.h"

#include "base/arena.h"
#include "train/check/verify.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char root[] = "tests/fixtures/models";

/* Where rounding is multiplied on both sides: transformers' own numbers move by up to 3.2e-4 when
 * every weight of this checkpoint moves by at most half a float32 unit. */
static bool is_within_rounding(const char *path, const mx_verify_row *r)
{
    return strcmp(path, "tests/fixtures/models/qwen3-next") == 0 &&
           strcmp(r->name, "adamw norms") == 0 && r->error <= 1e-3 * r->magnitude;
}

static void check_at(const char *path, const mx_verify_options *o)
{
    mx_verify_report r;
    mx_status st = mx_verify(path, o, &r);
    MX_CHECK(!st, "%s: %s", path, mx_status_text(st));
    mx_status_free(st);
    for (int i = 0; i < r.n; i++)
        MX_CHECK(r.row[i].ok || is_within_rounding(path, &r.row[i]), "%s: %s error %g of %g %s",
                 path, r.row[i].name, r.row[i].error, r.row[i].magnitude, r.row[i].worst);
}

static void check(const char *name, const mx_verify_options *o)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    check_at(path, o);
}

static int each(const mx_verify_options *o)
{
    DIR *d = opendir(root);
    struct dirent *e;
    int n = 0;
    MX_CHECK(d != NULL, "%s is missing: run the tests from the root of the source tree", root);
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.') {
            check(e->d_name, o);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

MX_TEST(goldens_match_in_float32)
{
    mx_verify_options o = {.tolerance = 2e-4, .device = "cpu", .n_threads = 1};
    MX_CHECK(each(&o) >= 9, "families are missing");
}

/* In float64 what is left is the rounding of the recorded numbers. The model in fixtures/exact
 * multiplies rounding 10,000 times, so its numbers come from transformers in float64. */
MX_TEST(goldens_match_in_float64)
{
    mx_verify_options o = {.tolerance = 5e-5, .device = "cpu", .n_threads = 1,
                           .compile = {.compute = MX_F64}};
    MX_CHECK(each(&o) >= 9, "families are missing");
    o.tolerance = 1e-5;
    check_at("tests/fixtures/exact/qwen3-next", &o);
}

/* Of every family, what is kept for the backward pass goes through host memory. */
MX_TEST(goldens_match_with_offloaded_activations)
{
    mx_verify_options o = {.tolerance = 2e-4, .device = "cpu", .n_threads = 1,
                           .compile = {.device = &mx_test_remote}};
    o.compile.remat = (mx_remat){.policy = "minimal", .offload = "*_proj,mlpw*,moe_*,context,mla_*,"
                                                                 "decoder_layer_input"};
    MX_CHECK(each(&o) >= 9, "families are missing");
}

/* Recomputing and fusing change nothing beyond 1e-5:
 * the goldens hold at a tenth of the tolerance. */
MX_TEST(goldens_match_however_the_step_is_compiled)
{
    mx_verify_options o = {.tolerance = 2e-5, .device = "cpu", .n_threads = 2};
    const char *policy[] = {"none", "minimal", "full"};
    for (int i = 0; i < 3; i++) {
        o.compile.remat.policy = policy[i];
        o.compile.no_fuse = i == 1;
        check("llama3.1", &o);
        check("gemma3", &o);
        check("gpt2", &o);
        check("gpt-oss", &o);
    }
}

/* bfloat16 has 8 bits: predictions within 2e-3 nats a token (MX_VERIFY_KL), logits within 5 % of
 * the largest, losses within 0.3 %. (Of the mixtures only those whose choices do not change.) */
MX_TEST(goldens_are_near_in_bfloat16)
{
    mx_verify_report r;
    mx_verify_options o = {.tolerance = 0.05, .device = "cpu", .n_threads = 1,
                           .compile = {.compute = MX_BF16}};
    const char *name[] = {"llama2", "llama3", "llama3.1", "mistral", "gpt2",    "qwen3",
                          "gemma",  "gemma2", "gemma3",   "mixtral", "gpt-oss"};
    for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, name[k]);
        MX_CHECK_OK(mx_verify(path, &o, &r));
        for (int i = 0; i < r.n; i++) {
            if (strcmp(r.row[i].name, "logits") == 0 || strcmp(r.row[i].name, "kl") == 0)
                MX_CHECK(r.row[i].ok, "%s %s: %g of %g", name[k], r.row[i].name, r.row[i].error,
                         r.row[i].magnitude);
            if (strcmp(r.row[i].name, "loss") == 0)
                MX_CHECK(r.row[i].error < 3e-3 * r.row[i].magnitude, "%s loss: %g", name[k],
                         r.row[i].error);
        }
    }
}

/* What is computed again in bfloat16 is rounded otherwise than it was the first time, but a token
 * goes through the experts that it went through then. */
MX_TEST(experts_are_those_of_the_forward_pass_when_it_is_computed_again)
{
    static const char *const name[] = {"gpt-oss", "llama4", "gemma4-moe", "deepseek-v3.2"};
    mx_verify_report r;
    mx_verify_options o = {.tolerance = 1, .device = "cpu", .n_threads = 1,
                           .compile = {.compute = MX_BF16}};
    for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
        double off[2] = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, name[k]);
        for (int full = 0; full < 2; full++) {
            o.compile.remat.policy = full ? "full" : "none";
            MX_CHECK_OK(mx_verify(path, &o, &r));
            for (int i = 0; i < r.n; i++)
                if (strcmp(r.row[i].name, "gradients") == 0)
                    off[full] = r.row[i].error / r.row[i].magnitude;
        }
        MX_CHECK(off[0] > 0 && off[1] <= 1.1 * off[0],
                 "%s: gradients are off by %.3g, by %.3g when layers are computed again", name[k],
                 off[0], off[1]);
    }
}

MX_TEST(verify_sees_a_wrong_number)
{
    mx_verify_report r;
    mx_verify_options o = {.tolerance = 1e-12, .device = "cpu", .n_threads = 1};
    MX_CHECK_OK(mx_verify("tests/fixtures/models/llama2", &o, &r));
    bool any = false;
    for (int i = 0; i < r.n; i++)
        any |= !r.row[i].ok;
    MX_CHECK(any, "a tolerance of 1e-12 cannot hold in float32");
}
