/* weights.c - loading checks everything before it changes anything.
 *
 * A weight is looked up under its own name and then under the family's other spelling. Tensors that
 * no weight asks for are errors too, except what old checkpoints carry along: rotary tables, causal
 * masks, and a head that is tied to the embedding. Quantized weights are read as plain numbers
 * (store/quant.h). A weight whose name holds a `*` is a stack of the checkpoint's weights 0, 1, 2:
 * it is stacked on loading and written part by part on saving. Where a family's checkpoints also
 * exist with experts fused or separate, its weights are put together from the parts it names.
 */
#include "store/weights.h"

#include "ir/placement.h"
#include "models/classes.h"
#include "ops/load.h"
#include "store/staged_load.h"
#include "store/quant.h"
#include "store/quant_encode.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const ignorable[] = {"*rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias",
                                        "*.masked_bias", "*position_ids"};

/* Is this a tensor of a layer after the model's last? Those are MTP layers. */
static bool is_of_mtp_layer(const char *name, const mx_model_spec *m)
{
    const char *prefix = m->family->layer_prefix;
    return prefix && mx_starts_with(name, prefix) &&
           strtoll(name + strlen(prefix), NULL, 10) >= m->summary.n_layers;
}

static bool is_ignorable(const char *name, const mx_model_spec *m)
{
    for (size_t i = 0; i < sizeof ignorable / sizeof *ignorable; i++)
        if (mx_glob_match(ignorable[i], name))
            return true;
    if (is_of_mtp_layer(name, m))
        return true;
    if (mx_glob_any(m->family->unused, name) || mx_glob_any(m->family->not_built, name))
        return true;
    return (m->summary.tied || mx_classes_of(m->json)) && mx_ends_with(name, "lm_head.weight");
}

static mx_status find_tensor(const mx_quant_set *q, const mx_model *family, const char *name,
                             mx_arena *a, mx_quant_tensor *out)
{
    char other[512];
    MX_TRY(mx_quant_resolve(q, name, a, out));
    if (!out->name && family->other_name && family->other_name(name, other, sizeof other))
        MX_TRY(mx_quant_resolve(q, other, a, out));
    return MX_OK;
}

static bool same_shape(const mx_quant_tensor *t, const mx_type *want)
{
    if (t->ndim != want->ndim)
        return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] != want->dim[i])
            return false;
    return true;
}

/* Of the checkpoint's tensor: two 4-bit codes of a row lie in a byte. */
static mx_type stored_type(const mx_var *v)
{
    mx_type t = *mx_var_whole(v);
    if (v->attr.quantized && t.dtype == MX_U8)
        t.dim[t.ndim - 1] *= 2;
    return t;
}

enum { MAX_LISTED = 40 };

typedef struct {
    mx_str text;
    int n;
    bool no_memory; /* for the search: what is listed says nothing about the file */
} list;

static void add(list *l, const char *fmt, ...) MX_PRINTF(2, 3);
static void add(list *l, const char *fmt, ...)
{
    char line[768];
    if (l->n++ >= MAX_LISTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    mx_str_addf(&l->text, "\n  %s", line);
}

static mx_status report(list *l, const char *path)
{
    if (l->n > MAX_LISTED)
        mx_str_addf(&l->text, "\n  ... and %d more", l->n - MAX_LISTED);
    mx_status st = MX_OK;
    if (l->no_memory)
        st = mx_fail(MX_MEMORY, "out of memory while %s was looked through:%s", path,
                     mx_str_text(&l->text));
    else if (l->n)
        st = mx_fail(MX_INPUT, "%s does not fit its config.json: %d tensors are wrong:%s\n"
                     "Check that config.json and the weights belong together.", path, l->n,
                     mx_str_text(&l->text));
    mx_str_fini(&l->text);
    return st;
}

/* Where a weight is read from: one tensor whole, or parts in the family's other spelling. */
typedef struct {
    mx_quant_tensor whole; /* name NULL: not so */
    int n_parts;
    mx_weight_part part[MX_MAX_PARTS];
    mx_quant_tensor tensor[MX_MAX_PARTS];
} origin;

/* What is loaded: weight i of the session from from[i]. */
typedef struct {
    mx_arena arena;
    mx_quant_set q;
    origin *from;
    bool *used; /* of each of the set's tensors */
    int n_new, n_passed; /* of MTP layers: not there, and not asked for */
    int n_not_built;     /* of parts that the family leaves out */
    bool may_score;      /* a head for scores may be new: the directory's model has none */
    int n_heads;         /* such heads */
} matching;

static void mark_used(matching *mt, const mx_quant_tensor *t)
{
    int64_t n = t->kind == MX_QUANT_STACK ? t->dim[0] : 1;
    for (int64_t i = 0; i < n; i++) {
        const mx_quant_tensor *one =
            t->kind == MX_QUANT_STACK ? t->parts[i] : mx_quant_find(&mt->q, t->name);
        mt->used[one - mt->q.tensors] = true;
    }
}

/* Does the tensor fit the part: the weight's dims, but `of` in the cut one? */
static bool part_fits(const mx_quant_tensor *t, const mx_weight_part *p, const mx_type *want)
{
    int64_t dim[MX_ST_MAX_DIM];
    memcpy(dim, t->dim, sizeof dim);
    if (t->ndim != want->ndim || t->ndim < 2)
        return false;
    if (p->transposed) {
        dim[t->ndim - 1] = t->dim[t->ndim - 2];
        dim[t->ndim - 2] = t->dim[t->ndim - 1];
    }
    for (int i = 0; i < t->ndim; i++)
        if (dim[i] != (i == p->cut ? p->of : want->dim[i]))
            return false;
    return true;
}

/* The weight in the family's other spelling, if all of its parts are there. */
static mx_status match_parts(matching *mt, const mx_model *family, const mx_var *v, origin *o,
                             list *bad)
{
    char have[256];
    const mx_type whole = stored_type(v), *want = &whole;
    int n = family->other_parts ? family->other_parts(v->name, want, o->part) : 0;
    for (int i = 0; i < n; i++) {
        MX_TRY(mx_quant_resolve(&mt->q, o->part[i].name, &mt->arena, &o->tensor[i]));
        if (!o->tensor[i].name)
            return MX_OK;
    }
    for (int i = 0; i < n; i++) {
        mark_used(mt, &o->tensor[i]);
        if (!part_fits(&o->tensor[i], &o->part[i], want))
            add(bad, "shape: %s is %s, which does not make %s", o->tensor[i].name,
                mx_quant_describe(&o->tensor[i], have, sizeof have), v->name);
    }
    o->n_parts = n;
    return MX_OK;
}

static void match_one(matching *mt, const mx_model_spec *m, const mx_var *v, origin *o, list *bad)
{
    mx_quant_tensor *t = &o->whole;
    char have[256];
    mx_str want = {0};
    mx_type whole = stored_type(v);
    mx_type_print(&want, &whole);
    mx_status st = find_tensor(&mt->q, m->family, v->name, &mt->arena, t);
    if (!st && (!t->name || !same_shape(t, &whole)))
        st = match_parts(mt, m->family, v, o, bad);
    bad->no_memory |= mx_status_code(st) == MX_MEMORY;
    if (st)
        add(bad, "%s", mx_status_text(st));
    else if (!t->name && !o->n_parts && is_of_mtp_layer(v->name, m))
        mt->n_new++; /* left to its initial value */
    else if (!t->name && mt->may_score && strcmp(v->name, MX_SCORE_WEIGHT) == 0)
        mt->n_heads++; /* likewise */
    else if (!t->name && !o->n_parts)
        add(bad, "missing: %s %s", v->name, mx_str_text(&want));
    else if (t->name && !o->n_parts && !same_shape(t, &whole))
        add(bad, "shape: %s is %s, expected %s", t->name,
            mx_quant_describe(t, have, sizeof have), mx_str_text(&want));
    if (t->name)
        mark_used(mt, t); /* also when it is misshapen: it has been named then */
    mx_status_free(st);
    mx_str_fini(&want);
}

static mx_status match(matching *mt, mx_session *s, const mx_model_spec *m, const mx_hf_dir *dir)
{
    list bad = {0};
    mt->may_score = !mx_classes_of(dir->config);
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_session_var(s, i)->attr.kind == MX_VAR_WEIGHT && !mx_session_var(s, i)->attr.adapter)
            match_one(mt, m, mx_session_var(s, i), &mt->from[i], &bad);
    for (int64_t i = 0; i < mt->q.n_tensors; i++)
        if (!mt->used[i] && mx_session_is_stage(s))
            continue; /* another stage's */
        else if (!mt->used[i] && !is_ignorable(mt->q.tensors[i].name, m))
            add(&bad, "extra: %s", mt->q.tensors[i].name);
        else if (!mt->used[i]) {
            mt->n_passed += is_of_mtp_layer(mt->q.tensors[i].name, m);
            mt->n_not_built += mx_glob_any(m->family->not_built, mt->q.tensors[i].name);
        }
    return report(&bad, dir->path);
}

/* A matrix (rows, cols) of the tensor into the weight's, which has w_cols columns,
 * at (row, col). */
typedef struct {
    const char *src;
    char *dst;
    int64_t rows, cols; /* of the piece, as the weight has it */
    int64_t s_row, s_col, w_cols; /* steps in the tensor's matrix; columns of the weight's */
    size_t item;
} block;

static void copy_block(const block *k)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->cols; c++)
            memcpy(k->dst + (size_t)(r * k->w_cols + c) * k->item,
                   k->src + (size_t)(r * k->s_row + c * k->s_col) * k->item, k->item);
}

/* One part, matrix by matrix; the buffer holds one matrix of the tensor. */
static mx_status load_part(const mx_quant_tensor *t, const mx_weight_part *p, const mx_type *want,
                           char *host, mx_st_scan *scan)
{
    int nd = want->ndim;
    int64_t t_rows = t->dim[nd - 2], t_cols = t->dim[nd - 1], n = t_rows * t_cols;
    int64_t w_rows = want->dim[nd - 2], w_cols = want->dim[nd - 1];
    size_t item = mx_dtype_bytes(want->dtype);
    bool by_row = p->cut == nd - 2, by_col = p->cut == nd - 1;
    MX_ASSERT(by_row || by_col);
    block k = {.rows = by_row ? p->count : w_rows, .cols = by_col ? p->count : w_cols,
               .s_row = p->transposed ? 1 : t_cols, .s_col = p->transposed ? t_cols : 1,
               .w_cols = w_cols, .item = item};
    int64_t skip = p->from * (by_row ? k.s_row : k.s_col), at = p->to * (by_row ? w_cols : 1);
    void *matrix;
    MX_TRY(mx_alloc(&matrix, (size_t)n * item, t->name));
    mx_status st = MX_OK;
    for (int64_t e = 0; e < t->n / n && !st; e++) {
        mx_st_scan one = {0};
        st = mx_quant_read(t, e * n, n, mx_st_dtype_of(want->dtype), matrix, &one);
        scan->n_nan += one.n_nan;
        scan->n_inf += one.n_inf;
        k.src = (const char *)matrix + (size_t)skip * item;
        k.dst = host + (size_t)(e * w_rows * w_cols + at) * item;
        copy_block(&k);
    }
    mx_free(matrix);
    return st;
}

/* This rank's part of a tensor that is whole in host memory. */
static mx_status write_box(mx_session *s, mx_var *v, const void *whole)
{
    mx_box_span p;
    size_t item = mx_dtype_bytes(v->type.dtype);
    for (mx_box_walk w = mx_box_begin(v->box, &v->type); mx_box_next(&w, &p);)
        MX_TRY(mx_var_write_part(s, v, p.local, p.n, (const char *)whole + (size_t)p.whole * item));
    return MX_OK;
}

/* A weight from parts: put together in the weight where the host can write it, else in a buffer. */
static mx_status load_parts(mx_session *s, mx_var *v, const origin *o, mx_st_scan *scan)
{
    void *host = mx_var_host(s, v);
    bool direct = host && !v->box;
    if (!direct)
        MX_TRY(mx_alloc(&host, mx_type_bytes(mx_var_whole(v)), v->name));
    mx_status st = MX_OK;
    for (int i = 0; i < o->n_parts && !st; i++)
        st = load_part(&o->tensor[i], &o->part[i], mx_var_whole(v), host, scan);
    if (!st && v->box)
        st = write_box(s, v, host);
    else if (!st && !direct)
        st = mx_var_write(s, v, host);
    v->written |= !st;
    if (!direct)
        mx_free(host);
    return st;
}

/* Codes of a weight from parts: of its numbers, put together first. */
static mx_status encode_parts(mx_session *s, mx_var *v, const origin *o, mx_st_scan *scan)
{
    mx_type want = stored_type(v);
    void *numbers;
    want.dtype = MX_F32;
    MX_TRY(mx_alloc(&numbers, mx_type_bytes(&want), v->name));
    mx_status st = MX_OK;
    for (int i = 0; i < o->n_parts && !st; i++)
        st = load_part(&o->tensor[i], &o->part[i], &want, numbers, scan);
    if (!st)
        st = mx_quantized_load(
            s, v, &(mx_quantized_source){.t = &o->tensor[0], .numbers = numbers}, scan);
    mx_free(numbers);
    return st;
}

/* What was done about MTP layers, and about parts that are left out. */
static void note_unused(const matching *mt, const mx_model *family, const mx_hf_dir *dir,
                        mx_str *notes)
{
    if (mt->n_not_built)
        mx_str_addf(notes, "%s: %d tensors are not used, their part of the model is not built: "
                    "%s\n", dir->path, mt->n_not_built, family->not_built);
    if (mt->n_passed)
        mx_str_addf(notes, "%s: %d tensors after the last layer are not used (multi-token "
                    "prediction; mtp_num_layers trains them)\n", dir->path, mt->n_passed);
    if (mt->n_heads)
        mx_str_addf(notes, "%s: " MX_SCORE_WEIGHT " is not there and begins at random\n",
                    dir->path);
    if (mt->n_new)
        mx_str_addf(notes, "%s: %d weights of MTP layers are not there and begin at random\n",
                    dir->path, mt->n_new);
}

/* An infinite limit is none. */
static bool may_be_infinite(const mx_model_spec *m, mx_session *s, int i)
{
    return mx_glob_any(m->family->limits, mx_session_var(s, i)->name);
}

/* The weights that are tensors of the checkpoint all together, then those made from parts. */
static mx_status load_all(matching *mt, mx_session *s, const mx_model_spec *m, bool allow_nonfinite)
{
    int64_t n = mx_session_count(s), n_loads = 0, n_seen = 0;
    mx_staged_load *loads = MX_NEW_N(&mt->arena, mx_staged_load, n);
    mx_st_seen *seen = MX_NEW_N(&mt->arena, mx_st_seen, n);
    for (int i = 0; i < n; i++)
        if (mt->from[i].whole.name && !mt->from[i].n_parts && !mx_session_var(s, i)->attr.quantized)
            loads[n_loads++] = (mx_staged_load){mx_session_var(s, i), &mt->from[i].whole, {0}};
    MX_TRY(mx_staged_load_all(s, loads, n_loads));
    n_loads = 0;
    for (int i = 0; i < n; i++) {
        const origin *o = &mt->from[i];
        const mx_quant_tensor *t = o->n_parts ? &o->tensor[0] : &o->whole;
        if (!t->name)
            continue;
        mx_st_seen one = {.tensor = t->data, .count = t->n};
        mx_var *v = mx_session_var(s, i);
        if (v->attr.quantized && o->n_parts)
            MX_TRY(encode_parts(s, v, o, &one.scan));
        else if (v->attr.quantized)
            MX_TRY(mx_quantized_load(s, v, &(mx_quantized_source){.t = t}, &one.scan));
        else if (o->n_parts)
            MX_TRY(load_parts(s, v, o, &one.scan));
        else
            one.scan = loads[n_loads++].scan;
        if (!allow_nonfinite && !may_be_infinite(m, s, i))
            seen[n_seen++] = one;
    }
    return mx_st_check_finite(seen, n_seen);
}

mx_status mx_weights_load(mx_session *s, const mx_model_spec *m, mx_hf_dir *dir, mx_load_options o)
{
    matching mt = {0};
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_quant_open(&mt.q, dir));
    mt.from = MX_NEW_N(&mt.arena, origin, mx_session_count(s));
    mt.used = MX_NEW_N(&mt.arena, bool, mt.q.n_tensors);
    MX_TRY_OUT(st, match(&mt, s, m, dir));
    MX_TRY_OUT(st, mx_status_wrap(load_all(&mt, s, m, o.allow_nonfinite), "%s", dir->path));
    if (o.notes)
        note_unused(&mt, m->family, dir, o.notes);
    st = mx_session_refresh_copies(s);
out:
    mx_quant_close(&mt.q);
    mx_arena_fini(&mt.arena);
    return st;
}

/* --- saving --- */

typedef struct {
    mx_session *session;
    mx_dtype dtype;
    const mx_var *held; /* whose bytes `host` holds */
    void *host;
} saver;

/* The writer asks for a tensor's bytes in order, so one converted tensor is held at a time. */
static mx_status fetch(void *ctx, const mx_st_source *src, uint64_t at, void *dst, size_t n)
{
    saver *sv = ctx;
    const mx_var *v = src->user;
    if (sv->held != v) {
        mx_free(sv->host);
        sv->host = NULL;
        sv->held = NULL;
        void *raw = NULL;
        mx_type out = v->type;
        out.dtype = mx_dtype_is_float(v->type.dtype) ? sv->dtype : v->type.dtype;
        MX_TRY(mx_alloc(&raw, mx_type_bytes(&v->type), v->name));
        mx_status st = mx_var_read(sv->session, v, raw);
        if (!st)
            st = mx_alloc(&sv->host, mx_type_bytes(&out), v->name);
        if (!st) {
            mx_tensor a = {raw, v->type}, b = {sv->host, out};
            int64_t total = mx_type_count(&out);
            for (int64_t i = 0; i < total; i += 4096) {
                float run[4096];
                int64_t k = total - i < 4096 ? total - i : 4096;
                mx_load_run_f32(&a, i, k, run);
                mx_store_run_f32(&b, i, k, run);
            }
            sv->held = v;
        }
        mx_free(raw);
        MX_TRY(st);
    }
    memcpy(dst, (const char *)sv->host + at, n);
    return MX_OK;
}

char *mx_weights_config(const mx_model_spec *m, mx_dtype dtype)
{
    json_t *j = json_deep_copy(m->json);
    const char *key = json_object_get(j, "torch_dtype") ? "torch_dtype" : "dtype";
    json_object_set_new(j, key, json_string(mx_dtype_name(dtype)));
    json_object_del(j, "quantization_config");
    json_object_del(json_object_get(j, "text_config"), "quantization_config");
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

mx_status mx_weights_save(mx_session *s, const mx_model_spec *m, const char *dir, mx_dtype dtype)
{
    mx_arena scratch = {0};
    saver sv = {.session = s, .dtype = dtype};
    int64_t n = 0;
    mx_st_source *src = MX_NEW_N(&scratch, mx_st_source, mx_session_count(s));
    for (int i = 0; i < mx_session_count(s); i++) {
        mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT || v->attr.adapter)
            continue;
        bool numbers = mx_dtype_is_float(v->type.dtype); /* a table of places stays one */
        src[n] = (mx_st_source){.name = v->name,
                                .dtype = mx_st_dtype_of(numbers ? dtype : v->type.dtype),
                                .ndim = v->type.ndim, .user = v};
        for (int k = 0; k < v->type.ndim; k++)
            src[n].dim[k] = v->type.dim[k];
        n++;
    }
    char *config = mx_weights_config(m, dtype);
    mx_hf_extra extra = {.name = "config.json", .data = config, .n_bytes = strlen(config)};
    mx_hf_save_opts opts = {.writer = {.fetch = fetch, .fetch_ctx = &sv}};
    mx_status st = mx_hf_save(dir, src, n, &extra, 1, &opts);
    mx_free(sv.host);
    mx_free(config);
    mx_arena_fini(&scratch);
    return st;
}
