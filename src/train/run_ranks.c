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
 * once a step and agreed on: mx_run_look_around. Rank 0 chooses checkpoints, writes the log,
 * metrics and small files, and holds the run's lock.
 *
 * A rank that ends with an error tells the others, which end with its words (mx_run_train).
 */
#include "train/run_state.h"

#include "base/reserve.h"
#include "base/signals.h"
#include "store/digest.h"
#include <string.h>

enum { PATH_BYTES = 4096 };

mx_status mx_run_ranks_open(mx_run *r)
{
    const mx_config *c = r->c;
    mx_comm_options o = {mx_config_float(c, "distributed_initialization_timeout"),
                         mx_config_float(c, "collective_timeout_seconds")};
    MX_TRY(mx_comm_open(&r->comm, &o));
    r->leads = r->comm->rank == 0;
    return mx_run_share_text(r, &r->folder); /* without a run_name it has the time in it */
}

mx_status mx_run_share_text(mx_run *r, const char **text)
{
    char buf[PATH_BYTES] = "";
    int64_t too_long = r->leads && *text && strlen(*text) >= sizeof buf;
    MX_TRY(mx_comm_max(r->comm, &too_long, 1));
    if (too_long)
        return mx_fail(MX_USAGE, "a path of the run has more than %d bytes", PATH_BYTES - 1);
    if (r->leads && *text)
        memcpy(buf, *text, strlen(*text) + 1);
    MX_TRY(mx_comm_broadcast(r->comm, buf, r->comm->size > 1 ? sizeof buf : 0, 0));
    if (!r->leads)
        *text = *buf ? mx_arena_strdup(&r->arena, buf) : NULL;
    return MX_OK;
}

mx_status mx_run_ranks_check(mx_run *r)
{
    if (r->comm->size == 1)
        return MX_OK;
    if (!mx_session_traits(r->session)->host_memory)
        return mx_fail(MX_USAGE,
                       "%d ranks were started and the device is a GPU; several ranks run on the "
                       "CPU so far: device=cpu, or one rank",
                       r->comm->size);
    mx_digest mine = mx_digest_of(r->config_text, strlen(r->config_text));
    mx_digest *all = MX_NEW_N(&r->arena, mx_digest, r->comm->size);
    MX_TRY(mx_comm_gather(r->comm, &mine, sizeof mine, all));
    for (int k = 1; k < r->comm->size; k++)
        if (!mx_digest_equal(all[k], all[0]))
            return mx_fail(MX_USAGE,
                           "rank %d was started with another configuration than rank 0; give all "
                           "ranks the same command, files and MAXC_ variables",
                           k);
    for (int i = 0; i < mx_session_count(r->session); i++)
        r->n_summed += mx_session_var(r->session, i)->attr.kind == MX_VAR_GRADIENT;
    r->summed = MX_NEW_N(&r->arena, mx_span, r->n_summed + 1);
    for (int i = 0, k = 0; i < mx_session_count(r->session); i++) {
        mx_var *v = mx_session_var(r->session, i);
        if (v->attr.kind != MX_VAR_GRADIENT)
            continue;
        MX_ASSERT(v->type.dtype == MX_F32, "%s", v->name);
        r->summed[k++] = (mx_span){mx_var_host(r->session, v), mx_type_count(&v->type)};
    }
    return MX_OK;
}

mx_status mx_run_sum_gradients(mx_run *r, float *numbers, int n)
{
    if (r->comm->size == 1)
        return MX_OK;
    r->summed[r->n_summed] = (mx_span){numbers, n};
    return mx_comm_sum_f32(r->comm, r->summed, r->n_summed + 1);
}

mx_status mx_run_look_around(mx_run *r)
{
    int64_t v[] = {mx_stop_signal() != 0, r->ckpt && mx_ckpt_poll(r->ckpt).writing,
                   r->failures_said};
    MX_TRY(mx_memory_check());
    MX_TRY(mx_comm_max(r->comm, v, 3));
    r->stops = v[0];
    r->writer_busy = v[1];
    r->failed_saves = v[2];
    return MX_OK;
}
