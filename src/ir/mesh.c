/* mesh.c - coordinates and groups. See mesh.h. */
#include "ir/mesh.h"

#include <stdio.h>
#include <stdlib.h>
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

enum { MOST = 1 << 20 }; /* of a degree */

static mx_status parse_degree(const char *text, size_t n, const char *axis, int *out)
{
    char word[16];
    char *end = word;
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    long v = strtol(word, &end, 10);
    if (!n || n >= sizeof word || *end || v > MOST || (v < 1 && v != -1))
        return mx_fail(MX_USAGE, "%s=%.*s: a degree is a number from 1 on, or -1 for what is left",
                       axis, (int)n, text);
    *out = (int)v;
    return MX_OK;
}

mx_status mx_mesh_parse(mx_mesh *m, const char *text)
{
    mx_axis a;
    *m = (mx_mesh){0};
    for (const char *p = text + strspn(text, " ,"); *p; p += strspn(p, " ,")) {
        size_t n = strcspn(p, " ,"), name = strcspn(p, "= ,");
        if (name >= n)
            return mx_fail(MX_USAGE, "`%.*s` is not AXIS=DEGREE, such as fsdp=4,tensor=2", (int)n,
                           p);
        if (!mx_axis_parse(p, name, &a))
            return mx_fail(MX_USAGE, "no mesh has an axis `%.*s`; the axes are data, fsdp, "
                           "fsdp_transpose, tensor, sequence (tensor_sequence), context, expert, "
                           "stage (pipeline)", (int)name, p);
        if (m->ici[a])
            return mx_fail(MX_USAGE, "%s has two degrees", names[a]);
        MX_TRY(parse_degree(p + name + 1, n - name - 1, names[a], &m->ici[a]));
        p += n;
    }
    return MX_OK;
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

void mx_mesh_print(mx_str *s, const mx_mesh *m)
{
    const char *sep = "";
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (mx_mesh_degree(m, (mx_axis)a) > 1) {
            mx_str_addf(s, "%s%s=%d", sep, names[a], mx_mesh_degree(m, (mx_axis)a));
            sep = ",";
        }
    if (!*sep)
        mx_str_add(s, "-");
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

mx_mesh mx_mesh_without(const mx_mesh *m, mx_axis a, int rank, int *rank_in_it)
{
    mx_mesh rest = *m;
    int node = 0, inside = 0;
    rest.ici[a] = rest.dcn[a] = 1;
    for (int b = 0; b < MX_AXIS_COUNT; b++) {
        int ici = at_least_1(rest.ici[b]);
        int at = b == (int)a ? 0 : mx_mesh_coordinate(m, rank, (mx_axis)b);
        node = node * at_least_1(rest.dcn[b]) + at / ici;
        inside = inside * ici + at % ici;
    }
    *rank_in_it = node * node_ranks(&rest) + inside;
    return rest;
}
