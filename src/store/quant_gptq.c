/* quant_gptq.c - see quant_gptq.h. */
#include "store/quant_gptq.h"

#include "base/arena.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4200, WORD = 32, RUN = 1 << 16 };
static const char data_suffix[] = ".qweight";
static const char *const part_suffix[] = {".qzeros", ".scales", ".g_idx"};

static const mx_st_tensor *sibling(const mx_hf_dir *d, const char *qweight, const char *suffix)
{
    char name[MAX_NAME];
    int stem = (int)(strlen(qweight) - strlen(data_suffix));
    snprintf(name, sizeof name, "%.*s%s", stem, qweight, suffix);
    return mx_hf_dir_find(d, name);
}

bool mx_quant_gptq_is_part(const mx_hf_dir *d, const char *name)
{
    char data[MAX_NAME];
    for (size_t i = 0; i < sizeof part_suffix / sizeof *part_suffix; i++)
        if (mx_ends_with(name, part_suffix[i])) {
            snprintf(data, sizeof data, "%.*s%s", (int)(strlen(name) - strlen(part_suffix[i])),
                     name, data_suffix);
            return mx_hf_dir_find(d, data) != NULL;
        }
    return false;
}

mx_status mx_gptq_hints_read(const json_t *config, const char *method, mx_gptq_hints *h, bool *is)
{
    *h = (mx_gptq_hints){.awq = method && strcmp(method, "awq") == 0};
    *is = h->awq || (method && strcmp(method, "gptq") == 0);
    if (!*is)
        return MX_OK;
    const char *version = json_string_value(json_object_get(config, "version"));
    const char *format = json_string_value(json_object_get(config, "checkpoint_format"));
    json_int_t bits = json_integer_value(json_object_get(config, "bits"));
    h->second_format = format && strcmp(format, "gptq_v2") == 0;
    h->by_module = json_object_get(config, "dynamic") != NULL;
    if (!h->by_module)
        h->group = json_integer_value(json_object_get(config, "group_size"));
    h->bits = bits == 8 ? 8 : 4;
    if ((bits != 4 && bits != 8) || (h->awq && bits != 4))
        return mx_fail(MX_INPUT, "quantization_config: %s with %lld bits; 4 are read, and 8 of "
                       "gptq", method, (long long)bits);
    if (h->awq && version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return mx_fail(MX_INPUT, "quantization_config: awq of version \"%.20s\"; gemm is read",
                       version);
    if (format && strcmp(format, "gptq") != 0 && !h->second_format && !h->awq)
        return mx_fail(MX_INPUT, "quantization_config: checkpoint_format \"%.20s\"; gptq and "
                       "gptq_v2 are read", format);
    return MX_OK;
}

static bool is_matrix(const mx_st_tensor *t, int64_t rows, int64_t cols)
{
    return t->ndim == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

static bool is_scale(const mx_st_tensor *t)
{
    return t->dtype == MX_ST_F16 || t->dtype == MX_ST_BF16 || t->dtype == MX_ST_F32;
}

/* Inputs of a group, where they are in order; 0: the groups do not fit. */
static int64_t group_of(const struct mx_quant_gptq *g, int64_t said)
{
    if (said)
        return g->groups == (said < 0 ? 1 : (g->in + said - 1) / said) ? said < 0 ? g->in : said
                                                                       : 0;
    return g->groups > 0 && g->in % g->groups == 0 ? g->in / g->groups : 0;
}

/* Where modules differ, the bits follow from how many words of zero points a group has. */
static int bits_of(const mx_gptq_hints *h, int64_t out, const mx_st_tensor *zeros)
{
    bool eight = h->by_module && !h->awq && zeros->ndim == 2 && zeros->dim[1] == (out + 3) / 4;
    bool four = h->by_module && !h->awq && zeros->ndim == 2 && zeros->dim[1] == (out + 7) / 8;
    return eight == four ? h->bits : eight ? 8 : 4;
}

mx_status mx_quant_gptq_open(const mx_hf_dir *d, const mx_gptq_hints *h, mx_arena *a,
                             mx_quant_tensor *w)
{
    const mx_st_tensor *t = w->data;
    struct mx_quant_gptq *g = MX_NEW(a, struct mx_quant_gptq);
    *g = (struct mx_quant_gptq){.zeros = sibling(d, t->name, ".qzeros"),
                                .scales = sibling(d, t->name, ".scales"),
                                .group_of = sibling(d, t->name, ".g_idx"), .awq = h->awq,
                                .plus = !h->awq && !h->second_format};
    if (t->dtype != MX_ST_I32 || t->ndim != 2 || !t->n || t->n > INT64_MAX / WORD)
        return mx_fail(MX_INPUT, "expected an I32 matrix");
    if (!g->zeros || !g->scales)
        return mx_fail(MX_INPUT, "its .qzeros or .scales are missing");
    g->bits = bits_of(h, t->dim[1], g->zeros);
    int64_t per = WORD / g->bits;
    g->in = g->awq ? t->dim[0] : t->dim[0] * per;
    g->out = g->awq ? t->dim[1] * per : t->dim[1];
    g->groups = g->scales->ndim == 2 ? g->scales->dim[0] : 0;
    g->group = group_of(g, h->group);
    if (!is_scale(g->scales) || !is_matrix(g->scales, g->groups, g->out) ||
        g->zeros->dtype != MX_ST_I32 || !is_matrix(g->zeros, g->groups, (g->out + per - 1) / per))
        return mx_fail(MX_INPUT, "its .qzeros and .scales do not fit %" PRId64 " inputs and "
                       "%" PRId64 " outputs", g->in, g->out);
    if (g->group_of && (g->group_of->dtype != MX_ST_I32 || g->group_of->n != g->in))
        return mx_fail(MX_INPUT, "its .g_idx does not fit %" PRId64 " inputs", g->in);
    if (!g->group && (h->group || !g->group_of))
        return mx_fail(MX_INPUT, "%" PRId64 " groups of %" PRId64 " inputs, which is not what "
                       "group_size says (%" PRId64 ")", g->groups, g->in, h->group);
    w->kind = MX_QUANT_GPTQ;
    w->gptq = g;
    w->bits = g->bits;
    w->block_cols = g->group;
    w->ndim = 2;
    w->dim[0] = w->rows = g->out;
    w->dim[1] = w->cols = g->in;
    w->n = g->in * g->out;
    w->n_matrices = 1;
    return MX_OK;
}

/* A stored weight in memory. */
typedef struct {
    uint32_t *words, *zeros;
    float *scale;
    int32_t *group_of;
} stored;

static void forget(stored *s)
{
    mx_free(s->words);
    mx_free(s->zeros);
    mx_free(s->scale);
    mx_free(s->group_of);
}

static mx_status fetch(const mx_quant_tensor *t, stored *s)
{
    const struct mx_quant_gptq *g = t->gptq;
    size_t word = sizeof(uint32_t);
    MX_TRY(mx_alloc((void **)&s->words, word * (size_t)t->data->n, t->name));
    MX_TRY(mx_alloc((void **)&s->zeros, word * (size_t)g->zeros->n, t->name));
    MX_TRY(mx_alloc((void **)&s->scale, sizeof(float) * (size_t)g->scales->n, t->name));
    MX_TRY(mx_alloc((void **)&s->group_of, sizeof(int32_t) * (size_t)g->in, t->name));
    MX_TRY(mx_st_read(t->data, 0, t->data->n, MX_ST_I32, s->words, NULL));
    MX_TRY(mx_st_read(g->zeros, 0, g->zeros->n, MX_ST_I32, s->zeros, NULL));
    MX_TRY(mx_st_read(g->scales, 0, g->scales->n, MX_ST_F32, s->scale, NULL));
    if (g->group_of)
        MX_TRY(mx_st_read(g->group_of, 0, g->in, MX_ST_I32, s->group_of, NULL));
    for (int64_t i = 0; i < g->in; i++) {
        if (!g->group_of)
            s->group_of[i] = (int32_t)(i / g->group);
        if (s->group_of[i] < 0 || s->group_of[i] >= g->groups)
            return mx_fail(MX_INPUT, "%s: input %" PRId64 " is of group %d; there are %" PRId64,
                           g->group_of->name, i, s->group_of[i], g->groups);
    }
    return MX_OK;
}

/* Where output o lies in its word. */
static int shift_of(const struct mx_quant_gptq *g, int64_t o)
{
    static const int nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return g->awq ? 4 * nibble[o % 8] : (int)(o % (WORD / g->bits)) * g->bits;
}

/* Inputs [from, from + n) of output o. */
static void one_row(const struct mx_quant_gptq *g, const stored *s, int64_t o, int64_t from,
                    int64_t n, float *out)
{
    int64_t per = WORD / g->bits, zero_words = (g->out + per - 1) / per;
    uint32_t mask = (1u << g->bits) - 1;
    int shift = shift_of(g, o);
    for (int64_t i = from; i < from + n; i++) {
        int64_t k = s->group_of[i];
        uint32_t q = g->awq ? s->words[i * (g->out / per) + o / per] >> shift
                            : s->words[i / per * g->out + o] >> (i % per * g->bits);
        uint32_t z = s->zeros[k * zero_words + o / per] >> shift;
        int value = (int)(q & mask) - (int)((z + g->plus) & mask);
        out[i - from] = (float)value * s->scale[k * g->out + o];
    }
}

mx_status mx_quant_gptq_read(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                             void *dst, mx_st_scan *scan)
{
    const struct mx_quant_gptq *g = t->gptq;
    stored s = {0};
    float *run = NULL;
    int64_t bad = 0;
    mx_status st;
    MX_TRY_OUT(st, fetch(t, &s));
    MX_TRY_OUT(st, mx_alloc((void **)&run, sizeof *run * RUN, t->name));
    for (int64_t at = first; at < first + count;) {
        int64_t from = at % g->in, n = g->in - from;
        n = n < RUN ? n : RUN;
        n = n < first + count - at ? n : first + count - at;
        one_row(g, &s, at / g->in, from, n, run);
        if (!mx_st_convert(MX_ST_F32, run, to, dst, n, scan, &bad))
            MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s cannot be read as %s", t->name,
                                   mx_st_dtype_name(to)));
        dst = (char *)dst + n * mx_st_dtype_bytes(to);
        at += n;
    }
out:
    forget(&s);
    mx_free(run);
    return st;
}
