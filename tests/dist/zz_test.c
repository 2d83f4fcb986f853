#include "../test.h"
#include "mesh_run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static double initial(const mx_var *v, int64_t i, double x)
{
    (void)v;
    x = x == 0 ? 0.1 * sin((double)i * 0.7 + 1) : x;
    return (float)x;
}
MX_TEST(zz_exact)
{
    const char *kind = getenv("ZZ_KIND") ? getenv("ZZ_KIND") : "delta";
    char dir[100];
    snprintf(dir, sizeof dir, "tests/fixtures/meshes/%s", kind);
    mesh_case c = {.dir = dir, .batch = 8, .seq = 16, .layers = 8, .initial = initial, .dtype = MX_F64,
                   .how = {.sharding_tolerance = 1, .zigzag = true}};
    mesh_run r;
    mesh_run_open(&r, &c);
    const char *list = getenv("ZZ") ? getenv("ZZ") : "data=1 stage=4,tensor=2 stage=4,sequence=2 stage=4,context=2 tensor=2 stage=4,data=2 stage=4";
    char words[400], *rest = NULL;
    for (int f64 = 1; f64 >= 0; f64--) {
        r.c.dtype = f64 ? MX_F64 : MX_F32;
        snprintf(words, sizeof words, "%s", list);
        for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
            bool ran = mesh_run_try(&r, mesh_parse(w));
            printf("%s %-24s %s off %.3g at %s\n", f64 ? "f64" : "f32", w, ran ? "" : r.refused, r.worst, r.where);
        }
    }
    mesh_run_close(&r);
}
