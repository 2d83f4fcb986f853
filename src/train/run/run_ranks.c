/* run_ranks.c - what several ranks of one run do together.
 *
 * Data parallelism: every rank has the whole model and its rows of each batch (loader.h). Gradients
 * are added up over ranks between the program that accumulates them and the one that applies them,
 * so a rank is one more microbatch: losses are divided by the tokens of the whole batch before, and
 * clipping and the update see the sum. All ranks then make the same update and stay the same, bit
 * for bit.
 *
 * Whatever decides how a run goes on must be one decision. Losses and norms are sums over ranks and
 * equal everywhere; what is not (a signal came, the disk is still busy, a save failed) is asked for
 * once a step and agreed on: mx_run_poll. Rank 0 chooses checkpoints, writes the log,
 * metrics and small files, and holds the run's lock.
 *
 * On a mesh (run_state.h, mesh_rank) the programs hold the collectives: gradients, losses and norms
 * are those of all ranks when they have run, and nothing is added here.
 *
 * A rank that ends with an error tells the others, which end with its words (mx_run_train). How
 * ranks meet is in run_join.c.
 */
#include "train/run/run_state.h"

#include "base/reserve.h"
#include "base/signals.h"

#include <string.h>

static bool is_summed(const mx_var *v)
{
    return v->attr.kind == MX_VAR_GRADIENT && !v->attr.minimum;
}

/* Of factors between 0 and 1 (compile/optimizer.h) the least of all ranks: as whole numbers, the
 * bits of positive floats have the floats' order. */
static mx_status share_least(mx_run *r)
{
    for (int i = 0; i < mx_session_count(r->session); i++) {
        mx_var *v = mx_session_var(r->session, i);
        float *x = mx_var_host(r->session, v);
        int64_t n = mx_type_count(&v->type), bits[256];
        for (int64_t at = 0; v->attr.minimum && at < n; at += 256) {
            int m = (int)(n - at < 256 ? n - at : 256);
            uint32_t u;
            for (int k = 0; k < m; k++) {
                memcpy(&u, x + at + k, sizeof u);
                bits[k] = -(int64_t)u;
            }
            MX_TRY(mx_comm_max(r->ranks.comm, bits, m));
            for (int k = 0; k < m; k++) {
                u = (uint32_t)-bits[k];
                memcpy(x + at + k, &u, sizeof u);
            }
        }
    }
    return MX_OK;
}

mx_status mx_run_ranks_check(mx_run *r)
{
    if (r->ranks.comm->size == 1)
        return MX_OK;
    bool on_host = mx_session_traits(r->session)->host_memory;
    if (on_host && strcmp(mx_config_text(r->c, "collectives"), "nccl") == 0)
        return mx_fail(MX_USAGE, "%s: collectives=nccl joins GPUs, and the device is %s; use auto",
                       mx_config_where(r->c, "collectives"),
                       mx_session_traits(r->session)->name);
    if (!r->mesh_rank && !on_host)
        return mx_fail(MX_USAGE,
                       "%d ranks were started and the device is a GPU, where ranks have a mesh: "
                       "mesh=data=%d, or mesh=fsdp=%d, which shares the weights too",
                       r->ranks.comm->size, r->ranks.comm->size, r->ranks.comm->size);
    for (int i = 0; i < mx_session_count(r->session) && !r->mesh_rank; i++)
        r->ranks.n_summed += is_summed(mx_session_var(r->session, i));
    r->ranks.summed = MX_NEW_N(&r->arena, mx_span, r->ranks.n_summed + 1);
    for (int i = 0, k = 0; i < mx_session_count(r->session) && k < r->ranks.n_summed; i++) {
        mx_var *v = mx_session_var(r->session, i);
        if (!is_summed(v))
            continue;
        MX_ASSERT(v->type.dtype == MX_F32, "%s", v->name);
        r->ranks.summed[k++] = (mx_span){mx_var_host(r->session, v), mx_type_count(&v->type)};
    }
    return MX_OK;
}

bool mx_run_speaks(const mx_run *r)
{
    const mx_mesh *mesh = &r->mesh_rank->mesh->mesh;
    mx_axis_set others = mx_mesh_axes(mesh) & ~(1u << MX_AXIS_STAGE);
    int last = mx_mesh_degree(mesh, MX_AXIS_STAGE) - 1;
    return mx_mesh_coordinate(mesh, r->mesh_rank->rank, MX_AXIS_STAGE) == last &&
           mx_mesh_index(mesh, r->mesh_rank->rank, others) == 0;
}

mx_status mx_run_sum_rows(mx_run *r, int64_t *v, int n)
{
    MX_TRY(mx_comm_sum(r->ranks.comm, v, n));
    for (int i = 0; i < n; i++)
        v[i] /= r->ranks.comm->size / r->ranks.data_ranks;
    return MX_OK;
}

mx_status mx_run_sum_gradients(mx_run *r, float *numbers, int n)
{
    if (r->ranks.comm->size == 1 || r->mesh_rank)
        return MX_OK;
    r->ranks.summed[r->ranks.n_summed] = (mx_span){numbers, n};
    MX_TRY(share_least(r));
    return mx_comm_sum_f32(r->ranks.comm, r->ranks.summed, r->ranks.n_summed + 1);
}

mx_status mx_run_poll(mx_run *r)
{
    int64_t v[] = {mx_stop_signal() != 0, r->saving.ckpt && mx_ckpt_poll(r->saving.ckpt).writing,
                   r->saving.failures_said};
    MX_TRY(mx_memory_check());
    MX_TRY(mx_comm_max(r->ranks.comm, v, 3));
    r->ranks.stops = v[0];
    r->ranks.writer_busy = v[1];
    r->ranks.failed_saves = v[2];
    return MX_OK;
}
