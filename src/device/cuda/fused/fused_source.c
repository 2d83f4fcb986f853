/* fused_source.c - writing a kernel for a fused group.
 *
 * Two forms. Flat (nothing looks along a row, only scalars are broadcast): each thread takes W
 * neighbouring elements. Rows: L lanes share a row of C elements, W neighbours each, U times; for C
 * up to 64 W a row has a warp or part of one and a block several rows, beyond that a block has one.
 * All values live in registers; a reduction goes through shuffles (and shared memory between
 * warps); a row map stages its operand in shared memory. With column sums a block takes every
 * grid-th row, adds up its own rows in registers and leaves them in `sums`, which a second kernel
 * adds up in a fixed order. A small block of that kind prefetches the inputs of its next row before
 * it works on one, and loads what all rows share once. An input or result that is a strided view
 * (op.h) is found by its runs.
 *
 * W is 8 where 16-byte loads of 8 bf16 are aligned, else 1. Arithmetic is float32. What a step
 * computes is its op's own expression (op.h), the same text the CPU compiles.
 */
#include "device/cuda/fused/fused_source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The chip's own exponential and quotient are right to about 2^-21, which a result rounded to 2^-9
 * does not show; the library's take several times the instructions. */
static const char fast[] =
    "#define MX_T_EXP(x) __expf(x)\n"
    "#define MX_T_SIGMOID(x) __fdividef(1.f, 1.f + __expf(-(x)))\n";
static const char exact[] =
    "#define MX_T_EXP(x) expf(x)\n#define MX_T_SIGMOID(x) (1 / (1 + expf(-(x))))\n";
/* As in pdl.cuh: the next kernel may come, and this one waits for those before it. Inputs are not
 * declared __restrict__: loads of what nothing can write would be moved ahead of the wait. */
static const char early[] =
    "#if __CUDA_ARCH__ >= 900\n"
    "  asm volatile(\"griddepcontrol.launch_dependents;\");\n"
    "  asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
    "#endif\n";
static const char prelude[] =
    "typedef float real;\n#define MX_T_LOG(x) logf(x)\n#define MX_T_ERF(x) erff(x)\n"
    "#define MX_T_TANH(x) tanhf(x)\n"
    "#define MX_T_FLOOR(x) floorf(x)\n#define MX_T_SQRT(x) sqrtf(x)\n"
    "#define MX_T_SIN(x) sinf(x)\n#define MX_T_COS(x) cosf(x)\n"
    "#define MX_T_GELU_GATE(x) MX_T_SIGMOID((real)1.5957691216057308 * ((x) + (real)0.044715 * (x) "
    "* (x)"
    " * (x)))\n#define NEG_INF __int_as_float(0xff800000)\n";
/* In the order in which one thread would make all of them, so every element has its bits. */
static const char running_sum[] =
    "__device__ float running_sum(const float *x, int i, int n, bool reverse) {\n"
    "  float sum = 0;\n"
    "  if (reverse) for (int k = n - 1; k >= i; k--) sum += x[PLACE(k)];\n"
    "  else for (int k = 0; k <= i; k++) sum += x[PLACE(k)];\n  return sum;\n}\n";

enum {
    LONGEST_STAGED = 10752, /* elements; 9 words of 8 in 48 KB */
    LONGEST_IN_WARP = 64,   /* pieces of W; the blocks of longer rows are large enough */
    FEW_LANES = 128,        /* of a row, whose block prefetches the next row */
    FLAT_BLOCK = 256,
    ANY_REGISTERS = 256     /* threads of a block that fits whatever registers a thread has */
};

typedef struct {
    const mx_group *g;
    const mx_tensor *in, *results; /* NULL: all dense */
    int64_t rows, cols, total;
    bool flat;
    int w, lanes, u, per_block; /* per_block: rows of a block */
    mx_str *out;
} writer;

static bool narrow(const writer *k, const mx_type *t)
{
    if (k->flat)
        return mx_type_count(t) == 1 && k->total != 1;
    return t->ndim == 0 || (t->dim[t->ndim - 1] == 1 && k->cols != 1);
}

/* Strided views (op.h): are there any, and do their 16-byte pieces begin at 16 bytes? */
static void find_views(const writer *k, bool *any, bool *aligned)
{
    *any = false, *aligned = true;
    for (int i = 0; k->in && i < k->g->n_ext + k->g->n_out; i++) {
        const mx_tensor *t = i < k->g->n_ext ? &k->in[i] : &k->results[i - k->g->n_ext];
        *any |= t->pitch > 0;
        *aligned &= !t->pitch || ((t->run | t->pitch) % 8 == 0 && (uintptr_t)t->data % 16 == 0);
    }
}

static void geometry(writer *k)
{
    bool views, aligned;
    find_views(k, &views, &aligned);
    const mx_shape *s = &k->g->space;
    k->cols = s->ndim ? s->dim[s->ndim - 1] : 1;
    k->rows = 1;
    for (int i = 0; i + 1 < s->ndim; i++)
        k->rows *= s->dim[i];
    k->total = k->rows * k->cols;
    k->flat = mx_group_is_flat(k->g) && !views;
    if (k->flat) {
        k->w = k->total % 8 == 0 ? 8 : 1;
        return;
    }
    k->w = k->cols % 8 == 0 && aligned ? 8 : 1;
    int64_t need = (k->cols + k->w - 1) / k->w;
    k->lanes = 1;
    while (k->lanes < need && k->lanes < 32)
        k->lanes *= 2;
    if (need > LONGEST_IN_WARP) {
        k->lanes = (int)((need + 31) / 32 * 32);
        k->lanes = k->lanes < 1024 ? k->lanes : 1024;
    }
    k->u = (int)((need + k->lanes - 1) / k->lanes);
    k->per_block = k->lanes <= 32 ? 256 / k->lanes : 1;
}

/* float64 are parts of norms, which end as float32: they are kept so, and computed in float32. */
static const char *c_type(mx_dtype d)
{
    return d == MX_BF16   ? "u16"
           : d == MX_F32 ? "float"
           : d == MX_I32 ? "i32"
           : d == MX_F64 ? "double"
           : d == MX_I8  ? "signed char" /* codes of a table, as an input */
                         : NULL;
}

/* The offset of a row of this value, as C text of `row`; in the flat form there are no rows.
 * Neighbouring dims that the value has, or has not, count as one; those of a part's runs are not
 * neighbours of those outside. place: the tensor it lies in; NULL: dense. */
static void row_offset(writer *k, const mx_type *t, const mx_tensor *place)
{
    if (k->flat) {
        mx_str_add(k->out, "0");
        return;
    }
    const mx_shape *s = &k->g->space;
    int64_t step = t->ndim ? t->dim[t->ndim - 1] : 1, below = 1;
    int64_t run = place && place->pitch ? place->run : -1;
    const char *plus = "";
    if (step == run)
        step = place->pitch;
    for (int i = s->ndim - 2; i >= 0;) {
        int64_t size = 1;
        int at = t->ndim - (s->ndim - i);
        bool has = at >= 0 && t->dim[at] != 1;
        for (; i >= 0; i--, at--) {
            if ((s->dim[i] != 1 && (at >= 0 && t->dim[at] != 1) != has) ||
                (has && size > 1 && step * size == run))
                break;
            size *= s->dim[i];
        }
        if (has) {
            mx_str_addf(k->out, "%s(i64)(row", plus);
            if (below > 1)
                mx_str_addf(k->out, " / %lld", (long long)below);
            if (i >= 0)
                mx_str_addf(k->out, " %% %lld", (long long)size);
            mx_str_addf(k->out, ") * %lld", (long long)step);
            plus = " + ";
            step = step * size == run ? place->pitch : step * size;
        }
        below *= size;
    }
    if (!*plus)
        mx_str_add(k->out, "0");
}

static const mx_tensor *input_at(const writer *k, int i)
{
    return k->in ? &k->in[i] : NULL;
}
static void load_value(writer *k, int i)
{
    const mx_type *t = &k->g->ext[i];
    bool bf = t->dtype == MX_BF16;
    if (narrow(k, t)) {
        mx_str_addf(k->out, "  const float v%d = %s(in%d[", i, bf ? "bf_get" : "(float)", i);
        row_offset(k, t, input_at(k, i));
        mx_str_add(k->out, "]);\n");
        return;
    }
    mx_str_addf(k->out, "  float v%d[N]; { const %s *p = in%d + ", i, c_type(t->dtype), i);
    row_offset(k, t, input_at(k, i));
    mx_str_add(k->out, ";\n    for (int u = 0; u < U; u++) if (AT(u) < LIMIT) ");
    if (bf && k->w == 8)
        mx_str_addf(k->out, "bf_load8(v%d + u * W, p + AT(u)); }\n", i);
    else if (t->dtype == MX_F32 && k->w == 8)
        mx_str_addf(
            k->out,
            "{ float4 a = *(const float4 *)(p + AT(u)), b = *(const float4 *)(p + AT(u) + 4); "
            "float *q = v%d + u * W; q[0] = a.x; q[1] = a.y; q[2] = a.z; q[3] = a.w; "
            "q[4] = b.x; q[5] = b.y; q[6] = b.z; q[7] = b.w; } }\n",
            i);
    else
        mx_str_addf(k->out, "for (int j = 0; j < W; j++) v%d[u * W + j] = %s(p[AT(u) + j]); }\n", i,
                    bf ? "bf_get" : "(float)");
}

/* Does a row of this value depend on which row it is? */
static bool varies(const mx_type *t)
{
    for (int i = 0; i + 1 < t->ndim; i++)
        if (t->dim[i] != 1)
            return true;
    return false;
}
/* Where a block's threads wait for each other in every row, and are few. Of large blocks only as
 * many run at once as the register file holds, and registers for the next row would cost one. */
static bool can_prefetch(const writer *k)
{
    bool reduces = false;
    for (int i = 0; i < k->g->n_ext; i++)
        if (k->g->ext[i].dtype != MX_BF16 && k->g->ext[i].dtype != MX_F32)
            return false;
    for (int i = 0; i < k->g->n_steps; i++)
        reduces |= k->g->step[i].op->kind == MX_ROW_REDUCE;
    return k->w == 8 && reduces && k->lanes <= FEW_LANES;
}
static void declare_asked(writer *k, int i)
{
    const mx_type *t = &k->g->ext[i];
    if (narrow(k, t))
        mx_str_addf(k->out, "  %s a%d;\n", c_type(t->dtype), i);
    else
        mx_str_addf(k->out, "  vec16 a%d[U * %d];\n", i, t->dtype == MX_BF16 ? 1 : 2);
}
static void ask(writer *k, int i)
{
    const mx_type *t = &k->g->ext[i];
    mx_str_addf(k->out, "  { const %s *p = in%d + ", c_type(t->dtype), i);
    row_offset(k, t, input_at(k, i));
    if (narrow(k, t)) {
        mx_str_addf(k->out, "; a%d = *p; }\n", i);
        return;
    }
    mx_str_add(k->out, ";\n    for (int u = 0; u < U; u++) if (AT(u) < LIMIT) { ");
    int words = t->dtype == MX_BF16 ? 1 : 2;
    for (int h = 0; h < words; h++)
        mx_str_addf(k->out, "a%d[%d * u + %d] = *(const vec16 *)(p + AT(u) + %d); ", i, words, h,
                    4 * h);
    mx_str_add(k->out, "} }\n");
}
static void take_asked(writer *k, int i)
{
    const mx_type *t = &k->g->ext[i];
    bool bf = t->dtype == MX_BF16;
    if (narrow(k, t))
        mx_str_addf(k->out, "  const float v%d = %s(a%d);\n", i, bf ? "bf_get" : "(float)", i);
    else if (bf)
        mx_str_addf(k->out, "  float v%d[N]; for (int u = 0; u < U; u++) "
                            "bf_open8(v%d + u * W, a%d[u]);\n", i, i, i);
    else
        mx_str_addf(k->out, "  float v%d[N]; for (int e = 0; e < N; e++) "
                            "v%d[e] = __uint_as_float(a%d[e / 4].w[e %% 4]);\n", i, i, i);
}

static void store_value(writer *k, int out, int value)
{
    const mx_type *t = mx_group_type(k->g, value);
    const mx_tensor *place = k->results ? &k->results[out] : NULL;
    bool bf = t->dtype == MX_BF16;
    if (narrow(k, t)) {
        mx_str_addf(k->out, "  if (%s) out%d[", k->flat ? "first == 0" : "live && lane == 0", out);
        row_offset(k, t, place);
        mx_str_addf(k->out, "] = %s(v%d);\n", bf ? "bf_put" : "", value);
        return;
    }
    mx_str_addf(k->out, "  { %s *p = out%d + ", c_type(t->dtype), out);
    row_offset(k, t, place);
    mx_str_addf(k->out, ";\n    for (int u = 0; u < U; u++) if (%sAT(u) < LIMIT) ",
                k->flat ? "" : "live && ");
    if (bf && k->w == 8)
        mx_str_addf(k->out, "bf_store8(p + AT(u), v%d + u * W); }\n", value);
    else if (t->dtype == MX_F32 && k->w == 8)
        mx_str_addf(k->out,
                    "{ const float *q = v%d + u * W; "
                    "*(float4 *)(p + AT(u)) = make_float4(q[0], q[1], q[2], q[3]); "
                    "*(float4 *)(p + AT(u) + 4) = make_float4(q[4], q[5], q[6], q[7]); } }\n",
                    value);
    else
        mx_str_addf(k->out, "for (int j = 0; j < W; j++) p[AT(u) + j] = %s(v%d[u * W + j]); }\n",
                    bf ? "bf_put" : t->dtype == MX_I32 ? "(i32)" : "", value);
}

/* The op's expression with $name replaced by the attribute's value. */
static void expression(writer *k, const mx_group_step *s)
{
    for (const char *p = s->op->expr; *p; p++) {
        if (*p != '$') {
            mx_str_add_n(k->out, p, 1);
            continue;
        }
        size_t len = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz_0123456789");
        for (const mx_attr_field *f = s->op->fields; f && f->name; f++)
            if (strlen(f->name) == len && memcmp(f->name, p + 1, len) == 0) {
                const void *v = (const char *)s->attr + f->offset;
                if (f->kind == MX_ATTR_F64 && isinf(*(const double *)v))
                    mx_str_add(k->out, *(const double *)v < 0 ? "NEG_INF" : "(-NEG_INF)");
                else if (f->kind == MX_ATTR_F64)
                    mx_str_addf(k->out, "(%.17g)", *(const double *)v);
                else if (f->kind == MX_ATTR_BOOL)
                    mx_str_addf(k->out, "%d", *(const bool *)v);
                else
                    mx_str_addf(k->out, "%lld", (long long)*(const int64_t *)v);
            }
        p += len;
    }
}

static void write_elementwise(writer *k, const mx_group_step *s, int self)
{
    bool one = narrow(k, &s->type);
    if (one)
        mx_str_addf(k->out, "  float v%d; { ", self);
    else
        mx_str_addf(k->out, "  float v%d[N];\n  for (int e = 0; e < N; e++) { ", self);
    for (int i = 0; i < s->n_in; i++)
        mx_str_addf(k->out, "const float %c = v%d%s; ", 'a' + i, s->in[i],
                    narrow(k, mx_group_type(k->g, s->in[i])) ? "" : "[e]");
    mx_str_addf(k->out, "v%d%s = (float)(", self, one ? "" : "[e]");
    expression(k, s);
    mx_str_add(k->out, "); }\n");
}

/* Into the scalar r, then into the value: one number per row, or the row itself where it has only
 * one element. */
static void write_reduce(writer *k, const mx_group_step *s, int self)
{
    const char *identity = isinf(s->op->identity) ? "NEG_INF" : "0.f"; /* of a maximum, of a sum */
    mx_str_addf(
        k->out,
        "  float r%d = %s;\n  for (int u = 0; u < U; u++) if (AT(u) < LIMIT)\n"
        "    for (int j = 0; j < W; j++) { const float a = r%d, b = v%d[u * W + j]; r%d = (float)(",
        self, identity, self, s->in[0], self);
    expression(k, s);
    mx_str_addf(k->out, "); }\n  for (int o = %d; o; o >>= 1) { const float a = r%d, "
                "b = __shfl_xor_sync(~0u, r%d, o); r%d = (float)(",
                (k->lanes < 32 ? k->lanes : 32) / 2, self, self, self);
    expression(k, s);
    mx_str_add(k->out, "); }\n");
    if (k->lanes > 32) {
        mx_str_addf(
            k->out,
            "  turn ^= 32; if (threadIdx.x %% 32 == 0) part[turn + threadIdx.x / 32] = r%d; "
            "__syncthreads();\n  r%d = part[turn];\n"
            "  for (int q = 1; q < %d; q++) { const float a = r%d, b = part[turn + q]; "
            "r%d = (float)(",
            self, self, k->lanes / 32, self, self);
        expression(k, s);
        mx_str_add(k->out, "); }\n");
    }
    mx_str_addf(k->out, narrow(k, &s->type) ? "  const float v%d = r%d;\n"
                                            : "  float v%d[N] = {r%d};\n", self, self);
}

static void write_row_map(writer *k, const mx_group_step *s, int self)
{
    const char *sync = k->lanes <= 32 ? "__syncwarp();" : "__syncthreads();";
    mx_str_addf(k->out,
                "  %s for (int u = 0; u < U; u++) if (AT(u) < LIMIT) for (int j = 0; j < W; j++) "
                "x(AT(u) + j) = v%d[u * W + j]; %s\n",
                sync, s->in[0], sync);
    mx_str_addf(
        k->out,
        "  float v%d[N];\n  for (int u = 0; u < U; u++) if (AT(u) < LIMIT) "
        "for (int j = 0; j < W; j++) { const int i = (int)AT(u) + j; v%d[u * W + j] = (float)(",
        self, self);
    expression(k, s);
    mx_str_add(k->out, "); }\n");
}

static mx_status check_types(const mx_group *g)
{
    for (int i = 0; i < g->n_ext; i++)
        if (!c_type(g->ext[i].dtype))
            return mx_fail(MX_DEVICE, "no CUDA form for %s", mx_dtype_name(g->ext[i].dtype));
    for (int i = 0; i < g->n_out; i++)
        if (g->step[g->out[i] - g->n_ext].type.dtype == MX_I8 ||
            !c_type(g->step[g->out[i] - g->n_ext].type.dtype))
            return mx_fail(MX_DEVICE, "no CUDA form of a result's dtype");
    for (int i = 0; i < g->n_steps; i++)
        if (!g->step[i].op->expr && !mx_group_step_sums_columns(&g->step[i]))
            return mx_fail(MX_DEVICE, "%s has no expression", g->step[i].op->name);
    return MX_OK;
}

/* Is everything that is as large as the space rounded to 16 bits? */
static bool rounds(const writer *k)
{
    bool any = false;
    for (int i = 0; i < k->g->n_out; i++) {
        const mx_type *t = mx_group_type(k->g, k->g->out[i]);
        if (mx_type_count(t) != k->total)
            continue;
        if (t->dtype != MX_BF16)
            return false;
        any = true;
    }
    return any;
}

static void write_header(writer *k, mx_fused_launch *l)
{
    mx_str *o = k->out;
    mx_str_add(o, prelude);
    mx_str_add(o, rounds(k) ? fast : exact);
    /* Of element k in a staged row. Lanes have 8 neighbours each: a word between them puts those
     * that are used at the same time into different banks. */
    mx_str_add(o, k->w == 8 ? "#define PLACE(k) ((k) + ((k) >> 3))\n" : "#define PLACE(k) (k)\n");
    for (int i = 0; i < k->g->n_steps; i++)
        if (k->g->step[i].op->expr && strstr(k->g->step[i].op->expr, "running_sum")) {
            mx_str_add(o, running_sum);
            break;
        }
    l->block = k->flat ? FLAT_BLOCK : (unsigned)(k->lanes * k->per_block);
    mx_str_add(o, "extern \"C\" __global__ void ");
    if (l->block > ANY_REGISTERS) /* a block of all of them must fit into the register file */
        mx_str_addf(o, "__launch_bounds__(%u) ", l->block);
    mx_str_add(o, "fused(");
    for (int i = 0; i < k->g->n_ext; i++)
        mx_str_addf(o, "%sconst %s *in%d", i ? ", " : "", c_type(k->g->ext[i].dtype), i);
    for (int i = 0; i < k->g->n_out; i++)
        mx_str_addf(o, "%s%s *__restrict__ out%d", i || k->g->n_ext ? ", " : "",
                    c_type(mx_group_type(k->g, k->g->out[i])->dtype), i);
    mx_str_add(o, l->n_sums ? ", float *__restrict__ sums) {\n" : ") {\n");
    mx_str_add(o, early);
    if (k->flat) {
        l->grid = (unsigned)((k->total / k->w + FLAT_BLOCK - 1) / FLAT_BLOCK);
        mx_str_addf(
            o,
            "  enum { W = %d, U = 1, N = W };\n"
            "  const i64 LIMIT = %lldll, first = ((i64)blockIdx.x * %d + threadIdx.x) * W;\n"
            "#define AT(u) first\n  if (first >= LIMIT) return;\n",
            k->w, (long long)k->total, FLAT_BLOCK);
        return;
    }
    l->grid = (unsigned)((k->rows + k->per_block - 1) / k->per_block);
    l->rows_per_block = k->per_block;
    l->cols = k->cols;
    /* Dividing 64-bit row numbers costs more than the rest of a small kernel. */
    mx_str_addf(
        o,
        "  enum { W = %d, U = %d, N = W * U, LANES = %d, ROWS = %d };\n"
        "  const int LIMIT = %lld; typedef %s rows; const rows ROW_COUNT = %lldll;\n"
        "  const int lane = threadIdx.x %% LANES, slot = threadIdx.x / LANES;\n"
        "#define AT(u) (((u) * LANES + lane) * W)\n",
        k->w, k->u, k->lanes, k->per_block, (long long)k->cols,
        k->rows < 1 << 30 ? "unsigned" : "unsigned long long", (long long)k->rows);
    bool maps = false, reduces = false;
    for (int i = 0; i < k->g->n_steps; i++) {
        maps |= k->g->step[i].op->kind == MX_ROW_MAP;
        reduces |= k->g->step[i].op->kind == MX_ROW_REDUCE;
    }
    if (maps)
        mx_str_addf(o, "  __shared__ float stage[ROWS][PLACE(%lld)];\n"
                       "#define x(k) stage[slot][PLACE(k)]\n", (long long)k->cols);
    /* Two places, alternating: no warp writes to one before all have read it, with one barrier. */
    if (reduces && k->lanes > 32)
        mx_str_add(o, "  __shared__ float part[64]; int turn = 0;\n");
    for (int i = 0; i < l->n_sums; i++)
        mx_str_addf(o, "  float sum%d[N]; for (int e = 0; e < N; e++) sum%d[e] = 0;\n", i, i);
}

/* Lanes beyond the last row compute it too, for the barriers' sake, but store nothing: results may
 * lie where the row was read (compile/strided_views.c). */
static const char live_row[] =
    "const bool live = row < ROW_COUNT; if (!live) row = ROW_COUNT - 1;\n";

/* Values of a row, and the loop over the rows of a block where there is one. */
static void write_rows(writer *k, int n_sums)
{
    mx_str *o = k->out;
    const mx_group *g = k->g;
    if (!n_sums) {
        if (!k->flat)
            mx_str_addf(o, "  rows row = (rows)blockIdx.x * ROWS + slot; %s", live_row);
        for (int i = 0; i < g->n_ext; i++)
            load_value(k, i);
        return;
    }
    bool ahead = can_prefetch(k);
    mx_str_add(o, "  const rows step = (rows)gridDim.x * ROWS;\n");
    for (int i = 0; i < g->n_ext && ahead; i++)
        varies(&g->ext[i]) ? declare_asked(k, i) : load_value(k, i);
    if (ahead) {
        mx_str_addf(o, "  { rows row = (rows)blockIdx.x * ROWS + slot; %s", live_row);
        for (int i = 0; i < g->n_ext; i++)
            if (varies(&g->ext[i]))
                ask(k, i);
        mx_str_add(o, "  }\n");
    }
    mx_str_addf(o, "  for (rows base = (rows)blockIdx.x * ROWS; base < ROW_COUNT; base += step) {\n"
                   "  rows row = base + slot; %s", live_row);
    for (int i = 0; i < g->n_ext; i++)
        if (!ahead)
            load_value(k, i);
        else if (varies(&g->ext[i]))
            take_asked(k, i);
    if (!ahead)
        return;
    mx_str_addf(o, "  if (base + step < ROW_COUNT) { rows row = base + step + slot; %s", live_row);
    for (int i = 0; i < g->n_ext; i++)
        if (varies(&g->ext[i]))
            ask(k, i);
    mx_str_add(o, "  }\n");
}

static void write_sum(writer *k, const mx_group_step *s, int number)
{
    mx_str_addf(k->out, "  for (int u = 0; u < U; u++) if (live && AT(u) < LIMIT) "
                        "for (int j = 0; j < W; j++) sum%d[u * W + j] += v%d[u * W + j];\n",
                number, s->in[0]);
}

/* Row `blockIdx * ROWS + slot` of sum `number`: what this block's rows add up to. */
static void store_sums(writer *k, int n_sums)
{
    mx_str_add(k->out, "  }\n");
    for (int i = 0; i < n_sums; i++)
        mx_str_addf(k->out,
                    "  { float *p = sums + (((i64)%d * gridDim.x + blockIdx.x) * ROWS + slot) * "
                    "LIMIT;\n    for (int u = 0; u < U; u++) if (AT(u) < LIMIT) "
                    "for (int j = 0; j < W; j++) p[AT(u) + j] = sum%d[u * W + j]; }\n",
                    i, i);
}

mx_status mx_fused_source(const mx_group *g, const mx_tensor *in, const mx_tensor *out,
                          mx_str *text, mx_fused_launch *launch)
{
    MX_TRY(check_types(g));
    writer k = {.g = g, .in = in, .results = out, .out = text};
    geometry(&k);
    if (!k.flat && k.cols > LONGEST_STAGED)
        for (int i = 0; i < g->n_steps; i++)
            if (g->step[i].op->kind == MX_ROW_MAP)
                return mx_fail(MX_DEVICE, "a row of %lld elements does not fit shared memory",
                               (long long)k.cols);
    *launch = (mx_fused_launch){0};
    for (int i = 0; i < g->n_out; i++)
        if (mx_group_step_sums_columns(&g->step[g->out[i] - g->n_ext]))
            launch->sum_out[launch->n_sums++] = i;
    write_header(&k, launch);
    write_rows(&k, launch->n_sums);
    for (int i = 0, sums = 0; i < g->n_steps; i++) {
        const mx_group_step *s = &g->step[i];
        if (mx_group_step_sums_columns(s))
            write_sum(&k, s, sums++);
        else if (s->op->kind == MX_ELEMENTWISE)
            write_elementwise(&k, s, g->n_ext + i);
        else if (s->op->kind == MX_ROW_REDUCE)
            write_reduce(&k, s, g->n_ext + i);
        else
            write_row_map(&k, s, g->n_ext + i);
    }
    for (int i = 0; i < g->n_out; i++)
        if (!mx_group_step_sums_columns(&g->step[g->out[i] - g->n_ext]))
            store_value(&k, i, g->out[i]);
    if (launch->n_sums)
        store_sums(&k, launch->n_sums);
    mx_str_add(text, "}\n");
    return MX_OK;
}
