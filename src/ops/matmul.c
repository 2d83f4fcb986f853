/* matmul.c - contraction of two tensors in index notation: mx_matmul(g, "*d,fd->*f", x, w).
 *
 * The notation is the attribute. Letters fall into four classes by where they stand:
 *     batch: both inputs and the output      m: first input and output
 *     n: second input and output             k: both inputs, summed
 * A letter of one input alone is not allowed. Both gradients are contractions too: for "a,b->c"
 * they are "c,b->a" and "c,a->b". Epilogues (matmul.h) add inputs and outputs: with a bias the
 * notation is "*!d,f!d,f->*f".
 *
 * Kernel: neighbouring letters of a class whose strides nest in every operand are merged; one
 * (m, n, k, batch) quadruple goes to the GEMM, what is left is looped over. Nothing is copied.
 */
#include "ops.h"
#include "ir/notation.h"
#include "ops/gpu_work.h"
#include "ops/load.h"
#include "ops/matmul.h"
#include "ops/num.h"

#include <stdio.h>
#include <string.h>

static const char *notation(const mx_node *n)
{
    return ((const mx_matmul_attr *)n->attr)->spec;
}

/* --- letters with sizes and strides --- */

enum { A, B, C, CLASSES = 4, MAX_AXES = 3 * MX_MAX_DIMS };
enum { BATCH, M, N, K };

typedef struct {
    char letter;
    int64_t size;
    int64_t stride[3]; /* in a, b, c; 0 where the letter is absent */
    bool in[3];
} axis;

typedef struct {
    axis ax[MAX_AXES];
    int n;
} axes;

static axis *find(axes *x, char letter)
{
    for (int i = 0; i < x->n; i++)
        if (x->ax[i].letter == letter)
            return &x->ax[i];
    x->ax[x->n] = (axis){.letter = letter};
    return &x->ax[x->n++];
}

/* Leading dims of `*` get the letters 1, 2, ... (as char values, not digits). */
static void read_term(axes *x, const mx_notation *nt, int t, const mx_type *type, int which)
{
    int lead = type->ndim - nt->term[t].n;
    int64_t step = 1;
    for (int d = type->ndim - 1; d >= 0; d--) {
        char letter = d < lead ? (char)(1 + d) : nt->term[t].letter[d - lead];
        axis *a = find(x, letter);
        a->size = type->dim[d];
        a->stride[which] = step;
        a->in[which] = true;
        step *= type->dim[d];
    }
}

static int class_of(const axis *a)
{
    return a->in[A] && a->in[B] ? (a->in[C] ? BATCH : K) : a->in[A] ? M : N;
}

/* Merges letters of one class from the inside out; gives the number of axes left,
 * outermost first. */
static int collect(const axes *x, int class, axis *out)
{
    int n = 0;
    for (int i = x->n - 1; i >= 0; i--) { /* read_term goes right to left: the last is outermost */
        const axis *a = &x->ax[i];
        if (class_of(a) != class || a->size == 1)
            continue;
        bool nests = n > 0;
        for (int o = 0; o < 3 && nests; o++)
            nests = !a->in[o] || out[n - 1].stride[o] == a->stride[o] * a->size;
        if (nests) {
            out[n - 1].size *= a->size;
            memcpy(out[n - 1].stride, a->stride, sizeof a->stride);
        } else {
            out[n++] = *a;
        }
    }
    return n;
}

typedef struct {
    axis gemm[CLASSES];            /* size 1 and stride 0 where a class is empty */
    axis loop[MAX_AXES];           /* what is left, outermost first; K loops accumulate */
    bool is_k[MAX_AXES];
    int n_loops;
} split;

/* The axis of a class that the GEMM gets: one with a unit stride where there is one,
 * else the largest. */
static void choose(const axes *x, int class, split *s)
{
    axis left[MAX_AXES];
    int n = collect(x, class, left), best = 0;
    s->gemm[class] = (axis){.size = 1};
    for (int i = 1; i < n; i++)
        if (left[i].size > left[best].size || class == K)
            best = i;
    for (int i = 0; i < n; i++)
        if (i == best) {
            s->gemm[class] = left[i];
        } else {
            s->is_k[s->n_loops] = class == K;
            s->loop[s->n_loops++] = left[i];
        }
}

/* One GEMM of the split. C's unit stride must be n's; when it is m's, the operands swap roles. */
static mx_matmul_gemm gemm_of(const split *s, const int64_t *offset, bool accumulate)
{
    axis m = s->gemm[M], n = s->gemm[N], k = s->gemm[K], batch = s->gemm[BATCH];
    int a = A, b = B;
    if (n.stride[C] != 1 && n.size != 1 && (m.stride[C] == 1 || m.size == 1)) {
        axis t = m;
        m = n, n = t;
        a = B, b = A;
    }
    mx_matmul_gemm p = {.m = m.size, .n = n.size, .k = k.size, .accumulate = accumulate, .a = a,
                        .b = b, .a_at = offset[a], .b_at = offset[b], .c_at = offset[C],
                        .batch = batch.size, .a_step = batch.stride[a],
                        .b_step = batch.stride[b], .c_step = batch.stride[C]};
    /* A dim of size 1 has no stride of its own: it takes whatever the layout wants. */
    p.trans_a = k.size != 1 ? k.stride[a] != 1 : m.stride[a] == 1 && m.size != 1;
    p.trans_b = k.size != 1 ? k.stride[b] == 1 && !(n.stride[b] == 1 && n.size != 1)
                            : n.stride[b] != 1 && n.size != 1;
    p.lda = p.trans_a ? k.stride[a] : m.stride[a];
    p.ldb = p.trans_b ? n.stride[b] : k.stride[b];
    p.ldc = m.stride[C];
    int64_t least_a = p.trans_a ? p.m : p.k, least_b = p.trans_b ? p.k : p.n;
    p.lda = p.lda < least_a ? least_a : p.lda;
    p.ldb = p.ldb < least_b ? least_b : p.ldb;
    p.ldc = p.ldc < p.n ? p.n : p.ldc;
    return p;
}

static mx_status loop(const split *s, int depth, const int64_t *offset, bool accumulate,
                      mx_matmul_gemm_fn each, void *ctx)
{
    if (depth == s->n_loops) {
        mx_matmul_gemm p = gemm_of(s, offset, accumulate);
        return each(ctx, &p);
    }
    const axis *a = &s->loop[depth];
    for (int64_t i = 0; i < a->size; i++) {
        int64_t here[3];
        for (int o = 0; o < 3; o++)
            here[o] = offset[o] + i * a->stride[o];
        MX_TRY(loop(s, depth + 1, here, accumulate || (s->is_k[depth] && i > 0), each, ctx));
    }
    return MX_OK;
}

mx_status mx_matmul_gemms(const void *attr, const mx_type *a, const mx_type *b, const mx_type *c,
                             mx_matmul_gemm_fn each, void *ctx)
{
    mx_notation nt;
    axes x = {0};
    split s = {0};
    mx_notation_parse(((const mx_matmul_attr *)attr)->spec, &nt);
    read_term(&x, &nt, 0, a, A);
    read_term(&x, &nt, 1, b, B);
    read_term(&x, &nt, nt.n_in, c, C);
    for (int class = 0; class < CLASSES; class++)
        choose(&x, class, &s);
    return loop(&s, 0, (int64_t[3]){0}, false, each, ctx);
}

static void *at(const mx_tensor *t, int64_t i)
{
    return (char *)t->data + i * (int64_t)mx_dtype_bytes(t->type.dtype);
}

static mx_status run_gemm(void *ctx, const mx_matmul_gemm *p)
{
    const mx_call *c = ctx;
    const mx_tensor *a = &c->in[p->a], *b = &c->in[p->b], *out = &c->out[0];
    bool panels = ((const mx_matmul_attr *)c->attr)->panels;
    MX_ASSERT(!panels || (mx_matmul_gemm_is_dense(p) && p->trans_b), "a weight in panels");
    mx_gemm(&(mx_gemm_args){
        .m = p->m, .n = p->n, .k = p->k, .alpha = 1, .accumulate = p->accumulate,
        .a = at(a, p->a_at), .b = at(b, p->b_at), .c = at(out, p->c_at),
        .lda = p->lda, .ldb = p->ldb, .ldc = p->ldc, .trans_a = p->trans_a, .trans_b = p->trans_b,
        .a_type = mx_num_of(a->type.dtype), .b_type = mx_num_of(b->type.dtype),
        .c_type = mx_num_of(out->type.dtype),
        .b_packed = panels, .one_path = ((const mx_matmul_attr *)c->attr)->one_path,
        .batch = p->batch,
        .a_step = p->a_step, .b_step = p->b_step, .c_step = p->c_step});
    return MX_OK;
}

void mx_matmul_contract(const mx_call *c, const mx_tensor *b, mx_tensor *y)
{
    mx_tensor in[2] = {c->in[MX_MATMUL_A], *b};
    mx_call one = {.n_in = 2, .n_out = 1, .in = in, .out = y, .attr = c->attr};
    mx_status_free(mx_matmul_gemms(c->attr, &in[0].type, &in[1].type, &y->type, run_gemm, &one));
}

static void matmul_cpu(const mx_call *c)
{
    const mx_matmul_attr *at_ = c->attr;
    const mx_tensor *in = c->in + 2, *out = c->out + 1;
    mx_matmul_contract(c, &c->in[MX_MATMUL_B], &c->out[0]);
    for (int e = 0; at_->epilogues.of[e]; e++) {
        const mx_epilogue_kind *k = &mx_epilogue_kinds[at_->epilogues.of[e]];
        k->cpu(c, in, out);
        in += strlen(k->in);
        out += strlen(k->out);
    }
}

/* --- the graph side --- */

/* Inputs and outputs that the epilogues of a list add. */
static void count_epilogues(mx_epilogues list, int *n_in, int *n_out)
{
    *n_in = 2;
    *n_out = 1;
    for (int e = 0; list.of[e]; e++) {
        *n_in += (int)strlen(mx_epilogue_kinds[list.of[e]].in);
        *n_out += (int)strlen(mx_epilogue_kinds[list.of[e]].out);
    }
}

/* Sums over rows have the dtype that sum_to gives them. */
static void infer_epilogues(mx_node *n)
{
    const mx_matmul_attr *at_ = n->attr;
    mx_type *out = n->more;
    for (int e = 0; at_->epilogues.of[e]; e++) {
        if (at_->epilogues.of[e] == MX_EPILOGUE_BIAS_GRAD)
            out->dtype = n->type.dtype == MX_F64 ? MX_F64 : MX_F32;
        out += strlen(mx_epilogue_kinds[at_->epilogues.of[e]].out);
    }
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_matmul_attr *at_ = n->attr;
    mx_notation nt;
    int n_in, n_out;
    char spec[2 * sizeof at_->spec];
    mx_notation_parse(at_->spec, &nt);
    count_epilogues(at_->epilogues, &n_in, &n_out);
    mx_matmul_notation(at_->spec, at_->epilogues, spec, sizeof spec);
    if (n->n_in != n_in || n->n_out != n_out || nt.n_in != n_in || nt.n_terms != n_in + n_out ||
        (at_->epilogues.of[0] && strcmp(spec, at_->spec) != 0)) {
        mx_graph_fail(g, "matmul: \"%s\" must name two inputs and one output, and what its "
                      "epilogues add to them", at_->spec);
        return;
    }
    axes x = {0};
    read_term(&x, &nt, 0, &n->in[MX_MATMUL_A]->type, A);
    read_term(&x, &nt, 1, &n->in[MX_MATMUL_B]->type, B);
    read_term(&x, &nt, nt.n_in, &n->type, C);
    for (int i = 0; i < x.n; i++)
        if (x.ax[i].in[A] + x.ax[i].in[B] + x.ax[i].in[C] < 2)
            mx_graph_fail(g, "matmul: in \"%s\" the letter %c is in one tensor only",
                          at_->spec, x.ax[i].letter);
    if (at_->has_out)
        n->type.dtype = at_->out;
    if (g->one_path)
        ((mx_matmul_attr *)mx_attr_edit(n))->one_path = true;
    infer_epilogues(n);
}

static mx_cost matmul_cost(const mx_node *n)
{
    const mx_matmul_attr *at_ = n->attr;
    mx_notation nt;
    axes x = {0};
    mx_notation_parse(at_->spec, &nt);
    read_term(&x, &nt, 0, &n->in[MX_MATMUL_A]->type, A);
    read_term(&x, &nt, 1, &n->in[MX_MATMUL_B]->type, B);
    mx_cost c = {.flops = 2};
    for (int i = 0; i < x.n; i++)
        c.flops *= (double)x.ax[i].size;
    for (int e = 0; at_->epilogues.of[e]; e++) /* SwiGLU's second factor is a second GEMM */
        c.flops *= at_->epilogues.of[e] == MX_EPILOGUE_SWIGLU ? 2 : 1;
    return c;
}

static mx_node *make(mx_graph *g, const char *spec, mx_node *a, mx_node *b, mx_matmul_attr at_)
{
    snprintf(at_.spec, sizeof at_.spec, "%s", spec);
    return mx_apply_n(g, &mx_op_matmul, &at_, 2, (mx_node *[]){a, b}, 1);
}

mx_node *mx_matmul(mx_graph *g, const char *spec, mx_node *a, mx_node *b)
{
    return make(g, spec, a, b, (mx_matmul_attr){{0}});
}

/* The same with the result in a dtype of its own (float32 sums of bfloat16 factors). */
mx_node *mx_matmul_as(mx_graph *g, const char *spec, mx_node *a, mx_node *b, mx_dtype out)
{
    return make(g, spec, a, b, (mx_matmul_attr){.out = out, .has_out = true});
}

bool mx_matmul_has(const mx_node *n, mx_epilogues list)
{
    return n->op == &mx_op_matmul &&
           mx_epilogues_equal(((const mx_matmul_attr *)n->attr)->epilogues, list);
}

bool mx_matmul_is_of_rows(const mx_node *y)
{
    if (y->op != &mx_op_matmul)
        return false;
    const char *spec = notation(y), *out = strstr(spec, "->") + 2;
    return *spec == '*' && *out == '*' && strlen(out) == 2 && y->in[MX_MATMUL_B]->type.ndim == 2 &&
           y->type.dtype == MX_BF16 && y->in[MX_MATMUL_A]->type.dtype == MX_BF16;
}

/* The matmul again, with these epilogues after those it has; `in` is what they read. */
mx_node *mx_matmul_epilogue(mx_graph *g, const mx_node *n, mx_epilogues list, mx_node *const *in)
{
    mx_matmul_attr at_ = *(const mx_matmul_attr *)n->attr;
    mx_node *all[MX_MAX_IN];
    int first = 0, n_in, n_out, n_old = n->n_in;
    char spec[2 * sizeof at_.spec];
    while (at_.epilogues.of[first])
        first++;
    for (int e = 0; list.of[e]; e++) {
        MX_ASSERT(first + e < MX_MAX_EPILOGUES, "%s", at_.spec);
        at_.epilogues.of[first + e] = list.of[e];
    }
    count_epilogues(at_.epilogues, &n_in, &n_out);
    mx_matmul_notation(at_.spec, at_.epilogues, spec, sizeof spec);
    MX_ASSERT(strlen(spec) < sizeof at_.spec && n_in <= MX_MAX_IN, "%s", spec);
    memcpy(at_.spec, spec, strlen(spec) + 1);
    for (int i = 0; i < n_in; i++)
        all[i] = i < n_old ? n->in[i] : in[i - n_old];
    return mx_apply_n(g, &mx_op_matmul, &at_, n_in, all, n_out);
}

/* Through the epilogues, last first: d[e] is the gradient of what epilogue e gives. */
static mx_node *through_epilogues(mx_graph *g, mx_node *n, mx_node *dy, mx_node **d)
{
    const mx_epilogues *list = &((const mx_matmul_attr *)n->attr)->epilogues;
    int out = n->n_out;
    for (int e = MX_MAX_EPILOGUES - 1; e >= 0; e--) {
        const mx_epilogue_kind *k = &mx_epilogue_kinds[list->of[e]];
        if (!list->of[e])
            continue;
        if (!k->grad) {
            mx_graph_fail(g, "matmul: the epilogue %s has no gradient; it is made after autodiff",
                          k->name);
            return NULL;
        }
        d[e] = dy;
        out -= (int)strlen(k->out);
        dy = k->grad(g, n, dy, out);
    }
    return dy;
}

static void matmul_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const char *spec = notation(n);
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    int la = (int)(comma - spec), lb = (int)strcspn(comma + 1, ",-");
    int lc = (int)strcspn(arrow + 2, ","); /* epilogues may have added outputs */
    char text[48];
    mx_node *d[MX_MAX_EPILOGUES];
    mx_node *dy = through_epilogues(g, n, mx_cast(g, dout[0], n->in[MX_MATMUL_A]->type.dtype), d);
    if (!dy)
        return;
    snprintf(text, sizeof text, "%.*s,%.*s->%.*s", lc, arrow + 2, lb, comma + 1, la, spec);
    din[MX_MATMUL_A] =
        mx_matmul_as(g, text, dy, n->in[MX_MATMUL_B], mx_node_grad_dtype(n->in[MX_MATMUL_A]));
    snprintf(text, sizeof text, "%.*s,%.*s->%.*s", lc, arrow + 2, la, spec, lb, comma + 1);
    din[MX_MATMUL_B] =
        mx_matmul_as(g, text, dy, n->in[MX_MATMUL_A], mx_node_grad_dtype(n->in[MX_MATMUL_B]));
    const mx_epilogues *list = &((const mx_matmul_attr *)n->attr)->epilogues;
    for (int e = 0, in = 2; list->of[e]; in += (int)strlen(mx_epilogue_kinds[list->of[e++]].in))
        if (mx_epilogue_kinds[list->of[e]].grad_in)
            din[in] = mx_epilogue_kinds[list->of[e]].grad_in(g, d[e], n->in[in]);
}

/* Sums over rows are made of sums of some. */
static size_t gpu_work(const mx_node *n, size_t most)
{
    const mx_epilogues *list = &((const mx_matmul_attr *)n->attr)->epilogues;
    int64_t cols = n->type.ndim ? n->type.dim[n->type.ndim - 1] : 1;
    (void)most;
    for (int e = 0; list->of[e]; e++)
        if (list->of[e] == MX_EPILOGUE_BIAS_GRAD)
            return mx_gpu_gelu_grad_bytes(mx_type_count(&n->type) / (cols ? cols : 1), cols);
    return 0;
}

static const char *epilogue_name(uint8_t e)
{
    return mx_epilogue_kinds[e].name;
}

#define LIST(...) {{__VA_ARGS__}}
#define CASE(text, ...) {2, {__VA_ARGS__}, &(mx_matmul_attr){text}, .n_out = 1}
/* With epilogues: n_in, n_out, their list and the inputs. */
#define CASE_E(n, m, text, list, ...)                                                              \
    {n, {__VA_ARGS__}, &(mx_matmul_attr){text, .epilogues = list}, .n_out = m}
#define FIXED(...) {__VA_ARGS__, .lo = -1, .hi = 1, .no_grad = true}
#define WIDE(...) {__VA_ARGS__, .lo = -3, .hi = 3, .no_grad = true}
const mx_op mx_op_matmul = {
    .name = "matmul",
    .doc = "contraction of two tensors in index notation, with epilogues",
    .dtypes = MX_REALS,
    .gives = MX_REALS,
    .n_out = -1,
    .saved = ~1u,
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec),
                                      {"epilogues", MX_ATTR_LIST,
                                       offsetof(mx_matmul_attr, epilogues), epilogue_name,
                                       .size = sizeof(mx_epilogues)},
                                      MX_QUIET_FIELD(mx_matmul_attr, MX_ATTR_DTYPE, out),
                                      MX_QUIET_FIELD(mx_matmul_attr, MX_ATTR_BOOL, has_out),
                                      MX_QUIET_FIELD(mx_matmul_attr, MX_ATTR_BOOL, one_path),
                                      MX_QUIET_FIELD(mx_matmul_attr, MX_ATTR_BOOL, panels),
                                      {0}},
    .notation = notation,
    .infer = infer,
    .grad = matmul_vjp,
    .cost = matmul_cost,
    .cpu = matmul_cpu,
    .gpu_work_bytes = gpu_work,
    .cases =
        (const mx_case[]){
            CASE("*d,fd->*f", {3, {2, 3, 4}}, {2, {6, 4}}),
            CASE("*d,df->*f", {2, {5, 4}}, {2, {4, 6}}),
            CASE("bshc,hcd->bshd", {4, {2, 3, 2, 4}}, {3, {2, 4, 6}}),
            CASE("bij,bjk->bik", {3, {2, 3, 4}}, {3, {2, 4, 2}}),
            CASE("mk,nk->nm", {2, {4, 6}}, {2, {2, 6}}),
            CASE_E(3, 1, "*!d,!df,f->*f", LIST(MX_EPILOGUE_BIAS), {3, {2, 3, 4}}, {2, {4, 6}},
                   {1, {6}}),
            CASE_E(3, 1, "*!d,f!d,*f->*f", LIST(MX_EPILOGUE_RESIDUAL), {3, {2, 3, 4}}, {2, {6, 4}},
                   {3, {2, 3, 6}}),
            CASE_E(3, 2, "*!d,!df,f->*f,*f", LIST(MX_EPILOGUE_BIAS, MX_EPILOGUE_GELU),
                   {3, {2, 3, 8}, .lo = -0.3, .hi = 0.3}, {2, {8, 16}}, {1, {16}}),
            CASE_E(3, 2, "*!d,f!d,*f->*f,f", LIST(MX_EPILOGUE_GELU_GRAD, MX_EPILOGUE_BIAS_GRAD),
                   FIXED(3, {2, 3, 8}), FIXED(2, {16, 8}), WIDE(3, {2, 3, 16})),
            CASE_E(3, 2, "*!d,!df,*f->*f,f", LIST(MX_EPILOGUE_GELU_GRAD, MX_EPILOGUE_BIAS_GRAD),
                   FIXED(2, {70, 8}), FIXED(2, {8, 16}), WIDE(2, {70, 16})),
            CASE_E(3, 3, "*!d,f!d,f!d->*f,*f,*f", LIST(MX_EPILOGUE_SWIGLU), FIXED(3, {2, 3, 8}),
                   FIXED(2, {16, 8}), FIXED(2, {16, 8})),
            CASE_E(4, 2, "*!d,!df,*f,*f->*f,*f", LIST(MX_EPILOGUE_SWIGLU_GRAD),
                   FIXED(3, {2, 3, 8}), FIXED(2, {8, 16}), FIXED(3, {2, 3, 16}),
                   FIXED(3, {2, 3, 16})),
            {0}},
};
