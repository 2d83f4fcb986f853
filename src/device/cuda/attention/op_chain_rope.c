/* op_chain_rope.c - RoPE of queries and keys, and keys and values into the cache, as one launch
 * (op.h, chains).
 *
 *     fused(rope of q)   fused(rope of k)   cache_write(k)   cache_write(v)
 */
#include "device/cuda/attention/rope_cache.h"
#include "device/cuda/core/context.h"
#include "ops.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_CACHE_WRITE };
enum { ROPE_Q, ROPE_K, WRITE_K, WRITE_V, LENGTH };
enum { MOST_TOKENS = 256 }; /* of many, a launch is a small part of the time */

/* A step x cos + rotate_half(x) sin over whole heads, by the places of its inputs. */
typedef struct {
    const mx_tensor *x, *cos, *sin, *to;
} rope;

/* Of two operands the one that is not `one`; -1: neither is. */
static int other_of(const mx_group_step *s, int one)
{
    return s->in[0] == one ? s->in[1] : s->in[1] == one ? s->in[0] : -1;
}

static bool find_rope(const mx_exec_step *s, rope *r)
{
    static const mx_op *const ops[] = {&mx_op_rotate_half, &mx_op_mul, &mx_op_mul, &mx_op_add};
    const mx_group *g = mx_chain_group(s, ops, 4);
    if (!g || g->n_ext != 3 || g->n_out != 1 || g->out[0] != 6)
        return false;
    enum { TURNED = 3 }; /* values: 0 to 2 come from outside, then the steps */
    int x = g->step[0].in[0], by_sin = 4, by_cos = 5;
    if (other_of(&g->step[1], TURNED) < 0)
        by_sin = 5, by_cos = 4;
    int sin = other_of(&g->step[by_sin - 3], TURNED), cos = other_of(&g->step[by_cos - 3], x);
    const int64_t *dims = NULL;
    const bool *interleaved = NULL;
    for (const mx_attr_field *f = g->step[0].op->fields; f->name; f++) {
        const char *at = (const char *)g->step[0].attr + f->offset;
        if (strcmp(f->name, "dims") == 0)
            dims = (const int64_t *)at;
        if (strcmp(f->name, "interleaved") == 0)
            interleaved = (const bool *)at;
    }
    const mx_type *t = &g->ext[x < 3 ? x : 0];
    if (x > 2 || sin < 0 || sin > 2 || cos < 0 || cos > 2 || sin == cos || sin == x || cos == x ||
        !dims || !interleaved || *interleaved || other_of(&g->step[3], by_sin) != by_cos ||
        t->ndim != 4 || *dims != t->dim[3])
        return false;
    *r = (rope){&s->call.in[x], &s->call.in[cos], &s->call.in[sin], &s->call.out[0]};
    return mx_chain_is_dense(r->x, MX_BF16) && mx_chain_is_dense(r->to, MX_BF16) &&
           mx_chain_is_dense(r->cos, MX_F32) && mx_chain_is_dense(r->sin, MX_F32);
}

/* A cache (batch, s, heads, d), tokens (batch, t, heads, d). */
static bool writes(const mx_exec_step *s, const mx_exec_step *like)
{
    const mx_tensor *in = s->call.in, *as = like->call.in;
    return s->op == &mx_op_cache_write && mx_chain_is_dense(&in[CACHE_OLD], MX_BF16) &&
           mx_chain_is_dense(&in[CACHE_NEW], MX_BF16) && in[CACHE_OLD].type.ndim == 4 &&
           in[CACHE_SLOTS].data == as[CACHE_SLOTS].data &&
           mx_shape_equal(&in[CACHE_OLD].type, &as[CACHE_OLD].type) &&
           mx_shape_equal(&in[CACHE_NEW].type, &as[CACHE_NEW].type);
}

/* Results are written while others are read: only a head's own may lie over it. */
static bool is_free(const mx_tensor *to, const mx_tensor *const *read, int n)
{
    for (int i = 0; i < n; i++)
        if (!mx_chain_apart(to, read[i]))
            return false;
    return true;
}

static int match(const mx_exec_step *s, int n)
{
    rope q, k;
    if (n < LENGTH || !find_rope(&s[ROPE_Q], &q) || !find_rope(&s[ROPE_K], &k) ||
        !writes(&s[WRITE_K], &s[WRITE_K]) || !writes(&s[WRITE_V], &s[WRITE_K]))
        return 0;
    const mx_type *x = &k.x->type, *cache = &s[WRITE_K].call.in[CACHE_OLD].type;
    const mx_tensor *v = &s[WRITE_V].call.in[CACHE_NEW];
    int64_t d = x->dim[3], tokens = x->dim[0] * x->dim[1], angles = mx_type_count(&q.cos->type);
    bool fits = q.cos->data == k.cos->data && q.sin->data == k.sin->data &&
                mx_type_count(&q.sin->type) == angles && (angles == d || angles == tokens * d) &&
                q.x->type.dim[3] == d && q.x->type.dim[0] * q.x->type.dim[1] == tokens &&
                s[WRITE_K].call.in[CACHE_NEW].data == k.to->data &&
                mx_type_count(&v->type) == mx_type_count(x) && cache->dim[2] == x->dim[2] &&
                cache->dim[3] == d && d % 4 == 0 && tokens <= MOST_TOKENS;
    const mx_tensor *read_q[] = {k.x, v, q.cos, q.sin, q.x};
    const mx_tensor *read_k[] = {q.x, v, q.cos, q.sin, k.x};
    return fits && is_free(q.to, read_q, 4 + (q.to->data != q.x->data)) &&
                   is_free(k.to, read_k, 4 + (k.to->data != k.x->data)) &&
                   mx_chain_apart(q.to, k.to)
               ? LENGTH
               : 0;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, int n)
{
    rope q, k;
    (void)n;
    MX_ASSERT(find_rope(&s[ROPE_Q], &q) && find_rope(&s[ROPE_K], &k), "%s matched", s->label);
    const mx_tensor *key = s[WRITE_K].call.in, *value = s[WRITE_V].call.in;
    const mx_type *x = &k.x->type;
    mx_cuda_rope_cache p = {.q = q.x->data, .k = k.x->data, .v = value[CACHE_NEW].data,
                            .q_to = q.to->data, .k_to = k.to->data,
                            .k_cache = key[CACHE_OLD].data, .v_cache = value[CACHE_OLD].data,
                            .cos = q.cos->data, .sin = q.sin->data,
                            .slots = key[CACHE_SLOTS].data, .n = x->dim[0] * x->dim[1],
                            .t = key[CACHE_NEW].type.dim[1], .s = key[CACHE_OLD].type.dim[1],
                            .heads_q = (int)q.x->type.dim[2], .heads_k = (int)x->dim[2],
                            .d = (int)x->dim[3],
                            .one_angle = mx_type_count(&q.cos->type) == x->dim[3]};
    return mx_cuda_check(mx_cuda_rope_cache_launch(&p, c->stream), "RoPE and cache_write");
}

const mx_cuda_chain mx_cuda_chain_rope = {match, launch};
