/* graph.h - a step of a transformer as a graph of nodes.
 *
 * A node is an op applied to nodes: attributes, dtype, static shape, scope. Nodes live in the
 * graph's arena and are never freed alone. An op with several outputs is one node; output 0 is the
 * node itself, output k > 0 is read through mx_output(g, n, k).
 *
 * Builders never fail visibly. The first mistake sticks to the graph with names and sizes,
 * everything built on it is quietly poisoned, and mx_graph_check reports it: model code has no
 * error handling.
 *
 * Names. `mx_scope(g, "layers.%d", l)` opens a scope; a variable's full name is the scope path and
 * its own name joined by dots, which is the checkpoint's tensor name and the variable's only
 * identity.
 */
#ifndef MX_IR_GRAPH_H
#define MX_IR_GRAPH_H

#include "base/arena.h"
#include "ir/op.h"

enum { MX_MAX_SCOPES = 16 };

struct mx_node {
    int id;  /* position in graph->node */
    int seq; /* where the schedule would like it; passes set it, ties go by id */
    const mx_op *op;
    const void *attr;   /* op->attr_size bytes, in the arena */
    int n_in, n_out;
    mx_node **in;       /* entries may be NULL: optional input absent */
    mx_type type;       /* of output 0 */
    mx_type *more;      /* of outputs 1.. */
    const char *name;   /* variables, inputs, outputs, named tensors; NULL otherwise */
    const char *scope;  /* "model.layers.3.mlp" */
    const char *axes;   /* logical axis of each dim, "vocab,embed"; NULL: none */
    const struct mx_box *box; /* variables and inputs of one rank of several; NULL: whole */
    mx_node *forward;   /* replaced by; see mx_node_forward */
    uint8_t grad_dtype; /* see mx_node_grad_dtype */
    bool backward;      /* made by autodiff or after it; see mx_graph.backward */
    int stage;          /* of a pipeline (compile/mesh/stages.h); 0 where there is none */
    bool recomputed;    /* made by the remat pass */
};

struct mx_graph {
    mx_arena arena;
    mx_node **node; /* in the order of creation */
    int n_nodes, cap_nodes;
    mx_node **root; /* what must be computed: results and state updates */
    int n_roots, cap_roots;
    const char *scope;   /* current scope path, in the arena; "" at the top */
    const char *outer[MX_MAX_SCOPES];
    int n_scopes;
    char *error;         /* first error, in the arena; NULL: none */
    int seq;             /* given to new nodes; -1 (default): their id */
    bool backward;       /* given to new nodes: true from autodiff on */
    int stage;           /* given to new nodes */
    mx_dtype param_dtype; /* dtype of variables declared by mx_param (float32; float64 in tests) */
    bool one_path; /* matmuls made from now on: a row's bits do not depend on how many there are */
    struct mx_name_map *names; /* variables and inputs by name */
};

void mx_graph_init(mx_graph *g);
void mx_graph_fini(mx_graph *g);

/* Applies an op. `in` may hold NULLs for optional inputs. Used by the builders in src/ops. */
mx_node *mx_apply(mx_graph *g, const mx_op *op, const void *attr, int n_in, mx_node *const *in);
/* The same for an op whose number of outputs is the node's own affair (op->n_out < 0). */
mx_node *mx_apply_n(mx_graph *g, const mx_op *op, const void *attr, int n_in, mx_node *const *in,
                    int n_out);
#define MX_APPLY(g, op, attr, ...)                                                                 \
    mx_apply((g), (op), (attr), (int)(sizeof((mx_node *[]){__VA_ARGS__}) / sizeof(mx_node *)),     \
             (mx_node *[]){__VA_ARGS__})

/* A second node like n, which may be another graph's, with these inputs. It shares n's attributes
 * and name, so n's graph must outlive it; its name is not entered. */
mx_node *mx_node_copy(mx_graph *g, const mx_node *n, mx_node *const *in);

/* Infers type and shape again after an input was replaced. */
void mx_node_infer(mx_graph *g, mx_node *n);
/* Refuses outputs that cannot be (mx_type_fits); then they are made small, since model code goes on
 * asking for sizes. */
void mx_node_check_sizes(mx_graph *g, mx_node *n);

/* Scopes. mx_scope_end gives x back, so that a function can end with
 * `return mx_scope_end(g, x)`. */
void mx_scope(mx_graph *g, const char *fmt, ...) MX_PRINTF(2, 3);
mx_node *mx_scope_end(mx_graph *g, mx_node *x);

/* The layer of a scope, which is its first numbered component: the length of the scope up to its
 * end, 0 when it is in none. "model.layers.3.mlp" -> 14 */
size_t mx_scope_layer(const char *scope);
bool mx_same_layer(const mx_node *a, const mx_node *b); /* false when they are in none */
/* The scope, or a label that begins with one, with the numbers of layers and experts left open, and
 * its length: "model.layers.*.mlp". Cut to what fits. */
size_t mx_scope_of_all(const char *scope, char *out, size_t cap);

/* A root is kept alive and computed; a name makes it readable after a run. */
mx_node *mx_graph_root(mx_graph *g, const char *name, mx_node *n);
/* The root of this name, or NULL. */
mx_node *mx_graph_find_root(const mx_graph *g, const char *name);
/* Names a tensor for remat policies and dumps ("mlp_out"); gives n back. */
mx_node *mx_name(mx_graph *g, const char *name, mx_node *n);
/* Says how an activation lies on a mesh, by logical names of its dims (compile/mesh/axis_rules.h);
 * gives n back. */
mx_node *mx_axes(const char *axes, mx_node *n);
/* Such names with numbers in them, in the graph's arena. */
const char *mx_axes_text(mx_graph *g, const char *fmt, ...) MX_PRINTF(2, 3);

/* The variable or input of this full name, or NULL. */
mx_node *mx_graph_find(const mx_graph *g, const char *name);
/* Enters a variable or input under its full name; a second one of the same name is an error. */
void mx_graph_enter(mx_graph *g, mx_node *n);

/* Sticky errors. The message is prefixed with the scope. */
void mx_graph_fail(mx_graph *g, const char *fmt, ...) MX_PRINTF(2, 3);
/* The same, led by the op and its inputs: "add of x float32(2, 3), silu float32(2, 4): ...". */
void mx_graph_fail_inputs(mx_graph *g, const mx_node *n, const char *fmt, ...) MX_PRINTF(3, 4);
/* The first error there is, and whether every live node has inputs of dtypes that its op takes. */
mx_status mx_graph_check(const mx_graph *g) MX_MUST_USE;
/* The same of a graph that kernels will run: inputs that have to be of one dtype are. */
mx_status mx_graph_check_final(const mx_graph *g) MX_MUST_USE;

/* From now on readers of `old` read `now`; takes effect in mx_graph_resolve. */
void mx_node_forward(mx_node *old, mx_node *now);
void mx_graph_resolve(mx_graph *g);

/* Drops nodes that nothing needs, except variables and inputs, and numbers the others in execution
 * order, as if they had been built so: for passes that put nodes into the middle of a forward
 * graph. */
void mx_graph_renumber(mx_graph *g);
/* Live nodes in execution order: topological, and as close to (seq, id) as that allows. A node that
 * overwrites a variable comes after every other reader of it. Gives an array in `arena`. */
mx_node **mx_graph_order(const mx_graph *g, mx_arena *arena, int *n_out);
/* The same for what `root` alone needs. */
mx_node **mx_node_order(const mx_graph *g, mx_node *root, mx_arena *arena, int *n_out);
/* What must run before node i: node[start[i] .. start[i + 1]), by id. Its inputs, and for a node
 * that overwrites a variable the other readers of it. */
typedef struct {
    int *start, *node;
} mx_edges;
mx_edges mx_graph_before(const mx_graph *g, mx_arena *arena);
/* By node id: does a root need it? */
bool *mx_graph_live(const mx_graph *g, mx_arena *arena);
/* The attributes of a node that is being built, or that a pass changes in place. */
static inline void *mx_attr_edit(mx_node *n)
{
    return (void *)n->attr;
}
/* Which memory n's output 0 lies in, as a number below n_nodes * MX_MAX_OUT: equal for a value, its
 * views and its projections. */
size_t mx_node_memory(const mx_node *n);
/* The value whose memory output k of n overwrites, or NULL. */
const mx_node *mx_node_overwrites(const mx_node *n, int k);
/* Does n's value depend on `on`? */
bool mx_node_depends(const mx_graph *g, const mx_node *n, const mx_node *on);

const mx_type *mx_node_type(const mx_node *n, int k); /* of output k */
/* In which dtype a gradient with respect to n is summed: n's own, unless it was set on n (a weight)
 * or on what n has its values from through ops that say `same_value`. */
mx_dtype mx_node_grad_dtype(const mx_node *n);
void mx_node_set_grad_dtype(mx_node *n, mx_dtype d);
mx_cost mx_node_cost(const mx_node *n);

/* Is the structure sound: inputs before uses, types as inferred, attributes present. */
mx_status mx_graph_verify(mx_graph *g) MX_MUST_USE;

void mx_graph_print(const mx_graph *g, mx_str *out);     /* one line per live node, in order */
void mx_graph_print_dot(const mx_graph *g, mx_str *out); /* Graphviz */

#endif
