/* mesh.c - coordinates, groups, placements. See mesh.h. */
#include "ir/mesh.h"

#include <string.h>

static const char *const names[MX_AXIS_COUNT] = {
    [MX_AXIS_DILOCO] = "diloco",
    [MX_AXIS_DATA] = "data",
    [MX_AXIS_STAGE] = "stage",
    [MX_AXIS_FSDP] = "fsdp",
    [MX_AXIS_FSDP_TRANSPOSE] = "fsdp_transpose",
    [MX_AXIS_CONTEXT] = "context",
    [MX_AXIS_CONTEXT_ULYSSES] = "context_usp_ulysses",
    [MX_AXIS_CONTEXT_AUTOREGRESSIVE] = "context_autoregressive",
    [MX_AXIS_TENSOR] = "tensor",
    [MX_AXIS_SEQUENCE] = "sequence",
    [MX_AXIS_EXPERT] = "expert",
    [MX_AXIS_AUTOREGRESSIVE] = "autoregressive",
};

const char *mx_axis_name(mx_axis a)
{
    return names[a];
}

bool mx_axis_parse(const char *name, size_t n, mx_axis *out)
{
    static const struct {
        const char *name;
        mx_axis axis;
    } also[] = {{"tensor_sequence", MX_AXIS_SEQUENCE}, {"pipeline", MX_AXIS_STAGE}};
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (strlen(names[a]) == n && memcmp(names[a], name, n) == 0) {
            *out = (mx_axis)a;
            return true;
        }
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (strlen(also[i].name) == n && memcmp(also[i].name, name, n) == 0) {
            *out = also[i].axis;
            return true;
        }
    return false;
}

void mx_axis_set_print(mx_str *s, mx_axis_set axes)
{
    const char *sep = "";
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (axes >> a & 1) {
            mx_str_addf(s, "%s%s", sep, names[a]);
            sep = ",";
        }
    if (!axes)
        mx_str_add(s, "-");
}

static int at_least_1(int n)
{
    return n > 0 ? n : 1;
}

int mx_mesh_degree(const mx_mesh *m, mx_axis a)
{
    return at_least_1(m->ici[a]) * at_least_1(m->dcn[a]);
}

int mx_mesh_size(const mx_mesh *m, mx_axis_set axes)
{
    int n = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (axes >> a & 1)
            n *= mx_mesh_degree(m, (mx_axis)a);
    return n;
}

int mx_mesh_ranks(const mx_mesh *m)
{
    return mx_mesh_size(m, (1u << MX_AXIS_COUNT) - 1);
}

mx_axis_set mx_mesh_axes(const mx_mesh *m)
{
    mx_axis_set s = 0;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (mx_mesh_degree(m, (mx_axis)a) > 1)
            s |= 1u << a;
    return s;
}

/* The coordinate along axis a of place `at` in a row-major grid. */
static int grid_coordinate(const int *degree, int at, int a)
{
    for (int i = MX_AXIS_COUNT - 1; i > a; i--)
        at /= at_least_1(degree[i]);
    return at % at_least_1(degree[a]);
}

static int node_ranks(const mx_mesh *m)
{
    int n = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        n *= at_least_1(m->ici[a]);
    return n;
}

int mx_mesh_coordinate(const mx_mesh *m, int rank, mx_axis a)
{
    int inside = node_ranks(m);
    return grid_coordinate(m->dcn, rank / inside, a) * at_least_1(m->ici[a]) +
           grid_coordinate(m->ici, rank % inside, a);
}

int mx_mesh_index(const mx_mesh *m, int rank, mx_axis_set axes)
{
    int at = 0;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (axes >> a & 1)
            at = at * mx_mesh_degree(m, (mx_axis)a) + mx_mesh_coordinate(m, rank, (mx_axis)a);
    return at;
}

int mx_mesh_member(const mx_mesh *m, int rank, mx_axis_set axes, int index)
{
    int node = 0, inside = 0, coordinate[MX_AXIS_COUNT];
    for (int a = MX_AXIS_COUNT - 1; a >= 0; a--) {
        int degree = mx_mesh_degree(m, (mx_axis)a);
        bool moves = axes >> a & 1;
        coordinate[a] = moves ? index % degree : mx_mesh_coordinate(m, rank, (mx_axis)a);
        index /= moves ? degree : 1;
    }
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        int ici = at_least_1(m->ici[a]);
        node = node * at_least_1(m->dcn[a]) + coordinate[a] / ici;
        inside = inside * ici + coordinate[a] % ici;
    }
    return node * node_ranks(m) + inside;
}

/* --- placements --- */

mx_cut mx_cut_of(int64_t size, mx_axis_set axes)
{
    return axes ? (mx_cut){1, {size}, {axes}} : (mx_cut){0};
}

mx_axis_set mx_cut_axes(const mx_cut *c)
{
    mx_axis_set s = 0;
    for (int i = 0; i < c->n; i++)
        s |= c->axes[i];
    return s;
}

bool mx_cut_equal(const mx_cut *a, const mx_cut *b)
{
    bool same = a->n == b->n && a->sorted_by == b->sorted_by && a->exchanged == b->exchanged;
    for (int i = 0; i < a->n && same; i++)
        same = a->size[i] == b->size[i] && a->axes[i] == b->axes[i] && a->zigzag[i] == b->zigzag[i];
    return same;
}

mx_cut mx_cut_without(const mx_cut *c, mx_axis_set axes)
{
    mx_cut out = *c;
    if (out.sorted_by && (mx_cut_axes(c) & axes)) /* their order is this rank's own */
        return (mx_cut){0};
    for (int i = 0; i < out.n; i++) {
        out.axes[i] &= ~axes;
        out.zigzag[i] &= out.axes[i] >> MX_AXIS_CONTEXT & 1;
    }
    for (int i = out.n - 1; i > 0 && !out.axes[i]; i--) {
        out.size[i - 1] *= out.size[i]; /* an inner factor that is whole belongs to the one before */
        out.n--;
    }
    if (out.n == 1 && !out.axes[0])
        out = (mx_cut){0};
    return out;
}

mx_axis_set mx_placement_axes(const mx_placement *p)
{
    mx_axis_set s = 0;
    for (int d = 0; d < MX_MAX_DIMS; d++)
        s |= mx_cut_axes(&p->dim[d]);
    return s;
}

bool mx_placement_equal(const mx_placement *a, const mx_placement *b)
{
    bool same = a->partial == b->partial;
    for (int d = 0; d < MX_MAX_DIMS && same; d++)
        same = mx_cut_equal(&a->dim[d], &b->dim[d]);
    return same;
}

mx_type mx_placement_local(const mx_mesh *m, const mx_type *whole, const mx_placement *p)
{
    mx_type t = *whole;
    for (int d = 0; d < t.ndim; d++) {
        int64_t n = mx_mesh_size(m, mx_cut_axes(&p->dim[d]));
        t.dim[d] = p->dim[d].exchanged ? p->dim[d].rows : (t.dim[d] + n - 1) / n;
    }
    return t;
}

void mx_placement_print(mx_str *s, const mx_type *whole, const mx_placement *p)
{
    mx_str_add(s, "(");
    for (int d = 0; d < whole->ndim; d++) {
        mx_str_add(s, d ? ", " : "");
        mx_axis_set_print(s, mx_cut_axes(&p->dim[d]));
    }
    mx_str_add(s, ")");
    if (p->partial) {
        mx_str_add(s, " sum over ");
        mx_axis_set_print(s, p->partial);
    }
}

int64_t mx_cut_index(const mx_mesh *m, int rank, const mx_cut *c, int64_t i)
{
    if (!c->n)
        return i;
    int64_t local = c->size[0] / mx_mesh_size(m, c->axes[0]);
    int64_t at = local * mx_mesh_index(m, rank, c->axes[0]) + i; /* in the order of pieces */
    if (!c->zigzag[0])
        return at;
    int64_t chunks = 2 * mx_mesh_degree(m, MX_AXIS_CONTEXT), run = c->size[0] / chunks;
    int64_t chunk = at / run, natural = chunk % 2 ? chunks - 1 - chunk / 2 : chunk / 2;
    return natural * run + at % run;
}

mx_box mx_box_of(const mx_mesh *m, int rank, const mx_type *whole, const mx_placement *p)
{
    mx_box b = {*whole, *p, {0}};
    mx_type local = mx_placement_local(m, whole, p);
    for (int d = 0; d < whole->ndim; d++)
        b.from[d] = local.dim[d] * mx_mesh_index(m, rank, mx_cut_axes(&p->dim[d]));
    return b;
}
