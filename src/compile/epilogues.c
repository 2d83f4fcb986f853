/* epilogues.c - elementwise ops fused into the GEMM beside them as epilogues, computed on sums that
 * are still in registers (ops/matmul.h).
 *
 *     add(x w, b)                                      -> matmul{bias}(x, w, b)
 *     gelu(u), u = matmul{bias}(x, w, b)               -> matmul{bias,gelu}, which gives u too
 *     du = gelu_grad(u, dy v); sum_to(du)              -> matmul{gelu_grad,bias_grad}(dy, v, u)
 *     g = x w; u = x w2; mul(silu(g), u)               -> matmul{swiglu}(x, w, w2)
 *     d = dy v; silu_grad(g, mul(d, u)); mul(d, silu(g)) -> matmul{swiglu_grad}(dy, v, g, u)
 *
 * A bias is fused before autodiff, so that its copy in the compute dtype is one that the optimizer
 * writes. The others are fused after remat: the graph then shows what is kept and what is computed
 * again, and an epilogue belongs to a GEMM that stands beside it, forward or computed again. An
 * activation that alone is computed again, from a GEMM's result that was kept, stays elementwise:
 * as an epilogue it would cost the GEMM once more.
 *
 * An op whose result a fused group reads stays in the group: as an epilogue it would be one more
 * tensor for the group to read.
 */
#include "compile/rules.h"

#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

enum { ALIGN = 8 }; /* elements: rows of what large epilogues read and write begin at 16 bytes */

static bool is_plain(const mx_node *n)
{
    return mx_matmul_has(n, MX_EPILOGUES(MX_EPILOGUE_NONE));
}

/* Both in the forward pass, or both computed by themselves in the backward pass: the GEMM is run
 * where the elementwise op is, and no more often for its sake. */
static bool beside(const mx_node *n, const mx_node *gemm)
{
    return n->recomputed == gemm->recomputed && n->backward == gemm->backward;
}

static bool is_wide(const mx_node *n)
{
    return mx_matmul_is_of_rows(n) && n->type.dim[n->type.ndim - 1] % ALIGN == 0;
}

/* --- bias --- */

/* An add of a bias to a GEMM's result that nothing else reads. */
static bool adds_bias(const mx_rewriter *r, const mx_node *add)
{
    const mx_node *y = add->in[0], *b = add->in[1];
    return is_plain(y) && mx_uses_count(&r->uses, y) == 1 && b->type.ndim == 1 &&
           b->type.dim[0] == y->type.dim[y->type.ndim - 1] && add->type.dtype == y->type.dtype &&
           y->type.dtype == y->in[0]->type.dtype;
}

static bool bias_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    (void)m;
    return adds_bias(r, n) && !mx_is_read_in_group(r, n);
}

static bool bias_before_gelu_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    (void)m;
    return adds_bias(r, n) && is_wide(n->in[0]) && mx_uses_count(&r->uses, n) == 1 &&
           mx_uses_find(&r->uses, n, &mx_op_gelu_tanh);
}

static void bias_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *b = mx_cast(g, n->in[1], n->type.dtype);
    mx_match_replace(m, n,
                     mx_matmul_epilogue(g, n->in[0], MX_EPILOGUES(MX_EPILOGUE_BIAS), &b));
}

const mx_rule mx_rule_bias = {"bias", &mx_op_add, bias_guard, bias_build};
const mx_rule mx_rule_bias_before_gelu = {"bias_before_gelu", &mx_op_add, bias_before_gelu_guard,
                                          bias_build};

/* --- GELU --- */

static bool gelu_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    (void)r, (void)m;
    const mx_node *u = n->in[0];
    return mx_matmul_has(u, MX_EPILOGUES(MX_EPILOGUE_BIAS)) && is_wide(u) && beside(n, u);
}

static void gelu_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *u = n->in[0];
    mx_node *y = mx_matmul_epilogue(g, u, MX_EPILOGUES(MX_EPILOGUE_GELU), NULL);
    mx_match_replace(m, n, y);
    mx_match_replace(m, u, mx_output(g, y, 1));
}

const mx_rule mx_rule_gelu = {"gelu", &mx_op_gelu_tanh, gelu_guard, gelu_build};

static mx_node *sum_of_rows(const mx_rewriter *r, const mx_node *x)
{
    const mx_use_list *l = mx_uses_of(&r->uses, x);
    for (int i = 0; i < l->n; i++) {
        mx_node *s = l->use[i].by;
        if (s->op == &mx_op_sum_to && s->type.dtype == MX_F32 && s->type.ndim == 1 &&
            s->type.dim[0] == x->type.dim[x->type.ndim - 1])
            return s;
    }
    return NULL;
}

/* u lies in memory, where a GEMM with GELU has left it: another u may be made in the group of the
 * derivative, and never be written. */
static bool gelu_grad_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    const mx_node *u = n->in[0], *d = n->in[1];
    m->at[0] = sum_of_rows(r, n);
    return m->at[0] && u->op->kind == MX_PROJECT &&
           mx_matmul_has(u->in[0], MX_EPILOGUES(MX_EPILOGUE_BIAS, MX_EPILOGUE_GELU)) &&
           is_plain(d) && mx_matmul_is_of_rows(d) && mx_uses_count(&r->uses, d) == 1 &&
           n->type.dtype == MX_BF16;
}

static void gelu_grad_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_epilogues list = MX_EPILOGUES(MX_EPILOGUE_GELU_GRAD, MX_EPILOGUE_BIAS_GRAD);
    mx_node *du = mx_matmul_epilogue(g, n->in[1], list, &n->in[0]);
    mx_match_replace(m, n, du);
    mx_match_replace(m, m->at[0], mx_output(g, du, 1));
}

const mx_rule mx_rule_gelu_grad = {"gelu_grad", &mx_op_gelu_tanh_grad, gelu_grad_guard,
                                   gelu_grad_build};

/* --- SwiGLU --- */

static bool same_kind(const mx_node *a, const mx_node *b)
{
    return a != b && a->in[0] == b->in[0] && mx_shape_equal(&a->in[1]->type, &b->in[1]->type) &&
           strcmp(((const mx_matmul_attr *)a->attr)->spec,
                  ((const mx_matmul_attr *)b->attr)->spec) == 0;
}

static bool is_written(const mx_rewriter *r, const mx_node *n)
{
    return !mx_is_read_in_group(r, n) && n->type.dtype == MX_BF16;
}

enum { GATE, UP, BY_SILU = 2, D = 3 };

static bool swiglu_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    for (int k = 0; k < 2; k++) {
        if (n->in[k]->op != &mx_op_silu)
            continue;
        mx_node *gate = m->at[GATE] = n->in[k]->in[0], *up = m->at[UP] = n->in[1 - k];
        m->place = gate->seq > up->seq ? gate : up;
        if (is_plain(gate) && is_plain(up) && mx_matmul_is_of_rows(gate) &&
            mx_matmul_is_of_rows(up) && same_kind(gate, up) && is_written(r, n) &&
            beside(n, gate) && beside(n, up))
            return true;
    }
    return false;
}

static void swiglu_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *h = mx_matmul_epilogue(g, m->at[GATE], MX_EPILOGUES(MX_EPILOGUE_SWIGLU),
                                    &m->at[UP]->in[1]);
    mx_match_replace(m, n, h);
    mx_match_replace(m, m->at[GATE], mx_output(g, h, 1));
    mx_match_replace(m, m->at[UP], mx_output(g, h, 2));
}

const mx_rule mx_rule_swiglu = {"swiglu", &mx_op_mul, swiglu_guard, swiglu_build};

/* Gate and up of one GEMM with SwiGLU, of d's shape: others need not lie in memory. */
static bool are_factors(const mx_node *gate, const mx_node *up, const mx_node *d)
{
    return gate != up && gate->op->kind == MX_PROJECT && up->op->kind == MX_PROJECT &&
           gate->in[0] == up->in[0] &&
           mx_matmul_has(gate->in[0], MX_EPILOGUES(MX_EPILOGUE_SWIGLU)) &&
           mx_shape_equal(&gate->type, &d->type);
}

/* d is read by two muls: the other one than `mul`, or NULL. */
static mx_node *other_mul(const mx_rewriter *r, const mx_node *d, const mx_node *mul)
{
    const mx_use_list *l = mx_uses_of(&r->uses, d);
    if (l->n != 2 || l->n_roots || l->use[0].by == l->use[1].by)
        return NULL;
    mx_node *other = l->use[l->use[0].by == mul].by;
    return other->op == &mx_op_mul ? other : NULL;
}

/* n is silu_grad(gate, mul(d, up)), and mul(d, silu(gate)) is beside it. */
static bool swiglu_grad_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    mx_node *gate = m->at[GATE] = n->in[0], *by_up = n->in[1];
    for (int k = 0; k < 2 && by_up->op == &mx_op_mul && mx_uses_count(&r->uses, by_up) == 1; k++) {
        mx_node *d = m->at[D] = by_up->in[k], *up = m->at[UP] = by_up->in[1 - k];
        if (!is_plain(d) || !mx_matmul_is_of_rows(d) || !are_factors(gate, up, d))
            continue;
        mx_node *by_silu = m->at[BY_SILU] = other_mul(r, d, by_up);
        const mx_node *silu = by_silu ? by_silu->in[by_silu->in[0] == d] : NULL;
        if (!silu || silu->op != &mx_op_silu || silu->in[0] != gate || !is_written(r, n) ||
            !is_written(r, by_silu))
            continue;
        m->place = n->seq > by_silu->seq ? by_silu : n;
        return true;
    }
    return false;
}

static void swiglu_grad_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *dg = mx_matmul_epilogue(g, m->at[D], MX_EPILOGUES(MX_EPILOGUE_SWIGLU_GRAD),
                                     (mx_node *[]){m->at[GATE], m->at[UP]});
    mx_match_replace(m, n, dg);
    mx_match_replace(m, m->at[BY_SILU], mx_output(g, dg, 1));
}

const mx_rule mx_rule_swiglu_grad = {"swiglu_grad", &mx_op_silu_grad, swiglu_grad_guard,
                                     swiglu_grad_build};
