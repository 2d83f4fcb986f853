/* lora.c - see lora.h.
 *
 * The scale is applied to A x, the smallest tensor there is, in both passes.
 *
 * An embedding has its adapter beside the lookup; a head that is tied to it reads the weight
 * without the adapter, as in PEFT.
 *
 * A use of a weight in a matmul gets the adapter beside it, on the activations. Any
 * other use (a latent attention's absorbed projection, a head fused with its loss) reads W + s B A
 * instead of W. Both are made where the use stands, so that remat and the order of
 * execution see them as part of their layer.
 */
#include "compile/lora.h"

#include "base/rng.h"
#include "compile/lora_experts.h"
#include "ops.h"
#include "ops/matmul.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The adapter of a weight. */
typedef struct {
    mx_node *a, *b, *m; /* m: DoRA's lengths, or NULL */
    mx_node *merged;    /* W + s B A, once some use needs it */
    double scale;
    bool table; /* of an embedding: A (r, vocab), B (dim, r) */
    const mx_expert_stack *experts; /* NULL: of one matrix */
} adapter;

typedef struct {
    mx_graph *g;
    const mx_lora *l;
    adapter **of; /* by the id of a variable */
    bool *looked_up; /* likewise: it is an embedding */
    mx_node *seed;
    int n_adapters;
} pass;

static bool is_named(const char *list, const char *module, bool anywhere)
{
    size_t n = strlen(module);
    for (const char *p = list; p && *p;) {
        size_t k = strcspn(p, ", ");
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)k, p);
        bool tail = k && n >= k && memcmp(module + n - k, name, k) == 0 &&
                    (anywhere || n == k || module[n - k - 1] == '.');
        if (tail || (strchr(name, '*') && mx_glob_match(name, module)))
            return true;
        p += k + strspn(p + k, ", ");
    }
    return false;
}

bool mx_lora_names(const char *list, const char *module)
{
    return is_named(list, module, false);
}

bool mx_lora_saves(const char *list, const char *module)
{
    return is_named(list, module, true);
}

const char *mx_lora_peft_name(const char *name, char *buf, size_t cap)
{
    static const char gate[] = ".block_sparse_moe.gate";
    const char *at = strstr(name, gate);
    if (!at || (at[sizeof gate - 1] && at[sizeof gate - 1] != '.'))
        return name;
    snprintf(buf, cap, "%.*s.mlp.gate%s", (int)(at - name), name, at + sizeof gate - 1);
    return buf;
}

bool mx_lora_is_linear(const char *name)
{
    static const char others[] = "*embed*,*lm_head,*wte,*wpe,*.gate,*.router,*shared_expert_gate,"
                                 "score,*conv*";
    char module[512];
    size_t n = strlen(name);
    snprintf(module, sizeof module, "%.*s", (int)(mx_ends_with(name, ".weight") ? n - 7 : n), name);
    return !mx_glob_any(others, module);
}

static const mx_lora_rule *rule_of(const mx_lora_rule *rules, int n, const char *module, bool exact)
{
    char a[512], b[512];
    module = mx_lora_peft_name(module, a, sizeof a);
    for (int i = 0; i < n; i++)
        if (exact ? strcmp(mx_lora_peft_name(rules[i].module, b, sizeof b), module) == 0
                  : mx_lora_names(rules[i].module, module))
            return &rules[i];
    return NULL;
}

/* The module's rank, 0: it has no adapter. */
static int64_t rank_of(const mx_lora *l, const char *module)
{
    if (l->only) {
        const mx_lora_rule *o = rule_of(l->only, l->n_only, module, true);
        return o ? o->rank : 0;
    }
    bool chosen = *l->targets ? mx_lora_names(l->targets, module) : mx_lora_is_linear(module);
    const mx_lora_rule *r = rule_of(l->rules, l->n_rules, module, false);
    return !chosen || mx_lora_saves(l->save, module) ? 0 : r && r->rank ? r->rank : l->rank;
}

/* The rank of a stack of experts' weights, 0: it has no adapter. */
static int64_t stack_rank(const mx_lora *l, const char *module, int64_t experts)
{
    const mx_lora_rule *o = l->only ? rule_of(l->only, l->n_only, module, true) : NULL;
    const mx_lora_rule *r = rule_of(l->rules, l->n_rules, module, false);
    if (l->only)
        return o ? o->rank / experts : 0;
    return !mx_lora_names(l->parameters, module) ? 0 : r && r->rank ? r->rank : l->rank;
}

double mx_lora_scale(const mx_lora *l, const char *module, int64_t experts)
{
    const mx_lora_rule *r = rule_of(l->rules, l->n_rules, module, false);
    int64_t whole = experts ? stack_rank(l, module, experts) : rank_of(l, module);
    double alpha = r && r->alpha > 0 ? r->alpha : l->alpha, rank = (double)whole;
    return alpha / (l->rslora ? sqrt(rank) : rank);
}

/* "model.layers.0.mlp.up_proj.weight" without its end; false when it has another. */
static bool module_of(const char *name, char *out, size_t cap)
{
    if (!mx_ends_with(name, ".weight"))
        return false;
    snprintf(out, cap, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    return true;
}

/* The logical name of dim i of a weight of two; "": none. */
static const char *name_of_dim(pass *p, const mx_node *w, int i)
{
    const char *axes = w->axes ? w->axes : ",", *from = i ? strchr(axes, ',') + 1 : axes;
    return mx_axes_text(p->g, "%.*s", (int)strcspn(from, ","), from);
}

static mx_node *declare(pass *p, const char *module, const char *what, mx_shape shape, mx_init init)
{
    char name[640];
    snprintf(name, sizeof name, MX_LORA_PREFIX "%s.%s", module, what);
    mx_var_attr at = {.init = init, .kind = MX_VAR_WEIGHT, .adapter = true};
    return mx_variable(p->g, name, mx_type_of(p->g->param_dtype, shape), at);
}

static void add_table(pass *p, adapter *a, const mx_node *w, const char *module, int64_t r)
{
    if (p->l->dora)
        mx_graph_fail(p->g, "use_dora: %s is an embedding; leave it out of lora_module_path",
                      w->name);
    a->table = true;
    a->a = declare(p, module, "lora_embedding_A", MX_SHAPE(r, w->type.dim[0]), MX_ZEROS);
    a->b = declare(p, module, "lora_embedding_B", MX_SHAPE(w->type.dim[1], r), MX_NORMAL(1));
}

/* A variable that gate and up have in common is declared once. */
static mx_node *shared(pass *p, const char *module, const char *what, mx_shape shape, mx_init init)
{
    char name[640];
    snprintf(name, sizeof name, MX_LORA_PREFIX "%s.%s", module, what);
    mx_node *there = mx_graph_find(p->g, name);
    return there ? there : declare(p, module, what, shape, init);
}

/* In the form of modules, where the list of modules names it, else in that of parameters. */
static void add_expert_adapter(pass *p, const mx_node *w)
{
    mx_expert_stack s;
    char module[512];
    const mx_lora *l = p->l;
    if (!mx_expert_stack_of(w->name, &w->type, ((const mx_var_attr *)w->attr)->in_out, &s))
        return;
    bool each = module_of(w->name, module, sizeof module) && (l->only || *l->targets) &&
                rank_of(l, module);
    int64_t r = each ? rank_of(l, module) : stack_rank(l, s.module, s.experts), E = s.experts;
    if (!r)
        return;
    if (!each && strstr(s.module, ".feed_forward."))
        mx_graph_fail(p->g, "target_parameters: %s is Llama 4's, whose experts PEFT adapts with in "
                      "and out exchanged, which is not supported; leave the experts out", w->name);
    if (l->dora || l->dropout > 0)
        mx_graph_fail(p->g, "%s: %s has experts, whose adapters work without it (as PEFT's); leave "
                      "it out, or the experts", l->dora ? "use_dora" : "lora_dropout", w->name);
    adapter *a = MX_NEW(&p->g->arena, adapter);
    a->experts = mx_arena_copy(&p->g->arena, &s, sizeof s);
    a->scale = mx_lora_scale(l, each ? module : s.module, each ? 0 : E);
    p->of[w->id] = a;
    p->n_adapters++;
    mx_init uniform = {.kind = MX_INIT_UNIFORM, .scale = 1 / sqrt((double)s.in)};
    const char *of = each ? module : s.module;
    a->a = shared(p, of, "lora_A.weight", each ? MX_SHAPE(E, r, s.in) : MX_SHAPE(E * r, s.in),
                  uniform);
    a->b = shared(p, of, "lora_B.weight", each ? MX_SHAPE(E, s.out, r) : MX_SHAPE(s.rows, r * E),
                  MX_ZEROS);
    if (each)
        a->a->axes = a->b->axes = "exp,,";
}

static void add_adapter(pass *p, const mx_node *w)
{
    char module[512];
    const mx_var_attr *at = w->attr;
    if (w->type.ndim == 3)
        add_expert_adapter(p, w);
    if (w->type.ndim != 2 || !module_of(w->name, module, sizeof module))
        return;
    int in_dim = at->in_out ? 0 : 1;
    int64_t r = rank_of(p->l, module), in = w->type.dim[in_dim], out = w->type.dim[1 - in_dim];
    if (!r)
        return;
    adapter *a = MX_NEW(&p->g->arena, adapter);
    a->scale = mx_lora_scale(p->l, module, 0);
    p->of[w->id] = a;
    p->n_adapters++;
    if (p->looked_up[w->id]) {
        add_table(p, a, w, module, r);
        return;
    }
    mx_init uniform = {.kind = MX_INIT_UNIFORM, .scale = 1 / sqrt((double)in)};
    a->a = declare(p, module, "lora_A.weight", MX_SHAPE(r, in), uniform);
    a->b = declare(p, module, "lora_B.weight", MX_SHAPE(out, r), MX_ZEROS);
    a->a->axes = mx_axes_text(p->g, ",%s", name_of_dim(p, w, in_dim));
    a->b->axes = mx_axes_text(p->g, "%s,", name_of_dim(p, w, 1 - in_dim));
    if (p->l->dora) /* its first value is written when the weights are there: store/adapter.c */
        a->m = declare(p, module, "lora_magnitude_vector", MX_SHAPE(out), MX_ZEROS);
}

/* W + s B A. */
static mx_node *merged(pass *p, mx_node *w, mx_node *b, mx_node *a, double scale)
{
    bool in_out = ((const mx_var_attr *)w->attr)->in_out;
    mx_node *ba = mx_matmul(p->g, in_out ? "or,ri->io" : "or,ri->oi", b, a);
    return mx_add(p->g, w, mx_affine(p->g, ba, scale, 0));
}

/* DoRA: by what each row of W + s B A, (out), is multiplied to have its length. */
static mx_node *stretch(pass *p, mx_node *w, const adapter *a)
{
    mx_graph *g = p->g;
    mx_node *sum = merged(p, w, mx_detach(g, a->b), mx_detach(g, a->a), a->scale);
    if (((const mx_var_attr *)w->attr)->in_out)
        sum = mx_transpose(g, sum, "ab->ba");
    mx_node *length = mx_detach(g, mx_sqrt(g, mx_row_sum(g, mx_mul(g, sum, sum))));
    return mx_div(g, a->m, mx_reshape(g, length, mx_shape_of(&a->m->type)));
}

static mx_node *dropped(pass *p, mx_node *x, const mx_node *w)
{
    if (!p->seed)
        return x;
    return mx_dropout(p->g, x, p->seed, (int64_t)mx_stream_of(w->name), p->l->dropout);
}

/* y = x W^T, again, with the adapter's part added. */
static mx_node *beside(pass *p, mx_node *y, const adapter *a)
{
    mx_graph *g = p->g;
    mx_node *own = mx_apply_n(g, y->op, y->attr, y->n_in, y->in, y->n_out);
    mx_node *low = mx_matmul(g, "*d,rd->*r", dropped(p, y->in[0], y->in[1]), a->a);
    mx_node *more = mx_matmul(g, "*r,fr->*f", mx_affine(g, low, a->scale, 0), a->b);
    mx_node *sum = mx_add(g, own, mx_cast(g, more, own->type.dtype));
    if (a->m)
        sum = mx_mul(g, sum, stretch(p, y->in[1], a));
    if (y->name && !mx_graph_find(g, y->name))
        sum->name = y->name;
    return sum;
}

/* Rows of the table, with the adapter's part added. */
static mx_node *beside_lookup(pass *p, mx_node *y, const adapter *a)
{
    mx_graph *g = p->g;
    mx_node *own = mx_apply_n(g, y->op, y->attr, y->n_in, y->in, y->n_out);
    mx_node *low = mx_embed(g, mx_transpose(g, a->a, "ab->ba"), y->in[1]);
    mx_node *more = mx_matmul(g, "*r,fr->*f", mx_affine(g, low, a->scale, 0), a->b);
    return mx_add(g, own, mx_cast(g, more, own->type.dtype));
}

static bool is_plain_product(const mx_node *n, int k)
{
    if (n->op != &mx_op_matmul || k != 1 || n->n_in != 2)
        return false;
    const char *spec = ((const mx_matmul_attr *)n->attr)->spec;
    return strcmp(spec, "*d,fd->*f") == 0 || strcmp(spec, "*d,df->*f") == 0;
}

static void adapt_experts(pass *p, mx_node *n, const adapter *a)
{
    if (n->op != &mx_op_grouped_matmul)
        mx_graph_fail(p->g, "%s has an adapter of experts and is read by %s; leave it out of "
                      "lora_module_path", n->in[1]->name, n->op->name);
    else
        mx_node_forward(n, mx_lora_beside_experts(p->g, n, a->a, a->b, a->experts, a->scale));
}

static void adapt_use(pass *p, mx_node *n, int k, adapter *a)
{
    const char *scope = p->g->scope;
    p->g->scope = n->scope;
    p->g->seq = n->seq;
    if (a->experts) {
        adapt_experts(p, n, a);
    } else if (a->table) {
        if (n->op == &mx_op_embed && k == 0)
            mx_node_forward(n, beside_lookup(p, n, a));
    } else if (is_plain_product(n, k)) {
        mx_node_forward(n, beside(p, n, a));
    } else if (a->m) {
        mx_graph_fail(p->g, "use_dora: %s is not used as a plain linear layer here; leave it out "
                      "of lora_module_path", n->in[k]->name);
    } else {
        a->merged = a->merged ? a->merged : merged(p, n->in[k], a->b, a->a, a->scale);
        n->in[k] = a->merged;
    }
    p->g->seq = -1;
    p->g->scope = scope;
}

static void freeze_others(pass *p)
{
    for (int i = 0; i < p->g->n_nodes; i++) {
        char module[512];
        mx_node *n = p->g->node[i];
        mx_var_attr *at = mx_var_edit(n);
        if (!at || at->kind != MX_VAR_WEIGHT || at->adapter)
            continue;
        bool saved = module_of(n->name, module, sizeof module) && mx_lora_saves(p->l->save, module);
        at->frozen |= !saved;
    }
}

static void fail_unmatched(mx_graph *g, const mx_lora *l)
{
    bool named = !l->only && l->parameters && *l->parameters;
    mx_graph_fail(g, "no weight of the model has an adapter: %s%s matches none of them",
                  l->only ? "the adapter's file" : named ? "target_parameters="
                                                         : "lora_module_path=",
                  l->only ? "" : named ? l->parameters : l->targets);
}

static bool saves_any(const mx_graph *g, const char *name)
{
    char module[512];
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        if (n->op == &mx_op_variable && module_of(n->name, module, sizeof module) &&
            mx_lora_saves(name, module))
            return true;
    }
    return false;
}

/* Every name of the key modules_to_save is a module's; PEFT's files name some that are not. */
static void check_saved(mx_graph *g, const mx_lora *l)
{
    for (const char *p = l->only ? "" : l->save; p && *p;) {
        char name[256];
        size_t n = strcspn(p, ", ");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (n && !saves_any(g, name))
            mx_graph_fail(g, "modules_to_save=%s matches no module of the model", name);
        p += n + strspn(p + n, ", ");
    }
}

void mx_pass_lora(mx_graph *g, const mx_lora *l, bool training)
{
    int n_old = g->n_nodes;
    mx_arena scratch = {0};
    if (g->error)
        return;
    pass p = {.g = g, .l = l, .of = MX_NEW_N(&scratch, adapter *, n_old),
              .looked_up = MX_NEW_N(&scratch, bool, n_old)};
    if (training && l->dropout > 0)
        p.seed = mx_dropout_seed(g);
    for (int i = 0; i < n_old; i++)
        if (g->node[i]->op == &mx_op_embed)
            p.looked_up[g->node[i]->in[0]->id] = true;
    for (int i = 0; i < n_old; i++)
        if (g->node[i]->op == &mx_op_variable &&
            ((const mx_var_attr *)g->node[i]->attr)->kind == MX_VAR_WEIGHT)
            add_adapter(&p, g->node[i]);
    if (!p.n_adapters)
        fail_unmatched(g, l);
    check_saved(g, l);
    for (int i = 0; i < n_old && !g->error; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            mx_node *x = g->node[i]->in[k];
            if (x && x->id < n_old && p.of[x->id])
                adapt_use(&p, g->node[i], k, p.of[x->id]);
        }
    freeze_others(&p);
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
    mx_graph_renumber(g);
}
