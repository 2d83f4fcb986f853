/* quant_nf4.c - see quant_nf4.h. */
#include "store/quant_nf4.h"

#include "base/str.h"
#include "ops/cpu/nf4.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STEM = 4100, MAX_NAME = 4200, MAX_STATE = 4096, CODES = 16, NESTED_CODES = 256 };

static const char *const state_suffix[] = {".quant_state.bitsandbytes__nf4",
                                           ".quant_state.bitsandbytes__fp4"};
static const char *const part_suffix[] = {".absmax", ".quant_map", ".nested_absmax",
                                          ".nested_quant_map"};

static const mx_st_tensor *sibling(const mx_hf_dir *d, const char *base, const char *suffix)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    return mx_hf_dir_find(d, name);
}

const mx_st_tensor *mx_quant_nf4_state(const mx_hf_dir *d, const char *name)
{
    const mx_st_tensor *t = sibling(d, name, state_suffix[0]);
    return t ? t : sibling(d, name, state_suffix[1]);
}

bool mx_quant_nf4_is_part(const mx_hf_dir *d, const char *name)
{
    char stem[MAX_STEM];
    for (int i = 0; i < 2; i++)
        if (mx_ends_with(name, state_suffix[i]))
            return true;
    for (size_t i = 0; i < sizeof part_suffix / sizeof *part_suffix; i++)
        if (mx_ends_with(name, part_suffix[i])) {
            snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen(part_suffix[i])), name);
            if (mx_quant_nf4_state(d, stem))
                return true;
        }
    return false;
}

/* The weight's shape and the sizes of its blocks. */
static mx_status read_state(const mx_st_tensor *state, mx_quant_tensor *w, struct mx_quant_nf4 *n)
{
    char text[MAX_STATE];
    json_t *j = NULL;
    if (state->dtype != MX_ST_U8 || state->n >= MAX_STATE)
        return mx_fail(MX_INPUT, "%s: expected a JSON text of less than %d bytes", state->name,
                       MAX_STATE);
    MX_TRY(mx_st_read(state, 0, state->n, MX_ST_U8, text, NULL));
    MX_TRY(mx_json_parse(text, (size_t)state->n, state->name, NULL, &j));
    const json_t *shape = json_object_get(j, "shape");
    w->ndim = (int)json_array_size(shape);
    w->n = 1;
    bool fine = w->ndim > 0 && w->ndim <= MX_ST_MAX_DIM;
    for (int i = 0; i < w->ndim && fine; i++) {
        w->dim[i] = json_integer_value(json_array_get(shape, (size_t)i));
        fine = w->dim[i] > 0 && w->dim[i] <= 2 * w->data->n / w->n;
        w->n *= fine ? w->dim[i] : 1;
    }
    n->block = json_integer_value(json_object_get(j, "blocksize"));
    n->nested_block = json_integer_value(json_object_get(j, "nested_blocksize"));
    n->offset = (float)json_number_value(json_object_get(j, "nested_offset"));
    json_decref(j);
    if (!fine || n->block < 1 || (w->n + 1) / 2 != w->data->n)
        return mx_fail(MX_INPUT, "%s: its shape and blocksize do not fit the %" PRId64 " bytes of "
                       "the weight", state->name, w->data->n);
    return MX_OK;
}

mx_status mx_quant_nf4_open(const mx_hf_dir *d, mx_arena *a, mx_quant_tensor *w)
{
    struct mx_quant_nf4 *n = MX_NEW(a, struct mx_quant_nf4);
    const mx_st_tensor *state = mx_quant_nf4_state(d, w->name);
    w->kind = MX_QUANT_NF4;
    w->nf4 = n;
    if (w->data->dtype != MX_ST_U8)
        return mx_fail(MX_INPUT, "expected bytes, found %s", mx_st_dtype_name(w->data->dtype));
    MX_TRY(read_state(state, w, n));
    n->absmax = sibling(d, w->name, ".absmax");
    n->map = sibling(d, w->name, ".quant_map");
    n->nested_absmax = sibling(d, w->name, ".nested_absmax");
    n->nested_map = sibling(d, w->name, ".nested_quant_map");
    int64_t blocks = (w->n + n->block - 1) / n->block;
    if (!n->absmax || !n->map || n->absmax->n != blocks || n->map->n != CODES)
        return mx_fail(MX_INPUT, "expected %" PRId64 " numbers in .absmax and 16 in .quant_map",
                       blocks);
    if (n->absmax->dtype != MX_ST_U8)
        return MX_OK;
    if (!n->nested_absmax || !n->nested_map || n->nested_map->n != NESTED_CODES ||
        n->nested_block < 1 ||
        n->nested_absmax->n != (blocks + n->nested_block - 1) / n->nested_block)
        return mx_fail(MX_INPUT, "its absmax is quantized, but .nested_absmax and "
                       ".nested_quant_map do not fit it");
    return MX_OK;
}

static bool reads_as(const mx_st_tensor *t, const double *want, int n)
{
    float have[NESTED_CODES];
    mx_status st = mx_st_read(t, 0, n, MX_ST_F32, have, NULL);
    bool same = !st;
    mx_status_free(st);
    for (int i = 0; i < n && same; i++)
        same = have[i] == (float)want[i];
    return same;
}

bool mx_quant_nf4_is_standard(const mx_quant_tensor *t)
{
    double value[CODES], map[NESTED_CODES];
    mx_nf4_map(map);
    for (int i = 0; i < CODES; i++)
        value[i] = mx_nf4_values[i];
    return reads_as(t->nf4->map, value, CODES) &&
           (t->nf4->absmax->dtype != MX_ST_U8 || reads_as(t->nf4->nested_map, map, NESTED_CODES));
}

/* The absmax of blocks [first, first + count). */
static mx_status read_absmax(const struct mx_quant_nf4 *n, int64_t first, int64_t count, float *out)
{
    if (n->absmax->dtype != MX_ST_U8)
        return mx_st_read(n->absmax, first, count, MX_ST_F32, out, NULL);
    float map[NESTED_CODES], *outer;
    int64_t from = first / n->nested_block, to = (first + count - 1) / n->nested_block + 1;
    MX_TRY(mx_st_read(n->nested_map, 0, NESTED_CODES, MX_ST_F32, map, NULL));
    MX_TRY(mx_alloc((void **)&outer, sizeof *outer * (size_t)(to - from), n->absmax->name));
    mx_status st = mx_st_read(n->nested_absmax, from, to - from, MX_ST_F32, outer, NULL);
    if (!st)
        st = mx_st_read(n->absmax, first, count, MX_ST_F32, out, NULL); /* codes as numbers */
    for (int64_t i = 0; i < count && !st; i++)
        out[i] = map[(int)out[i] & 255] * outer[(first + i) / n->nested_block - from] + n->offset;
    mx_free(outer);
    return st;
}

mx_status mx_quant_nf4_read(const mx_quant_tensor *t, int64_t first, int64_t count, float *out)
{
    const struct mx_quant_nf4 *n = t->nf4;
    int64_t from = first / n->block, blocks = (first + count - 1) / n->block + 1 - from;
    int64_t bytes = (first + count + 1) / 2 - first / 2;
    float map[CODES], *absmax = NULL;
    uint8_t *codes = NULL;
    mx_status st;
    MX_TRY_OUT(st, mx_st_read(n->map, 0, CODES, MX_ST_F32, map, NULL));
    MX_TRY_OUT(st, mx_alloc((void **)&absmax, sizeof *absmax * (size_t)blocks, t->name));
    MX_TRY_OUT(st, mx_alloc((void **)&codes, (size_t)bytes, t->name));
    MX_TRY_OUT(st, read_absmax(n, from, blocks, absmax));
    MX_TRY_OUT(st, mx_st_read(t->data, first / 2, bytes, MX_ST_U8, codes, NULL));
    for (int64_t i = first; i < first + count; i++) {
        uint8_t two = codes[i / 2 - first / 2];
        out[i - first] = map[i % 2 ? two & 15 : two >> 4] * absmax[i / n->block - from];
    }
out:
    mx_free(absmax);
    mx_free(codes);
    return st;
}
