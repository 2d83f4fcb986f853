/* bench_plan.c - maxc bench plan: published training runs, predicted.
 *
 *     maxc bench plan table=bench/layouts.csv models=bench/layout_models.yml
 *
 * Each row of the table is a published run: model, machine, layout, tokens per second and chip. The
 * planner predicts the last column from the others. What a row says about its system is passed to
 * the planner: a chip with a lower power limit, operators without fusion, fp8 scaled by rows, what
 * is computed again. Nothing is fitted to the rows.
 */
#include "cmd/bench.h"

#include "models/from_config.h"
#include "plan/forecast.h"
#include "plan/model_profile.h"
#include "plan/simulate.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 32, MAX_ROWS = 1000, MAX_ARGS = 24 };

/* ---- the table ---- */

typedef struct {
    char *cell[COLUMNS];
    int n;
} csv_row;

typedef struct {
    csv_row head, row[MAX_ROWS];
    int n;
} csv;

/* Splits one line in place; gives what follows it. */
static char *split_line(char *s, csv_row *r)
{
    r->n = 0;
    for (bool more = true; more;) {
        bool quoted = *s == '"';
        char *to = s + quoted, *at = to;
        if (r->n < COLUMNS)
            r->cell[r->n++] = to;
        while (*at && (quoted || (*at != ',' && *at != '\n'))) {
            if (quoted && *at == '"' && *++at != '"')
                break;
            *to++ = *at++;
        }
        more = *at == ',';
        s = at + (*at != 0);
        *to = 0;
    }
    return s;
}

static mx_status read_csv(csv *t, const char *path, mx_arena *a)
{
    char *text = NULL;
    FILE *f = fopen(path, "rb");
    if (!f)
        return mx_fail_errno(MX_INPUT, "%s: cannot be read", path);
    enum { MOST = 1 << 20 };
    text = mx_arena_alloc(a, MOST + 1);
    size_t n = fread(text, 1, MOST, f);
    fclose(f);
    text[n] = 0;
    char *s = split_line(text, &t->head);
    while (*s && t->n < MAX_ROWS)
        s = split_line(s, &t->row[t->n++]);
    return MX_OK;
}

static const char *cell(const csv *t, int row, const char *name)
{
    for (int i = 0; i < t->head.n && i < t->row[row].n; i++)
        if (strcmp(t->head.cell[i], name) == 0)
            return t->row[row].cell[i];
    return "";
}

static int64_t whole(const csv *t, int row, const char *name, int64_t missing)
{
    int64_t v;
    return mx_parse_i64(cell(t, row, name), &v) ? v : missing;
}

/* ---- a row as a plan ---- */

typedef struct {
    const mx_invocation *inv;
    mx_arena arena;
    const mx_yaml_node *models;  /* those that configs/models lacks */
    const mx_yaml_node *systems; /* what is known of those that published */
    char *key[MAX_ROWS];         /* of profiles made so far */
    mx_profile *profile[MAX_ROWS];
    int n;
} bench;

static const mx_yaml_node *other_model(const bench *b, const char *name)
{
    for (const mx_yaml_node *n = b->models->first; n; n = n->next)
        if (strcmp(n->key, name) == 0)
            return n;
    return NULL;
}

/* What of a row changes the program: a remat policy, a recipe of quantization or "", adapters. */
typedef struct {
    const char *remat, *recipe;
    bool adapters;
} compiled_as;

static mx_status make_profile(bench *b, const char *model, int64_t length, int64_t layers,
                              const compiled_as *how, mx_profile *out)
{
    const char *args[MAX_ARGS];
    int n = 0;
    const mx_yaml_node *other = other_model(b, model);
    if (!other)
        args[n++] = mx_arena_printf(&b->arena, "model_name=%s", model);
    for (const mx_yaml_node *v = other ? other->first : NULL; v && n < MAX_ARGS - 6; v = v->next)
        if (strcmp(v->key, "base_num_decoder_layers") != 0 || !layers)
            args[n++] = mx_arena_printf(&b->arena, "%s=%s", v->key, v->text);
    args[n++] = mx_arena_printf(&b->arena, "max_target_length=%lld", (long long)length);
    args[n++] = "dtype=bfloat16";
    args[n++] = mx_arena_printf(&b->arena, "quantization=%s", how->recipe);
    if (how->adapters)
        args[n++] = "lora.enable_lora=true";
    if (layers)
        args[n++] = mx_arena_printf(&b->arena, "base_num_decoder_layers=%lld", (long long)layers);
    mx_config_request q = {
        .schema = &mx_keys, .user = NULL, .home = b->inv->home, .args = args, .n_args = n};
    mx_config *c;
    mx_model_spec m = {0};
    MX_TRY(mx_config_load(&c, &q));
    mx_status st = mx_model_from_config(&m, c);
    if (!st)
        st = mx_profile_of(out, c, &m, how->remat);
    mx_model_spec_fini(&m);
    mx_config_free(c);
    return st;
}

static bool says(const csv *t, int row, const char *text)
{
    return strstr(cell(t, row, "note"), text) || strstr(cell(t, row, "source"), text);
}

/* How GEMMs are quantized. Rows that do not say it: scaling by tensors, from the last steps, as
 * Transformer Engine has it where nothing is asked for. */
static const char *recipe_of(const csv *t, int row)
{
    static const char *const said[][2] = {{"rowwise", "fp8_rowwise"},
                                          {"block", "fp8_blockwise"},
                                          {"tensorwise", "fp8_tensorwise"},
                                          {"current", "fp8_tensorwise"}};
    if (!strstr(cell(t, row, "precision"), "fp8"))
        return strstr(cell(t, row, "precision"), "int8") ? "int8" : "";
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (says(t, row, said[i][0]))
            return said[i][1];
    return "fp8";
}

static bool trains_adapters(const csv *t, int row)
{
    return strcmp(cell(t, row, "task"), "lora") == 0;
}

static mx_status find_profile(bench *b, const csv *t, int row, const char *remat,
                              const mx_profile **out)
{
    compiled_as how = {remat, recipe_of(t, row), trains_adapters(t, row)};
    const char *model = cell(t, row, "model");
    int64_t length = whole(t, row, "seq", 0), layers = whole(t, row, "layers", 0);
    char *key = mx_arena_printf(&b->arena, "%s %lld %lld %s %s %d", model, (long long)length,
                                (long long)layers, remat, how.recipe, how.adapters);
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->key[i], key) == 0) {
            *out = b->profile[i];
            return MX_OK;
        }
    mx_profile *p = MX_NEW(&b->arena, mx_profile);
    MX_TRY(make_profile(b, model, length, layers, &how, p));
    b->key[b->n] = key;
    *out = b->profile[b->n++] = p;
    return MX_OK;
}

/* What a layout is made of: whole numbers whose product is the number of chips. */
static mx_status check_row(const csv *t, int row)
{
    static const char *const needed[] = {"seq", "gpus", "gbs", "mbs"};
    static const char *const degrees[] = {"tp", "pp", "cp", "vp", "ep", "etp", "dp"};
    const char *precision = cell(t, row, "precision");
    if (strcmp(precision, "bf16") != 0 && !strstr(precision, "fp8") && !strstr(precision, "int8"))
        return mx_fail(MX_USAGE, "precision `%s`: expected bf16, fp8 or int8, which maxc trains in",
                       precision);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (whole(t, row, needed[i], i == 3) < 1)
            return mx_fail(MX_USAGE, "%s `%s`: expected a whole number above 0", needed[i],
                           cell(t, row, needed[i]));
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (whole(t, row, degrees[i], 1) < 1)
            return mx_fail(MX_USAGE, "%s `%s`: expected a degree above 0", degrees[i],
                           cell(t, row, degrees[i]));
    int64_t ranks = whole(t, row, "tp", 1) * whole(t, row, "pp", 1) * whole(t, row, "cp", 1);
    int64_t chips = whole(t, row, "gpus", 1), dp = whole(t, row, "dp", chips / ranks);
    int64_t experts = whole(t, row, "pp", 1) * whole(t, row, "ep", 1);
    if (ranks * dp != chips || chips % experts)
        return mx_fail(MX_USAGE,
                       "tp x pp x cp x dp is %lld and pp x ep %lld: expected %lld chips, and a "
                       "divisor of them",
                       (long long)(ranks * dp), (long long)experts, (long long)chips);
    return MX_OK;
}

static void layout_of(const csv *t, int row, int64_t per_node, mx_layout *l)
{
    int64_t ranks = whole(t, row, "tp", 1) * whole(t, row, "pp", 1) * whole(t, row, "cp", 1);
    int64_t dp = whole(t, row, "dp", whole(t, row, "gpus", 1) / ranks);
    int64_t fsdp = whole(t, row, "fsdp", 0);
    *l = (mx_layout){.chips = whole(t, row, "gpus", 1),
                     .tensor = whole(t, row, "tp", 1),
                     .context = whole(t, row, "cp", 1),
                     .stage = whole(t, row, "pp", 1),
                     .data = dp,
                     .shard = fsdp > 0 ? fsdp * whole(t, row, "cp", 1) : 1,
                     .shard_optimizer = fsdp == 0,
                     .expert = whole(t, row, "ep", 1),
                     .chunks = whole(t, row, "vp", 1),
                     .microbatch = whole(t, row, "mbs", 1),
                     .per_node = per_node};
    /* experts are cut as the rest is, where the row does not say it and there are chips for that */
    bool room = l->stage * l->expert * l->tensor <= l->chips;
    l->expert_tensor = l->expert > 1 ? whole(t, row, "etp", room ? l->tensor : 1) : l->tensor;
    l->expert_shard = l->shard > 1 ? l->chips / (l->stage * l->expert * l->expert_tensor) : 1;
    l->n_microbatches = whole(t, row, "gbs", 1) / (l->microbatch * dp);
    l->n_microbatches = l->n_microbatches < 1 ? 1 : l->n_microbatches;
    if (says(t, row, "interleaved"))
        l->chunks = 4;
}

/* A figure of the system that published a row, in the file of systems; or what is usual. */
static double trait(const bench *b, const csv *t, int row, const char *name, double usual)
{
    double v;
    for (const mx_yaml_node *n = b->systems->first; n; n = n->next)
        if (says(t, row, n->key))
            for (const mx_yaml_node *f = n->first; f; f = f->next)
                if (strcmp(f->key, name) == 0 && mx_parse_f64(f->text, &v))
                    return v;
    return usual;
}

/* Of the chip's own attention; attention_share_a100 of one chip comes before attention_share. */
static double attention_share(const bench *b, const csv *t, int row)
{
    char name[48];
    const char *chip = cell(t, row, "chip");
    snprintf(name, sizeof name, "attention_share_%.*s", (int)strcspn(chip, "-"), chip);
    for (char *s = name; *s; s++)
        *s = (char)tolower((unsigned char)*s);
    return trait(b, t, row, name, trait(b, t, row, "attention_share", 1));
}

static void run_of(const bench *b, const csv *t, int row, mx_run_kind *r)
{
    const char *recipe = recipe_of(t, row);
    bool adapters = trains_adapters(t, row);
    *r = (mx_run_kind){.rate = MX_RATE_BF16,
                       .again = -1,
                       .frozen = adapters,
                       .unfused = says(t, row, "eager") || trait(b, t, row, "unfused", 0) > 0,
                       .overlap_tensor =
                           says(t, row, "async TP") || trait(b, t, row, "overlap_tensor", 0) > 0,
                       .exchange_factor = 1,
                       .deduplicate = trait(b, t, row, "deduplicate", 0) > 0,
                       .attention_share = attention_share(b, t, row),
                       .host_seconds = 1e-6 * trait(b, t, row, "host_us", 0),
                       .weight_bytes = trait(b, t, row, "weight_bytes", adapters ? 2 : 4),
                       .copy_bytes = trait(b, t, row, "copy_bytes", adapters ? 0 : 2),
                       .gradient_bytes = 2,
                       .state_bytes = trait(b, t, row, "state_bytes", 8),
                       .update_bytes = trait(b, t, row, "update_bytes", 28)};
    mx_run_kind_quantize(r, mx_quant_recipe_find(recipe));
}

/* What is computed again: as the row says, in maxc's policies. */
static const char *remat_of(const csv *t, int row, mx_run_kind *r)
{
    static const char *const same[][2] = {
        {"full", "full"},
        {"none", "none"},
        {"minimal_flash", "minimal"},
        {"save_dot_with_context_except_mlp", "save_dot_with_context_except_mlp"},
        {"swiglu+norm", "minimal"},
        {"ffn", "save_dot_with_context_except_mlp"},
        {"ffn+norm", "save_dot_with_context_except_mlp"},
        {"selective", "minimal"}};
    const char *text = cell(t, row, "recompute");
    if (strcmp(text, "selective") == 0)
        r->again = 0.5; /* every second GEMM */
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i][0], text) == 0)
            return same[i][1];
    return NULL;
}

typedef struct {
    double tokens; /* per second and chip */
    const char *remat;
    mx_step_time time;
    mx_rank_memory memory;
} prediction;

static mx_status predict_with(bench *b, const csv *t, int row, const mx_cost_request *with,
                              prediction *out)
{
    mx_cost_request q = *with;
    const mx_layout *l = q.layout;
    mx_layer_costs *costs = MX_NEW(&b->arena, mx_layer_costs);
    MX_TRY(find_profile(b, t, row, out->remat, &q.profile));
    mx_layer_costs_of(&q, costs);
    mx_simulate_step(&q, costs, &out->time, NULL);
    out->memory = mx_rank_memory_of(&q, costs);
    out->tokens = (double)(l->data * l->n_microbatches * l->microbatch) * q.profile->length /
                  out->time.seconds / (double)l->chips;
    return MX_OK;
}

/* Where a row does not say what is computed again: the least with which it fits. */
static mx_status predict_fitting(bench *b, const csv *t, int row, const mx_cost_request *q,
                                 prediction *out)
{
    static const char *const less[] = {"none", "minimal", "save_dot_with_context_except_mlp",
                                       "full"};
    for (size_t i = 0; i < sizeof less / sizeof *less; i++) {
        out->remat = less[i];
        MX_TRY(predict_with(b, t, row, q, out));
        if (out->memory.total <= q->chip->memory_bytes)
            break;
    }
    return MX_OK;
}

/* Likewise the degree of experts: the fastest. */
static mx_status predict_experts(bench *b, const csv *t, int row, const mx_cost_request *q,
                                 prediction *out)
{
    mx_layout l = *q->layout;
    mx_cost_request at = *q;
    at.layout = &l;
    *out = (prediction){0};
    for (int64_t e = 1; e <= l.data; e *= 2) {
        prediction p = {0};
        l.expert = e;
        l.expert_tensor = 1;
        l.expert_shard = l.chips / (l.stage * e);
        MX_TRY(predict_fitting(b, t, row, &at, &p));
        if (p.tokens > out->tokens)
            *out = p;
    }
    return MX_OK;
}

static mx_status predict(bench *b, const csv *t, int row, prediction *out)
{
    mx_layout l;
    mx_run_kind r;
    mx_plan_chip chip;
    mx_network network;
    char name[32];
    MX_TRY(check_row(t, row));
    snprintf(name, sizeof name, "%s%s", cell(t, row, "chip"),
             says(t, row, "500 W") || trait(b, t, row, "watts", 700) == 500 ? "-500w" : "");
    for (char *s = name; *s; s++)
        *s = (char)tolower((unsigned char)*s);
    MX_TRY(
        mx_plan_chip_read(&chip, b->inv->home, mx_config_text(b->inv->config, "chip_file"), name));
    MX_TRY(mx_network_read(&network, b->inv->home, mx_config_text(b->inv->config, "network_file"),
                           chip.network));
    layout_of(t, row, network.n > 1 ? network.level[0].chips : 1, &l);
    run_of(b, t, row, &r);
    mx_cost_request q = {NULL, &l, &r, &chip, &network};
    out->remat = remat_of(t, row, &r);
    if (!*cell(t, row, "ep"))
        return predict_experts(b, t, row, &q, out);
    return out->remat ? predict_with(b, t, row, &q, out) : predict_fitting(b, t, row, &q, out);
}

/* ---- how good ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Places of values in order; equal ones share the mean place. */
static void rank_values(const double *v, int n, double *out)
{
    for (int i = 0; i < n; i++) {
        double below = 0, equal = 0;
        for (int j = 0; j < n; j++) {
            below += v[j] < v[i];
            equal += v[j] == v[i];
        }
        out[i] = below + (equal - 1) / 2;
    }
}

static double rank_correlation(const double *x, const double *y, int n, mx_arena *arena)
{
    double *a = MX_NEW_N(arena, double, n), *b = MX_NEW_N(arena, double, n);
    double mean = (n - 1) / 2.0, ab = 0, aa = 0, bb = 0;
    rank_values(x, n, a);
    rank_values(y, n, b);
    for (int i = 0; i < n; i++) {
        ab += (a[i] - mean) * (b[i] - mean);
        aa += (a[i] - mean) * (a[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static void report(const mx_invocation *inv, const double *published, const double *predicted,
                   int n, mx_arena *a)
{
    double *off = MX_NEW_N(a, double, n);
    int near = 0;
    for (int i = 0; i < n; i++) {
        off[i] = fabs(predicted[i] / published[i] - 1);
        near += off[i] <= 0.30;
    }
    qsort(off, (size_t)n, sizeof *off, compare);
    mx_bench_print(inv, "rows predicted", n, "");
    mx_bench_print(inv, "median difference", 100 * off[n / 2], "%");
    mx_bench_print(inv, "rows within 30 %", 100.0 * near / n, "%");
    mx_bench_print(inv, "rank correlation", rank_correlation(published, predicted, n, a), "");
}

static void print_row(const csv *t, int row, double published, const prediction *p)
{
    const mx_step_time *s = &p->time;
    printf("%-24s %6s %5s %-5s tp%-2s pp%-2s cp%-2s ep%-2s %9.4g %9.4g %+6.1f %%  %2.0f %2.0f "
           "%2.0f %2.0f  "
           "%4.0f GiB %-8.8s %.50s\n",
           cell(t, row, "model"), cell(t, row, "seq"), cell(t, row, "gpus"),
           cell(t, row, "precision"), cell(t, row, "tp"), cell(t, row, "pp"), cell(t, row, "cp"),
           cell(t, row, "ep"), published, p->tokens, 100 * (p->tokens / published - 1),
           100 * s->compute / s->seconds, 100 * s->network / s->seconds,
           100 * s->bubble / s->seconds, 100 * s->optimizer / s->seconds, p->memory.total / 0x1p30,
           p->remat, cell(t, row, "source"));
}

static mx_status run(mx_invocation *inv)
{
    bench b = {.inv = inv};
    csv *t = MX_NEW(&b.arena, csv);
    double *published = MX_NEW_N(&b.arena, double, MAX_ROWS);
    double *predicted = MX_NEW_N(&b.arena, double, MAX_ROWS);
    mx_yaml_node *root = NULL;
    int n = 0;
    mx_status st;
    MX_TRY_OUT(st, mx_yaml_read(&b.arena, mx_config_text(inv->config, "models"), &root));
    b.models = root;
    MX_TRY_OUT(st, mx_yaml_read(&b.arena, mx_config_text(inv->config, "systems"), &root));
    b.systems = root;
    MX_TRY_OUT(st, read_csv(t, mx_config_text(inv->config, "table"), &b.arena));
    printf(
        "%-24s %6s %5s %-21s %9s %9s %9s  percent of the step: compute, network, bubble, update\n",
        "model", "tokens", "chips", "", "published", "predicted", "");
    for (int i = 0; i < t->n; i++) {
        prediction p = {0};
        mx_status row = predict(&b, t, i, &p);
        if (row || !mx_parse_f64(cell(t, i, "tok_s_gpu"), &published[n])) {
            printf("%-24s not predicted (line %d): %s\n", cell(t, i, "model"), i + 2,
                   row ? mx_status_text(row) : "tok_s_gpu is not a number");
            mx_status_free(row);
            continue;
        }
        predicted[n] = p.tokens;
        print_row(t, i, published[n], &p);
        n++;
    }
    if (n)
        report(inv, published, predicted, n, &b.arena);
out:
    mx_arena_fini(&b.arena);
    return st;
}

const mx_bench mx_bench_plan = {"plan", "published training runs, predicted by the planner", run};
