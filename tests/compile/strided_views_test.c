/* strided_views_test.c - values that lie inside others (compile/strided_views.c), and biases fused
 * into GEMMs.
 *
 * A program is played with numbered elements instead of values: every step writes the number of the
 * element it makes to where it lies, and finds at its inputs the numbers it expects. A strided
 * view that overlaps another value, begins too late or ends too early shows as a wrong number. So
 * does one in host memory.
 */
#include "compile/program.h"
#include "compile/rules.h"
#include "ir/attention.h"
#include "ops.h"
#include "device/device.h"
#include "../test.h"
#include <string.h>

enum { B = 2, S = 3, H = 2, D = 4, F = H * D, ITEM = 4 };

/* The number of element i of output k of n, whoever made it. */
static int64_t number(const mx_program *p, const mx_node *n, int k, int64_t i)
{
    if (n->op->kind == MX_VIEW)
        return number(p, n->in[0], 0, i);
    if (n->op->kind == MX_PROJECT)
        return number(p, n->in[0], (int)*(const int64_t *)n->attr, i);
    int64_t at = 0, last = n->type.ndim - 1;
    if (n->op == &mx_op_split && p->copies_nothing[n->id]) {
        for (int q = 0; q < k; q++)
            at += mx_node_type(n, q)->dim[last];
        int64_t run = mx_node_type(n, k)->dim[last], pitch = n->in[0]->type.dim[last];
        return number(p, n->in[0], 0, i / run * pitch + at + i % run);
    }
    if (n->op == &mx_op_concat && p->copies_nothing[n->id]) {
        int64_t row = i / n->type.dim[last], col = i % n->type.dim[last];
        int q = 0;
        for (; col >= n->in[q]->type.dim[last]; q++)
            col -= n->in[q]->type.dim[last];
        return number(p, n->in[q], 0, row * n->in[q]->type.dim[last] + col);
    }
    return ((int64_t)n->id * MX_MAX_OUT + k) * 100000 + i;
}

/* memory: of the device, of the host */
static int64_t *element(const mx_program *p, int64_t **memory, const mx_node *n, int k, int64_t i)
{
    const mx_place *q = mx_program_place(p, n, k);
    int64_t at = q->pitch ? q->at + i / q->run * q->pitch + i % q->run : i;
    return q->offset < 0 ? NULL : &memory[q->hosted][q->offset / ITEM + at];
}

static void play(const mx_program *p)
{
    size_t bytes[2] = {p->value_bytes, p->host_bytes};
    int64_t *memory[2];
    for (int i = 0; i < 2; i++) {
        memory[i] = mx_realloc(NULL, sizeof **memory * (bytes[i] / ITEM + 1));
        memset(memory[i], 0, sizeof **memory * (bytes[i] / ITEM + 1));
    }
    for (int s = 0; s < p->n; s++) {
        const mx_node *n = p->order[s];
        bool idle = n->op->kind == MX_VIEW || n->op->kind == MX_PROJECT || p->copies_nothing[n->id];
        for (int k = 0; k < n->n_in && !idle; k++)
            for (int64_t i = 0; n->in[k] && i < mx_type_count(&n->in[k]->type); i++) {
                const int64_t *found = element(p, memory, n->in[k], 0, i);
                MX_CHECK(!found || *found == number(p, n->in[k], 0, i),
                         "%s reads element %lld of input %d: found %lld", n->op->name, (long long)i,
                         k, (long long)*found);
            }
        for (int k = 0; k < n->n_out && !idle; k++)
            for (int64_t i = 0; i < mx_type_count(mx_node_type(n, k)); i++) {
                int64_t *to = element(p, memory, n, k, i);
                if (to)
                    *to = number(p, n, k, i);
            }
    }
    mx_free(memory[0]);
    mx_free(memory[1]);
}

enum turn { STRAIGHT, TURNED, TURNED_AND_READ };
/* Attention over a joint projection with a bias; `other` reads q as well, or nothing does. TURNED:
 * q and k are changed in between. AND_READ: k as it was serves as v. */
static mx_node *joint_attention(mx_graph *g, mx_node *x, int layer, bool other, enum turn turn)
{
    static const char *const names[] = {"q", "k", "v"};
    mx_scope(g, "layers.%d", layer);
    mx_node *w = mx_param(g, "w", MX_SHAPE(F, 3 * F), NULL, MX_NORMAL(1));
    mx_node *bias = mx_param(g, "b", MX_SHAPE(3 * F), NULL, MX_ZEROS);
    mx_node *y = mx_add(g, mx_matmul(g, "*d,df->*f", x, w), bias);
    mx_node *part = mx_split(g, y, 3, (int64_t[]){F, F, F});
    mx_node *v[3];
    for (int i = 0; i < 3; i++)
        v[i] = mx_name(g, names[i], mx_reshape(g, mx_output(g, part, i), MX_SHAPE(B, S, H, D)));
    if (turn == TURNED_AND_READ)
        v[2] = v[1];
    for (int i = 0; i < 2 && turn; i++)
        v[i] = mx_add(g, v[i], mx_rotate_half(g, v[i], D, false));
    mx_attention_attr a = {.causal = true, .scale = 0.5};
    mx_node *o = mx_attention(g, v[0], v[1], v[2], a, (mx_attention_extra){0});
    o = mx_reshape(g, o, MX_SHAPE(B, S, F));
    if (other)
        o = mx_add(g, o, mx_transpose(g, mx_transpose(g, part, "abc->acb"), "abc->acb"));
    return mx_scope_end(g, mx_add(g, x, o));
}

static int count_free(const mx_program *p, const mx_op *op, int *all)
{
    int n = 0;
    *all = 0;
    for (int i = 0; i < p->n; i++)
        if (p->order[i]->op == op) {
            ++*all;
            n += p->copies_nothing[p->order[i]->id];
        }
    return n;
}

/* q, k and v of all layers but the last are offloaded from where they lie, as dense tensors. */
static void check_offloaded(const mx_program *p, int n_layers)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->order[i]->op == &mx_op_offload) {
            const mx_place *from = mx_program_place(p, p->order[i]->in[0], 0);
            const mx_place *to = mx_program_place(p, p->order[i], 0);
            MX_CHECK(from->pitch == 3 * F && !from->hosted && to->hosted && !to->pitch);
            n++;
        }
    MX_CHECK(n == 3 * (n_layers - 1) && p->host_bytes == (size_t)n * B * S * F * ITEM,
             "%d values, %zu bytes", n, p->host_bytes);
}

static void check_joint(bool views, bool other, bool offload, enum turn turn)
{
    enum { LAYERS = 3 };
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(B, S, F), MX_F32), *var[16], *grad[16];
    for (int l = 0; l < LAYERS; l++)
        x = joint_attention(&g, x, l, other, turn);
    mx_node *loss = mx_graph_root(&g, "loss", mx_sum_all(&g, mx_mul(&g, x, x)));
    const mx_rule *const bias[] = {&mx_rule_bias, NULL};
    mx_rewrite(&g, bias, (mx_remat){.policy = "none"});
    int n = 0;
    for (int i = 0; i < g.n_nodes; i++)
        if (g.node[i]->op == &mx_op_variable)
            var[n++] = g.node[i];
    mx_pass_autodiff(&g, loss, var, n, grad);
    for (int i = 0; i < n; i++)
        mx_graph_root(&g, NULL, grad[i]);
    if (offload) {
        MX_CHECK_OK(mx_pass_remat(&g, (mx_remat){.policy = "none", .offload = "q,k,v"}));
        MX_CHECK_OK(mx_pass_offload(&g, "q,k,v", 0));
    }
    mx_pass_fuse(&g, true);
    MX_CHECK_OK(mx_graph_verify(&g));
    mx_program p;
    MX_CHECK_OK(mx_program_init(&p, &g, 2, views ? &mx_cuda_traits : &mx_plain_traits));
    int all, splits = count_free(&p, &mx_op_split, &all);
    MX_CHECK(splits == (views && !other ? LAYERS : 0) && all == LAYERS,
             "%d of %d splits copy nothing", splits, all);
    int concats = count_free(&p, &mx_op_concat, &all); /* a group that adds can too */
    MX_CHECK(concats == (views ? LAYERS : 0) && all == LAYERS, "%d of %d concats copy nothing",
             concats, all);
    int joined = 0;
    for (int i = 0; i < p.n; i++)
        joined += p.order[i]->op == &mx_op_matmul && p.order[i]->n_in == 3;
    MX_CHECK(joined == LAYERS, "%d biases joined their GEMMs", joined);
    if (offload)
        check_offloaded(&p, LAYERS);
    play(&p);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

MX_TEST(joint_projections_are_read_where_they_lie)
{
    check_joint(true, false, false, STRAIGHT);
}

MX_TEST(a_strided_view_that_is_read_after_a_group_is_not_written_over)
{
    check_joint(true, false, false, TURNED_AND_READ);
}

MX_TEST(groups_read_strided_views_and_leave_their_results_there)
{
    check_joint(true, false, false, TURNED);
}

/* Every other element, seen as rows: no run is as long as one. */
MX_TEST(a_strided_view_of_single_elements_is_copied_for_a_group_over_rows)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(S, F), MX_F32);
    mx_node *w = mx_param(&g, "w", MX_SHAPE(F, F), NULL, MX_NORMAL(1));
    mx_node *pairs = mx_reshape(&g, mx_matmul(&g, "*d,df->*f", x, w), MX_SHAPE(S, F / 2, 2));
    mx_node *part = mx_split(&g, pairs, 2, (int64_t[]){1, 1}), *v[2];
    for (int i = 0; i < 2; i++)
        v[i] = mx_reshape(&g, mx_output(&g, part, i), MX_SHAPE(S, F / 2));
    mx_graph_root(&g, "y", mx_mul(&g, v[0], mx_silu(&g, v[1])));
    mx_pass_fuse(&g, true);
    mx_program p;
    int all;
    MX_CHECK_OK(mx_program_init(&p, &g, 2, &mx_cuda_traits));
    MX_CHECK(count_free(&p, &mx_op_split, &all) == 0 && all == 1, "%d splits", all);
    play(&p);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

MX_TEST(a_strided_view_that_others_read_is_copied)
{
    check_joint(true, true, false, STRAIGHT);
}

MX_TEST(without_strided_views_every_split_copies)
{
    check_joint(false, false, false, STRAIGHT);
}

MX_TEST(strided_views_are_offloaded_from_where_they_lie)
{
    check_joint(true, false, true, STRAIGHT);
}
