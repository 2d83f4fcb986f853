/* plan_test.c - a plan against numbers worked out by hand, and keys to what steps are made with. */
#include "exec/plan.h"

#include "../test.h"
#include "keys/keys.h"
#include <math.h>
#include <string.h>

typedef struct {
    mx_config *cfg;
    mx_model_spec model;
    mx_programs_request request;
    mx_plan plan;
    mx_arena arena;
} planned;

static bool is_given(const char *argument, const char *const *args, int n)
{
    for (int i = 0; i < n; i++)
        if (strncmp(argument, args[i], strcspn(argument, "=") + 1) == 0)
            return true;
    return false;
}

static mx_status make(planned *p, const char *const *args, int n)
{
    static const char *const usual[] = {
        "base_emb_dim=64", "base_num_query_heads=4", "base_num_kv_heads=2", "head_dim=16",
        "base_mlp_dim=128", "base_num_decoder_layers=3", "vocab_size=500", "max_target_length=32",
        "per_device_batch_size=4", "dtype=float32", "packing=false"};
    const char *all[32];
    int n_all = 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!is_given(usual[i], args, n))
            all[n_all++] = usual[i];
    for (int i = 0; i < n; i++)
        all[n_all++] = args[i];
    mx_config_request r = {.schema = &mx_keys,
                           .user = NULL,
                           .args = all,
                           .n_args = n_all};
    *p = (planned){0};
    MX_TRY(mx_config_load(&p->cfg, &r));
    MX_TRY(mx_model_open(&p->model, p->cfg, NULL));
    MX_TRY(mx_programs_configure(&p->request, p->cfg, &p->model,
                                 (mx_programs_ranks){1, 1, NULL}, &p->arena));
    mx_plan_device d = {.traits = &mx_cpu_traits, .flops_per_second = 1e12,
                        .bytes_per_second = 1e11};
    return mx_plan_make(&p->plan, &p->model, &p->request, &d);
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

/* A gradient is added to its sum when it is made, so sums are all that is kept of them; weights are
 * read from the copies that the update writes; programs have one scratch memory. */
MX_TEST(plan_of_accumulation_needs_the_sums_and_no_more)
{
    planned once, sums, evals;
    const char *a[] = {"remat_policy=full", "dtype=bfloat16"};
    const char *b[] = {"remat_policy=full", "dtype=bfloat16", "gradient_accumulation_steps=8"};
    const char *c[] = {"remat_policy=full", "dtype=bfloat16", "gradient_accumulation_steps=8",
                       "eval_interval=5"};
    MX_CHECK_OK(make(&once, a, 2));
    MX_CHECK_OK(make(&sums, b, 3));
    MX_CHECK_OK(make(&evals, c, 4));
    double gradients = sums.plan.variables[MX_VAR_GRADIENT];
    MX_CHECK(gradients >= 4 * once.plan.parameters, "%g", gradients);
    MX_CHECK(sums.plan.activations < once.plan.activations - 0.5 * gradients,
             "activations %g, %g with sums of %g", once.plan.activations, sums.plan.activations,
             gradients);
    MX_CHECK(sums.plan.variables[MX_VAR_COPY] == once.plan.variables[MX_VAR_COPY], "copies: %g, %g",
             sums.plan.variables[MX_VAR_COPY], once.plan.variables[MX_VAR_COPY]);
    /* the head of an evaluation has 8 MiB of work space; nothing else is more than in training */
    MX_CHECK(evals.plan.total < sums.plan.total + (8 << 20), "evaluation: %g, %g", sums.plan.total,
             evals.plan.total);
    drop(&once);
    drop(&sums);
    drop(&evals);
}

MX_TEST(plan_that_does_not_fit_says_what_would)
{
    planned p;
    const char *args[] = {"remat_policy=none"};
    MX_CHECK_OK(make(&p, args, 1));
    MX_CHECK_OK(mx_plan_check(&p.plan, &p.model, &p.request,
                              (mx_memory_available){(int64_t)p.plan.total, "it has"}));
    MX_CHECK_ERROR(mx_plan_check(&p.plan, &p.model, &p.request,
                                 (mx_memory_available){(int64_t)p.plan.total - 1, "it has"}),
                   "that it has; with remat_policy=minimal it needs");
    MX_CHECK_ERROR(mx_plan_check(&p.plan, &p.model, &p.request,
                                 (mx_memory_available){1000, "it has"}),
                   "does not fit in the 1000 B that it has; even with remat_policy=full ");
    drop(&p);
}

MX_TEST(plan_advises_smaller_ways)
{
    planned p;
    const char *args[] = {"remat_policy=none"};
    MX_CHECK_OK(make(&p, args, 1));
    mx_plan_advice advice[12];
    int n = mx_plan_advise(&p.plan, &p.model, &p.request, advice, 12);
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
    MX_CHECK(strcmp(p.request.options.compile.remat.policy, "save_qkv_proj") == 0 &&
             strcmp(p.request.options.compile.remat.save, "query_proj,key_proj,value_proj") == 0);
    drop(&p);
    const char *own[] = {"remat_policy=custom", "context=device", "mlpwo=device"};
    MX_CHECK_OK(make(&p, own, 3));
    const char *save = p.request.options.compile.remat.save;
    MX_CHECK(strcmp(save, "decoder_layer_input,context,mlpwo") == 0, "%s", save);
    drop(&p);
    const char *host[] = {"remat_policy=custom", "context=offload", "out_proj=device"};
    MX_CHECK_OK(make(&p, host, 3));
    MX_CHECK(strcmp(p.request.options.compile.remat.save, "decoder_layer_input,out_proj") == 0 &&
             strcmp(p.request.options.compile.remat.offload, "context") == 0);
    drop(&p);
    const char *moved[] = {"remat_policy=minimal_offloaded"};
    MX_CHECK_OK(make(&p, moved, 1));
    MX_CHECK(strcmp(p.request.options.compile.remat.policy, "minimal_offloaded") == 0 &&
             mx_glob_any(p.request.options.compile.remat.offload, "mlpwi_1") &&
             !mx_glob_any(p.request.options.compile.remat.offload, "context"));
    drop(&p);
    const char *alone[] = {"context=offload", "remat_policy=full"};
    MX_CHECK_ERROR(make(&p, alone, 2), "argument context=offload: context=offload goes with "
                                       "remat_policy=custom; remat_policy=full decides");
    drop(&p);
    mx_model_spec m;
    MX_CHECK_ERROR(mx_model_open(&m, NULL, "/nonexistent"), "/nonexistent: no such folder");
}
