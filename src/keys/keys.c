/* keys.c - the schema as a whole: the sections, the tables, and the relations between keys. */
#include "keys/keys.h"

#include <string.h>

static const mx_key_section sections[] = {
    [MX_SECTION_RUN] = {"run", "what the run is called and where it writes"},
    [MX_SECTION_MODEL] = {"model", "the decoder: sizes, attention, positions, experts"},
    [MX_SECTION_VISION] = {"vision", "the vision encoder, and images for decoding"},
    [MX_SECTION_AUDIO] = {"audio", "the audio encoder"},
    [MX_SECTION_PRECISION] = {"precision", "storage and arithmetic types, quantization"},
    [MX_SECTION_TRAIN] = {"train", "steps, batches, lengths, losses, faults"},
    [MX_SECTION_OPTIMIZER] = {"optimizer", "the update rule"},
    [MX_SECTION_SCHEDULE] = {"schedule", "the learning rate over time"},
    [MX_SECTION_DATA] = {"data", "where examples come from, their order and packing"},
    [MX_SECTION_TOKENIZER] = {"tokenizer", "text to tokens"},
    [MX_SECTION_EVAL] = {"eval", "evaluation while training"},
    [MX_SECTION_CHECKPOINT] = {"checkpoint", "what is loaded at the start, what is saved and kept"},
    [MX_SECTION_MEMORY] = {"memory", "what is kept, recomputed or moved to host memory"},
    [MX_SECTION_PARALLEL] = {"parallel", "the mesh and what is split over it"},
    [MX_SECTION_DEVICE] = {"device", "where it runs"},
    [MX_SECTION_METRICS] = {"metrics", "what is written while training"},
    [MX_SECTION_PROFILE] = {"profile", "traces, dumps and goodput"},
    [MX_SECTION_DECODE] = {"decode", "generating text"},
    [MX_SECTION_SERVE] = {"serve", "the HTTP server"},
    [MX_SECTION_LORA] = {"lora", "low-rank adapters"},
    [MX_SECTION_POST] = {"post", "fine-tuning on answers, preferences, rewards, a teacher"},
    [MX_SECTION_COUNT] = {NULL, NULL},
};

static void exclude(const mx_config *cfg, mx_problems *p, const char *a, const char *b,
                    const char *why)
{
    if (*mx_config_text(cfg, a) && *mx_config_text(cfg, b))
        mx_problem_add(p, "%s: `%s` and `%s` (%s) exclude each other: %s; keep one",
                       mx_config_where(cfg, a), a, b, mx_config_where(cfg, b), why);
}

/* `a` (when above `unset`) must not exceed `b`. */
static void at_most(const mx_config *cfg, mx_problems *p, const char *a, int64_t unset,
                    const char *b)
{
    int64_t x = mx_config_int(cfg, a), y = mx_config_int(cfg, b);
    if (x > unset && x > y)
        mx_problem_add(p, "%s: `%s` is %lld, more than `%s`, which is %lld (%s)",
                       mx_config_where(cfg, a), a, (long long)x, b, (long long)y,
                       mx_config_where(cfg, b));
}

static bool is_degree(const mx_key *k, const char *level)
{
    return k->type == MX_KEY_INT && mx_starts_with(k->name, level) &&
           mx_ends_with(k->name, "_parallelism");
}

static void check_degrees(const mx_config *cfg, mx_problems *p, const char *level)
{
    const char *automatic = NULL;
    for (const mx_key *const *t = mx_key_tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++) {
            if (!is_degree(k, level) || mx_config_int(cfg, k->name) != -1)
                continue;
            if (automatic)
                mx_problem_add(
                    p, "%s: `%s` and `%s` (%s) are both -1; only one axis can take what is left",
                    mx_config_where(cfg, k->name), k->name, automatic,
                    mx_config_where(cfg, automatic));
            automatic = k->name;
        }
}

static void check_fractions(const mx_config *cfg, mx_problems *p)
{
    double warmup = mx_config_float(cfg, "warmup_steps_fraction");
    double decay = mx_config_float(cfg, "wsd_decay_steps_fraction");
    bool wsd = strcmp(mx_config_text(cfg, "lr_schedule_type"), "wsd") == 0;
    if (wsd && warmup + decay > 1)
        mx_problem_add(
            p, "%s: warmup_steps_fraction + wsd_decay_steps_fraction is %g, at most 1 is possible",
            mx_config_where(cfg, "wsd_decay_steps_fraction"), warmup + decay);
}

static void check_eval_split(const mx_config *cfg, mx_problems *p)
{
    double share;
    const char *text = mx_config_text(cfg, "eval_split");
    if (mx_parse_f64(text, &share) && !(share > 0 && share < 1))
        mx_problem_add(p, "%s: eval_split=%s: a share that is held out is above 0 and below 1",
                       mx_config_where(cfg, "eval_split"), text);
}

static void check_heads(const mx_config *cfg, mx_problems *p)
{
    int64_t q = mx_config_int(cfg, "base_num_query_heads"),
            kv = mx_config_int(cfg, "base_num_kv_heads");
    if (q % kv != 0 && mx_config_is_set(cfg, "base_num_kv_heads"))
        mx_problem_add(
            p, "%s: base_num_query_heads is %lld, not a multiple of base_num_kv_heads, %lld (%s)",
            mx_config_where(cfg, "base_num_query_heads"), (long long)q, (long long)kv,
            mx_config_where(cfg, "base_num_kv_heads"));
    at_most(cfg, p, "num_experts_per_tok", 1, "num_experts");
    int64_t scale = mx_config_int(cfg, "global_parameter_scale");
    if (scale & (scale - 1))
        mx_problem_add(p, "%s: global_parameter_scale must be a power of two, found %lld",
                       mx_config_where(cfg, "global_parameter_scale"), (long long)scale);
}

/* A run's folder lies below base_output_directory, and its name is printed. */
static void check_run_name(const mx_config *cfg, mx_problems *p)
{
    const char *name = mx_config_text(cfg, "run_name"), *why = NULL;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        size_t n = strcspn(part, "/");
        if ((n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            why = "`.` and `..` are no names";
    }
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            why = "it has a control character";
    if (*name == '/')
        why = "it is below base_output_directory, which takes a whole path";
    if (why)
        mx_problem_add(p, "%s: `run_name` is the name of a folder; found `%.80s`: %s",
                       mx_config_where(cfg, "run_name"), name, why);
}

static void check(const mx_config *cfg, mx_problems *p)
{
    check_run_name(cfg, p);
    exclude(cfg, p, "chat_template", "chat_template_path", "both give the template");
    check_degrees(cfg, p, "ici_");
    check_degrees(cfg, p, "dcn_");
    check_fractions(cfg, p);
    check_eval_split(cfg, p);
    check_heads(cfg, p);
    bool ends =
        mx_config_int(cfg, "steps") > 0 || mx_config_int(cfg, "learning_rate_schedule_steps") > 0;
    if (!ends)
        mx_problem_add(p, "%s: steps is -1, so learning_rate_schedule_steps must give the length",
                       mx_config_where(cfg, "steps"));
}

const mx_schema mx_keys = {.tables = mx_key_tables, .sections = sections, .check = check};
