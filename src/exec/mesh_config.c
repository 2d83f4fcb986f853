/* mesh_config.c - see mesh_config.h. */
#include "exec/mesh_config.h"

#include "dist/launch.h"
#include <stdio.h>
#include <string.h>

/* --- degrees --- */

/* As MaxText's keys call the axes; some have two names. */
static const struct {
    mx_axis axis;
    const char *stem;
} stems[] = {
    {MX_AXIS_DILOCO, "diloco"},
    {MX_AXIS_DATA, "data"},
    {MX_AXIS_STAGE, "pipeline"},
    {MX_AXIS_FSDP, "fsdp"},
    {MX_AXIS_FSDP_TRANSPOSE, "fsdp_transpose"},
    {MX_AXIS_CONTEXT, "context"},
    {MX_AXIS_CONTEXT_ULYSSES, "context_usp_ulysses"},
    {MX_AXIS_CONTEXT_AUTOREGRESSIVE, "context_autoregressive"},
    {MX_AXIS_TENSOR, "tensor"},
    {MX_AXIS_SEQUENCE, "tensor_sequence"},
    {MX_AXIS_SEQUENCE, "sequence"},
    {MX_AXIS_EXPERT, "expert"},
    {MX_AXIS_AUTOREGRESSIVE, "autoregressive"},
};
enum { N_STEMS = sizeof stems / sizeof *stems, WORD = 64 };

static mx_status read_level(const mx_config *c, const char *level, int *degree, bool *asked)
{
    char key[WORD];
    for (size_t i = 0; i < N_STEMS; i++) {
        snprintf(key, sizeof key, "%s_%s_parallelism", level, stems[i].stem);
        if (!mx_config_has(c, key))
            continue;
        int n = (int)mx_config_int(c, key), *d = &degree[stems[i].axis];
        *asked |= n > 1;
        if (*d > 1 && n != 1)
            return mx_fail(MX_USAGE, "%s: %s and %s_tensor_sequence_parallelism are two names of "
                           "one axis; set one of them", mx_config_where(c, key), key, level);
        *d = *d && n == 1 ? *d : n;
    }
    return MX_OK;
}

/* What one -1 stands for: the factor that is missing to `all`; 1 where that number is not given. */
static mx_status fill_in(const char *where, int *degree, int64_t all)
{
    int64_t known = 1;
    int open = -1;
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        if (degree[a] < 0 && open >= 0)
            return mx_fail(MX_USAGE, "%s: %s and %s are both -1; only one axis can take what is "
                           "left", where, mx_axis_name((mx_axis)open), mx_axis_name((mx_axis)a));
        open = degree[a] < 0 ? a : open;
        known *= degree[a] > 1 ? degree[a] : 1;
    }
    if (open < 0)
        return MX_OK;
    if (all && all % known)
        return mx_fail(MX_USAGE, "%s: %s=-1 takes what is left, but the other axes multiply to "
                       "%lld and that does not divide %lld ranks", where,
                       mx_axis_name((mx_axis)open), (long long)known, (long long)all);
    degree[open] = all ? (int)(all / known) : 1;
    return MX_OK;
}

static int64_t product(const int *degree)
{
    int64_t n = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        n *= degree[a] > 1 ? degree[a] : 1;
    return n;
}

/* --- rules, and how the pass works --- */

static mx_status read_rules(mx_mesh_plan *p, const mx_config *c)
{
    const char *const *item = NULL;
    int n = mx_config_list(c, "logical_axis_rules", &item);
    mx_axis_rules_init(&p->rules);
    if (mx_config_bool(c, "override_logical_axis_rules"))
        p->rules.n = 0;
    for (int i = 0; i < n; i++) {
        size_t name = strcspn(item[i], "=");
        bool more = false;
        for (int k = 0; k < i; k++) {
            if (strcmp(item[k], item[i]) == 0)
                return mx_fail(MX_USAGE, "%s: the rule `%s` is given twice",
                               mx_config_where(c, "logical_axis_rules"), item[i]);
            more |= strcspn(item[k], "=") == name && memcmp(item[k], item[i], name) == 0;
        }
        MX_TRY(mx_status_wrap(mx_axis_rules_set(&p->rules, item[i], more), "%s",
                              mx_config_where(c, "logical_axis_rules")));
    }
    return MX_OK;
}

static mx_status read_context(mx_partition *how, const mx_config *c)
{
    static const char *const strategy[] = {[MX_CONTEXT_ALL_GATHER] = "all_gather",
                                           [MX_CONTEXT_RING] = "ring",
                                           [MX_CONTEXT_ULYSSES] = "ulysses"};
    const char *key = "context_parallel_strategy", *want = mx_config_text(c, key);
    how->zigzag = mx_config_bool(c, "context_parallel_load_balance");
    how->only_this_context = mx_config_is_users(c, key);
    for (int i = 0; i < 3; i++)
        if (strcmp(want, strategy[i]) == 0) {
            how->context = (mx_context_strategy)i;
            return MX_OK;
        }
    return mx_fail(MX_USAGE, "%s: %s=%s is not built yet; use all_gather, ring or ulysses",
                   mx_config_where(c, key), key, want);
}

/* What the partition pass is given besides the degrees. */
static mx_status read_ways(mx_mesh_plan *p, const mx_config *c)
{
    MX_TRY(read_rules(p, c));
    MX_TRY(read_context(&p->how, c));
    p->how.sharding_tolerance = mx_config_float(c, "sharding_tolerance");
    p->how.no_overlap = !mx_config_bool(c, "overlap_collectives");
    p->how.exchange_factor = mx_config_float(c, "ragged_buffer_factor");
    p->how.optimizer_over_data = mx_config_bool(c, "shard_optimizer_over_data");
    p->how.mesh = &p->mesh;
    p->how.rules = &p->rules;
    return MX_OK;
}

static mx_status check_axes(const mx_mesh_plan *p)
{
    static const mx_axis not_yet[] = {MX_AXIS_DILOCO, MX_AXIS_CONTEXT_ULYSSES,
                                      MX_AXIS_CONTEXT_AUTOREGRESSIVE, MX_AXIS_AUTOREGRESSIVE};
    for (size_t i = 0; i < sizeof not_yet / sizeof *not_yet; i++)
        if (mx_mesh_degree(&p->mesh, not_yet[i]) > 1)
            return mx_fail(MX_USAGE,
                           "the mesh has %s=%d, and that axis is not built yet; the axes are data, "
                           "stage, fsdp, fsdp_transpose, tensor, sequence, context, expert",
                           mx_axis_name(not_yet[i]), mx_mesh_degree(&p->mesh, not_yet[i]));
    return MX_OK;
}

/* The degrees as they were given, -1 among them. */
static mx_status read_degrees(mx_mesh_plan *p, const mx_config *c)
{
    const char *text = mx_config_text(c, "mesh");
    bool by_keys = false;
    MX_TRY(read_level(c, "ici", p->mesh.ici, &by_keys));
    MX_TRY(read_level(c, "dcn", p->mesh.dcn, &by_keys));
    if (!*text) {
        p->asked = by_keys;
        return MX_OK;
    }
    p->asked = true;
    if (strcmp(text, "auto") == 0)
        return mx_fail(MX_USAGE, "%s: maxc plan and maxc train choose a mesh; give one here, for "
                       "example mesh=fsdp=2", mx_config_where(c, "mesh"));
    if (by_keys)
        return mx_fail(MX_USAGE, "%s: mesh and degrees above 1 (ici_X_parallelism, "
                       "dcn_X_parallelism) are both given; use one of them",
                       mx_config_where(c, "mesh"));
    return mx_status_wrap(mx_mesh_parse(&p->mesh, text), "%s", mx_config_where(c, "mesh"));
}

/* Where the mesh was said: the key of its degrees that the user has set. */
static const char *where_of(const mx_config *c)
{
    static const char *const levels[] = {"ici", "dcn"};
    char key[WORD];
    if (*mx_config_text(c, "mesh"))
        return mx_config_where(c, "mesh");
    for (size_t i = 0; i < 2 * N_STEMS; i++) {
        snprintf(key, sizeof key, "%s_%s_parallelism", levels[i % 2], stems[i / 2].stem);
        if (mx_config_has(c, key) && mx_config_is_users(c, key))
            return mx_config_where(c, key);
    }
    return mx_config_where(c, "virtual_ranks");
}

/* How many nodes a -1 across nodes is a share of: where the user has set it and no degree inside a
 * node is open, all ranks in groups of those degrees' product. 0: not given. */
static int64_t nodes_of(const mx_mesh_plan *p, const mx_config *c, int64_t ranks)
{
    char key[WORD];
    bool asked = false;
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (p->mesh.ici[a] < 0)
            return 0;
    for (size_t i = 0; i < N_STEMS; i++) {
        snprintf(key, sizeof key, "dcn_%s_parallelism", stems[i].stem);
        asked |= mx_config_has(c, key) && mx_config_is_users(c, key) && mx_config_int(c, key) < 0;
    }
    return asked && ranks % product(p->mesh.ici) == 0 ? ranks / product(p->mesh.ici) : 0;
}

static mx_status count_ranks(mx_mesh_plan *p, const mx_config *c, int processes)
{
    int64_t virtual_ranks = mx_config_int(c, "virtual_ranks");
    int64_t ranks = processes > 1 ? processes : virtual_ranks;
    const char *where = where_of(c);
    if (processes > 1 && virtual_ranks > 0)
        return mx_fail(MX_USAGE, "%s: %d processes were started, so there are no virtual ranks; "
                       "leave virtual_ranks out", mx_config_where(c, "virtual_ranks"), processes);
    MX_TRY(fill_in(where, p->mesh.dcn, nodes_of(p, c, ranks)));
    int64_t nodes = product(p->mesh.dcn);
    if (ranks && ranks % nodes)
        return mx_fail(MX_USAGE, "%s: the degrees across nodes multiply to %lld, which does not "
                       "divide %lld ranks", where, (long long)nodes, (long long)ranks);
    MX_TRY(fill_in(where, p->mesh.ici, ranks / nodes));
    int64_t all = product(p->mesh.ici) * nodes;
    if (ranks && all != ranks)
        return mx_fail(MX_USAGE, "%s: the mesh multiplies to %lld ranks and there are %lld; make "
                       "them equal, or give one axis -1", where, (long long)all, (long long)ranks);
    if (all > MX_LAUNCH_MAX_RANKS)
        return mx_fail(MX_USAGE, "%s: the mesh multiplies to %lld ranks; there can be %d", where,
                       (long long)all, MX_LAUNCH_MAX_RANKS);
    p->ranks = (int)all;
    p->asked |= virtual_ranks > 1;
    return MX_OK;
}

mx_status mx_mesh_configure(mx_mesh_plan *p, const mx_config *c, int processes)
{
    *p = (mx_mesh_plan){.ranks = 1};
    MX_TRY(read_degrees(p, c));
    if (!p->asked && mx_config_int(c, "virtual_ranks") <= 1)
        return MX_OK; /* one device, or processes that share a batch */
    MX_TRY(count_ranks(p, c, processes));
    MX_TRY(check_axes(p));
    return read_ways(p, c);
}

mx_status mx_mesh_refuse(const mx_config *c, const char *does)
{
    mx_mesh_plan mesh = {0};
    mx_status st = mx_mesh_configure(&mesh, c, 1);
    if (!st && mesh.ranks > 1)
        st = mx_fail(MX_USAGE, "%d ranks are asked for, and %s one device; leave mesh, the degrees "
                     "and virtual_ranks out", mesh.ranks, does);
    mx_mesh_plan_fini(&mesh);
    return st;
}

mx_status mx_mesh_without_stages(const mx_mesh_plan *p, const char *what)
{
    int stages = mx_mesh_degree(&p->mesh, MX_AXIS_STAGE);
    return stages == 1 ? MX_OK
                       : mx_fail(MX_USAGE, "the mesh has stage=%d, and %s does not run as a "
                                 "pipeline yet; use another axis, for example tensor=%d", stages,
                                 what, stages);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Degrees that are all inside a node, spread over nodes of this many ranks. */
static void fill_nodes(mx_mesh *m, int64_t per_node)
{
    for (int a = MX_AXIS_COUNT - 1; a >= 0; a--) {
        int64_t degree = m->ici[a] > 1 ? m->ici[a] : 1, inside = common_divisor(degree, per_node);
        m->ici[a] = (int)inside;
        m->dcn[a] = (int)(degree / inside);
        per_node /= inside;
    }
}

mx_status mx_mesh_asked(const mx_config *c, int64_t *ranks)
{
    mx_mesh_plan p = {0};
    MX_TRY(read_degrees(&p, c));
    *ranks = p.asked ? product(p.mesh.ici) * product(p.mesh.dcn) : 0;
    return MX_OK;
}

mx_status mx_mesh_read(mx_mesh *m, const mx_config *c, int64_t nodes, int64_t per_node)
{
    mx_mesh_plan p = {0};
    const char *where = mx_config_where(c, "mesh");
    MX_TRY(read_degrees(&p, c));
    bool short_form = *mx_config_text(c, "mesh");
    if (!short_form) {
        where = "the degrees across nodes (dcn_X_parallelism)";
        MX_TRY(fill_in(where, p.mesh.dcn, nodes));
        if (product(p.mesh.dcn) != nodes)
            return mx_fail(MX_USAGE, "%s multiply to %lld, and there are %lld nodes", where,
                           (long long)product(p.mesh.dcn), (long long)nodes);
        where = "the degrees inside a node (ici_X_parallelism)";
    }
    int64_t here = short_form ? nodes * per_node : per_node;
    MX_TRY(fill_in(where, p.mesh.ici, here));
    if (product(p.mesh.ici) != here)
        return mx_fail(MX_USAGE, "%s: the degrees multiply to %lld, and there are %lld chips%s; "
                       "make them equal, or give one axis -1", where,
                       (long long)product(p.mesh.ici),
                       (long long)here, short_form ? "" : " in a node");
    if (short_form)
        fill_nodes(&p.mesh, per_node);
    *m = p.mesh;
    return MX_OK;
}

mx_status mx_mesh_use(mx_mesh_plan *p, const mx_config *c, const mx_mesh *m)
{
    *p = (mx_mesh_plan){.mesh = *m, .ranks = mx_mesh_ranks(m), .asked = true};
    return read_ways(p, c);
}

void mx_mesh_plan_fini(mx_mesh_plan *p)
{
    mx_axis_rules_fini(&p->rules);
    *p = (mx_mesh_plan){0};
}

mx_axis_set mx_mesh_rows(const mx_mesh_plan *p)
{
    mx_placement at;
    mx_type t = mx_type_of(MX_I32, MX_SHAPE(p->ranks));
    bool fits = mx_axis_rules_place(&p->rules, &p->mesh, "activation_batch", &t, &at, NULL);
    MX_ASSERT(fits, "a batch has rows");
    return mx_cut_axes(&at.dim[0]);
}

mx_status mx_mesh_check(const mx_mesh_plan *p, const mx_config *c)
{
    int context = mx_mesh_degree(&p->mesh, MX_AXIS_CONTEXT);
    int64_t length = mx_config_int(c, "max_target_length");
    int64_t pieces = context * (p->how.zigzag && context > 1 ? 2 : 1);
    if (length % pieces)
        return mx_fail(MX_USAGE, "%s: max_target_length=%lld does not divide into the %lld chunks "
                       "of context=%d%s", mx_config_where(c, "max_target_length"),
                       (long long)length, (long long)pieces, context,
                       pieces > context ? " (two each, so that ranks have equal work: "
                                          "context_parallel_load_balance=false has one)" : "");
    if (mx_config_bool(c, "use_qk_clip") && (mx_mesh_degree(&p->mesh, MX_AXIS_STAGE) > 1 ||
                                             p->how.optimizer_over_data))
        return mx_fail(MX_USAGE,
                       "%s: use_qk_clip with stages, or with shard_optimizer_over_data, is not "
                       "built yet; leave one of them out",
                       mx_config_where(c, "use_qk_clip"));
    return MX_OK;
}
