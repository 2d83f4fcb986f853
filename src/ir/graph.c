/* graph.c - building: nodes, scopes, names, sticky errors. */
#include "ir/graph.h"

#include "base/reserve.h"
#include "ir/name_map.h"
#include "ir/notation.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mx_graph_init(mx_graph *g)
{
    *g = (mx_graph){.seq = -1};
    g->scope = mx_arena_strdup(&g->arena, "");
    g->names = MX_NEW(&g->arena, mx_name_map);
}

void mx_graph_fini(mx_graph *g)
{
    if (g->names)
        mx_name_map_fini(g->names);
    mx_free(g->node);
    mx_free(g->root);
    mx_arena_fini(&g->arena);
    *g = (mx_graph){0};
}

mx_node *mx_graph_find(const mx_graph *g, const char *name)
{
    return mx_name_map_find(g->names, name);
}

void mx_graph_enter(mx_graph *g, mx_node *n)
{
    if (!mx_name_map_add(g->names, n->name, n))
        mx_graph_fail(g, "the name %s is declared twice", n->name);
}

void mx_graph_fail(mx_graph *g, const char *fmt, ...)
{
    if (g->error)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->error = mx_arena_printf(&g->arena, "%s%s%s", g->scope, *g->scope ? ": " : "", text);
}

void mx_graph_fail_inputs(mx_graph *g, const mx_node *n, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mx_str inputs = {0};
    int n_in = n->n_in;
    while (n_in && !n->in[n_in - 1]) /* optional inputs that are not there */
        n_in--;
    for (int i = 0; i < n_in; i++) {
        mx_str_add(&inputs, i ? ", " : "");
        if (!n->in[i]) {
            mx_str_add(&inputs, "nothing");
            continue;
        }
        mx_str_addf(&inputs, "%s ", n->in[i]->name ? n->in[i]->name : n->in[i]->op->name);
        mx_type_print(&inputs, &n->in[i]->type);
    }
    mx_graph_fail(g, "%s of %s: %s", n->op->name, mx_str_text(&inputs), text);
    mx_str_fini(&inputs);
}

static mx_status check_alike(const mx_node *n)
{
    const mx_node *first = NULL;
    for (int i = 0; i < n->n_in; i++) {
        const mx_node *x = n->op->alike >> i & 1 ? n->in[i] : NULL;
        first = first ? first : x;
        if (x && x->type.dtype != first->type.dtype)
            return mx_fail(MX_USAGE,
                           "the model cannot be built: %s%s%s has %s as input %d beside %s; they "
                           "must be of one dtype",
                           n->scope, *n->scope ? ": " : "", n->op->name,
                           mx_dtype_name(x->type.dtype), i, mx_dtype_name(first->type.dtype));
    }
    return MX_OK;
}

static mx_status check_live(const mx_graph *g, mx_status (*check)(const mx_node *n))
{
    mx_arena scratch = {0};
    mx_status st = MX_OK;
    const bool *live = mx_graph_live(g, &scratch);
    for (int i = 0; i < g->n_nodes && !st; i++)
        if (live[i])
            st = check(g->node[i]);
    mx_arena_fini(&scratch);
    return st;
}

mx_status mx_graph_check(const mx_graph *g)
{
    if (g->error)
        return mx_fail(MX_USAGE, "the model cannot be built: %s", g->error);
    return mx_memory_check();
}

mx_status mx_graph_check_final(const mx_graph *g)
{
    MX_TRY(mx_graph_check(g));
    return check_live(g, check_alike);
}

void mx_scope(mx_graph *g, const char *fmt, ...)
{
    char part[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(part, sizeof part, fmt, ap);
    va_end(ap);
    MX_ASSERT(g->n_scopes < MX_MAX_SCOPES, "scopes nest more than %d deep at %s", MX_MAX_SCOPES,
              g->scope);
    g->outer[g->n_scopes++] = g->scope;
    g->scope = mx_arena_printf(&g->arena, "%s%s%s", g->scope, *g->scope ? "." : "", part);
}

mx_node *mx_scope_end(mx_graph *g, mx_node *x)
{
    MX_ASSERT(g->n_scopes > 0, "mx_scope_end without mx_scope");
    g->scope = g->outer[--g->n_scopes];
    return x;
}

size_t mx_scope_layer(const char *scope)
{
    for (const char *p = scope, *end; *p; p = end + (*end == '.')) {
        end = p + strcspn(p, ".");
        if (end > p && strspn(p, "0123456789") >= (size_t)(end - p))
            return (size_t)(end - scope);
    }
    return 0;
}

size_t mx_scope_of_all(const char *scope, char *out, size_t cap)
{
    size_t k = 0;
    for (const char *c = scope; *c && k + 1 < cap; c++) {
        size_t digits = c == scope || c[-1] == '.' ? strspn(c, "0123456789") : 0;
        out[k++] = digits ? '*' : *c;
        c += digits ? digits - 1 : 0;
    }
    out[k] = 0;
    return k;
}

bool mx_same_layer(const mx_node *a, const mx_node *b)
{
    size_t n = mx_scope_layer(a->scope);
    return n && n == mx_scope_layer(b->scope) && memcmp(a->scope, b->scope, n) == 0;
}

const mx_type *mx_node_type(const mx_node *n, int k)
{
    return k ? &n->more[k - 1] : &n->type;
}

mx_dtype mx_node_grad_dtype(const mx_node *n)
{
    return n->grad_dtype ? (mx_dtype)(n->grad_dtype - 1) : n->type.dtype;
}

void mx_node_set_grad_dtype(mx_node *n, mx_dtype d)
{
    n->grad_dtype = (uint8_t)(1 + d); /* 0: its own */
}

/* numpy broadcasting; the result takes the dtype of its largest input (the wider on a tie), so
 * that a small float32 factor does not widen a large bfloat16 activation. */
static void infer_elementwise(mx_graph *g, mx_node *n)
{
    mx_type t = {0};
    int64_t largest = -1;
    for (int i = 0; i < n->n_in; i++) {
        const mx_type *x = &n->in[i]->type;
        if (x->ndim > t.ndim) {
            memmove(t.dim + (x->ndim - t.ndim), t.dim, sizeof(int64_t) * (size_t)t.ndim);
            for (int d = 0; d < x->ndim - t.ndim; d++)
                t.dim[d] = 1;
            t.ndim = x->ndim;
        }
        for (int d = 0; d < x->ndim; d++) {
            int64_t *have = &t.dim[t.ndim - x->ndim + d];
            if (*have != 1 && x->dim[d] != 1 && *have != x->dim[d]) {
                mx_graph_fail_inputs(g, n, "sizes %lld and %lld do not match", (long long)*have,
                                     (long long)x->dim[d]);
                return;
            }
            if (x->dim[d] != 1)
                *have = x->dim[d];
        }
        int64_t count = mx_type_count(x);
        bool wider = mx_dtype_bytes(x->dtype) > mx_dtype_bytes(t.dtype);
        if (count > largest || (count == largest && wider)) {
            largest = count;
            t.dtype = x->dtype;
        }
    }
    n->type = t;
}

void mx_node_check_sizes(mx_graph *g, mx_node *n)
{
    for (int k = 0; k < n->n_out; k++) {
        mx_type *t = k ? &n->more[k - 1] : &n->type;
        if (mx_type_fits(t))
            continue;
        mx_str s = {0};
        mx_type_print(&s, t);
        mx_graph_fail_inputs(g, n, "a tensor cannot be %s: a size is negative, or there are more "
                             "than 2^46 elements", mx_str_text(&s));
        mx_str_fini(&s);
        for (int i = 0; i < t->ndim; i++)
            t->dim[i] = 1;
    }
}

static void say_dtypes(mx_str *s, mx_dtypes set)
{
    for (int d = 0; d < MX_DTYPE_COUNT; d++)
        if (set >> d & 1)
            mx_str_addf(s, "%s%s", !s->len ? "" : set >> (d + 1) ? ", " : " or ",
                        mx_dtype_name((mx_dtype)d));
}

/* Kernels do not look at dtypes that no op gives them: what they cannot read ends here. */
static void check_dtype(mx_graph *g, const mx_node *n, mx_dtype d, mx_dtypes takes,
                        const char *which)
{
    if (takes >> d & 1)
        return;
    mx_str text = {0};
    say_dtypes(&text, takes);
    mx_graph_fail_inputs(g, n, "%s %s, expected %s; cast it", which, mx_dtype_name(d),
                         mx_str_text(&text));
    mx_str_fini(&text);
}

static void check_dtypes(mx_graph *g, const mx_node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        char which[32];
        snprintf(which, sizeof which, "input %d is", i);
        if (n->in[i])
            check_dtype(g, n, n->in[i]->type.dtype,
                        n->op->dtypes_at[i] ? n->op->dtypes_at[i] : n->op->dtypes, which);
    }
    if (n->op->gives)
        check_dtype(g, n, n->type.dtype, n->op->gives, "the result would be");
}

void mx_node_infer(mx_graph *g, mx_node *n)
{
    const mx_op *op = n->op;
    if (op->kind == MX_ELEMENTWISE) {
        infer_elementwise(g, n);
    } else if (op->kind == MX_ROW_REDUCE || op->kind == MX_ROW_MAP) {
        n->type = n->in[0]->type;
        if (n->type.ndim == 0)
            mx_graph_fail(g, "%s needs at least one dim", op->name);
        else if (op->kind == MX_ROW_REDUCE)
            n->type.dim[n->type.ndim - 1] = 1;
    } else if (n->n_in > 0 && n->in[0]) {
        n->type.dtype = n->in[0]->type.dtype;
        for (int k = 1; k < n->n_out; k++)
            n->more[k - 1].dtype = n->type.dtype;
    }
    for (int k = 0; op->keep_f32 && k < n->n_out; k++) {
        mx_dtype *d = k ? &n->more[k - 1].dtype : &n->type.dtype;
        if (mx_dtype_is_float(*d) && mx_dtype_bytes(*d) < 4)
            *d = MX_F32;
    }
    const char *dims = op->notation ? op->notation(n) : op->dims;
    if (dims) {
        mx_notation parsed;
        const mx_type *in[MX_MAX_IN];
        mx_type out[MX_MAX_OUT];
        char why[256];
        for (int i = 0; i < n->n_in; i++)
            in[i] = n->in[i] ? &n->in[i]->type : NULL;
        out[0] = n->type;
        for (int k = 1; k < n->n_out; k++)
            out[k] = n->more[k - 1];
        if (!mx_notation_parse(dims, &parsed))
            mx_graph_fail(g, "%s: malformed index notation \"%s\"", op->name, dims);
        else if (!mx_notation_infer(&parsed, in, n->n_in, out, n->n_out, why, sizeof why))
            mx_graph_fail_inputs(g, n, "%s (notation %s)", why, dims);
        n->type = out[0];
        for (int k = 1; k < n->n_out; k++)
            n->more[k - 1] = out[k];
    }
    if (op->infer && !g->error)
        op->infer(g, n);
    if (op->same_value && n->in[0])
        n->grad_dtype = n->in[0]->grad_dtype;
    if (!g->error)
        check_dtypes(g, n);
    mx_node_check_sizes(g, n);
}

mx_node *mx_apply(mx_graph *g, const mx_op *op, const void *attr, int n_in, mx_node *const *in)
{
    MX_ASSERT(op->n_out >= 0, "%s needs mx_apply_n", op->name);
    return mx_apply_n(g, op, attr, n_in, in, op->n_out ? op->n_out : 1);
}

mx_node *mx_apply_n(mx_graph *g, const mx_op *op, const void *attr, int n_in, mx_node *const *in,
                    int n_out)
{
    MX_ASSERT(n_in <= MX_MAX_IN && n_out <= MX_MAX_OUT, "%s: %d in, %d out", op->name, n_in, n_out);
    mx_node *n = MX_NEW(&g->arena, mx_node);
    n->id = g->n_nodes;
    n->seq = g->seq >= 0 ? g->seq : n->id;
    n->op = op;
    n->backward = g->backward;
    if (op->attr_size)
        n->attr = attr ? mx_arena_copy(&g->arena, attr, op->attr_size)
                       : mx_arena_alloc(&g->arena, op->attr_size);
    n->n_in = n_in;
    n->n_out = n_out;
    n->in = MX_NEW_N(&g->arena, mx_node *, n_in);
    for (int i = 0; i < n_in; i++)
        n->in[i] = in[i];
    if (n_out > 1)
        n->more = MX_NEW_N(&g->arena, mx_type, n_out - 1);
    n->scope = g->scope;
    n->stage = g->stage;
    MX_GROW(g->node, g->n_nodes, g->cap_nodes);
    g->node[g->n_nodes++] = n;
    if (!g->error)
        mx_node_infer(g, n);
    /* Poisoned: model code goes on asking for sizes, so there should be some. */
    if (g->error && !n->type.ndim && n_in && in[0])
        n->type = in[0]->type;
    return n;
}

mx_node *mx_node_copy(mx_graph *g, const mx_node *n, mx_node *const *in)
{
    mx_node *c = MX_NEW(&g->arena, mx_node);
    *c = *n;
    c->id = g->n_nodes;
    c->seq = g->seq >= 0 ? g->seq : c->id;
    c->forward = NULL;
    c->in = MX_NEW_N(&g->arena, mx_node *, n->n_in);
    for (int i = 0; i < n->n_in; i++)
        c->in[i] = in[i];
    MX_GROW(g->node, g->n_nodes, g->cap_nodes);
    g->node[g->n_nodes++] = c;
    return c;
}

static bool is_root(const mx_graph *g, const mx_node *n)
{
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i] == n)
            return true;
    return false;
}

mx_node *mx_graph_root(mx_graph *g, const char *name, mx_node *n)
{
    /* A node has one name: a weight must keep its own, and so must a result. */
    if (name && n->name && strcmp(n->name, name) != 0 &&
        (n->op->kind == MX_SOURCE || is_root(g, n)))
        mx_graph_fail(g, "the result %s already has the name %s; give a reshape or copy of it the "
                      "second name", name, n->name);
    else if (name)
        n->name = mx_arena_strdup(&g->arena, name);
    MX_GROW(g->root, g->n_roots, g->cap_roots);
    g->root[g->n_roots++] = n;
    return n;
}

mx_node *mx_graph_find_root(const mx_graph *g, const char *name)
{
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i]->name && strcmp(g->root[i]->name, name) == 0)
            return g->root[i];
    return NULL;
}

mx_node *mx_name(mx_graph *g, const char *name, mx_node *n)
{
    n->name = mx_arena_strdup(&g->arena, name);
    return n;
}

mx_node *mx_axes(const char *axes, mx_node *n)
{
    n->axes = axes;
    return n;
}

const char *mx_axes_text(mx_graph *g, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    MX_ASSERT(n >= 0 && n < (int)sizeof text, "%s", text);
    return mx_arena_strdup(&g->arena, text);
}

void mx_node_forward(mx_node *old, mx_node *now)
{
    MX_ASSERT(old != now);
    old->forward = now;
}

static mx_node *resolved(mx_node *n)
{
    while (n && n->forward)
        n = n->forward;
    return n;
}

void mx_graph_resolve(mx_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++)
            g->node[i]->in[k] = resolved(g->node[i]->in[k]);
    for (int i = 0; i < g->n_roots; i++) {
        const char *name = g->root[i]->name;
        g->root[i] = resolved(g->root[i]);
        if (!g->root[i]->name)
            g->root[i]->name = name;
    }
}

mx_cost mx_node_cost(const mx_node *n)
{
    mx_cost c = {0};
    if (n->op->kind == MX_SOURCE || n->op->kind == MX_VIEW || n->op->kind == MX_PROJECT)
        return c;
    if (n->op->cost)
        c = n->op->cost(n);
    else
        c.flops = (double)mx_type_count(&n->type);
    if (c.bytes == 0) {
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i])
                c.bytes += (double)mx_type_bytes(&n->in[i]->type);
        for (int k = 0; k < n->n_out; k++)
            c.bytes += (double)mx_type_bytes(mx_node_type(n, k));
    }
    return c;
}

