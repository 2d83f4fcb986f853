/* traffic.c - see traffic.h. */
#include "plan/traffic.h"

#include "ops.h"
#include "ops/collective.h"
#include <string.h>

/* Is it an op in which ranks take part together? */
static bool is_collective(const mx_node *n)
{
    return n->op->fields == mx_collective_fields && n->op != &mx_op_shard && n->op != &mx_op_vary;
}

static mx_traffic kind_of(const mx_node *n)
{
    return n->op == &mx_op_all_gather       ? MX_ALL_GATHER
           : n->op == &mx_op_reduce_scatter ? MX_REDUCE_SCATTER
           : n->op == &mx_op_all_reduce     ? MX_ALL_REDUCE
           : n->op == &mx_op_ring_shift     ? MX_SEND
                                            : MX_ALL_TO_ALL;
}

/* As mx_traffic_bytes counts: the whole tensor of gathers and reductions, else a rank's own. */
static double bytes_of(const mx_node *n)
{
    const mx_type *t = n->op == &mx_op_all_gather ? &n->type : &n->in[0]->type;
    return (double)mx_type_bytes(t);
}

static mx_traffic_row *row_of(mx_traffic_table *t, const char *name, mx_axis_set axes)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0 && t->row[i].axes == axes)
            return &t->row[i];
    if (t->n == MX_TRAFFIC_ROWS)
        return &t->row[MX_TRAFFIC_ROWS - 1];
    t->row[t->n] = (mx_traffic_row){.name = name, .axes = axes};
    return &t->row[t->n++];
}

static mx_group_span span_of(const mx_mesh *m, mx_axis_set axes)
{
    mx_group_span s = {mx_mesh_size(m, axes), 1};
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (axes >> a & 1)
            s.inside *= m->ici[a] > 1 ? m->ici[a] : 1;
    return s;
}

static void add(mx_traffic_table *t, mx_traffic_row *row, const double *sent, double times)
{
    row->times += times;
    for (int l = 0; l < MX_LEVELS; l++) {
        row->sent[l] += times * sent[l];
        t->sent[l] += times * sent[l];
    }
}

void mx_traffic_add(mx_traffic_table *t, const mx_program *p, const mx_mesh *m, double times)
{
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        if (!is_collective(n))
            continue;
        const mx_collective_attr *a = n->attr;
        double sent[MX_LEVELS];
        mx_traffic_bytes(kind_of(n), bytes_of(n), span_of(m, (mx_axis_set)a->axes), sent);
        add(t, row_of(t, n->op->name, (mx_axis_set)a->axes), sent, times);
    }
}

void mx_traffic_add_messages(mx_traffic_table *t, const mx_mesh *m, double bytes, double times)
{
    mx_axis_set stage = 1u << MX_AXIS_STAGE;
    double sent[MX_LEVELS];
    mx_traffic_bytes(MX_SEND, bytes, span_of(m, stage), sent);
    add(t, row_of(t, "send", stage), sent, times);
}

static bool owns_storage(const mx_node *n, int k, const mx_place *q)
{
    return q->root == n && q->out == k && q->offset >= 0 && !q->hosted && n->op->kind != MX_SOURCE;
}

/* What begins and ends before each node. */
static mx_peak *changes(const mx_program *p, mx_arena *arena)
{
    mx_peak *change = MX_NEW_N(arena, mx_peak, p->n + 2);
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            const mx_place *q = mx_program_place(p, p->order[i], k);
            if (!owns_storage(p->order[i], k, q))
                continue;
            double bytes = (double)mx_type_bytes(mx_node_type(p->order[i], k));
            double sent = is_collective(p->order[i]) ? bytes : 0;
            change[q->first].alive += bytes;
            change[q->last + 1].alive -= bytes;
            change[q->first].collectives += sent;
            change[q->last + 1].collectives -= sent;
        }
    return change;
}

mx_peak mx_program_peak(const mx_program *p)
{
    mx_arena arena = {0};
    mx_peak *change = changes(p, &arena), now = {0}, most = {0};
    for (int i = 0; i < p->n; i++) {
        now.alive += change[i].alive;
        now.collectives += change[i].collectives;
        most = now.alive > most.alive ? now : most;
    }
    mx_arena_fini(&arena);
    return most;
}

void mx_program_curve(const mx_program *p, double *out, int n)
{
    mx_arena arena = {0};
    mx_peak *change = changes(p, &arena);
    double alive = 0;
    for (int i = 0; i < n; i++)
        out[i] = 0;
    for (int i = 0; i < p->n; i++) {
        int at = (int)((int64_t)i * n / p->n);
        alive += change[i].alive;
        out[at] = alive > out[at] ? alive : out[at];
    }
    mx_arena_fini(&arena);
}
