/* matmul.c - contraction of two tensors in index notation: mx_matmul(g, "*d,fd->*f", x, w).
 *
 * The notation is the attribute. Letters fall into four classes by where they stand:
 *     batch: both inputs and the output      m: first input and output
 *     n: second input and output             k: both inputs, summed
 * A letter of one input alone is not allowed. Both gradients are contractions too: for "a,b->c"
 * they are "c,b->a" and "c,a->b". A third input, "*!d,f!d,f->*f", is a bias that is
 * added before the result is rounded; graphs for a GPU get it from a pass (compile/bias.c).
 *
 * Kernel: neighbouring letters of a class whose strides nest in every operand are merged; one
 * (m, n, k, batch) quadruple goes to the GEMM, what is left is looped over. Nothing is copied.
 */
#include "ops.h"
#include "ir/notation.h"
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

/* One product of the split. C's unit stride must be n's; when it is m's,
 * the operands swap roles. */
static mx_product product(const split *s, const int64_t *offset, bool accumulate)
{
    axis m = s->gemm[M], n = s->gemm[N], k = s->gemm[K], batch = s->gemm[BATCH];
    int a = A, b = B;
    if (n.stride[C] != 1 && n.size != 1 && (m.stride[C] == 1 || m.size == 1)) {
        axis t = m;
        m = n, n = t;
        a = B, b = A;
    }
    mx_product p = {.m = m.size, .n = n.size, .k = k.size, .accumulate = accumulate, .a = a, .b = b,
                    .a_at = offset[a], .b_at = offset[b], .c_at = offset[C], .batch = batch.size,
                    .a_step = batch.stride[a], .b_step = batch.stride[b],
                    .c_step = batch.stride[C]};
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
                      mx_product_fn each, void *ctx)
{
    if (depth == s->n_loops) {
        mx_product p = product(s, offset, accumulate);
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

mx_status mx_matmul_products(const void *attr, const mx_type *a, const mx_type *b, const mx_type *c,
                             mx_product_fn each, void *ctx)
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

static mx_status run_product(void *ctx, const mx_product *p)
{
    const mx_call *c = ctx;
    const mx_tensor *a = &c->in[p->a], *b = &c->in[p->b], *out = &c->out[0];
    mx_gemm(&(mx_gemm_args){
        .m = p->m, .n = p->n, .k = p->k, .alpha = 1, .accumulate = p->accumulate,
        .a = at(a, p->a_at), .b = at(b, p->b_at), .c = at(out, p->c_at),
        .lda = p->lda, .ldb = p->ldb, .ldc = p->ldc, .trans_a = p->trans_a, .trans_b = p->trans_b,
        .a_type = mx_num_of(a->type.dtype), .b_type = mx_num_of(b->type.dtype),
        .c_type = mx_num_of(out->type.dtype), .batch = p->batch, .a_step = p->a_step,
        .b_step = p->b_step, .c_step = p->c_step});
    return MX_OK;
}

static void matmul_cpu(const mx_call *c)
{
    mx_status_free(mx_matmul_products(c->attr, &c->in[0].type, &c->in[1].type, &c->out[0].type,
                                      run_product, (void *)c));
    if (c->n_in < 3)
        return;
    int64_t n = mx_type_count(&c->in[2].type), count = mx_type_count(&c->out[0].type);
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i++)
        mx_store_f64(&c->out[0], i, mx_load_f64(&c->out[0], i) + mx_load_f64(&c->in[2], i % n));
}

/* --- the graph side --- */

static void infer(mx_graph *g, mx_node *n)
{
    const mx_matmul_attr *at_ = n->attr;
    mx_notation nt;
    mx_notation_parse(at_->spec, &nt);
    if (nt.n_terms != nt.n_in + 1 || nt.n_in < 2 || nt.n_in > 3 || nt.n_in != n->n_in) {
        mx_graph_fail(g, "matmul: \"%s\" must name two inputs, perhaps a bias, and one output",
                      at_->spec);
        return;
    }
    axes x = {0};
    read_term(&x, &nt, 0, &n->in[0]->type, A);
    read_term(&x, &nt, 1, &n->in[1]->type, B);
    read_term(&x, &nt, nt.n_in, &n->type, C);
    for (int i = 0; i < x.n; i++)
        if (x.ax[i].in[A] + x.ax[i].in[B] + x.ax[i].in[C] < 2)
            mx_graph_fail(g, "matmul: in \"%s\" the letter %c stands in one tensor alone",
                          at_->spec, x.ax[i].letter);
    if (at_->has_out)
        n->type.dtype = at_->out;
}

mx_cost mx_matmul_cost(const mx_node *n)
{
    mx_notation nt;
    axes x = {0};
    mx_notation_parse(((const mx_matmul_attr *)n->attr)->spec, &nt);
    read_term(&x, &nt, 0, &n->in[0]->type, A);
    read_term(&x, &nt, 1, &n->in[1]->type, B);
    mx_cost c = {.flops = 2};
    for (int i = 0; i < x.n; i++)
        c.flops *= (double)x.ax[i].size;
    return c;
}

mx_node *mx_matmul(mx_graph *g, const char *spec, mx_node *a, mx_node *b)
{
    mx_matmul_attr at_ = {{0}, 0, false};
    snprintf(at_.spec, sizeof at_.spec, "%s", spec);
    return MX_APPLY(g, &mx_op_matmul, &at_, a, b);
}

/* The same with the result in a dtype of its own (float32 sums of bfloat16 products). */
mx_node *mx_matmul_as(mx_graph *g, const char *spec, mx_node *a, mx_node *b, mx_dtype out)
{
    mx_matmul_attr at_ = {{0}, out, true};
    snprintf(at_.spec, sizeof at_.spec, "%s", spec);
    return MX_APPLY(g, &mx_op_matmul, &at_, a, b);
}

mx_matmul_attr mx_matmul_third(const mx_node *product, const char *third, const char *more_out)
{
    mx_matmul_attr at_ = *(const mx_matmul_attr *)product->attr;
    char text[2 * sizeof at_.spec];
    const char *arrow = strstr(at_.spec, "->");
    size_t n = 0;
    for (const char *c = at_.spec; c < arrow; c++) {
        if (strchr("*,!", *c) == NULL && !strchr(arrow, *c))
            text[n++] = '!';
        text[n++] = *c;
    }
    snprintf(text + n, sizeof text - n, ",%s%s%s%s", third, arrow, *more_out ? "," : "", more_out);
    MX_ASSERT(strlen(text) < sizeof at_.spec, "%s", text);
    memcpy(at_.spec, text, strlen(text) + 1);
    return at_;
}

bool mx_matmul_is_of_rows(const mx_node *y)
{
    if (y->op != &mx_op_matmul || y->n_in != 2)
        return false;
    const char *spec = notation(y), *out = strstr(spec, "->") + 2;
    return *spec == '*' && *out == '*' && strlen(out) == 2 && y->in[1]->type.ndim == 2 &&
           y->type.dtype == MX_BF16 && y->in[0]->type.dtype == MX_BF16;
}

/* A product again with bias (f) added; f is the last dim of the result. */
mx_node *mx_matmul_bias(mx_graph *g, mx_node *product, mx_node *bias)
{
    const char *spec = notation(product);
    mx_matmul_attr at_ = mx_matmul_third(product, spec + strlen(spec) - 1, "");
    return MX_APPLY(g, &mx_op_matmul, &at_, product->in[0], product->in[1], bias);
}

/* A weight's gradient is kept in the weight's own dtype even when a bfloat16 copy was multiplied,
 * unless half the memory is preferred (grad_dtype). */
static mx_dtype gradient_dtype(const mx_graph *g, const mx_node *x)
{
    if (x->op == &mx_op_concat) /* several weights in one product */
        x = x->in[0];
    if (!g->narrow_grads && x->op == &mx_op_cast && x->in[0]->op == &mx_op_variable)
        return x->in[0]->type.dtype;
    return x->type.dtype;
}

static void matmul_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const char *spec = ((const mx_matmul_attr *)n->attr)->spec;
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    int la = (int)(comma - spec), lb = (int)strcspn(comma + 1, ",-");
    int lc = (int)strcspn(arrow + 2, ","); /* matmul_gelu has a second output */
    char text[48];
    mx_node *dy = mx_cast(g, dout[0], n->in[0]->type.dtype);
    snprintf(text, sizeof text, "%.*s,%.*s->%.*s", lc, arrow + 2, lb, comma + 1, la, spec);
    din[0] = mx_matmul_as(g, text, dy, n->in[1], gradient_dtype(g, n->in[0]));
    snprintf(text, sizeof text, "%.*s,%.*s->%.*s", lc, arrow + 2, la, spec, lb, comma + 1);
    din[1] = mx_matmul_as(g, text, dy, n->in[0], gradient_dtype(g, n->in[1]));
    if (n->n_in > 2)
        din[2] = mx_sum_to(g, dy, mx_shape_of(&n->in[2]->type));
}

#define CASE_N(n, text, ...) {n, {__VA_ARGS__}, &(mx_matmul_attr){text, 0, false}}
#define CASE(text, ...) CASE_N(2, text, __VA_ARGS__)
const mx_op mx_op_matmul = {
    .name = "matmul",
    .doc = "contraction of two tensors in index notation",
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec), {0}},
    .notation = notation,
    .multiplies = true,
    .infer = infer,
    .grad = matmul_vjp,
    .cost = mx_matmul_cost,
    .cpu = matmul_cpu,
    .cases = (const mx_case[]){CASE("*d,fd->*f", {3, {2, 3, 4}}, {2, {6, 4}}),
                               CASE("*d,df->*f", {2, {5, 4}}, {2, {4, 6}}),
                               CASE("bshc,hcd->bshd", {4, {2, 3, 2, 4}}, {3, {2, 4, 6}}),
                               CASE("bij,bjk->bik", {3, {2, 3, 4}}, {3, {2, 4, 2}}),
                               CASE("mk,nk->nm", {2, {4, 6}}, {2, {2, 6}}),
                               CASE_N(3, "*!d,!df,f->*f", {3, {2, 3, 4}}, {2, {4, 6}}, {1, {6}}),
                               {0}},
};
