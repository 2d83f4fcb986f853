/* meshes_test.c - five kinds of model on every mesh of 8 ranks, and on some of 16: the loss, every
 * gradient and three steps of AdamW as on one device, in float32.
 *
 * Meshes are all ways to share the ranks among seven axes: 84 for 8 ranks, 210 for 16, of which 60
 * run. `make test-meshes` (MX_MESHES=all) runs all; otherwise a dozen. MX_MESH_KIND picks a kind.
 * MX_MESHES_FILE=FILE has a line for each mesh that passed; those are not run again. MX_MESH_ONLY
 * picks a mesh by its text.
 */
#include "../test.h"
#include "mesh_run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESHES = 256 };

static const char *const kinds[] = {"dense", "mixture", "mla", "delta", "window"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static bool everything(void)
{
    const char *s = getenv("MX_MESHES");
    return s && strcmp(s, "all") == 0;
}

/* All meshes of n ranks, n a power of two; gives their number. */
static int list_meshes(int n, mx_mesh *out)
{
    static const mx_axis axes[] = {MX_AXIS_DATA, MX_AXIS_FSDP, MX_AXIS_TENSOR, MX_AXIS_SEQUENCE,
                                   MX_AXIS_CONTEXT, MX_AXIS_EXPERT, MX_AXIS_STAGE};
    enum { N_AXES = sizeof axes / sizeof *axes };
    int degree[N_AXES] = {1, 1, 1, 1, 1, 1, 1}, count = 0;
    for (;;) {
        int ranks = 1;
        for (int a = 0; a < N_AXES; a++)
            ranks *= degree[a];
        if (ranks == n) {
            MX_ASSERT(count < MAX_MESHES, "%d", count);
            out[count] = (mx_mesh){0};
            for (int a = 0; a < N_AXES; a++)
                out[count].ici[axes[a]] = degree[a];
            count++;
        }
        int a = 0;
        while (a < N_AXES && (degree[a] *= 2) > n)
            degree[a++] = 1;
        if (a == N_AXES)
            return count;
    }
}

MX_TEST(meshes_are_all_there)
{
    static mx_mesh m[MAX_MESHES];
    MX_CHECK(list_meshes(8, m) == 84, "%d meshes of 8", list_meshes(8, m));
    MX_CHECK(list_meshes(16, m) == 210, "%d meshes of 16", list_meshes(16, m));
}

/* Biases that begin at zero would be nothing but the noise of three steps. */
static double initial(const mx_var *v, int64_t i, double x)
{
    (void)v;
    return x == 0 ? 0.1 * sin((double)i * 0.7 + 1) : x;
}

/* AdamW's first steps are signs of gradients; those below eps are rounding, and stay small. */
static const double EPS = 1e-6;

static mesh_case case_of(const char *kind, int ranks, int steps)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "tests/fixtures/meshes/%s", kind);
    return (mesh_case){.dir = dir,
                       .batch = ranks,
                       .seq = 2 * ranks,
                       .steps = steps,
                       .initial = initial,
                       .optimizer = {.rule = &mx_optimizer_rule_adamw,
                                     .b1 = 0.9,
                                     .b2 = 0.95,
                                     .eps = EPS,
                                     .weight_decay = 0.1,
                                     .clip = 1,
                                     .no_decay = "*norm*,*.bias"},
                       .how = {.sharding_tolerance = 1, .zigzag = true}};
}

typedef struct {
    int ran, refused;
} tally;

/* Whether this mesh passed in a run before, or: it has passed now. */
static bool has_passed(const char *line, bool now)
{
    char other[400];
    bool found = false;
    const char *path = getenv("MX_MESHES_FILE");
    FILE *f = path ? fopen(path, now ? "a" : "r") : NULL;
    if (f && now)
        fprintf(f, "%s\n", line);
    while (f && !now && !found && fgets(other, sizeof other, f)) {
        other[strcspn(other, "\n")] = 0;
        found = strcmp(line, other) == 0;
    }
    if (f)
        fclose(f);
    return found;
}

static void run_mesh(mesh_run *r, const mx_mesh *m, double limit, tally *t)
{
    char text[256], line[400];
    /* The ways to reach other ranks' keys take turns. */
    r->c.how.context = (mx_context_strategy)((t->ran + t->refused) % 3);
    mesh_text(m, text, sizeof text);
    snprintf(line, sizeof line, "%s %s %s", strrchr(r->c.dir, '/') + 1,
             r->c.steps ? "steps" : "gradients", text);
    const char *only = getenv("MX_MESH_ONLY");
    if ((only && strcmp(only, text) != 0) || has_passed(line, false)) {
        t->ran++;
        return;
    }
    bool ran = mesh_run_try(r, *m);
    if (ran && r->worst <= limit)
        has_passed(line, true);
    t->ran += ran;
    t->refused += !ran;
    if (everything())
        printf("    %-8s %-36s %s %.2g %s\n", strrchr(r->c.dir, '/') + 1, text,
               ran ? "off by" : "refused:", r->worst, ran ? r->where : r->refused);
    MX_CHECK(!ran || r->worst <= limit, "%s on %s: %s is off by %.3g (limit %.3g)", r->c.dir, text,
             r->where, r->worst, limit);
}

/* Every `step`-th of the meshes of so many ranks, from `first` on. */
static void run_kind(const char *kind, int ranks, int steps, double first, double step)
{
    static mx_mesh m[MAX_MESHES];
    const char *only = getenv("MX_MESH_KIND");
    int n = list_meshes(ranks, m);
    mesh_run r[2]; /* with two layers, and with enough for any number of stages */
    mesh_case c = case_of(kind, ranks, steps), deep = c;
    tally t = {0};
    if (only && strcmp(only, kind) != 0)
        return;
    deep.layers = ranks;
    mesh_run_open(&r[0], &c);
    mesh_run_open(&r[1], &deep);
    for (double i = first; i < n; i += step)
        run_mesh(&r[mx_mesh_degree(&m[(int)i], MX_AXIS_STAGE) > 2], &m[(int)i],
                 steps ? 1e-4 : 2e-5, &t);
    mesh_run_close(&r[0]);
    mesh_run_close(&r[1]);
    if (everything())
        printf("    %s, %d ranks, %s: %d ran, %d refused\n", kind, ranks,
               steps ? "three steps" : "gradients", t.ran, t.refused);
}

/* In float32 a gradient of this hybrid may be 1.4e-5 away from the exact one, on one device as on
 * any mesh: sums in another order are seen. In float64 nothing else is left; stages keep the sums
 * of microbatches in float32. */
MX_TEST(meshes_of_a_hybrid_differ_by_rounding_alone)
{
    static const char *const meshes[] = {"stage=4,tensor=2", "stage=4,context=2", "sequence=4",
                                         "context=4", "fsdp=2,context=2,tensor=2"};
    mesh_case c = case_of("delta", 8, 0);
    mesh_run r;
    c.dtype = MX_F64;
    c.batch = c.layers = 4;
    mesh_run_open(&r, &c);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        mesh_run_check(&r, mesh_parse(meshes[i]), strstr(meshes[i], "stage") ? 1.2e-7 : 1e-10);
    mesh_run_close(&r);
}

MX_TEST(meshes_of_8_ranks)
{
    for (int k = 0; k < N_KINDS; k++)
        for (int steps = 0; steps <= 3; steps += 3)
            if (everything())
                run_kind(kinds[k], 8, steps, 0, 1);
            else if (!steps) /* a dozen, those without stages first in the list */
                run_kind(kinds[k], 8, steps, 3 + 7 * k, 20);
}

MX_TEST(meshes_of_16_ranks)
{
    for (int k = 0; k < N_KINDS; k++)
        for (int steps = 0; steps <= 3; steps += 3)
            if (everything())
                run_kind(kinds[k], 16, steps, 0.7 * k, 3.5);
}
