/* fuzz_model_config.c - config.json of every family with other values than it should have.
 *
 * The bytes choose one of tests/fixtures/models, then rows of its family's field table and values
 * for them: bounds of the row's range and what lies beside them, extremes, other types. What is
 * accepted is planned; if that is small, it decodes two tokens and takes one training step, with an
 * image where the family has them. Run from the root of the source tree.
 */
#include "../models/json_put.h"
#include "data/image/image_process.h"
#include "infer/decode.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_MODELS = 64, MAX_ROWS = 160, SEQ = 6, MOST_LAYERS = 16 };
static const double MOST_BYTES = 24 << 20;

static struct {
    json_t *config[MAX_MODELS];
    char name[MAX_MODELS][256];
    int n;
} models;

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void load_models(void)
{
    static const char root[] = "tests/fixtures/models";
    DIR *d = models.n ? NULL : opendir(root);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && models.n < MAX_MODELS)
            snprintf(models.name[models.n++], 256, "%s", e->d_name);
    if (!d)
        return;
    closedir(d);
    qsort(models.name, (size_t)models.n, sizeof *models.name, by_name);
    for (int i = 0; i < models.n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/config.json", root, models.name[i]);
        models.config[i] = json_load_file(path, 0, NULL);
    }
}

/* --- values --- */

typedef struct {
    const uint8_t *p, *end;
} bytes;

static unsigned take(bytes *b)
{
    return b->p < b->end ? *b->p++ : 0;
}

static double number(const mx_cfg_field *f, bytes *b)
{
    const double low = f->min, high = f->max, some[] = {0, 1, 2, 3, 5, 8, 24, 64, 100, 255, 1000,
                                                        4096, 1e308, -1e308, 5e-324, 9e18, 0.5, -1};
    const double step = f->kind == MX_CFG_REAL ? 1e-3 : 1;
    const double near[] = {low, low + step, low - step, high, high - step, high + step,
                           floor(low + (high - low) * take(b) / 256)};
    unsigned which = take(b);
    if (which < 64)
        return near[which % (sizeof near / sizeof *near)];
    if (which < 160)
        return some[which % (sizeof some / sizeof *some)];
    return floor(pow(2, which % 12)) + (which % 5 == 0);
}

static json_t *whole(const mx_cfg_field *f, bytes *b)
{
    return json_integer((json_int_t)fmin(fmax(number(f, b), -9e18), 9e18));
}

static json_t *value(const mx_cfg_field *f, bytes *b)
{
    static const char *const acts[] = {"silu", "gelu", "gelu_pytorch_tanh", "relu"};
    static const char *const words[] = {"default", "linear", "dynamic", "llama3", "yarn",
                                        "proportional", "greedy", "group_limited_greedy", "all",
                                        ""};
    unsigned other = take(b);
    if (other == 255)
        return json_string("x");
    if (other == 254)
        return json_null();
    if (other == 253)
        return json_array();
    if (other == 252)
        return json_object();
    switch (f->kind) {
    case MX_CFG_WHOLE:
        return whole(f, b);
    case MX_CFG_REAL:
        return json_real(number(f, b));
    case MX_CFG_BOOL:
        return json_boolean(take(b) & 1);
    case MX_CFG_ACT:
        return json_string(acts[take(b) % 4]);
    case MX_CFG_TEXT:
        return json_string(words[take(b) % 10]);
    default: {
        json_t *list = json_array();
        for (unsigned n = take(b) % 6; n; n--)
            json_array_append_new(list, f->kind == MX_CFG_WHOLES
                                            ? whole(f, b)
                                            : json_stringn(f->text, strcspn(f->text, ",")));
        return list;
    }
    }
}

/* At one of the row's paths. */
static void put(json_t *at, const char *keys, json_t *v, unsigned which)
{
    for (; which % 2 && strchr(keys, '|'); which /= 2)
        keys = strchr(keys, '|') + 1;
    json_put(at, keys, v);
}

static void mutate(json_t *json, const mx_model *family, bytes *b)
{
    const mx_cfg_field *row[MAX_ROWS];
    bool of_text[MAX_ROWS];
    int n = 0;
    for (int text = 0; text < 2; text++) {
        const mx_model *m = text ? family->text : family;
        for (const mx_cfg_field *f = m ? m->fields : NULL; f && f->key && n < MAX_ROWS; f++) {
            of_text[n] = text;
            row[n++] = f;
        }
    }
    unsigned times = 1 + take(b) % 4;
    for (unsigned i = 0; n && i < times; i++) {
        int k = (int)((take(b) << 8 | take(b)) % (unsigned)n);
        json_t *inner = json_object_get(json, "text_config");
        put(of_text[k] && inner ? inner : json, row[k]->key, value(row[k], b), take(b));
    }
}

/* --- what is accepted --- */

static double bytes_of(const mx_step *s)
{
    double sum = (double)s->program.scratch_bytes + (double)s->program.host_bytes;
    for (int i = 0; i < s->graph.n_nodes; i++)
        if (s->graph.node[i]->op->kind == MX_SOURCE)
            sum += (double)mx_type_bytes(&s->graph.node[i]->type);
    return sum;
}

/* Compiles and throws away; *fits: it is small. */
static mx_status plan(const mx_model_spec *m, const mx_step_options *o, bool *fits)
{
    mx_step s;
    MX_TRY(mx_step_plan(&s, m, o));
    *fits = bytes_of(&s) < MOST_BYTES;
    mx_step_close(&s);
    return MX_OK;
}

/* What an input holds does not matter, as long as kernels survive it. */
static mx_status fill_inputs(const mx_model_spec *m, mx_step *s, mx_arena *a)
{
    for (int i = 0; i < s->graph.n_nodes; i++) {
        const mx_node *n = s->graph.node[i];
        if (strcmp(n->op->name, "input") != 0)
            continue;
        size_t size = mx_type_bytes(&n->type);
        char *host = mx_arena_alloc(a, size ? size : 1);
        if (strcmp(n->name, "tokens") == 0 || strcmp(n->name, "labels") == 0)
            for (int64_t k = 0; k < mx_type_count(&n->type); k++)
                ((int32_t *)host)[k] = (int32_t)(k * 7 % m->summary.vocab);
        if (n->type.dtype == MX_F32 && strcmp(n->name, "pixels") != 0)
            for (int64_t k = 0; k < mx_type_count(&n->type); k++)
                ((float *)host)[k] = 1e-3f;
        MX_TRY(mx_exec_write(s->exec, n->name, host));
    }
    return MX_OK;
}

static mx_status train(const mx_model_spec *m, const mx_step_options *o, mx_arena *a)
{
    mx_session *session = NULL;
    mx_step step = {0};
    mx_status st;
    MX_TRY_OUT(st, mx_session_open(&session, "cpu", 1));
    MX_TRY_OUT(st, mx_step_open(&step, session, m, o));
    MX_TRY_OUT(st, mx_session_init(session, 1));
    MX_TRY_OUT(st, fill_inputs(m, &step, a));
    MX_TRY_OUT(st, mx_exec_run(step.exec));
out:
    mx_session_close(session);
    mx_step_close(&step);
    return st;
}

static mx_status decode(const mx_model_spec *m)
{
    mx_session *session = NULL;
    mx_decode *d = NULL;
    int32_t ids[3] = {0, (int32_t)(m->summary.vocab - 1), (int32_t)(m->summary.vocab / 2)};
    const int32_t *tokens[1] = {ids};
    mx_decode_settings o = {.batch = 1, .max_length = 5, .prompt_hint = 3};
    mx_status st;
    MX_TRY_OUT(st, mx_session_open(&session, "cpu", 1));
    MX_TRY_OUT(st, mx_decode_open(&d, session, m, &o));
    MX_TRY_OUT(st, mx_session_init(session, 1));
    MX_TRY_OUT(st, mx_decode_feed(d, tokens, (int64_t[]){3}));
    MX_TRY_OUT(st, mx_decode_feed(d, tokens, (int64_t[]){1}));
out:
    mx_decode_close(d);
    mx_session_close(session);
    return st;
}

static mx_status try_model(const mx_model_spec *m)
{
    mx_arena a = {0};
    mx_image_spec images = {0};
    mx_step_options o = {
        .kind = MX_STEP_TRAIN,
        .shape = {.batch = 1, .seq = SEQ},
        .optimizer = {.rule = &mx_optimizer_rule_adamw, .b1 = 0.9, .b2 = 0.99, .eps = 1e-8},
        .compile = {.n_threads = 1}};
    if (m->family->images)
        m->family->images(m->config, &images);
    bool fits = false;
    if (m->summary.n_layers > MOST_LAYERS)
        return MX_OK; /* they are all alike, and compiling hundreds takes seconds */
    mx_status st = plan(m, &o, &fits);
    if (!st && fits)
        st = train(m, &o, &a);
    if (!st && fits)
        st = decode(m);
    if (!st && fits && m->family->images) {
        o.shape.images_per_row = images.size ? 1 : 2;
        o.shape.places = images.places;
        st = plan(m, &o, &fits);
        if (!st && fits)
            st = train(m, &o, &a);
    }
    mx_arena_fini(&a);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bytes b = {data, data + n};
    load_models();
    if (!models.n || !n)
        return 0;
    json_t *config = models.config[take(&b) % (unsigned)models.n];
    json_t *json = json_deep_copy(config);
    mx_model_spec m;
    mx_status st = mx_model_from_json(&m, config, "fixture");
    if (!st) {
        mutate(json, m.family, &b);
        mx_model_spec_fini(&m);
        st = mx_model_from_json(&m, json, "fuzz");
    }
    if (!st)
        st = try_model(&m);
    mx_model_spec_fini(&m);
    mx_status_free(st);
    json_decref(json);
    return 0;
}
