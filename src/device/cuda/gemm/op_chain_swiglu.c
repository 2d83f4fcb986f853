/* op_chain_swiglu.c - gate, up and silu(gate) up of a few vectors as one launch (op.h, chains). The
 * bits are those of the steps one by one.
 *
 *     matmul(x, w_gate)   matmul(x, w_up)   fused(silu, mul)
 * and the same with dequant_matmul.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/gemv_swiglu.h"
#include "device/cuda/gemm/op_dequant.h"
#include "ops.h"
#include "ops/inputs.h"
#include "ops/matmul.h"

enum { MX_INPUTS_DEQUANT_MATMUL };
enum { LENGTH = 3, H = 2 }; /* two GEMMs, and the step that gives h */

/* The step, 0 or 1, whose result goes through silu; -1: h is made of something else. */
static int find_gate(const mx_exec_step *s)
{
    static const mx_op *const ops[] = {&mx_op_silu, &mx_op_mul};
    const mx_group *g = mx_chain_group(&s[H], ops, 2);
    if (!g || g->n_ext != 2 || g->n_out != 1 || g->out[0] != 3)
        return -1;
    const int *by = g->step[1].in, gate = g->step[0].in[0];
    bool both = (by[0] == 2 && by[1] == 1 - gate) || (by[1] == 2 && by[0] == 1 - gate);
    for (int i = 0; i < 2 && both && gate < 2; i++)
        if (s[H].call.in[gate].data == s[i].call.out[0].data &&
            s[H].call.in[1 - gate].data == s[1 - i].call.out[0].data)
            return i;
    return -1;
}

static mx_status keep(void *to, const mx_matmul_gemm *p)
{
    mx_matmul_gemm *only = to;
    *only = only->m ? (mx_matmul_gemm){.m = -1} : *p; /* -1: it is not the only one */
    return MX_OK;
}

/* One vector times a weight that no kernel of the program writes. */
static bool is_gemv(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    mx_matmul_gemm p = {0};
    if (s->op != &mx_op_matmul || s->call.n_in != 2 ||
        !mx_chain_is_dense(&in[MX_MATMUL_B], MX_BF16) || !in[MX_MATMUL_B].fixed ||
        mx_matmul_gemms(s->call.attr, &in[MX_MATMUL_A].type, &in[MX_MATMUL_B].type,
                        &s->call.out[0].type, keep, &p))
        return false;
    return p.m == 1 && mx_matmul_gemm_is_dense(&p) && p.trans_b && p.k % 8 == 0;
}

static bool is_dequant(const mx_exec_step *s)
{
    return s->op == &mx_op_dequant_matmul;
}

static bool are_codes(const mx_exec_step *s)
{
    if (!is_dequant(&s[0]) || !is_dequant(&s[1]))
        return false;
    mx_cuda_codes a = mx_cuda_codes_of(&s[0]), b = mx_cuda_codes_of(&s[1]);
    return mx_cuda_dequant_is_one_launch(&a, &b) &&
           mx_type_count(&s->call.in[DEQUANT_X].type) <= MX_CUDA_DEQUANT_MAX_M * a.k;
}

static int match(const mx_exec_step *s, int n)
{
    if (n < LENGTH || (s->op != &mx_op_matmul && !is_dequant(s)))
        return 0;
    const mx_tensor *x = &s->call.in[0], *h = &s[H].call.out[0];
    for (int i = 0; i < LENGTH; i++)
        if (!mx_chain_is_dense(&s[i].call.out[0], MX_BF16) ||
            mx_type_count(&s[i].call.out[0].type) != mx_type_count(&h->type))
            return 0;
    bool same = s[1].op == s->op && s[1].call.in[0].data == x->data &&
                mx_chain_is_dense(x, MX_BF16) && find_gate(s) >= 0;
    /* Blocks read x while others write h. */
    same = same && mx_chain_apart(x, h) && mx_chain_apart(&s[0].call.out[0], h) &&
           mx_chain_apart(&s[1].call.out[0], h);
    return same && ((is_gemv(&s[0]) && is_gemv(&s[1])) || are_codes(s)) ? LENGTH : 0;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, int n)
{
    (void)n;
    const mx_exec_step *gate = &s[find_gate(s)], *up = &s[1 - find_gate(s)];
    const mx_tensor *x = &s->call.in[0];
    void *h = s[H].call.out[0].data;
    if (!is_dequant(s)) {
        mx_gemv_swiglu p = {.gate = gate->call.in[MX_MATMUL_B].data,
                            .up = up->call.in[MX_MATMUL_B].data, .x = x->data,
                            .y_gate = gate->call.out[0].data, .y_up = up->call.out[0].data,
                            .h = h, .n = mx_type_count(&gate->call.out[0].type),
                            .k = mx_type_count(&x->type)};
        return mx_cuda_check(mx_cuda_gemv_swiglu(&p, c->stream), "GEMMs with SwiGLU");
    }
    mx_cuda_dequant pair[2] = {{mx_cuda_codes_of(gate), gate->call.out[0].data, false},
                               {mx_cuda_codes_of(up), up->call.out[0].data, false}};
    return mx_cuda_check(mx_cuda_dequant_swiglu(pair, x->data,
                                                mx_type_count(&x->type) / pair->w.k, h, c->stream),
                         "GEMMs with SwiGLU");
}

const mx_cuda_chain mx_cuda_chain_swiglu = {match, launch};
