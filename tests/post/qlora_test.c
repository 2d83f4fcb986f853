/* qlora_test.c - adapters beside weights that lie in 4 or 8 bits: NF4 against bitsandbytes
 * (fixtures/post/nf4.safetensors, recorded with 0.50.2), and runs of every verb on such weights.
 */
#include "post_run.h"

#include "../test.h"
#include "base/str.h"
#include "cmd/verb.h"
#include "ops/cpu/nf4.h"
#include "store/safetensors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "load_parameters_path=" POST "qlora_model "
#define NF4 MODEL "lora.enable_lora=true lora_weight_qtype=nf4 lora_rank=4 "

/* --- NF4 --- */

static void *tensor(const mx_st_file *f, const char *name, mx_st_dtype as, int64_t *n)
{
    const mx_st_tensor *t = mx_st_find(f, name);
    MX_CHECK(t != NULL, "%s", name);
    *n = t ? t->n : 0;
    void *x = calloc((size_t)*n + 1, (size_t)mx_st_dtype_bytes(as));
    if (t)
        MX_CHECK_OK(mx_st_read(t, 0, t->n, as, x, NULL));
    return x;
}

static int64_t differ(const void *a, const void *b, int64_t n, size_t size)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size,
                      size) != 0;
    return bad;
}

typedef struct {
    float *w, *absmax, *nested, *offset, *all, *map;
    uint8_t *codes, *absmax_codes;
    int64_t n, blocks, nests;
} recorded;

static recorded read_recorded(const mx_st_file *f)
{
    int64_t any;
    recorded r = {0};
    r.w = tensor(f, "w", MX_ST_F32, &r.n);
    r.codes = tensor(f, "codes", MX_ST_U8, &any);
    r.absmax = tensor(f, "absmax", MX_ST_F32, &r.blocks);
    r.absmax_codes = tensor(f, "absmax_codes", MX_ST_U8, &any);
    r.nested = tensor(f, "nested", MX_ST_F32, &r.nests);
    r.offset = tensor(f, "offset", MX_ST_F32, &any);
    r.all = tensor(f, "nested_absmax", MX_ST_F32, &any);
    r.map = tensor(f, "map", MX_ST_F32, &any);
    return r;
}

static void free_recorded(recorded *r)
{
    void *all[] = {r->w, r->codes, r->absmax, r->absmax_codes, r->nested, r->offset, r->all,
                   r->map};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What codes and absmax make, by the definition. */
static void check_decoded(const recorded *r, const mx_nf4 *w, const float *absmax)
{
    float *out = calloc((size_t)r->n, sizeof *out);
    int64_t bad = 0;
    mx_nf4_decode(w, 0, r->blocks, out);
    for (int64_t i = 0; i < r->n; i++) {
        int code = i % 2 ? r->codes[i / 2] & 15 : r->codes[i / 2] >> 4;
        float want = mx_nf4_values[code] * absmax[i / MX_NF4_BLOCK];
        bad += memcmp(&want, &out[i], sizeof want) != 0;
    }
    MX_CHECK(bad == 0, "%lld of %lld numbers differ", (long long)bad, (long long)r->n);
    free(out);
}

MX_TEST(nf4_is_bitsandbytes)
{
    mx_st_file f = {0};
    MX_CHECK_OK(mx_st_open(&f, POST "nf4.safetensors"));
    recorded r = read_recorded(&f);
    uint8_t *codes = calloc((size_t)r.n / 2, 1), *absmax_codes = calloc((size_t)r.blocks, 1);
    float *absmax = calloc((size_t)r.blocks, sizeof *absmax), nested[8], map[MX_NF4_CODES];
    double wide[MX_NF4_CODES];
    mx_nf4_encode(r.w, r.n, codes, absmax);
    MX_CHECK(differ(codes, r.codes, r.n / 2, 1) == 0, "%lld bytes of codes differ",
             (long long)differ(codes, r.codes, r.n / 2, 1));
    MX_CHECK(differ(absmax, r.absmax, r.blocks, 4) == 0, "absmax differs");
    mx_nf4_map(wide);
    for (int i = 0; i < MX_NF4_CODES; i++)
        map[i] = (float)wide[i];
    MX_CHECK(differ(map, r.map, MX_NF4_CODES, 4) == 0, "the map of an absmax differs");
    float offset = mx_nf4_nest(r.absmax, r.blocks, absmax_codes, nested);
    MX_CHECK(fabsf(offset - *r.offset) <= 1e-7f, "offset %.9g, bitsandbytes has %.9g",
             (double)offset, (double)*r.offset);
    /* Its CPU code misses the nearest where two are about as near. */
    int64_t bad = differ(absmax_codes, r.absmax_codes, r.blocks, 1);
    MX_CHECK(bad <= r.blocks / 100, "%lld codes of absmax differ", (long long)bad);
    check_decoded(&r, &(mx_nf4){.codes = r.codes, .n = r.n, .absmax = r.absmax}, r.absmax);
    check_decoded(&r, &(mx_nf4){.codes = r.codes, .n = r.n, .absmax_codes = r.absmax_codes,
                                .nested = r.nested, .map = map, .offset = *r.offset}, r.all);
    free(codes);
    free(absmax_codes);
    free(absmax);
    free_recorded(&r);
    mx_st_close(&f);
}

/* A block that is cut short, an odd number of elements, and zeros. */
MX_TEST(nf4_short_blocks)
{
    enum { N = 71 };
    float x[N], out[N], absmax[2];
    uint8_t codes[(N + 1) / 2];
    for (int i = 0; i < N; i++)
        x[i] = i < MX_NF4_BLOCK ? 0 : 2.5f * mx_nf4_values[i % MX_NF4_VALUES];
    x[N - 1] = 2.5f;
    mx_nf4_encode(x, N, codes, absmax);
    mx_nf4_decode(&(mx_nf4){.codes = codes, .n = N, .absmax = absmax}, 0, 2, out);
    for (int i = 0; i < N; i++)
        MX_CHECK(out[i] == x[i], "%d: %g, was %g", i, (double)out[i], (double)x[i]);
}

/* --- runs --- */

/* A new adapter changes nothing: policy and reference, which is the same codes without it, agree;
 * what is sampled has the log-probabilities that training finds. */
MX_TEST(qlora_serves_every_verb)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("dpo", folder, "dpo", NF4 "dataset_path=" POST "pairs.jsonl steps=2"));
    json_t *m = post_metrics(folder, "dpo");
    MX_CHECK(post_number(m, 0, "rewards/margins") == 0, "margins %g",
             post_number(m, 0, "rewards/margins"));
    MX_CHECK(post_number(m, 1, "rewards/margins") != 0, "nothing was learned");
    json_decref(m);
    MX_CHECK_OK(post_run("grpo", folder, "grpo",
                         NF4 "dataset_path=" POST "pairs.jsonl steps=1 max_target_length=32 "
                         "per_device_batch_size=1 gradient_accumulation_steps=1 num_generations=4 "
                         "max_completion_length=6 reward=length"));
    m = post_metrics(folder, "grpo");
    double off = post_number(m, 0, "sampling/sampling_logp_difference/max");
    MX_CHECK(off < 1e-5, "sampled and trained log-probabilities are %g apart", off);
    json_decref(m);
    post_remove(folder);
}

static double loss_of(const char *folder, const char *settings)
{
    static int n;
    char name[20];
    snprintf(name, sizeof name, "r%d", n++);
    MX_CHECK_OK(post_run("sft", folder, name, settings));
    json_t *m = post_metrics(folder, name);
    double loss = post_number(m, 2, "loss");
    json_decref(m);
    return loss;
}

/* Each way to lie is another model, near the one in full; and the keys are seen. */
MX_TEST(qlora_kinds_differ_a_little)
{
    static const char *const kinds[] = {"lora_weight_qtype=int8", "lora_weight_qtype=fp8",
                                        "lora_weight_qtype=nf4",
                                        "lora_weight_qtype=nf4 bnb_4bit_use_double_quant=false",
                                        "lora_weight_qtype=nf4 remat_policy=none"};
    char folder[300], settings[400];
    double loss[5], full;
    post_folder(folder, sizeof folder);
#define PLAIN MODEL "lora.enable_lora=true lora_rank=4 dataset_path=" POST "text.jsonl "
    full = loss_of(folder, PLAIN);
    for (int i = 0; i < 5; i++) {
        snprintf(settings, sizeof settings, PLAIN "%s", kinds[i]);
        loss[i] = loss_of(folder, settings);
        double off = fabs(loss[i] - full) / full;
        MX_CHECK(off > 1e-7 && off < 0.03, "%s: loss %g, in full %g", kinds[i], loss[i], full);
    }
    MX_CHECK(loss[2] != loss[3], "double quantization makes no difference");
    MX_CHECK(loss[2] == loss[4], "what is computed again makes a difference");
    post_remove(folder);
}

static void refused(const char *verb, const char *folder, const char *settings, const char *with)
{
    mx_status st = post_run(verb, folder, "no", settings);
    MX_CHECK(st && strstr(mx_status_text(st), with), "%s: %s", settings,
             st ? mx_status_text(st) : "no error");
    mx_status_free(st);
}

MX_TEST(qlora_refuses)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    refused("sft", folder, MODEL "lora_weight_qtype=nf4 dataset_path=" POST "text.jsonl",
            "lora.enable_lora=true");
    refused("sft", folder, NF4 "quantization=fp8_tensorwise dataset_path=" POST "text.jsonl",
            "leave it out");
    refused("train", folder, "load_parameters_path= base_emb_dim=32 base_num_decoder_layers=1 "
            "base_mlp_dim=33 base_num_query_heads=2 base_num_kv_heads=2 head_dim=16 "
            "vocab_size=64 dataset_type=synthetic lora.enable_lora=true lora_weight_qtype=nf4 "
            "decoder_block=llama2", "rows of 33 numbers");
    post_remove(folder);
}
