/* merge.c - matmuls of one input with several weights become one: q, k and v.
 *
 *     x Wq^T, x Wk^T, x Wv^T   ->   split(x [Wq; Wk; Wv]^T)
 *
 * The gradient then is one GEMM as well: dx comes out summed instead of as three tensors that a
 * kernel has to read and add, and GEMMs too narrow to fill the chip are gone. Split and concat
 * along columns copy nothing (strided_views.c) where attention and the rotation of q and k are all
 * that touches them. The weights' rows are copied together in every step, and again for the
 * backward pass, rather than kept so long (remat.c).
 *
 * Where it pays: three or more. Of two, gate and up, the GEMMs gain nothing by themselves; they are
 * one kernel where SwiGLU is their epilogue. Weights that are not trained stay as they are.
 */
#include "compile/rules.h"

#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

enum { ENOUGH = 3, ALIGN = 8 }; /* ALIGN: elements; strided views begin at 16 bytes */

/* A weight in a matrix of its own, as it is or cast. */
static bool is_weight(const mx_node *w)
{
    const mx_node *v = w->op == &mx_op_cast ? w->in[0] : w;
    const mx_var_attr *a = v->attr;
    return v->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->frozen && w->type.ndim == 2;
}

static bool is_candidate(const mx_node *n)
{
    return mx_matmul_has(n, MX_EPILOGUES(MX_EPILOGUE_NONE)) && is_weight(n->in[1]) &&
           strcmp(((const mx_matmul_attr *)n->attr)->spec, "*d,fd->*f") == 0 &&
           !((const mx_matmul_attr *)n->attr)->has_out && n->in[1]->type.dim[0] % ALIGN == 0;
}

/* Where the policy keeps one result and computes the other again, the merged GEMM would be computed
 * again for the sake of the other. */
static bool goes_with(const mx_rewriter *r, const mx_node *a, const mx_node *b)
{
    return a->in[1]->type.dtype == b->in[1]->type.dtype && a->in[1] != b->in[1] &&
           mx_remat_keeps_gemm(r->remat, a) == mx_remat_keeps_gemm(r->remat, b);
}

static bool guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    if (!is_candidate(n))
        return false;
    const mx_use_list *l = mx_uses_of(&r->uses, n->in[0]);
    for (int i = 0; i < l->n && m->n < MX_MATCH_NODES; i++) {
        mx_node *y = l->use[i].by;
        if (l->use[i].input == 0 && is_candidate(y) &&
            (m->n == 0 || goes_with(r, m->at[m->n - 1], y)))
            m->at[m->n++] = y;
    }
    return m->n >= ENOUGH && m->at[0] == n;
}

static void build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *w[MX_MATCH_NODES];
    int64_t sizes[MX_MATCH_NODES];
    for (int i = 0; i < m->n; i++)
        w[i] = m->at[i]->in[1], sizes[i] = w[i]->type.dim[0];
    mx_node *y = mx_matmul(g, "*d,fd->*f", n->in[0], mx_concat(g, m->n, w, 0));
    mx_node *views = mx_split(g, y, m->n, sizes);
    for (int i = 0; i < m->n; i++)
        mx_match_replace(m, m->at[i], mx_output(g, views, i));
}

const mx_rule mx_rule_merge_qkv = {"merge_qkv", &mx_op_matmul, guard, build};
