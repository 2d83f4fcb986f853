/* mesh_train_test.c - `maxc train mesh=...` on virtual ranks is the run of one device. */
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "keys/keys.h"
#include "exec/mesh_config.h"
#include "train/report/metrics.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4 };
#define RUN                                                                                        \
    "learning_rate_schedule_steps=8", "steps=4", "eval_interval=2", "eval_steps=2",                \
        "base_num_decoder_layers=2", "dataset_type=corpus"
#define ON_MESH RUN, "sharding_tolerance=1" /* much of so small a model is norms */

#define MIXTURE "decoder_block=mixtral", "num_experts=4", "num_experts_per_tok=2"

/* The largest difference of a metric, as a share of its value. */
static double differ(const char *folder, const char *a, const char *b, const char *metric)
{
    char path[1024];
    mx_arena mem = {0};
    mx_series s[2] = {0};
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, i ? b : a);
        MX_CHECK_OK(mx_metrics_read(path, metric, &mem, &s[i]));
    }
    MX_CHECK(s[0].n > 0 && s[0].n == s[1].n, "%s: %lld and %lld values of %s", b,
             (long long)s[0].n, (long long)s[1].n, metric);
    for (int64_t i = 0; i < s[0].n && i < s[1].n; i++)
        worst = fmax(worst, fabs(s[0].y[i] - s[1].y[i]) / fabs(s[0].y[i]));
    mx_arena_fini(&mem);
    return worst;
}

static void same_metrics(const char *folder, const char *one, const char *name)
{
    static const struct {
        const char *metric;
        double limit;
    } limits[] = {{"loss", 1e-6}, {"grad_norm", 1e-5}, {"param_norm", 1e-6}, {"eval/loss", 1e-6},
                  {"tokens", 0}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        double off = differ(folder, one, name, limits[i].metric);
        MX_CHECK(off <= limits[i].limit, "%s: %s is off by %g", name, limits[i].metric, off);
    }
}

/* Eight sequences a step, however many ranks there are. */
MX_TEST(mesh_trains_as_one_device_does)
{
    static const struct {
        const char *name, *mesh, *batch;
    } meshes[] = {{"fsdp4_tensor2", "mesh=fsdp=4,tensor=2", "per_device_batch_size=1"},
                  {"data2_context2", "mesh=data=2,context=2", "per_device_batch_size=2"},
                  {"keys", "ici_tensor_parallelism=2", "per_device_batch_size=4"}};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "per_device_batch_size=8", NULL}));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const char *args[] = {ON_MESH, meshes[i].mesh, meshes[i].batch, NULL};
        MX_CHECK_OK(tiny_train(folder, meshes[i].name, args));
        same_metrics(folder, "one", meshes[i].name);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* On devices with memory of their own ranks write and read their parts as on the host. */
MX_TEST(mesh_of_devices_with_their_own_memory_has_the_same_bits)
{
    const char *args[] = {ON_MESH, "mesh=fsdp=2,tensor=2", "per_device_batch_size=1", NULL};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "host", args));
    tiny_train_queued(folder, "apart", args);
    tiny_same(folder, "host", "apart", STEPS);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Half as many sequences at a time, two times a step. */
MX_TEST(mesh_accumulates_as_one_device_does)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "per_device_batch_size=8", NULL}));
    MX_CHECK_OK(tiny_train(folder, "mesh",
                           (const char *[]){ON_MESH, "mesh=fsdp=2,sequence=2",
                                            "gradient_accumulation_steps=2",
                                            "per_device_batch_size=1",
                                            "eval_per_device_batch_size=2", NULL}));
    same_metrics(folder, "one", "mesh");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Collectives beside other work, or waited for at once: the same numbers, bit for bit. */
MX_TEST(mesh_has_the_same_bits_without_overlap)
{
#define BATCH ON_MESH, "per_device_batch_size=2"
    static const char *const keys[][16] = {
        {"fsdp", BATCH, "mesh=fsdp=2,tensor=2"},
        {"ring", BATCH, "mesh=context=4", "context_parallel_strategy=ring"},
        {"experts", BATCH, "mesh=fsdp=2,expert=2", MIXTURE}};
#undef BATCH
    char folder[256], off[32];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *name = keys[i][0], *args[16] = {NULL};
        int n = 0;
        while (keys[i][n + 1])
            args[n] = keys[i][n + 1], n++;
        snprintf(off, sizeof off, "%s_off", name);
        MX_CHECK_OK(tiny_train(folder, name, args));
        args[n] = "overlap_collectives=false";
        MX_CHECK_OK(tiny_train(folder, off, args));
        char *a = tiny_metrics(folder, name), *b = tiny_metrics(folder, off);
        MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "%s:\n%s\n%s", name, a, b);
        free(a), free(b);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Whatever carries them: pieces are added up in the order of ranks. */
MX_TEST(mesh_of_processes_has_the_bits_of_virtual_ranks)
{
    static const char *const meshes[] = {"mesh=fsdp=2,tensor=2", "mesh=data=2,context=2"};
    char folder[256], name[2][32];
    tiny_folder(folder, sizeof folder);
    for (int i = 0; i < 2; i++) {
        const char *args[] = {RUN, meshes[i], "per_device_batch_size=2", NULL};
        snprintf(name[0], sizeof name[0], "threads%d", i);
        snprintf(name[1], sizeof name[1], "tcp%d", i);
        MX_CHECK_OK(tiny_train(folder, name[0], args));
        tiny_train_ranks(folder, 4, name[1], args);
        char *a = tiny_metrics(folder, name[0]), *b = tiny_metrics(folder, name[1]);
        MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "%s:\n%s\n%s", meshes[i], a, b);
        free(a), free(b);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The checkpoint of a run that begins at the end of another: what it read is what it writes. */
static void pass_on(const char *folder, const char *from, const char *to, const char *mesh)
{
    static const char state[] = "checkpoints/4/state.json";
    char load[512];
    snprintf(load, sizeof load, "load_full_state_path=%s/%s/r/checkpoints/4", folder, from);
    MX_CHECK_OK(
        tiny_train(folder, to, (const char *[]){ON_MESH, load, mesh, "vocab_size=301", NULL}));
    char *a = tiny_tensors(folder, from, STEPS), *b = tiny_tensors(folder, to, STEPS);
    const char *end = strstr(a, "\"state.json\""); /* which says how many ranks there were */
    MX_CHECK(end && end - a > 100 && strncmp(a, b, (size_t)(end - a)) == 0,
             "%s: weights and moments are not %s's:\n%s\n%s", to, from, a, b);
    free(a);
    free(b);
    a = tiny_text(folder, from, state);
    b = tiny_text(folder, to, state);
    const char *x = strstr(a, "\"loader\""), *y = strstr(b, "\"loader\"");
    MX_CHECK(x && y && strncmp(x, y, strcspn(x, "}")) == 0, "the place in the data:\n%s\n%s", a, b);
    free(a);
    free(b);
}

/* Words that do not divide, so that tables have padding on the mesh and none in the file. */
MX_TEST(mesh_state_goes_from_any_mesh_to_any_other)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "vocab_size=301", NULL}));
    pass_on(folder, "one", "a", "mesh=fsdp=2,tensor=2");
    pass_on(folder, "a", "b", "mesh=data=2,sequence=2");
    pass_on(folder, "b", "c", "mesh=tensor=4");
    pass_on(folder, "c", "d", "mesh=fsdp=2,context=2");
    pass_on(folder, "d", "e", "packing=true"); /* no mesh */
    MX_CHECK(tiny_difference(folder, "one", "e", STEPS) == 0, "after five meshes");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The state of a run that began from a directory, which says what the model is. */
MX_TEST(mesh_state_of_a_run_from_a_directory_goes_on_elsewhere)
{
#define FROM                                                                                       \
    "load_parameters_path=tests/fixtures/models/qwen3-moe", "dataset_type=synthetic", "steps=4",   \
        "learning_rate_schedule_steps=8", "sharding_tolerance=1", "mesh=fsdp=2,expert=2"
    char folder[256], load[512];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "whole", (const char *[]){FROM, "checkpoint_period=2", NULL}));
    snprintf(load, sizeof load, "load_full_state_path=%s/whole/r/checkpoints/2", folder);
    MX_CHECK_OK(tiny_train(folder, "again", (const char *[]){FROM, load, NULL}));
    MX_CHECK(tiny_difference(folder, "whole", "again", STEPS) == 0, "other weights");
#undef FROM
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* A run that was stopped goes on with the bits of one that was not. */
MX_TEST(mesh_run_resumes_with_the_same_bits)
{
    static const char mesh[] = "mesh=fsdp=2,expert=2";
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *moe[] = {ON_MESH, mesh, MIXTURE, "checkpoint_period=2", NULL};
    MX_CHECK_OK(tiny_train(folder, "whole", moe));
    const char *half[sizeof moe / sizeof *moe];
    memcpy(half, moe, sizeof moe);
    half[1] = "steps=2";
    MX_CHECK_OK(tiny_train(folder, "twice", half));
    MX_CHECK_OK(tiny_train(folder, "twice", moe));
    tiny_same(folder, "whole", "twice", STEPS);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* A rank is one more microbatch: the same sums in the same order, bit for bit. */
MX_TEST(mesh_of_rows_has_the_bits_of_microbatches)
{
    static const char *const meshes[] = {"mesh=data=4", "mesh=fsdp=4", "mesh=expert=4"};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, MIXTURE, "packing=false",
                                                           "gradient_accumulation_steps=4",
                                                           NULL}));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const char *name = meshes[i] + strlen("mesh=");
        MX_CHECK_OK(tiny_train(folder, name, (const char *[]){ON_MESH, MIXTURE, "packing=false",
                                                              meshes[i], NULL}));
        MX_CHECK(tiny_difference(folder, "one", name, STEPS) == 0, "%s: weights differ by %g",
                 meshes[i], tiny_difference(folder, "one", name, STEPS));
        MX_CHECK(differ(folder, "one", name, "loss") == 0, "%s: losses differ by %g", meshes[i],
                 differ(folder, "one", name, "loss"));
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The hashes of the weights and moments of step 2, by name. */
static json_t *stored_tensors(const char *folder, const char *name)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    char *text = tiny_text(folder, name, "checkpoints/2/manifest.json");
    json_t *manifest = json_loads(text, 0, NULL), *all = json_array();
    for (int i = 0; i < 2; i++) {
        json_t *file = json_object_get(json_object_get(manifest, "files"), files[i]);
        json_t *tensors = json_object_get(file, "tensors");
        MX_CHECK(json_object_size(tensors) > 20, "%s: %zu tensors", files[i],
                 json_object_size(tensors));
        json_array_append(all, tensors);
    }
    free(text);
    json_decref(manifest);
    return all;
}

/* Weights that are not read as they are (a decay's exponential, gathered scales), and experts'
 * biases: moments too. Rows that are one document have windows at places that are constants. */
static void microbatches_of(const char *model, const char *packing, const char *const *meshes)
{
    char folder[256], load[256];
    tiny_folder(folder, sizeof folder);
    snprintf(load, sizeof load, "load_parameters_path=tests/fixtures/models/%s", model);
    for (int i = -1; i < 0 || meshes[i]; i++) {
        const char *name = i < 0 ? "one" : meshes[i] + strlen("mesh=");
        MX_CHECK_OK(tiny_train(
            folder, name,
            (const char *[]){"model_name=", "decoder_block=", "vocab_size=", "base_emb_dim=",
                             "base_num_query_heads=", "base_num_kv_heads=", "head_dim=",
                             "base_mlp_dim=", "base_num_decoder_layers=", load, "steps=2",
                             "learning_rate_schedule_steps=8", "dataset_type=synthetic",
                             "sharding_tolerance=1", "per_device_batch_size=1", packing,
                             i < 0 ? "gradient_accumulation_steps=4" : meshes[i], NULL}));
        json_t *a = stored_tensors(folder, "one"), *b = stored_tensors(folder, name);
        MX_CHECK(a && json_equal(a, b), "%s on %s: weights or moments differ", model, name);
        json_decref(a), json_decref(b);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(mesh_of_rows_sums_each_weight_as_microbatches_do)
{
    static const char *const rows[] = {"mesh=data=4", "mesh=fsdp=4", "mesh=expert=4", NULL};
    microbatches_of("gpt-oss", "packing=true", rows + 2);
    microbatches_of("qwen3-next", "packing=true", rows);
    microbatches_of("deepseek-v4", "packing=true", rows);
    microbatches_of("deepseek-v4", "packing=false", rows + 2);
}

static double planned(const char *folder, const char *name, const char *what)
{
    char *plan = tiny_text(folder, name, "plan.txt"), *at = strstr(plan, what);
    double bytes = at ? atof(at + strlen(what)) : -1;
    free(plan);
    return bytes;
}

/* A save beside the steps holds what one that steps wait for holds, experts' stacks included. */
MX_TEST(mesh_saves_beside_the_steps)
{
    static const char mesh[] = "mesh=fsdp=2,expert=2";
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (int i = 0; i < 2; i++)
        MX_CHECK_OK(tiny_train(folder, i ? "beside" : "waits",
                               (const char *[]){ON_MESH, MIXTURE, mesh, "checkpoint_period=4",
                                                i ? "async_checkpointing=true"
                                                  : "async_checkpointing=false", NULL}));
    tiny_same(folder, "waits", "beside", STEPS);
    MX_CHECK(planned(folder, "beside", "snapshot") > 0 && planned(folder, "waits", "snapshot") < 0,
             "no copy to save from, or one too many");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* ZeRO-1: a share of the moments on each data rank, and the same bits. */
MX_TEST(mesh_shares_the_optimizer_over_data)
{
    static const char mesh[] = "mesh=data=4,tensor=2";
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "all", (const char *[]){ON_MESH, mesh, "dtype=bfloat16",
                                                           "per_device_batch_size=1", NULL}));
    MX_CHECK_OK(tiny_train(folder, "share",
                           (const char *[]){ON_MESH, mesh, "dtype=bfloat16",
                                            "per_device_batch_size=1",
                                            "shard_optimizer_over_data=true", NULL}));
    tiny_same(folder, "all", "share", STEPS);
    double all = planned(folder, "all", "optimizer"), share = planned(folder, "share", "optimizer");
    MX_CHECK(share > 0 && share < 0.3 * all, "%g bytes of moments, and %g in all", share, all);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

static mx_status configure(mx_mesh_plan *p, const char *const *args, int n)
{
    mx_config *cfg = NULL;
    mx_config_request q = {.schema = &mx_keys, .user = "train", .args = args, .n_args = n};
    MX_TRY(mx_config_load(&cfg, &q));
    mx_status st = mx_mesh_configure(p, cfg, 1);
    mx_config_free(cfg);
    return st;
}

/* Each degree is that of its axis, inside a node or across nodes. */
MX_TEST(mesh_is_what_the_keys_ask_for)
{
    static const struct {
        const char *key;
        mx_axis axis;
    } keys[] = {{"ici_data_parallelism", MX_AXIS_DATA},
                {"ici_fsdp_parallelism", MX_AXIS_FSDP},
                {"ici_fsdp_transpose_parallelism", MX_AXIS_FSDP_TRANSPOSE},
                {"ici_tensor_parallelism", MX_AXIS_TENSOR},
                {"ici_tensor_sequence_parallelism", MX_AXIS_SEQUENCE},
                {"ici_sequence_parallelism", MX_AXIS_SEQUENCE},
                {"ici_context_parallelism", MX_AXIS_CONTEXT},
                {"ici_expert_parallelism", MX_AXIS_EXPERT},
                {"dcn_data_parallelism", MX_AXIS_DATA},
                {"dcn_fsdp_parallelism", MX_AXIS_FSDP},
                {"dcn_fsdp_transpose_parallelism", MX_AXIS_FSDP_TRANSPOSE},
                {"dcn_tensor_parallelism", MX_AXIS_TENSOR},
                {"dcn_tensor_sequence_parallelism", MX_AXIS_SEQUENCE},
                {"dcn_sequence_parallelism", MX_AXIS_SEQUENCE},
                {"dcn_context_parallelism", MX_AXIS_CONTEXT},
                {"dcn_expert_parallelism", MX_AXIS_EXPERT}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char arg[64];
        mx_mesh_plan p = {0};
        snprintf(arg, sizeof arg, "%s=3", keys[i].key);
        MX_CHECK_OK(configure(&p, (const char *[]){arg}, 1));
        const int *level = keys[i].key[0] == 'i' ? p.mesh.ici : p.mesh.dcn;
        MX_CHECK(p.ranks == 3 && level[keys[i].axis] == 3, "%s: %d ranks", arg, p.ranks);
        mx_mesh_plan_fini(&p);
    }
}

/* What is left of the ranks, and how the pass works. */
MX_TEST(mesh_keys_say_how_it_is_cut)
{
    mx_mesh_plan p = {0};
    MX_CHECK_OK(configure(&p, (const char *[]){"virtual_ranks=8", "ici_tensor_parallelism=2"}, 2));
    MX_CHECK(p.ranks == 8 && mx_mesh_degree(&p.mesh, MX_AXIS_FSDP) == 4 && !p.how.no_overlap,
             "%d ranks", p.ranks);
    MX_CHECK(p.how.zigzag && p.how.context == MX_CONTEXT_ALL_GATHER && p.rules.n > 50, "defaults");
    mx_mesh_plan_fini(&p);
    MX_CHECK_OK(configure(&p, (const char *[]){"mesh=data=-1,context=2", "virtual_ranks=6",
                                               "context_parallel_strategy=ring",
                                               "context_parallel_load_balance=false",
                                               "override_logical_axis_rules=true",
                                               "logical_axis_rules=[[embed, [fsdp]]]",
                                               "sharding_tolerance=0.5",
                                               "overlap_collectives=false"}, 8));
    MX_CHECK(mx_mesh_degree(&p.mesh, MX_AXIS_DATA) == 3, "what is left");
    MX_CHECK(!p.how.zigzag && p.how.context == MX_CONTEXT_RING && p.rules.n == 1, "as they say");
    MX_CHECK(p.how.sharding_tolerance == 0.5 && p.how.no_overlap, "%g", p.how.sharding_tolerance);
    mx_mesh_plan_fini(&p);
    MX_CHECK_OK(configure(&p, (const char *[]){"virtual_ranks=8", "dcn_data_parallelism=-1",
                                               "ici_fsdp_parallelism=2",
                                               "dcn_fsdp_parallelism=2"}, 4));
    MX_CHECK(p.ranks == 8 && p.mesh.dcn[MX_AXIS_DATA] == 2 && p.mesh.ici[MX_AXIS_DATA] <= 1,
             "%d ranks, %d nodes of data", p.ranks, p.mesh.dcn[MX_AXIS_DATA]);
    mx_mesh_plan_fini(&p);
}

/* Room for all rows there can be, or for so many even shares; where it is not enough the run ends
 * and says so. */
MX_TEST(mesh_experts_have_room_as_asked)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
#define EXPERTS ON_MESH, MIXTURE, "mesh=expert=2", "learning_rate=1e-6"
    MX_CHECK_OK(tiny_train(folder, "all", (const char *[]){EXPERTS, NULL}));
    MX_CHECK_OK(tiny_train(folder, "some",
                           (const char *[]){EXPERTS, "ragged_buffer_factor=1.8", NULL}));
    same_metrics(folder, "all", "some");
    MX_CHECK_ERROR(
        tiny_train(folder, "few", (const char *[]){EXPERTS, "ragged_buffer_factor=1", NULL}),
        "raise ragged_buffer_factor");
#undef EXPERTS
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* What cannot be is refused by name, and leaves nothing behind. */
MX_TEST(mesh_refuses_what_cannot_be)
{
    static const struct {
        const char *args[3], *says;
    } cases[] = {
        {{"mesh=fsdp=4,tenser=2"}, "no mesh has an axis `tenser`"},
        {{"mesh=fsdp"}, "`fsdp` is not AXIS=DEGREE"},
        {{"mesh=fsdp=0"}, "a degree is a number from 1 on"},
        {{"mesh=fsdp=2,fsdp=2"}, "fsdp has two degrees"},
        {{"mesh=fsdp=-1,data=-1"}, "both -1"},
        {{"mesh=fsdp=3", "virtual_ranks=4"}, "multiplies to 3 ranks and there are 4"},
        {{"mesh=fsdp=-1,tensor=3", "virtual_ranks=4"}, "does not divide 4 ranks"},
        {{"mesh=fsdp=2", "ici_tensor_parallelism=2"}, "are both given"},
        {{"mesh=diloco=2"}, "diloco=2, and that axis is not built yet"},
        {{"mesh=tensor=3"}, "not cut by tensor"},
        {{"mesh=context=3"}, "does not divide into the 6 chunks of context=3"},
        {{"mesh=fsdp=2", "logical_axis_rules=[[embed, [fsbp]]]"}, "an axis that no mesh has"},
        {{"mesh=fsdp=2", "logical_axis_rules=[[embed, [fsdp]], [embed, [fsdp]]]"}, "given twice"},
    };
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[] = {RUN, cases[i].args[0],
                              cases[i].args[1] ? cases[i].args[1] : "packing=true", NULL};
        MX_CHECK_ERROR(tiny_train(folder, "bad", args), cases[i].says);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}
