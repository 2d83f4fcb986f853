/* print.c - a graph as text and as Graphviz, and the verifier that runs between passes. */
#include "ir/graph.h"

#include "base/crc32c.h"
#include <string.h>

static void print_attr(mx_str *s, const mx_node *n)
{
    const char *base = n->attr;
    for (const mx_attr_field *f = n->op->fields; f && f->name; f++) {
        const void *p = base + f->offset;
        if (f->quiet || (f->kind == MX_ATTR_TABLE && !*(double *const *)p) ||
            (f->kind == MX_ATTR_LIST && !*(const uint8_t *)p))
            continue;
        mx_str_addf(s, " %s=", f->name);
        switch (f->kind) {
        case MX_ATTR_INT:
            mx_str_addf(s, "%lld", (long long)*(const int64_t *)p);
            break;
        case MX_ATTR_F64:
            mx_str_addf(s, "%g", *(const double *)p);
            break;
        case MX_ATTR_BOOL:
            mx_str_add(s, *(const bool *)p ? "true" : "false");
            break;
        case MX_ATTR_DTYPE:
            mx_str_add(s, mx_dtype_name(*(const mx_dtype *)p));
            break;
        case MX_ATTR_TEXT:
            mx_str_addf(s, "\"%s\"", (const char *)p);
            break;
        case MX_ATTR_TABLE: /* a digest: two graphs print alike only when their tables are alike */
            mx_str_addf(s, "%08x",
                        mx_crc32c(*(double *const *)p,
                                  sizeof(double) * (size_t)mx_type_count(&n->type)));
            break;
        case MX_ATTR_DIMS: {
            const mx_shape *d = p;
            for (int i = 0; i < d->ndim; i++)
                mx_str_addf(s, "%s%lld", i ? "x" : "", (long long)d->dim[i]);
            break;
        }
        case MX_ATTR_INTS:
        case MX_ATTR_INT32:
        case MX_ATTR_ENUM:
        case MX_ATTR_NAME:
        case MX_ATTR_BOX:
        case MX_ATTR_GROUP:
            mx_str_add(s, "...");
            break;
        case MX_ATTR_LIST:
            for (const uint8_t *item = p; *item; item++)
                mx_str_addf(s, "%s%s", item == p ? "" : ",", f->label(*item));
            break;
        }
    }
}

static void print_node(mx_str *s, const mx_node *n)
{
    mx_str_addf(s, "%%%d = %s", n->id, n->op->name);
    print_attr(s, n);
    for (int i = 0; i < n->n_in; i++)
        n->in[i] ? mx_str_addf(s, " %%%d", n->in[i]->id) : mx_str_add(s, " -");
    mx_str_add(s, " : ");
    for (int k = 0; k < n->n_out; k++) {
        if (k)
            mx_str_add(s, ", ");
        mx_type_print(s, mx_node_type(n, k));
    }
    if (n->name)
        mx_str_addf(s, " \"%s\"", n->name);
    if (n->axes)
        mx_str_addf(s, " [%s]", n->axes);
    if (*n->scope)
        mx_str_addf(s, " @%s", n->scope);
    if (n->recomputed)
        mx_str_add(s, " recomputed");
}

void mx_graph_print(const mx_graph *g, mx_str *out)
{
    mx_arena scratch = {0};
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    for (int i = 0; i < n; i++) {
        print_node(out, order[i]);
        mx_str_add(out, "\n");
    }
    for (int i = 0; i < g->n_roots; i++)
        mx_str_addf(out, "root %%%d %s\n", g->root[i]->id,
                    g->root[i]->name ? g->root[i]->name : "");
    mx_arena_fini(&scratch);
}

void mx_graph_print_dot(const mx_graph *g, mx_str *out)
{
    mx_arena scratch = {0};
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    mx_str_add(out, "digraph maxc {\n  node [shape=box, fontname=\"monospace\"];\n");
    for (int i = 0; i < n; i++) {
        const mx_node *x = order[i];
        mx_str_addf(out, "  n%d [label=\"%s\\n", x->id, x->op->name);
        mx_type_print(out, &x->type);
        mx_str_addf(out, "%s%s\"];\n", x->name ? "\\n" : "", x->name ? x->name : "");
        for (int k = 0; k < x->n_in; k++)
            if (x->in[k])
                mx_str_addf(out, "  n%d -> n%d;\n", x->in[k]->id, x->id);
    }
    mx_str_add(out, "}\n");
    mx_arena_fini(&scratch);
}

/* Infers every node again and compares: a pass that changed an input's type without rebuilding its
 * users, or forged a type, is caught here. */
mx_status mx_graph_verify(mx_graph *g)
{
    MX_TRY(mx_graph_check(g));
    mx_graph again;
    mx_graph_init(&again);
    again.param_dtype = g->param_dtype;
    mx_status st = MX_OK;
    mx_arena scratch = {0};
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    for (int i = 0; i < n && !st; i++) {
        const mx_node *x = order[i];
        if (x->op->kind == MX_SOURCE)
            continue;
        mx_node *y = mx_apply_n(&again, x->op, x->attr, x->n_in, x->in, x->n_out);
        bool same = !again.error;
        for (int k = 0; same && k < x->n_out; k++) {
            const mx_type *a = mx_node_type(x, k), *b = mx_node_type(y, k);
            same = a->dtype == b->dtype && mx_shape_equal(a, b);
        }
        if (!same) {
            mx_str text = {0};
            print_node(&text, x);
            mx_str_add(&text, "\n  but inference gives ");
            again.error ? mx_str_add(&text, again.error) : mx_type_print(&text, &y->type);
            st = mx_fail(MX_USAGE, "the graph does not verify: %s", mx_str_text(&text));
            mx_str_fini(&text);
        }
    }
    mx_arena_fini(&scratch);
    mx_graph_fini(&again);
    return st;
}
