/* optimizer_adamw8bit.c - AdamW whose moments have 8 bits, in bitsandbytes' form (ops/adamw.c).
 *
 * The state of X: codes X.exp_avg and X.exp_avg_sq, and the largest magnitudes of blocks of 256,
 * X.exp_avg.absmax and X.exp_avg_sq.absmax. Small weights (biases, norms) are AdamW's, as there.
 *
 * Blocks are of the whole weight in row-major order. The fewest rows that are whole blocks make one
 * row of absmax:
 *     X (..., rows, cols)    absmax (..., rows / r, r cols / 256),    r = 256 / gcd(cols, 256)
 * so that a mesh cuts absmax as it cuts X. Where it would cut a block, that is refused. A weight of
 * other sizes has absmax (blocks), and every rank needs the whole of it.
 */
#include "compile/optimizer.h"

#include "base/rng.h"
#include "compile/mesh/partition.h"
#include "ops.h"
#include "ops/adamw8.h"
#include <stdio.h>

enum { LEAST = 4096, BLOCK = MX_ADAMW8_BLOCK }; /* elements, as bitsandbytes */

/* The grid of the blocks of a whole weight; r: of its rows one row of the grid is; 0: of none. */
static mx_type grid_of(const mx_type *t, int64_t *r)
{
    int64_t cols = t->ndim ? t->dim[t->ndim - 1] : 1, both = BLOCK;
    while (cols % both)
        both /= 2; /* their greatest common divisor, since a block is a power of two */
    *r = BLOCK / both;
    if (t->ndim < 2 || t->dim[t->ndim - 2] % *r) {
        *r = t->ndim == 1 && *r == 1 ? 1 : 0;
        return mx_type_of(MX_F32, MX_SHAPE((mx_type_count(t) + BLOCK - 1) / BLOCK));
    }
    mx_type grid = *t;
    grid.dtype = MX_F32;
    grid.dim[t->ndim - 2] /= *r;
    grid.dim[t->ndim - 1] = cols * *r / BLOCK;
    return grid;
}

/* Whether what a rank has of dim d is pieces of this size, from one on. */
static bool in_pieces(const mx_box *b, int d, int64_t size)
{
    for (int i = 0; i < b->n_runs[d]; i++)
        if (b->run[d][i].from % size || b->run[d][i].n % size)
            return false;
    return true;
}

static bool is_cut(const mx_cut *c)
{
    return c->n || c->n_blocks;
}

static mx_cut cut_of_grid(const mx_cut *c, int64_t from, int64_t to)
{
    mx_cut out = *c;
    if (!c->n_blocks)
        return mx_cut_resized(c, from, to);
    for (int i = 0; i < c->n_blocks; i++)
        out.block[i] = c->block[i] * to / from;
    return out;
}

/* What a rank has of the grid, which becomes that; false: it has less than whole blocks. */
static bool box_of_grid(const mx_update *u, mx_type *grid, int64_t r, mx_box *out)
{
    const mx_box *b = u->like->box;
    const mx_type *whole = &b->whole;
    mx_placement at = b->at;
    for (int d = 0; d < whole->ndim; d++) {
        int64_t unit = d == whole->ndim - 1 ? BLOCK : d == whole->ndim - 2 ? r : 1;
        if (!is_cut(&at.dim[d]))
            continue;
        if (!r || (d == whole->ndim - 1 && r > 1) || !in_pieces(b, d, unit))
            return false;
        at.dim[d] = cut_of_grid(&at.dim[d], whole->dim[d], grid->dim[d]);
    }
    int rank; /* as in the partition pass: a stage has everything of its layers */
    mx_mesh inside = mx_mesh_without(u->on->mesh, MX_AXIS_STAGE, u->on->rank, &rank);
    *out = mx_box_of(&inside, rank, grid, &at);
    out->first = b->first;
    out->repeated = b->repeated;
    *grid = mx_placement_local(&inside, grid, &at);
    if (!mx_type_count(&u->like->type)) /* of another stage */
        for (int d = 0; d < grid->ndim; d++)
            grid->dim[d] = out->n_runs[d] = 0;
    return !mx_placement_axes(&at) ||
           mx_type_count(grid) * BLOCK == mx_type_count(&u->like->type);
}

/* The largest magnitudes of a moment's blocks. */
static mx_node *block_most(mx_graph *g, const mx_update *u, const char *suffix)
{
    char name[512];
    int64_t r;
    const mx_box *box = u->like->box;
    mx_type t = grid_of(box ? &box->whole : &u->like->type, &r);
    mx_box part;
    snprintf(name, sizeof name, "%s.%s.absmax", u->like->name, suffix);
    if (box && !box_of_grid(u, &t, r, &part)) {
        mx_graph_fail(g, "opt_type=adamw8bit: the mesh cuts %s inside a block of %d; use another "
                      "mesh, or adamw with mu_dtype=bfloat16 nu_dtype=bfloat16", u->like->name,
                      BLOCK);
        box = NULL;
    }
    mx_node *n = mx_variable(g, name, t,
                             (mx_var_attr){.kind = MX_VAR_OPTIMIZER, .on_host = u->o->on_host});
    n->box = box ? mx_arena_copy(&g->arena, &part, sizeof part) : NULL;
    return n;
}

static mx_node *code_maps(mx_graph *g)
{
    double map[2 * MX_ADAMW8_CODES];
    mx_adamw8_map(true, map);
    mx_adamw8_map(false, map + MX_ADAMW8_CODES);
    return mx_table(g, MX_SHAPE(2, MX_ADAMW8_CODES), MX_F32, map);
}

static mx_node *update(mx_graph *g, const mx_update *u)
{
    const mx_optimizer *o = u->o;
    if (mx_type_count(u->like->box ? &u->like->box->whole : &u->like->type) < LEAST)
        return mx_optimizer_rule_adamw.update(g, u);
    mx_node *m = mx_update_state(g, u, "exp_avg", MX_U8);
    mx_node *v = mx_update_state(g, u, "exp_avg_sq", MX_U8);
    return mx_adamw8(g, (mx_node *[]){u->w, u->d, m, v, block_most(g, u, "exp_avg"),
                                      block_most(g, u, "exp_avg_sq"), u->hyper, code_maps(g),
                                      u->copy},
                     (mx_adamw_rates){o->b1, o->b2, o->eps, o->eps_root, u->decay,
                                      (int64_t)mx_stream_of(u->like->name), u->like->box, false});
}

const mx_optimizer_rule mx_optimizer_rule_adamw8bit = {
    .name = "adamw8bit",
    .doc = "AdamW with moments of 8 bits, as bitsandbytes",
    .alias = "adamw_8bit",
    .moments = 2,
    .moment_bytes = 1 + 4.0 / MX_ADAMW8_BLOCK,
    .instructions = 320, /* by a step of Qwen2.5-14B on an H200 */
    .rounds = true,
    .by_shard = true,
    .update = update,
};
