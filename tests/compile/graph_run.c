/* graph_run.c - build, compile, run, read: see graph_run.h. */
#include "graph_run.h"

#include "base/rng.h"
#include "compile/passes.h"
#include "ops/load.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void mx_graph_run_init(mx_graph_run *r)
{
    *r = (mx_graph_run){.n_threads = 2};
    mx_graph_init(&r->graph);
}

mx_status mx_graph_run_compile(mx_graph_run *r, bool merge)
{
    MX_TRY(mx_graph_verify(&r->graph));
    mx_pass_fuse(&r->graph, merge);
    MX_TRY(mx_graph_verify(&r->graph));
    if (r->shared)
        r->session = r->shared;
    else
        MX_TRY(mx_session_open(&r->session, "cpu", r->n_threads));
    mx_device_traits dense = *mx_session_traits(r->session); /* tests read results as they lie */
    dense.strided_views = false;
    MX_TRY(mx_program_init(&r->program, &r->graph, mx_session_threads(r->session), &dense));
    MX_TRY(mx_session_add(r->session, &r->program, &r->exec));
    return mx_session_init(r->session, 1);
}

/* A tensor's bytes on the host, as they go to the device and come back. */
static mx_tensor staged(mx_graph_run *r, const char *name)
{
    const mx_type *type = mx_exec_type(r->exec, name);
    mx_tensor t = {0};
    if (type) {
        t.type = *type;
        t.data = mx_realloc(NULL, mx_type_bytes(type) + 1);
    }
    return t;
}

void mx_graph_run_write(mx_graph_run *r, const char *name, const double *values)
{
    mx_tensor t = staged(r, name);
    if (!t.data)
        return; /* a program may have no use for an input */
    mx_store_run_f64(&t, 0, mx_type_count(&t.type), values);
    MX_CHECK_OK(mx_exec_write(r->exec, name, t.data));
    mx_free(t.data);
}

void mx_graph_run_go(mx_graph_run *r)
{
    MX_CHECK_OK(mx_exec_run(r->exec));
}

void mx_graph_run_read(mx_graph_run *r, const char *name, double *values)
{
    mx_tensor t = staged(r, name);
    MX_ASSERT(t.data, "no tensor called %s", name);
    MX_CHECK_OK(mx_exec_read(r->exec, name, t.data));
    mx_load_run_f64(&t, 0, mx_type_count(&t.type), values);
    mx_free(t.data);
}

void mx_graph_run_fini(mx_graph_run *r)
{
    if (r->shared)
        mx_exec_close(r->exec);
    else
        mx_session_close(r->session);
    mx_program_fini(&r->program);
    mx_graph_fini(&r->graph);
}

float mx_test_gradients(const mx_program *p, const char *const *weight, int n, float *grad,
                        int64_t room)
{
    mx_session *s = NULL;
    mx_exec *e = NULL;
    float loss, *x;
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    MX_CHECK_OK(mx_session_add(s, p, &e));
    MX_CHECK_OK(mx_session_init(s, 7));
    MX_CHECK_OK(mx_session_refresh_copies(s));
    int64_t count = mx_type_count(&mx_program_find(p, "x")->type);
    x = mx_realloc(NULL, sizeof *x * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)sin((double)i);
    MX_CHECK_OK(mx_exec_write(e, "x", x));
    MX_CHECK_OK(mx_exec_run(e));
    MX_CHECK_OK(mx_exec_read(e, "loss", &loss));
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "grad:%s", weight[i]);
        MX_CHECK_OK(mx_exec_read(e, name, grad + i * room));
    }
    mx_free(x);
    mx_session_close(s);
    return loss;
}

void mx_test_same_gradients(const float *a, const float *b, const char *const *weight, int n,
                            int64_t room, double limit)
{
    for (int i = 0; i < n; i++) {
        double most = 0, off = 0;
        for (int64_t k = i * room; k < (i + 1) * room; k++) {
            most = fmax(most, fabs(b[k]));
            off = fmax(off, fabs(a[k] - b[k]));
        }
        MX_CHECK(off < limit * most && most > 0, "%s: off by %g of %g", weight[i], off, most);
    }
}

void mx_test_fill(double *x, int64_t n, double lo, double hi, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        mx_random4 v = mx_philox(seed, 77, (uint64_t)i);
        x[i] = lo + (hi - lo) * mx_uniform_f64(v.v[0], v.v[1]);
    }
}

double mx_test_distance(const double *a, const double *b, int64_t n, double floor)
{
    double worst = 0, top = floor;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        if (isnan(d)) /* also infinities: equal ones are no difference */
            d = a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) ? 0 : INFINITY;
        worst = d > worst ? d : worst;
        if (isfinite(b[i]) && fabs(b[i]) > top)
            top = fabs(b[i]);
    }
    return worst / top;
}

double mx_test_round(double x, mx_dtype d)
{
    uint32_t bits;
    float f = (float)x;
    memcpy(&bits, &f, sizeof f);
    bits = d == MX_BF16 ? (bits + 0x8000u) & 0xffff0000u : bits;
    memcpy(&f, &bits, sizeof f);
    return f;
}
