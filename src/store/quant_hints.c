/* quant_hints.c - see quant_hints.h. */
#include "store/quant_hints.h"

#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = 1 << 24 }; /* columns of a weight, and so of a group or a block */

typedef enum { WHOLE, FLAG, WORD, PAIR } value_kind;

/* One value: of `method`, or of the numbers ("weights", "input_activations") of a group. null is as
 * good as nothing. Words are separated by a space; none: any. */
typedef struct {
    const char *method, *key;
    value_kind kind;
    int64_t least, most;
    const char *words;
} field;

static const field of_method[] = {
    {"fp8", "weight_block_size", PAIR, 1, MAX_SIZE, NULL},
    {"fp8", "fmt", WORD, 0, 0, "e4m3 e5m2 float8_e4m3fn float8_e5m2"},
    {"fp8", "activation_scheme", WORD, 0, 0, "dynamic static"},
    {"compressed-tensors", "format", WORD, 0, 0,
     "pack-quantized int-quantized float-quantized naive-quantized mixed-precision dense"},
    {"bitsandbytes", "load_in_4bit", FLAG, 0, 0, NULL},
    {"bitsandbytes", "load_in_8bit", FLAG, 0, 0, NULL},
    {"bitsandbytes", "bnb_4bit_quant_type", WORD, 0, 0, "nf4 fp4"},
    {"bitsandbytes", "bnb_4bit_use_double_quant", FLAG, 0, 0, NULL},
    {"gptq", "bits", WHOLE, 2, 8, NULL},
    {"gptq", "group_size", WHOLE, -1, MAX_SIZE, NULL},
    {"gptq", "desc_act", FLAG, 0, 0, NULL},
    {"gptq", "sym", FLAG, 0, 0, NULL},
    {"gptq", "checkpoint_format", WORD, 0, 0, NULL},
    {"awq", "bits", WHOLE, 2, 8, NULL},
    {"awq", "group_size", WHOLE, -1, MAX_SIZE, NULL},
    {"awq", "zero_point", FLAG, 0, 0, NULL},
    {"awq", "version", WORD, 0, 0, NULL},
};
static const field of_numbers[] = {
    {NULL, "num_bits", WHOLE, 1, 16, NULL},
    {NULL, "group_size", WHOLE, -1, MAX_SIZE, NULL},
    {NULL, "type", WORD, 0, 0, "int float"},
    {NULL, "strategy", WORD, 0, 0, "tensor channel group block token tensor_group attn_head"},
    {NULL, "symmetric", FLAG, 0, 0, NULL},
    {NULL, "block_structure", PAIR, 1, MAX_SIZE, NULL},
};

static bool is_whole(const json_t *v, const field *f)
{
    return json_is_integer(v) && json_integer_value(v) >= f->least &&
           json_integer_value(v) <= f->most;
}

/* One of the words of a list. */
static bool is_listed(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && n && strncmp(at, word, n) == 0)
            return true;
    return false;
}

static bool fits(const json_t *v, const field *f)
{
    if (f->kind == WHOLE)
        return is_whole(v, f);
    if (f->kind == PAIR)
        return json_array_size(v) == 2 && is_whole(json_array_get(v, 0), f) &&
               is_whole(json_array_get(v, 1), f);
    if (f->kind == FLAG)
        return json_is_boolean(v);
    return json_is_string(v) && (!f->words || is_listed(f->words, json_string_value(v)));
}

/* "quantization_config.KEY is VALUE; expected ..." */
static mx_status wrong(const char *path, const json_t *v, const char *expected)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    mx_status st = mx_fail(MX_INPUT, "%s is %.60s; expected %s. Correct it, or use the model's "
                           "unquantized weights", path, text ? text : "no JSON", expected);
    mx_free(text);
    return st;
}

static mx_status check(const json_t *o, const char *path, const field *f)
{
    const json_t *v = json_object_get(o, f->key);
    if (!v || json_is_null(v) || fits(v, f))
        return MX_OK;
    mx_str at = {0}, expected = {0};
    mx_str_addf(&at, "%s.%s", path, f->key);
    if (f->kind == WHOLE || f->kind == PAIR)
        mx_str_addf(&expected, "%s from %" PRId64 " to %" PRId64,
                    f->kind == PAIR ? "two whole numbers" : "a whole number", f->least, f->most);
    else
        mx_str_addf(&expected, "%s%s", f->kind == FLAG ? "true or false" : f->words
                    ? "one of: " : "a text", f->words ? f->words : "");
    mx_status st = wrong(mx_str_text(&at), v, mx_str_text(&expected));
    mx_str_fini(&at);
    mx_str_fini(&expected);
    return st;
}

/* An object, or nothing. */
static mx_status check_object(const json_t *v, const char *path)
{
    return !v || json_is_null(v) || json_is_object(v) ? MX_OK : wrong(path, v, "an object");
}

/* How numbers of weights or of activations are stored. */
static mx_status check_numbers(const json_t *v, const char *path)
{
    MX_TRY(check_object(v, path));
    for (size_t i = 0; i < sizeof of_numbers / sizeof *of_numbers; i++)
        MX_TRY(check(v, path, &of_numbers[i]));
    return MX_OK;
}

/* What the groups of config.json do not agree on, or do not say. */
typedef struct {
    bool bits, blocks;
} mixture;

/* The block of weights under one scale; zeros: it is not said. */
static void read_block(const json_t *w, int64_t group, int64_t *rows, int64_t *cols)
{
    const char *strategy = json_string_value(json_object_get(w, "strategy"));
    const json_t *block = json_object_get(w, "block_structure");
    *rows = *cols = 0;
    if (!strategy && group > 0) /* what the strategy is where it is not named */
        strategy = "group";
    if (!strategy)
        return;
    if (strcmp(strategy, "channel") == 0 || (strcmp(strategy, "group") == 0 && group)) {
        *rows = 1;
        *cols = strcmp(strategy, "group") == 0 && group > 0 ? group : MX_WHOLE_DIM;
    } else if (strcmp(strategy, "tensor") == 0) {
        *rows = *cols = MX_WHOLE_DIM;
    } else if (strcmp(strategy, "block") == 0) {
        *rows = json_integer_value(json_array_get(block, 0));
        *cols = json_integer_value(json_array_get(block, 1));
    }
}

static mx_status read_weights(mx_quant_hints *h, const json_t *w, const char *path, mixture *mixed)
{
    MX_TRY(check_numbers(w, path));
    int n = (int)json_integer_value(json_object_get(w, "num_bits"));
    int64_t group = json_integer_value(json_object_get(w, "group_size"));
    if (n && n != 4 && n != 8)
        return wrong(path, w, "num_bits to be 4 or 8");
    if (group > 0 && !h->group)
        h->group = group;
    if (!n)
        return MX_OK;
    int64_t rows, cols;
    read_block(w, group, &rows, &cols);
    mixed->bits |= h->bits && h->bits != n;
    mixed->blocks |= !rows || !cols || (h->bits && (h->block_rows != rows ||
                                                    h->block_cols != cols));
    h->bits = n;
    h->block_rows = rows;
    h->block_cols = cols;
    return MX_OK;
}

static mx_status read_inputs(mx_quant_hints *h, const json_t *a, const char *path)
{
    MX_TRY(check_numbers(a, path));
    const json_t *dynamic = json_object_get(a, "dynamic"); /* compressed-tensors has "local" too */
    if (dynamic && !json_is_null(dynamic) && !json_is_boolean(dynamic) && !json_is_string(dynamic))
        return wrong(path, a, "dynamic to be true or false");
    const char *type = json_string_value(json_object_get(a, "type"));
    if (type && json_is_true(dynamic) && json_integer_value(json_object_get(a, "num_bits")) == 8) {
        h->input_bits = 8;
        h->input_float = strcmp(type, "float") == 0;
        h->input_zeros = !h->input_float && json_is_false(json_object_get(a, "symmetric"));
    }
    return MX_OK;
}

static mx_status read_group(mx_quant_hints *h, const char *name, const json_t *g, mixture *mixed)
{
    char path[160];
    snprintf(path, sizeof path, "quantization_config.config_groups.%.40s", name);
    MX_TRY(check_object(g, path));
    snprintf(path, sizeof path, "quantization_config.config_groups.%.40s.weights", name);
    MX_TRY(read_weights(h, json_object_get(g, "weights"), path, mixed));
    snprintf(path, sizeof path, "quantization_config.config_groups.%.40s.input_activations", name);
    return read_inputs(h, json_object_get(g, "input_activations"), path);
}

/* compressed-tensors' groups; a group may also be the list of modules of a preset, by its name. */
static mx_status read_groups(mx_quant_hints *h, json_t *groups)
{
    MX_TRY(check_object(groups, "quantization_config.config_groups"));
    mixture mixed = {0};
    const char *key;
    json_t *g;
    json_object_foreach(groups, key, g) {
        if (json_is_array(g))
            mixed.blocks = true;
        else
            MX_TRY(read_group(h, key, g, &mixed));
    }
    h->bits = mixed.bits ? 0 : h->bits;
    if (mixed.blocks)
        h->block_rows = h->block_cols = 0;
    return MX_OK;
}

static mx_status read_method(mx_quant_hints *h, const json_t *c)
{
    static const char known[] = "fp8 mxfp4 compressed-tensors fbgemm_fp8 bitsandbytes gptq awq";
    const json_t *method = json_object_get(c, "quant_method");
    h->method = json_string_value(method);
    if (!method && (json_object_get(c, "load_in_4bit") || json_object_get(c, "load_in_8bit")))
        h->method = "bitsandbytes"; /* older than quant_method */
    if (!h->method)
        return wrong("quantization_config.quant_method", method ? method : json_null(), known);
    if (!is_listed(known, h->method)) {
        char *text = json_dumps(method, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        mx_status st = mx_fail(MX_INPUT, "quantization method %.40s is not supported (these are: "
                               "%s); use the model's unquantized weights", text, known);
        mx_free(text);
        return st;
    }
    for (size_t i = 0; i < sizeof of_method / sizeof *of_method; i++)
        if (strcmp(of_method[i].method, h->method) == 0)
            MX_TRY(check(c, "quantization_config", &of_method[i]));
    return MX_OK;
}

static mx_status read_all(mx_quant_hints *h, const json_t *config)
{
    const json_t *c = json_object_get(config, "quantization_config");
    if (!c || json_is_null(c))
        c = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    if (!c || json_is_null(c))
        return MX_OK;
    MX_TRY(check_object(c, "quantization_config"));
    MX_TRY(read_method(h, c));
    MX_TRY(mx_gptq_hints_read(c, h->method, &h->gptq, &h->has_gptq));
    MX_TRY(read_groups(h, json_object_get(c, "config_groups")));
    const json_t *block = json_object_get(c, "weight_block_size");
    if (strcmp(h->method, "compressed-tensors") != 0) {
        h->block_rows = json_integer_value(json_array_get(block, 0));
        h->block_cols = json_integer_value(json_array_get(block, 1));
    }
    return MX_OK;
}

mx_status mx_quant_hints_read(mx_quant_hints *h, const json_t *config, const char *where)
{
    *h = (mx_quant_hints){0};
    return mx_status_wrap(read_all(h, config), "%s", where);
}
