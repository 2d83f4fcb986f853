/* choose.c - see choose.h. */
#include "plan/choose.h"

#include <string.h>

enum { COMPILED = 8 };

static mx_status nothing_fits(const mx_search *s, const mx_search_request *q)
{
    const mx_topology *t = q->machine;
    bool roomy = mx_config_int(q->config, "num_experts") > 1 &&
                 mx_config_float(q->config, "ragged_buffer_factor") < 0;
    char a[32], b[32], c[32];
    mx_str mesh = {0};
    if (t->chips > 1)
        mx_mesh_print(&mesh, &s->least_mesh);
    else
        mx_str_add(&mesh, "a chip alone");
    mx_status st =
        s->too_large
            ? mx_fail(MX_MEMORY,
                      "no layout fits in the %s of a %s, of which %s are for programs: of %lld "
                      "tried, %s needs the least, %s; use more chips, a smaller batch or a shorter "
                      "max_target_length%s",
                      mx_format_bytes(b, sizeof b, t->chip.memory_bytes), t->chip.name,
                      mx_format_bytes(c, sizeof c, mx_search_usable_bytes(&t->chip)),
                      (long long)s->tried, mx_str_text(&mesh),
                      mx_format_bytes(a, sizeof a, s->least.total),
                      roomy ? ", or ragged_buffer_factor=1.5 (an expert rank then has room for "
                              "one and a half even shares of tokens, not for all)"
                            : "")
            : mx_fail(MX_USAGE,
                      "no mesh of %lld chips can share the batch; change "
                      "per_device_batch_size",
                      (long long)t->chips);
    mx_str_fini(&mesh);
    return st;
}

static void drop(mx_search *s, int i)
{
    s->n--;
    memmove(&s->best[i], &s->best[i + 1], sizeof *s->best * (size_t)(s->n - i));
}

/* The first, and those of its remat policy that would not fit either if compiling made them as
 * much larger. */
static void drop_larger(mx_search *s, double more, double room)
{
    int remat = s->best[0].remat;
    for (int i = s->n - 1; i >= 0; i--)
        if (i == 0 || (s->best[i].remat == remat && s->best[i].memory.total * more > room)) {
            drop(s, i);
            s->too_large++;
        }
}

/* What no program can be made for: the mesh of the first, with every batch and remat policy. */
static void drop_mesh(mx_search *s)
{
    mx_mesh mesh = s->best[0].mesh;
    for (int i = s->n - 1; i >= 0; i--)
        if (memcmp(&s->best[i].mesh, &mesh, sizeof mesh) == 0)
            drop(s, i);
}

mx_status mx_layout_choose(mx_search *s, const mx_search_request *q, mx_forecast *f)
{
    mx_status why = MX_OK;
    MX_TRY(mx_search_run(s, q));
    for (int tries = 0; s->n && tries < COMPILED; tries++) {
        mx_topology machine = f->machine;
        const mx_device_traits *traits = f->traits;
        memset(f, 0, sizeof *f);
        f->machine = machine;
        f->traits = traits;
        mx_search_take(s, 0, q, f);
        double room = f->room = mx_search_usable_bytes(&f->machine.chip);
        mx_status st = mx_forecast_make(f, q->config, q->model);
        if (!st && f->memory.total <= room) {
            mx_status_free(why);
            return MX_OK;
        }
        if (!st) {
            drop_larger(s, f->memory.total / s->best[0].memory.total, room);
            continue;
        }
        mx_status_free(why);
        why = st;
        drop_mesh(s);
    }
    return why ? mx_status_wrap(why, "none of the best layouts can be compiled; the last")
               : nothing_fits(s, q);
}
