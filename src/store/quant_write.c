/* quant_write.c - see quant_write.h.
 *
 * A weight becomes several tensors of the file (parts). The writer asks for their bytes tensor by
 * tensor; the parts of the weight asked for last are held, so memory is one weight's.
 */
#include "store/quant_form.h"

#include "ir/graph.h"
#include "ops/quantize.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of these vLLM reads eh_proj, weights_proj and the gate of a shared expert as they are, whatever
 * config.json says. */
#define STAYS                                                                                      \
    "*embed*,*lm_head*,*norm*,*router*,*.gate.weight,*vision*,*visual*,*projector*,*conv*,"        \
    "*shared_expert_gate*,*.eh_proj.weight,*.weights_proj.weight"

#define EXPERTS "*.experts.*"

static bool is_eight(const mx_quant_write_options *o, const char *name)
{
    return o->eight && mx_glob_any(o->eight, name);
}

const mx_quant_form *mx_quant_form_of(const mx_quant_write_options *o, const char *name)
{
    return is_eight(o, name) ? mx_quant_form_find("int8") : o->form;
}

typedef struct {
    const mx_quant_tensor *t;
    int part; /* -1: copied as it is */
    bool counted;
} item;

typedef struct {
    const mx_quant_write_options *o;
    const mx_quant_tensor *held;
    const char *dtype; /* of the model */
    mx_quant_made m;
    mx_quant_written *out;
} writing;

static void let_go(writing *w)
{
    mx_free(w->m.x);
    for (int i = 0; i < MX_QUANT_PARTS; i++)
        mx_free(w->m.part[i]);
    w->m = (mx_quant_made){0};
    w->held = NULL;
}

static mx_quant_made sized(const writing *w, const mx_quant_tensor *t)
{
    return (mx_quant_made){.rows = t->dim[0], .cols = t->dim[1], .group = w->o->group,
                  .zeros = mx_quant_form_zeros(mx_quant_form_of(w->o, t->name)),
                  .dtype = w->dtype};
}

/* Elements of a weight as they are to be quantized or copied. */
static mx_status read_numbers(const mx_quant_write_options *o, const mx_quant_tensor *t, int64_t at,
                              int64_t n, mx_st_dtype to, void *dst)
{
    const mx_quant_change *c = mx_quant_change_find(o->changes, t->name);
    if (!c || !c->numbers)
        return mx_quant_read(t, at, n, to, dst, NULL);
    int64_t bad;
    bool fits = mx_st_convert(MX_ST_F32, c->numbers + at, to, dst, n, NULL, &bad);
    return fits ? MX_OK : mx_fail(MX_INPUT, "%s: expected a float tensor", t->name);
}

static mx_status hold(writing *w, const mx_quant_tensor *t)
{
    const mx_quant_form *f = mx_quant_form_of(w->o, t->name);
    let_go(w);
    w->m = sized(w, t);
    MX_TRY(mx_alloc((void **)&w->m.x, sizeof(float) * (size_t)t->n, t->name));
    MX_TRY(read_numbers(w->o, t, 0, t->n, MX_ST_F32, w->m.x));
    const mx_quant_change *c = mx_quant_change_find(w->o->changes, t->name);
    w->m.given = c && c->codes ? c : NULL;
    for (int64_t i = 0; i < t->n; i++)
        if (!isfinite(w->m.x[i]))
            return mx_fail(MX_INPUT, "%s: element %" PRId64 " is %g; only finite weights can be "
                           "quantized", t->name, i, (double)w->m.x[i]);
    for (int i = 0; i < f->n_parts; i++) {
        int64_t dim[2] = {1, 1};
        int nd = f->dims(&w->m, i, dim);
        w->m.bytes[i] =
            (size_t)(dim[0] * (nd > 1 ? dim[1] : 1) * mx_st_dtype_bytes(f->part[i].dtype));
        MX_TRY(mx_alloc(&w->m.part[i], w->m.bytes[i], t->name));
    }
    f->make(&w->m);
    w->held = t;
    return MX_OK;
}

static mx_status fetch(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n)
{
    writing *w = ctx;
    item *it = s->user;
    int64_t size = mx_st_dtype_bytes(s->dtype);
    if (it->part < 0)
        return read_numbers(w->o, it->t, (int64_t)at / size, (int64_t)n / size, s->dtype, dst);
    if (w->held != it->t)
        MX_TRY(hold(w, it->t));
    const mx_quant_form *f = mx_quant_form_of(w->o, it->t->name);
    if (s->dtype == MX_ST_F32 && f->part[it->part].dtype == MX_ST_BF16) {
        int64_t bad;
        const uint16_t *scale = (const uint16_t *)w->m.part[it->part] + at / (size_t)size;
        bool fits = mx_st_convert(MX_ST_BF16, scale, MX_ST_F32, dst, (int64_t)n / size, NULL, &bad);
        MX_ASSERT(fits, "%s", s->name);
        return MX_OK;
    }
    if (it->part == 0 && !it->counted) {
        it->counted = true;
        w->out->error += w->m.error;
        w->out->bytes_before += w->m.squares; /* until the end: what the error is a share of */
    }
    memcpy(dst, (const char *)w->m.part[it->part] + at, n);
    return MX_OK;
}

static bool is_layer_matrix(const mx_quant_write_options *o, const char *name, int ndim)
{
    return ndim == 2 && mx_ends_with(name, ".weight") && strpbrk(name, "0123456789") &&
           !mx_glob_any(STAYS, name) && !mx_glob_any(o->keep, name);
}

bool mx_quant_wanted(const mx_quant_write_options *o, const char *name, int ndim,
                     const int64_t *dim)
{
    return is_layer_matrix(o, name, ndim) &&
           mx_quant_form_of(o, name)->takes(dim[0], dim[1], o->group) &&
           !(o->form->no_experts && mx_glob_any(EXPERTS, name));
}

mx_status mx_quant_group(const mx_hf_dir *dir, const mx_quant_write_options *o, int64_t *group)
{
    mx_quant_set set = {0};
    int64_t n = 0;
    MX_TRY(mx_quant_open(&set, dir));
    *group = 128;
    for (int64_t i = 0; i < set.n_tensors; i++) {
        const mx_quant_tensor *t = &set.tensors[i];
        n += t->n;
        while (*group > 32 && is_layer_matrix(o, t->name, t->ndim) && !is_eight(o, t->name) &&
               t->dim[1] % *group)
            *group /= 2;
    }
    if (n < 1000000000)
        *group = 32;
    mx_quant_close(&set);
    return MX_OK;
}

/* A pattern that names nothing is a mistake in it. */
mx_status mx_quant_check_patterns(const mx_hf_dir *dir, const mx_quant_write_options *o)
{
    mx_quant_set set = {0};
    bool kept = !o->keep || !*o->keep, eight = !o->eight || !*o->eight;
    MX_TRY(mx_quant_open(&set, dir));
    for (int64_t i = 0; i < set.n_tensors; i++) {
        const mx_quant_tensor *t = &set.tensors[i];
        kept |= mx_glob_any(o->keep, t->name);
        eight |= is_eight(o, t->name) && mx_quant_wanted(o, t->name, t->ndim, t->dim);
    }
    mx_quant_close(&set);
    if (!kept || !eight)
        return mx_fail(MX_USAGE, "%s=%s names no weight that %s; `maxc inspect %s` lists the names",
                       kept ? "keep_8bit" : "keep", kept ? o->eight : o->keep,
                       kept ? "int8 takes" : "is there", dir->path);
    return MX_OK;
}

/* All experts of a layer in one tensor: no form has names for their scales. */
static bool is_expert_stack(const mx_quant_write_options *o, const char *name, int ndim)
{
    return ndim == 3 && mx_glob_any(EXPERTS, name) && !mx_glob_any(o->keep, name);
}

/* A line for the weights of this name in all layers, once. */
static void note_unfit(const writing *w, const mx_quant_tensor *t)
{
    char name[256], line[400], *all = w->out->unfit;
    const mx_quant_form *f = mx_quant_form_of(w->o, t->name);
    mx_scope_of_all(t->name, name, sizeof name);
    const int64_t *dim = t->dim + t->ndim - 2;
    bool expert = t->ndim == 3 || (f->no_experts && mx_glob_any(EXPERTS, t->name));
    if (expert)
        snprintf(line, sizeof line, "%s (%" PRId64 ", %" PRId64 "): %s is not of experts that %s\n",
                 name, dim[0], dim[1], f->name,
                 t->ndim == 3 ? "lie in one tensor" : "loaders put into one tensor");
    else
        snprintf(line, sizeof line, "%s (%" PRId64 ", %" PRId64 "): %s needs rows of %s\n", name,
                 dim[0], dim[1], f->name, f->needs);
    size_t have = strlen(all);
    if (!strstr(all, line) && have + strlen(line) < sizeof w->out->unfit)
        memcpy(all + have, line, strlen(line) + 1);
}

const mx_quant_change *mx_quant_change_find(const mx_quant_changes *c, const char *name)
{
    for (int i = 0; c && i < c->n; i++)
        if (strcmp(c->of[i].name, name) == 0)
            return &c->of[i];
    return NULL;
}

/* Scales of a float32 model are stored so: loaders that stack experts multiply in the scales'
 * dtype. */
static mx_st_dtype dtype_of_part(const writing *w, const mx_quant_part *part)
{
    mx_st_dtype d = part->dtype;
    return d == MX_ST_BF16 && strcmp(w->dtype, "float32") == 0 ? MX_ST_F32 : d;
}

/* Names of modules, for config.json. */
typedef struct {
    json_t *ignore, *eight;
} modules;

static void enter_module(const writing *w, const modules *m, const mx_quant_tensor *t, bool plain)
{
    json_t *to = plain ? m->ignore : is_eight(w->o, t->name) ? m->eight : NULL;
    if (to && t->ndim == 2 && mx_ends_with(t->name, ".weight"))
        json_array_append_new(to, json_stringn(t->name, strlen(t->name) - 7));
}

/* The tensors of the new file. */
static int64_t list_sources(const writing *w, const mx_quant_set *set, mx_arena *a,
                            mx_st_source *src, const modules *names)
{
    int64_t n = 0;
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const mx_quant_tensor *t = &set->tensors[i];
        const mx_quant_form *f = mx_quant_form_of(w->o, t->name);
        bool plain = !mx_quant_wanted(w->o, t->name, t->ndim, t->dim);
        if (plain && (is_layer_matrix(w->o, t->name, t->ndim) ||
                      is_expert_stack(w->o, t->name, t->ndim)))
            note_unfit(w, t);
        mx_quant_made m = plain ? (mx_quant_made){0} : sized(w, t);
        *(plain ? &w->out->n_kept : &w->out->n_quantized) += 1;
        w->out->numbers += plain ? 0 : (double)t->n;
        enter_module(w, names, t, plain);
        for (int p = plain ? -1 : 0; p < (plain ? 0 : f->n_parts); p++) {
            item *it = MX_NEW(a, item);
            *it = (item){t, p, false};
            src[n] = (mx_st_source){.name = t->name, .ndim = t->ndim, .user = it,
                                    .dtype = t->kind == MX_QUANT_PLAIN ? t->data->dtype
                                                                       : MX_ST_BF16};
            memcpy(src[n].dim, t->dim, sizeof t->dim);
            if (p >= 0) {
                src[n].name = mx_arena_printf(a, "%s%s", t->name, f->part[p].suffix);
                src[n].dtype = dtype_of_part(w, &f->part[p]);
                src[n].ndim = f->dims(&m, p, src[n].dim);
            }
            w->out->bytes_after += (double)mx_st_source_bytes(&src[n]);
            w->out->bits += p >= 0 ? 8 * (double)mx_st_source_bytes(&src[n]) : 0;
            n++;
        }
    }
    return n;
}

/* Of activations in int8 each token has a zero point: with codes around 0 its largest number would
 * lie on 127.5, halfway between two, and the last bit of a float would decide. */
static json_t *numbers_of(const mx_quant_form *f, const char *strategy, int64_t group,
                          const char *actorder)
{
    bool inputs = strcmp(strategy, "token") == 0;
    bool zeros = inputs ? !f->is_float : mx_quant_form_zeros(f);
    json_t *j = json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", f->bits, "type",
                          f->is_float ? "float" : "int", "symmetric", !zeros,
                          "strategy", strategy, "dynamic", inputs);
    if (group)
        json_object_set_new(j, "group_size", json_integer(group));
    if (actorder && !inputs)
        json_object_set_new(j, "actorder", json_string(actorder));
    return j;
}

/* A group of compressed-tensors. Takes `targets`. */
static json_t *group_of(const mx_quant_write_options *o, const mx_quant_form *f, json_t *targets)
{
    bool groups = f->bits == 4;
    json_t *group = json_pack("{s:o, s:o}", "targets", targets, "weights",
                              numbers_of(f, groups ? "group" : "channel", groups ? o->group : 0,
                                         o->actorder));
    json_object_set_new(group, "input_activations",
                        o->activations ? numbers_of(f, "token", 0, NULL) : json_null());
    return group;
}

/* quantization_config of config.json. Takes `ignore`. `eight`: modules in 8 bits beside 4. */
static json_t *config_of(const mx_quant_write_options *o, json_t *ignore, json_t *eight,
                         const char *dtype)
{
    const mx_quant_form *f = o->form;
    if (strcmp(f->method, "fp8") == 0)
        return json_pack("{s:s, s:s, s:s, s:[i,i], s:o}", "quant_method", "fp8", "fmt", "e4m3",
                         "activation_scheme", "dynamic", "weight_block_size", MX_QUANT_BLOCK,
                         MX_QUANT_BLOCK, "modules_to_not_convert", ignore);
    if (strcmp(f->method, "bitsandbytes") == 0)
        return json_pack("{s:s, s:b, s:b, s:s, s:b, s:s, s:s, s:o}", "quant_method", f->method,
                         "load_in_4bit", 1, "load_in_8bit", 0, "bnb_4bit_quant_type", "nf4",
                         "bnb_4bit_use_double_quant", 0, "bnb_4bit_compute_dtype", dtype,
                         "bnb_4bit_quant_storage", "uint8", "llm_int8_skip_modules", ignore);
    json_t *groups = json_pack("{s:o}", "group_0", group_of(o, f, json_pack("[s]", "Linear")));
    if (json_array_size(eight))
        json_object_set_new(groups, "group_1",
                            group_of(o, mx_quant_form_find("int8"), json_incref(eight)));
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "quant_method", f->method, "format", f->stored,
                     "quantization_status", "compressed", "ignore", ignore, "config_groups",
                     groups);
}

/* The dtype in which loaders of the directory compute. */
static const char *dtype_of(const json_t *config)
{
    const char *dtype = json_string_value(json_object_get(config, "dtype"));
    dtype = dtype ? dtype : json_string_value(json_object_get(config, "torch_dtype"));
    bool known = dtype && (strcmp(dtype, "float32") == 0 || strcmp(dtype, "float16") == 0);
    return known ? dtype : "bfloat16";
}

mx_status mx_quant_write(const mx_hf_dir *dir, const char *to, const mx_quant_write_options *o,
                         mx_quant_written *out)
{
    mx_arena a = {0};
    mx_quant_set set = {0};
    writing w = {.o = o, .out = out, .dtype = dtype_of(dir->config)};
    char *text = NULL;
    *out = (mx_quant_written){0};
    modules names = {json_array(), json_array()};
    json_t *config = json_deep_copy(dir->config);
    mx_status st = mx_quant_open(&set, dir);
    if (st)
        goto out;
    mx_st_source *src = MX_NEW_N(&a, mx_st_source, set.n_tensors * MX_QUANT_PARTS);
    int64_t n = list_sources(&w, &set, &a, src, &names);
    if (!mx_quant_find(&set, "lm_head.weight")) /* tied: loaders see a module of its own */
        json_array_append_new(names.ignore, json_string("lm_head"));
    if (!out->n_quantized)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s has no weight that %s takes%s%.300s", dir->path,
                               o->form->name, *out->unfit ? ": " : "", out->unfit));
    json_object_set_new(config, "quantization_config",
                        config_of(o, json_incref(names.ignore), names.eight, w.dtype));
    text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS);
    mx_hf_extra *extra = MX_NEW_N(&a, mx_hf_extra, o->n_more + 1);
    if (o->n_more)
        memcpy(extra, o->more, sizeof *extra * (size_t)o->n_more);
    extra[o->n_more] = (mx_hf_extra){.name = "config.json", .data = text, .n_bytes = strlen(text)};
    mx_hf_save_opts opts = {.writer = {.fetch = fetch, .fetch_ctx = &w}};
    MX_TRY_OUT(st, mx_hf_save(to, src, n, extra, o->n_more + 1, &opts));
    out->error = out->bytes_before > 0 ? sqrt(out->error / out->bytes_before) : 0;
    out->bytes_before = (double)dir->total_bytes;
    out->bits /= out->numbers;
out:
    let_go(&w);
    mx_free(text);
    json_decref(names.ignore);
    json_decref(names.eight);
    json_decref(config);
    mx_quant_close(&set);
    mx_arena_fini(&a);
    return st;
}
