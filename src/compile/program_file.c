/* program_file.c - programs as bytes and back; see program_file.h. */
#include "compile/program_file.h"

#include "base/rng.h"
#include "ops.h"
#include <limits.h>
#include <string.h>

/* --- records --- */

void mx_record_pool_fini(mx_record_pool *p)
{
    mx_str_fini(&p->bytes);
    mx_free(p->at);
    mx_free(p->slot);
    *p = (mx_record_pool){0};
}

static size_t record_end(const mx_record_pool *p, int i)
{
    return i + 1 < p->n ? p->at[i + 1] : p->bytes.len;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n, word = 0;
    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        h = mx_hash64(h, word);
    }
    word = 0;
    memcpy(&word, p, n);
    return mx_hash64(h, word);
}

static int *find_slot(const mx_record_pool *p, const char *bytes, size_t n)
{
    for (uint64_t h = hash_bytes(bytes, n);; h++) {
        int *s = &p->slot[h & (uint64_t)(p->n_slots - 1)];
        if (!*s)
            return s;
        size_t at = p->at[*s - 1];
        if (record_end(p, *s - 1) - at == n && memcmp(p->bytes.text + at, bytes, n) == 0)
            return s;
    }
}

static void grow_slots(mx_record_pool *p)
{
    p->n_slots = p->n_slots ? 2 * p->n_slots : 1024;
    p->slot = mx_realloc(p->slot, sizeof *p->slot * (size_t)p->n_slots);
    memset(p->slot, 0, sizeof *p->slot * (size_t)p->n_slots);
    for (int i = 0; i < p->n; i++)
        *find_slot(p, p->bytes.text + p->at[i], record_end(p, i) - p->at[i]) = i + 1;
}

static int enter_record(mx_record_pool *p, const mx_str *record)
{
    if (2 * (p->n + 1) > p->n_slots)
        grow_slots(p);
    int *s = find_slot(p, record->text, record->len);
    if (*s)
        return *s - 1;
    MX_GROW(p->at, p->n, p->cap);
    p->at[p->n++] = p->bytes.len;
    mx_str_add_n(&p->bytes, record->text, record->len);
    return (*s = p->n) - 1;
}

void mx_code_record_pool(mx_codec *c, mx_record_pool *p)
{
    mx_code_count(c, &p->n);
    if (mx_codec_reads(c))
        p->at = mx_realloc(p->at, sizeof *p->at * (size_t)((p->cap = p->n) + 1));
    size_t from = 0;
    for (int i = 0; i < p->n; i++) {
        size_t n = mx_codec_reads(c) ? 0 : record_end(p, i) - p->at[i];
        const void *bytes = mx_codec_reads(c) ? NULL : p->bytes.text + p->at[i];
        mx_code_bytes(c, &bytes, &n);
        if (!mx_codec_reads(c))
            continue;
        p->at[i] = from;
        if (n)
            mx_str_add_n(&p->bytes, bytes, n);
        from += n;
    }
}

/* --- one node --- */

/* What a record is read into, or written from. */
typedef struct {
    mx_node node;
    int in[MX_MAX_IN]; /* 1 + position; 0: absent */
    mx_type more[MX_MAX_OUT];
    struct {
        int root, out;
        mx_place at;
    } place[MX_MAX_OUT];
    bool copies_nothing;
} record;

static void code_place(mx_codec *c, record *r, int k, int id)
{
    mx_place *q = &r->place[k].at;
    mx_code_int(c, &r->place[k].root, 0, id > INT_MAX / 2 ? id : INT_MAX);
    mx_code_int(c, &r->place[k].out, 0, MX_MAX_OUT - 1);
    mx_code_range(c, &q->offset, -1, INT64_MAX / 2);
    mx_code_bool(c, &q->hosted);
    mx_code_bool(c, &q->kept);
    mx_code_range(c, &q->at, 0, INT64_MAX / 64);
    mx_code_range(c, &q->run, 0, INT64_MAX / 64);
    mx_code_range(c, &q->pitch, 0, INT64_MAX / 64);
    mx_code_int(c, &q->first, 0, INT_MAX);
    mx_code_int(c, &q->last, 0, INT_MAX);
}

static void code_record(mx_codec *c, record *r, int id)
{
    mx_node *n = &r->node;
    int64_t grad = n->grad_dtype;
    mx_code_op(c, &n->op);
    mx_code_int(c, &n->n_in, 0, MX_MAX_IN);
    for (int i = 0; i < n->n_in; i++)
        mx_code_int(c, &r->in[i], 0, id);
    mx_code_int(c, &n->n_out, 1, MX_MAX_OUT);
    mx_code_type(c, &n->type);
    for (int k = 1; k < n->n_out; k++)
        mx_code_type(c, &r->more[k - 1]);
    mx_code_attr(c, n->op, &n->attr, mx_type_count(&n->type));
    mx_code_name(c, &n->name);
    mx_code_text(c, &n->scope);
    mx_code_name(c, &n->axes);
    mx_code_box(c, &n->box);
    mx_code_int(c, &n->seq, INT_MIN, INT_MAX);
    mx_code_range(c, &grad, 0, MX_DTYPE_COUNT);
    n->grad_dtype = (uint8_t)grad;
    mx_code_bool(c, &n->backward);
    mx_code_int(c, &n->stage, 0, INT_MAX);
    mx_code_bool(c, &n->recomputed);
    mx_code_bool(c, &r->copies_nothing);
    for (int k = 0; k < n->n_out; k++)
        code_place(c, r, k, id);
}

/* --- writing --- */

static void fill_record(record *r, const mx_program *p, const mx_node *n, const int *position)
{
    *r = (record){.node = *n, .copies_nothing = p->copies_nothing[n->id]};
    r->node.seq = 0; /* the order is that of the records */
    for (int i = 0; i < n->n_in; i++)
        r->in[i] = n->in[i] ? 1 + position[n->in[i]->id] : 0;
    for (int k = 0; k < n->n_out; k++) {
        const mx_place *q = mx_program_place(p, n, k);
        r->place[k].at = *q;
        r->place[k].root = position[q->root->id];
        r->place[k].out = q->out;
        if (k)
            r->more[k - 1] = *mx_node_type(n, k);
    }
}

static void code_sizes(mx_codec *c, mx_program *p, mx_graph *g)
{
    int64_t given = (int64_t)p->given_bytes, value = (int64_t)p->value_bytes;
    int64_t host = (int64_t)p->host_bytes;
    int dtype = (int)g->param_dtype;
    mx_code_range(c, &given, 0, INT64_MAX / 4);
    mx_code_range(c, &value, given, INT64_MAX / 4);
    mx_code_range(c, &host, 0, INT64_MAX / 4);
    mx_code_int(c, &dtype, 0, MX_DTYPE_COUNT - 1);
    mx_code_bool(c, &g->one_path);
    if (!mx_codec_reads(c))
        return;
    p->given_bytes = (size_t)given;
    p->value_bytes = (size_t)value;
    p->host_bytes = (size_t)host;
    g->param_dtype = (mx_dtype)dtype;
}

void mx_program_write(mx_codec *c, const mx_program *p, mx_record_pool *pool)
{
    mx_arena scratch = {0};
    mx_str bytes = {0};
    mx_codec one = {.out = &bytes, .arena = &scratch};
    mx_program sizes = *p;
    mx_graph graph = *p->graph;
    int n = p->n, n_roots = p->graph->n_roots;
    int *position = MX_NEW_N(&scratch, int, p->graph->n_nodes);
    for (int i = 0; i < n; i++)
        position[p->order[i]->id] = i;
    mx_code_count(c, &n);
    for (int i = 0; i < n; i++) {
        record r;
        fill_record(&r, p, p->order[i], position);
        mx_str_clear(&bytes);
        code_record(&one, &r, i);
        int number = enter_record(pool, &bytes);
        mx_code_int(c, &number, 0, INT_MAX);
    }
    mx_code_count(c, &n_roots);
    for (int i = 0; i < n_roots; i++)
        mx_code_int(c, &position[p->graph->root[i]->id], 0, n);
    code_sizes(c, &sizes, &graph);
    mx_str_fini(&bytes);
    mx_arena_fini(&scratch);
}

/* --- reading --- */

static void read_record(mx_codec *c, const mx_record_pool *pool, record *r, int id)
{
    int number = 0;
    mx_code_int(c, &number, 0, pool->n - 1);
    if (c->bad)
        return;
    const uint8_t *bytes = (const uint8_t *)mx_str_text(&pool->bytes);
    mx_codec one = {.at = bytes + pool->at[number], .end = bytes + record_end(pool, number),
                    .arena = c->arena, .mesh = c->mesh, .rank = c->rank};
    code_record(&one, r, id);
    if (!one.bad && mx_codec_left(&one))
        one.bad = "a node has more than belongs to it";
    if (one.bad)
        mx_codec_refuse(c, one.bad);
}

/* May input i be absent? Where a case of the op leaves it out; an op without cases, which only
 * other ops' gradients make, says so when it is inferred. */
static bool is_optional(const mx_op *op, int i)
{
    for (const mx_case *t = op->cases; t && t->n_in; t++)
        if (i < t->n_in && t->in[i].absent)
            return true;
    return !op->cases && op->infer;
}

/* What a kernel and the binder take for granted of any node. */
static void check_node(mx_codec *c, mx_graph *g, const mx_node *n)
{
    bool source = n->op->kind == MX_SOURCE;
    int outs = n->op->n_out;
    bool named = n->op == &mx_op_variable || n->op == &mx_op_input;
    if ((source && n->n_in) || (!source && !n->n_in && !n->op->infer && !n->op->dims) ||
        (outs >= 0 && n->n_out != (outs ? outs : 1)) || (named && !n->name) ||
        (named && mx_graph_find(g, n->name)))
        mx_codec_refuse(c, "a node contradicts its op");
    for (int k = 0; k < n->n_out; k++)
        if (n->op->alias[k] > n->n_in)
            mx_codec_refuse(c, "a node overwrites an input that it does not have");
    for (int i = 0; i < n->n_in; i++)
        if (!n->in[i] && !is_optional(n->op, i))
            mx_codec_refuse(c, "a node lacks an input");
    bool follows = n->op->kind == MX_VIEW || n->op->kind == MX_PROJECT;
    if (follows && (n->n_in < 1 || !n->in[0]))
        mx_codec_refuse(c, "a view is of nothing");
    else if (n->op->kind == MX_PROJECT && (*(const int64_t *)n->attr < 0 ||
                                           *(const int64_t *)n->attr >= n->in[0]->n_out))
        mx_codec_refuse(c, "a node takes an output that is not there");
}

static mx_node *read_node(mx_codec *c, mx_graph *g, const record *r)
{
    mx_node *in[MX_MAX_IN];
    for (int i = 0; i < r->node.n_in; i++)
        in[i] = r->in[i] && r->in[i] <= g->n_nodes ? g->node[r->in[i] - 1] : NULL;
    mx_node *n = mx_node_copy(g, &r->node, in);
    n->more = mx_arena_copy(&g->arena, r->more, sizeof *r->more * (size_t)(n->n_out - 1) + 1);
    check_node(c, g, n);
    if (!c->bad && (n->op == &mx_op_variable || n->op == &mx_op_input))
        mx_graph_enter(g, n);
    return n;
}

/* Does output k of n lie within its storage, and that within its buffer? */
static bool lies_inside(const mx_program *p, const mx_node *n, int k, size_t slot_bytes)
{
    const mx_place *q = mx_program_place(p, n, k);
    const mx_type *t = mx_node_type(n, k);
    if (q->out >= q->root->n_out)
        return false;
    const mx_place *own = mx_program_place(p, q->root, q->out);
    const mx_type *whole = mx_node_type(q->root, q->out);
    int64_t item = (int64_t)mx_dtype_bytes(t->dtype), bytes = (int64_t)mx_type_bytes(whole);
    bool variable = q->root->op == &mx_op_variable;
    int64_t count = mx_type_count(t), rows = q->run > 0 ? (count + q->run - 1) / q->run : 0;
    int64_t most = INT64_MAX / 16, span = q->pitch ? 0 : count;
    if (q->pitch && (q->run <= 0 || (rows && q->pitch > most / rows)))
        return false;
    if (q->pitch && rows)
        span = (rows - 1) * q->pitch + q->run;
    if (variable != (q->offset < 0) || own->root != q->root || own->out != q->out ||
        own->offset != q->offset || own->hosted != q->hosted || own->kept != q->kept)
        return false;
    if (span > most - q->at || (span && (q->at + span) > bytes / item))
        return false;
    size_t room = q->kept ? slot_bytes : q->hosted ? p->host_bytes : p->value_bytes;
    bool given = !q->kept && !q->hosted && (size_t)q->offset < p->given_bytes;
    room = given ? p->given_bytes : room;
    return variable || (q->offset <= (int64_t)room && bytes <= (int64_t)room - q->offset);
}

static void check_places(mx_codec *c, const mx_program *p, size_t slot_bytes)
{
    for (int i = 0; i < p->n && !c->bad; i++)
        for (int k = 0; k < p->order[i]->n_out; k++)
            if (!lies_inside(p, p->order[i], k, slot_bytes))
                mx_codec_refuse(c, "a tensor lies outside the memory that was planned for it");
}

static void read_places(mx_codec *c, mx_program *p, const record *r, const mx_node *n)
{
    p->copies_nothing[n->id] = r->copies_nothing;
    for (int k = 0; k < n->n_out; k++) {
        mx_place *q = &p->place[(size_t)n->id * MX_MAX_OUT + (size_t)k];
        if (r->place[k].root >= p->graph->n_nodes) {
            mx_codec_refuse(c, "a tensor lies in the memory of a node that is not there");
            return;
        }
        *q = r->place[k].at;
        q->root = p->graph->node[r->place[k].root];
        q->out = r->place[k].out;
    }
}

/* Runs every node after what it needs, overwriting included? Inputs are earlier by themselves. */
static void check_order(mx_codec *c, const mx_graph *g)
{
    mx_arena scratch = {0};
    mx_edges e = mx_graph_before(g, &scratch);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = e.start[i]; k < e.start[i + 1]; k++)
            if (e.node[k] >= i)
                mx_codec_refuse(c, "a node overwrites what a later one reads");
    mx_arena_fini(&scratch);
}

static mx_status refused(const mx_codec *c)
{
    return c->bad ? mx_fail(MX_INPUT, "a program in it is not valid: %s", c->bad) : MX_OK;
}

/* The order is that of the file: of nodes that follow each other by number. */
static void order_as_read(mx_program *p, mx_graph *g)
{
    p->n = g->n_nodes;
    p->order = MX_NEW_N(&p->arena, mx_node *, p->n + 1);
    for (int i = 0; i < p->n; i++)
        p->order[i] = g->node[i];
}

static mx_status read_graph(mx_codec *c, mx_graph *g, record *all, int n,
                            const mx_record_pool *pool)
{
    for (int i = 0; i < n && !c->bad; i++) {
        all[i] = (record){0};
        read_record(c, pool, &all[i], i);
        if (!c->bad)
            read_node(c, g, &all[i])->seq = i;
    }
    int n_roots = 0;
    mx_code_count(c, &n_roots);
    for (int i = 0; i < n_roots && !c->bad; i++) {
        int at = 0;
        mx_code_int(c, &at, 0, n - 1);
        if (!c->bad)
            mx_graph_root(g, NULL, g->node[at]);
    }
    return refused(c);
}

mx_status mx_program_read(mx_codec *c, mx_graph *g, mx_program *p, const mx_program_reader *r)
{
    int n = 0;
    mx_arena *outer = c->arena;
    record *all = NULL;
    c->arena = &g->arena;
    mx_code_count(c, &n);
    mx_status st = mx_alloc((void **)&all, sizeof *all * (size_t)(n + 1), "a saved program");
    if (!st)
        st = read_graph(c, g, all, n, r->pool);
    if (!st)
        st = mx_graph_check_final(g);
    if (!st) {
        mx_program_begin(p, g, r->n_threads, r->device);
        order_as_read(p, g);
        code_sizes(c, p, g);
        for (int i = 0; i < p->n && !c->bad; i++)
            read_places(c, p, &all[i], g->node[i]);
        check_places(c, p, r->slot_bytes);
        check_order(c, g);
        st = refused(c);
    }
    if (!st)
        st = mx_graph_verify(g);
    if (!st)
        mx_program_count(p, r->device);
    mx_free(all);
    c->arena = outer;
    return st;
}
