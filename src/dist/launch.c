/* launch.c - see launch.h. */
#include "dist/launch.h"

#include "base/str.h"
#include <stdio.h>
#include <string.h>

enum { PORT = 29500, JOB_PORTS = 10000 };

static const struct {
    const char *launcher, *rank, *size, *local, *local_size, *job, *step;
} known[] = {
    {"torchrun", "RANK", "WORLD_SIZE", NULL, "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", NULL},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL},
    {"Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", NULL, NULL, NULL, NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
};

static mx_status number(char *(*get)(const char *), const char *name, int64_t low, int64_t high,
                        int *out)
{
    const char *text = get(name);
    int64_t v = 0;
    if (!text || !mx_parse_i64(text, &v) || v < low || v > high)
        return mx_fail(MX_USAGE, "the environment has %s=%s; expected a number from %lld to %lld",
                       name, text ? text : "(nothing)", (long long)low, (long long)high);
    *out = (int)v;
    return MX_OK;
}

/* LOCAL_RANK, or the launcher's own name for it. */
static mx_status find_local(mx_launch *p, char *(*get)(const char *), const char *own)
{
    const char *name = get("LOCAL_RANK") || !own ? "LOCAL_RANK" : own;
    return get(name) ? number(get, name, 0, MX_LAUNCH_MAX_RANKS - 1, &p->local) : MX_OK;
}

/* "gpu[03-06,9],x" -> "gpu03": the first node of a list as Slurm writes it. */
static void first_node(const char *list, char *out, size_t cap)
{
    size_t stem = strcspn(list, "[,");
    int digits = list[stem] == '[' ? (int)strspn(list + stem + 1, "0123456789") : 0;
    snprintf(out, cap, "%.*s%.*s", (int)stem, list, digits, digits ? list + stem + 1 : "");
}

static mx_status find_host(mx_launch *p, char *(*get)(const char *), const char *local_size)
{
    const char *host = get("MASTER_ADDR"), *nodes = get("SLURM_STEP_NODELIST");
    const char *local = local_size ? get(local_size) : NULL;
    int64_t here = 0;
    if (local && mx_parse_i64(local, &here) && here > 0 && here <= p->size)
        p->on_machine = (int)here;
    if (host && *host)
        snprintf(p->host, sizeof p->host, "%s", host);
    else if (nodes && *nodes)
        first_node(nodes, p->host, sizeof p->host);
    else if (p->on_machine == p->size)
        snprintf(p->host, sizeof p->host, "127.0.0.1");
    else
        return mx_fail(MX_USAGE,
                       "%s started rank %d of %d, but nothing says where ranks meet; set "
                       "MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there",
                       p->launcher, p->rank, p->size);
    return MX_OK;
}

mx_status mx_launch_find(mx_launch *p, char *(*get)(const char *name))
{
    *p = (mx_launch){.size = 1, .port = PORT};
    size_t k = 0, n = sizeof known / sizeof *known;
    while (k < n && !(get(known[k].rank) && get(known[k].size)))
        k++;
    if (k == n)
        return MX_OK;
    MX_TRY(number(get, known[k].size, 1, MX_LAUNCH_MAX_RANKS, &p->size));
    MX_TRY(number(get, known[k].rank, 0, p->size - 1, &p->rank));
    MX_TRY(find_local(p, get, known[k].local));
    p->launcher = known[k].launcher;
    p->mpi = strstr(p->launcher, "MPI") || get("PMIX_RANK"); /* srun does where it was asked to */
    const char *name = known[k].job ? get(known[k].job) : NULL;
    const char *step = known[k].step ? get(known[k].step) : NULL;
    snprintf(p->job, sizeof p->job, "%s%s%s", name ? name : "", step ? "." : "", step ? step : "");
    if (p->size == 1)
        return MX_OK;
    const char *job = get("SLURM_JOB_ID");
    int64_t id;
    const char *agent = get("TORCHELASTIC_USE_AGENT_STORE");
    if (get("MASTER_PORT"))
        MX_TRY(number(get, "MASTER_PORT", 1, 65534, &p->port));
    if (agent && strcmp(agent, "True") == 0)
        p->port++;
    else if (!get("MASTER_PORT") && job && mx_parse_i64(job, &id) && id > 0)
        p->port = PORT + (int)(id % JOB_PORTS);
    return find_host(p, get, known[k].local_size);
}
