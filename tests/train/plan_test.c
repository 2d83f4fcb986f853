/* plan_test.c - a plan against numbers worked out by hand, and keys to what steps are made with. */
#include "train/plan.h"

#include "../test.h"
#include "train/keys.h"
#include <math.h>
#include <string.h>

typedef struct {
    mx_config *cfg;
    mx_model_spec model;
    mx_step_options options;
    mx_batch_plan batch;
    mx_plan plan;
    mx_arena arena;
} planned;

static mx_status make(planned *p, const char *const *args, int n)
{
    const char *all[32] = {"base_emb_dim=64", "base_num_query_heads=4", "base_num_kv_heads=2",
                           "head_dim=16",     "base_mlp_dim=128",       "base_num_decoder_layers=3",
                           "vocab_size=500",  "max_target_length=32",   "per_device_batch_size=4",
                           "dtype=float32",   "packing=false"};
    for (int i = 0; i < n; i++)
        all[11 + i] = args[i];
    mx_config_request r = {.schema = &mx_keys,
                           .sections = MX_TAKES_ALL,
                           .user = "plan",
                           .args = all,
                           .n_args = 11 + n};
    *p = (planned){0};
    MX_TRY(mx_config_load(&p->cfg, &r));
    MX_TRY(mx_model_open(&p->model, p->cfg, NULL));
    MX_TRY(mx_batch_plan_make(&p->batch, p->cfg, 1, 1));
    MX_TRY(mx_step_configure(&p->options, p->cfg, &p->model, MX_STEP_TRAIN, 4, &p->arena));
    mx_plan_device d = {.traits = &mx_cpu_traits, .flops_per_second = 1e12,
                        .bytes_per_second = 1e11};
    return mx_plan_make(&p->plan, &p->model, &p->options, &p->batch, &d);
}

static void drop(planned *p)
{
    mx_config_free(p->cfg);
    mx_model_spec_fini(&p->model);
    mx_arena_fini(&p->arena);
}

MX_TEST(plan_counts_parameters_and_bytes)
{
    planned p;
    const char *args[] = {"remat_policy=none"};
    MX_CHECK_OK(make(&p, args, 1));
    double layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128 + 2 * 64;
    double n = 3 * layer + 2 * 500 * 64 + 64;
    MX_CHECK(p.plan.parameters == n && p.plan.trainable == n, "%g, expected %g", p.plan.parameters,
             n);
    /* every tensor is rounded up to 64 bytes */
    MX_CHECK(p.plan.variables[MX_VAR_WEIGHT] >= 4 * n && p.plan.variables[MX_VAR_WEIGHT] < 4.1 * n);
    MX_CHECK(p.plan.variables[MX_VAR_OPTIMIZER] >= 8 * n &&
             p.plan.variables[MX_VAR_OPTIMIZER] < 8.2 * n);
    MX_CHECK(p.plan.variables[MX_VAR_GRADIENT] == 0 && p.plan.variables[MX_VAR_COPY] == 0);
    /* six FLOPs per weight and token, the embedding aside; attention and norms on top */
    double floor = 6 * (n - 500 * 64) * 4 * 32;
    MX_CHECK(p.plan.model_flops > floor && p.plan.model_flops < 1.5 * floor, "%g, floor %g",
             p.plan.model_flops, floor);
    MX_CHECK(p.plan.flops >= p.plan.model_flops && p.plan.seconds >= p.plan.flops / 1e12 * 0.999);
    MX_CHECK(p.plan.n_largest > 3 && p.plan.largest[0].bytes >= p.plan.largest[1].bytes);
    double most = 0;
    for (int i = 0; i < p.plan.n_largest; i++)
        most += p.plan.largest[i].bytes;
    MX_CHECK(most <= p.plan.activations + p.plan.inputs, "%g of %g", most, p.plan.activations);
    drop(&p);
}

MX_TEST(plan_follows_the_keys)
{
    planned none, full, sums, half, frozen;
    const char *a[] = {"remat_policy=none"}, *b[] = {"remat_policy=full"};
    const char *c[] = {"remat_policy=none", "gradient_accumulation_steps=3"};
    const char *d[] = {"remat_policy=none", "mu_dtype=bfloat16"};
    const char *e[] = {"remat_policy=none", "trainable_parameters_mask=*layers.2.*"};
    MX_CHECK_OK(make(&none, a, 1));
    MX_CHECK_OK(make(&full, b, 1));
    MX_CHECK_OK(make(&sums, c, 2));
    MX_CHECK_OK(make(&half, d, 2));
    MX_CHECK_OK(make(&frozen, e, 2));
    MX_CHECK(full.plan.flops > 1.1 * none.plan.flops, "%g and %g", full.plan.flops,
             none.plan.flops);
    MX_CHECK(fabs(full.plan.model_flops - none.plan.model_flops) < 0.05 * none.plan.model_flops,
             "%g and %g", full.plan.model_flops, none.plan.model_flops);
    MX_CHECK(sums.plan.variables[MX_VAR_GRADIENT] >= 4 * none.plan.parameters);
    MX_CHECK(sums.plan.flops > 2.8 * none.plan.flops && sums.plan.batch.global_tokens == 384);
    MX_CHECK(half.plan.variables[MX_VAR_OPTIMIZER] < 0.8 * none.plan.variables[MX_VAR_OPTIMIZER]);
    MX_CHECK(frozen.plan.trainable < 0.3 * none.plan.trainable &&
             frozen.plan.parameters == none.plan.parameters);
    MX_CHECK(frozen.plan.variables[MX_VAR_OPTIMIZER] < 0.3 * none.plan.variables[MX_VAR_OPTIMIZER]);
    drop(&none);
    drop(&full);
    drop(&sums);
    drop(&half);
    drop(&frozen);
}

MX_TEST(plan_advises_smaller_ways)
{
    planned p;
    const char *args[] = {"remat_policy=none"};
    MX_CHECK_OK(make(&p, args, 1));
    mx_plan_advice advice[12];
    int n = mx_plan_advise(&p.plan, &p.model, &p.options, advice, 12);
    MX_CHECK(n >= 1, "%d", n);
    for (int i = 0; i < n; i++)
        MX_CHECK(advice[i].total < p.plan.total && *advice[i].keys, "%s", advice[i].keys);
    drop(&p);
}

MX_TEST(step_config_policies_and_refusals)
{
    planned p;
    const char *named[] = {"remat_policy=save_qkv_proj"};
    MX_CHECK_OK(make(&p, named, 1));
    MX_CHECK(strcmp(p.options.compile.remat.policy, "custom") == 0 &&
             strcmp(p.options.compile.remat.save, "query_proj,key_proj,value_proj") == 0);
    drop(&p);
    const char *own[] = {"remat_policy=custom", "context=device", "mlpwo=device"};
    MX_CHECK_OK(make(&p, own, 3));
    MX_CHECK(strcmp(p.options.compile.remat.save, "decoder_layer_input,context,mlpwo") == 0, "%s",
             p.options.compile.remat.save);
    drop(&p);
    const char *host[] = {"remat_policy=custom", "context=offload", "out_proj=device"};
    MX_CHECK_OK(make(&p, host, 3));
    MX_CHECK(strcmp(p.options.compile.remat.save, "decoder_layer_input,out_proj") == 0 &&
             strcmp(p.options.compile.remat.offload, "context") == 0);
    drop(&p);
    const char *moved[] = {"remat_policy=minimal_offloaded"};
    MX_CHECK_OK(make(&p, moved, 1));
    MX_CHECK(strcmp(p.options.compile.remat.policy, "minimal") == 0 &&
             mx_glob_any(p.options.compile.remat.offload, "mlpwi_1") &&
             !mx_glob_any(p.options.compile.remat.offload, "context"));
    drop(&p);
    const char *alone[] = {"context=offload", "remat_policy=full"},
               *adapters[] = {"lora.enable_lora=true"};
    MX_CHECK_ERROR(make(&p, alone, 2), "argument context=offload: context=offload goes with "
                                       "remat_policy=custom; remat_policy=full decides");
    drop(&p);
    MX_CHECK_ERROR(make(&p, adapters, 1), "adapters are not done yet");
    drop(&p);
    mx_model_spec m;
    MX_CHECK_ERROR(mx_model_open(&m, NULL, "/nonexistent"), "/nonexistent: no such folder");
}
