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
 * On a mesh weights are put together before ranks gather them, where a rank has some columns:
 *     gather(Wq), gather(Wk), gather(Wv)   ->   gather([Wq; Wk; Wv])
 * one collective instead of three, and one for their gradients.
 *
 * Where it pays: three or more. Of two, gate and up, the GEMMs gain nothing by themselves; they are
 * one kernel where SwiGLU is their epilogue. Weights that are not trained stay as they are.
 */
#include "compile/rules.h"

#include "ops.h"
#include "ops/collective.h"
#include "ops/matmul.h"
#include <string.h>

enum { ENOUGH = 3, ALIGN = 8 }; /* ALIGN: elements; strided views begin at 16 bytes */

/* Columns gathered over ranks: the rows of several weights may be concatenated before that. */
static bool is_gathered(const mx_node *w)
{
    return w->op == &mx_op_all_gather && ((const mx_collective_attr *)w->attr)->dim == 1;
}

/* A weight in a matrix of its own, as it is or cast, of this rank or of all. */
static bool is_weight(const mx_node *w)
{
    const mx_node *v = is_gathered(w) ? w->in[0] : w;
    v = v->op == &mx_op_vary ? v->in[0] : v;
    v = v->op == &mx_op_cast ? v->in[0] : v;
    const mx_var_attr *a = v->attr;
    return v->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->frozen && w->type.ndim == 2;
}

static bool lie_alike(const mx_node *a, const mx_node *b)
{
    const mx_collective_attr *x = a->attr, *y = b->attr;
    if (!is_gathered(a) || !is_gathered(b))
        return is_gathered(a) == is_gathered(b);
    return x->axes == y->axes && x->size == y->size && x->varying == y->varying;
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
           lie_alike(a->in[1], b->in[1]) &&
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
    const mx_collective_attr *ranks = is_gathered(n->in[1]) ? n->in[1]->attr : NULL;
    for (int i = 0; i < m->n; i++) {
        w[i] = m->at[i]->in[1], sizes[i] = w[i]->type.dim[0];
        w[i] = ranks ? w[i]->in[0] : w[i];
    }
    mx_node *all = mx_concat(g, m->n, w, 0);
    mx_node *y = mx_matmul(g, "*d,fd->*f", n->in[0], ranks ? mx_all_gather(g, all, *ranks) : all);
    mx_node *views = mx_split(g, y, m->n, sizes);
    for (int i = 0; i < m->n; i++)
        mx_match_replace(m, m->at[i], mx_output(g, views, i));
}

const mx_rule mx_rule_merge_qkv = {"merge_qkv", &mx_op_matmul, guard, build};
