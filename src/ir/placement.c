/* placement.c - see placement.h. */
#include "ir/placement.h"

static mx_cut cut_of(int64_t size, mx_axis_set axes)
{
    return axes ? (mx_cut){1, {size}, {axes}} : (mx_cut){0};
}

mx_cut mx_cut_of_blocks(int n, const int64_t *block, mx_axis_set axes)
{
    MX_ASSERT(n <= MX_MAX_BLOCKS, "%d blocks", n);
    if (!axes)
        return (mx_cut){0};
    if (n == 1)
        return cut_of(block[0], axes);
    mx_cut c = {1, {0}, {axes}, .n_blocks = n};
    for (int b = 0; b < n; b++)
        c.block[b] = block[b];
    return c;
}

mx_cut mx_cut_inside(const mx_mesh *m, const mx_cut *c, int64_t size, mx_axis_set axes)
{
    if (!axes || !c->n)
        return axes ? cut_of(size, axes) : *c;
    MX_ASSERT(c->n < MX_MAX_FACTORS && !c->sorted_by, "%d factors", c->n);
    mx_cut out = *c;
    int last = out.n++;
    out.axes[last] = axes;
    out.zigzag[last] = false;
    if (!c->n_blocks) {
        int64_t pieces = mx_mesh_size(m, c->axes[last - 1]);
        out.size[last] = c->size[last - 1] / pieces;
        out.size[last - 1] = pieces;
    }
    return out;
}

mx_cut mx_cut_shared(const mx_mesh *m, const mx_cut *c, int64_t size, mx_axis_set axes)
{
    int64_t pieces = mx_mesh_size(m, mx_cut_axes(c) | axes);
    bool divides = size % pieces == 0 && c->n < MX_MAX_FACTORS && !(mx_cut_axes(c) & axes);
    for (int b = 0; b < c->n_blocks; b++)
        divides &= c->block[b] % pieces == 0;
    return divides ? mx_cut_inside(m, c, size, axes) : *c;
}

mx_cut mx_cut_resized(const mx_cut *c, int64_t from, int64_t to)
{
    mx_cut out = *c;
    MX_ASSERT(!c->n_blocks, "a dim of blocks");
    if (c->n)
        out.size[c->n - 1] = out.size[c->n - 1] * to / from;
    return out;
}

/* One block: a dim of its own, of as many factors. */
static mx_cut one_block(const mx_mesh *m, const mx_cut *c, int64_t size)
{
    mx_cut out = {.n = c->n};
    for (int f = 0; f < c->n; f++) {
        int pieces = mx_mesh_size(m, c->axes[f]);
        out.axes[f] = c->axes[f];
        out.size[f] = f + 1 < c->n ? pieces : size;
        size /= pieces;
    }
    return out;
}

mx_cut mx_cut_blocks(const mx_mesh *m, const mx_cut *c, int first, int n)
{
    MX_ASSERT(n > 0 && first + n <= c->n_blocks, "%d of %d", first, c->n_blocks);
    if (n == 1)
        return one_block(m, c, c->block[first]);
    mx_cut out = *c;
    out.n_blocks = n;
    for (int b = 0; b < MX_MAX_BLOCKS; b++)
        out.block[b] = b < n ? c->block[first + b] : 0;
    return out;
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
    bool same = a->n == b->n && a->sorted_by == b->sorted_by && a->exchanged == b->exchanged &&
                a->n_blocks == b->n_blocks;
    for (int i = 0; i < a->n && same; i++)
        same = a->size[i] == b->size[i] && a->axes[i] == b->axes[i] && a->zigzag[i] == b->zigzag[i];
    for (int i = 0; i < a->n_blocks && same; i++)
        same = a->block[i] == b->block[i];
    return same;
}

bool mx_cut_alike(const mx_cut *a, const mx_cut *b)
{
    bool same = a->n == b->n && a->sorted_by == b->sorted_by;
    for (int i = 0; i < a->n && same; i++)
        same = a->axes[i] == b->axes[i] && a->zigzag[i] == b->zigzag[i];
    return same;
}

/* The factors that still cut; of blocks they have no sizes to be merged. */
static mx_cut without_empty(const mx_cut *c)
{
    mx_cut out = *c;
    out.n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->axes[i])
            out.axes[out.n++] = c->axes[i];
    return out.n ? out : (mx_cut){0};
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
    if (out.n_blocks)
        return without_empty(&out);
    for (int i = out.n - 1; i > 0; i--) {
        if (out.axes[i])
            continue;
        /* An inner factor that is whole belongs to the one before. */
        out.size[i - 1] *= out.size[i];
        for (int k = i; k + 1 < out.n; k++) {
            out.size[k] = out.size[k + 1];
            out.axes[k] = out.axes[k + 1];
            out.zigzag[k] = out.zigzag[k + 1];
        }
        out.n--;
    }
    if (out.n == 1 && !out.axes[0] && !out.sorted_by)
        out = (mx_cut){0};
    return out;
}

int64_t mx_cut_local(const mx_mesh *m, const mx_cut *c, int64_t size)
{
    int64_t n = mx_mesh_size(m, mx_cut_axes(c));
    return c->exchanged ? c->rows : (size + n - 1) / n;
}

/* --- placements --- */

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
    for (int d = 0; d < t.ndim; d++)
        t.dim[d] = mx_cut_local(m, &p->dim[d], t.dim[d]);
    return t;
}

static void print_cut(mx_str *s, const mx_cut *c)
{
    mx_axis_set_print(s, mx_cut_axes(c));
    for (int f = 0; f < c->n; f++)
        if (c->zigzag[f])
            mx_str_add(s, " zigzag");
    for (int b = 0; b < c->n_blocks; b++)
        mx_str_addf(s, "%s%lld", b ? "+" : " of ", (long long)c->block[b]);
    if (c->exchanged) {
        mx_str_add(s, " exchanged over ");
        mx_axis_set_print(s, c->exchanged);
    }
}

void mx_placement_print(mx_str *s, const mx_type *whole, const mx_placement *p)
{
    mx_str_add(s, "(");
    for (int d = 0; d < whole->ndim; d++) {
        mx_str_add(s, d ? ", " : "");
        print_cut(s, &p->dim[d]);
    }
    mx_str_add(s, ")");
    if (p->partial) {
        mx_str_add(s, " sum over ");
        mx_axis_set_print(s, p->partial);
    }
}

/* --- the part of one rank --- */

/* The rank's place among the pieces, outermost factor first. */
static int64_t piece_of(const mx_mesh *m, int rank, const mx_cut *c)
{
    int64_t at = 0;
    for (int f = 0; f < c->n; f++)
        at = at * mx_mesh_size(m, c->axes[f]) + mx_mesh_index(m, rank, c->axes[f]);
    return at;
}

static int zigzag_runs(const mx_mesh *m, const mx_cut *c, mx_cut_run piece, mx_cut_run *out)
{
    int64_t chunks = 2 * mx_mesh_degree(m, MX_AXIS_CONTEXT), size = c->size[0] / chunks;
    int n = 0;
    while (piece.n) {
        int64_t chunk = piece.from / size, natural = chunk % 2 ? chunks - 1 - chunk / 2 : chunk / 2;
        int64_t inside = piece.from % size, most = size - inside;
        int64_t count = piece.n < most ? piece.n : most;
        MX_ASSERT(n < MX_MAX_RUNS, "a piece of %lld chunks", (long long)chunks);
        out[n++] = (mx_cut_run){natural * size + inside, count};
        piece.from += count;
        piece.n -= count;
    }
    return n;
}

/* What a rank has of a dim, in the order in which it lies; gives their number. Where the last piece
 * was rounded up the runs hold fewer elements than the local dim, whose end is padding. Not for
 * rows of experts. */
static int cut_runs(const mx_mesh *m, int rank, const mx_cut *c, int64_t size, mx_cut_run *out)
{
    int64_t pieces = mx_mesh_size(m, mx_cut_axes(c)), at = piece_of(m, rank, c), before = 0;
    MX_ASSERT(!c->sorted_by, "rows of experts have no runs");
    for (int b = 0; b < c->n_blocks; b++) {
        int64_t n = c->block[b] / pieces;
        out[b] = (mx_cut_run){before + at * n, n};
        before += c->block[b];
    }
    if (c->n_blocks)
        return c->n_blocks;
    for (int f = 0; f + 1 < c->n; f++)
        MX_ASSERT(c->size[f] == mx_mesh_size(m, c->axes[f]), "factor %d is not one piece", f);
    int64_t n = (size + pieces - 1) / pieces;
    mx_cut_run piece = {at * n < size ? at * n : size, n};
    if (piece.from + n > size)
        piece.n = size - piece.from;
    if (c->n && c->zigzag[0])
        return zigzag_runs(m, c, piece, out);
    out[0] = piece;
    return 1;
}

int64_t mx_cut_from(const mx_mesh *m, int rank, const mx_cut *c, int64_t size)
{
    mx_cut_run run[MX_MAX_RUNS];
    cut_runs(m, rank, c, size, run);
    return run[0].from;
}

static int64_t index_in(const mx_cut_run *run, int n, int64_t i)
{
    for (int k = 0; k < n; k++) {
        if (i < run[k].n)
            return run[k].from + i;
        i -= run[k].n;
    }
    return -1;
}

int64_t mx_cut_index(const mx_mesh *m, int rank, const mx_cut *c, int64_t size, int64_t i)
{
    mx_cut_run run[MX_MAX_RUNS];
    return index_in(run, cut_runs(m, rank, c, size, run), i);
}

mx_box mx_box_of(const mx_mesh *m, int rank, const mx_type *whole, const mx_placement *p)
{
    mx_axis_set same = mx_mesh_axes(m) & ~mx_placement_axes(p);
    mx_box b = {.whole = *whole, .at = *p, .first = mx_mesh_index(m, rank, same) == 0};
    for (int d = 0; d < whole->ndim; d++)
        b.n_runs[d] = cut_runs(m, rank, &p->dim[d], whole->dim[d], b.run[d]);
    return b;
}

int64_t mx_box_element(const mx_box *b, const mx_type *local, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = local->ndim - 1; d >= 0; d--) {
        int64_t j = index_in(b->run[d], b->n_runs[d], i % local->dim[d]);
        if (j < 0)
            return -1;
        at += j * step;
        i /= local->dim[d];
        step *= b->whole.dim[d];
    }
    return at;
}
