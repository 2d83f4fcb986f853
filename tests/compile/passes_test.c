/* passes_test.c - autodiff, order and memory on compositions of ops, and how fast they are on a
 * graph of the size of a large model's step. */
#include "compile/passes.h"

#include "base/rng.h"
#include "graph_run.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- compositions against central differences --- */

/* Builds a composition on inputs x (3, 8), w (8), v (8) of the given dtype. */
typedef mx_node *(*composition)(mx_graph *g, mx_node *x, mx_node *w, mx_node *v);

static mx_node *rms_norm(mx_graph *g, mx_node *x, mx_node *w, mx_node *v)
{
    (void)v;
    mx_node *r = mx_rsqrt(g, mx_affine(g, mx_row_mean(g, mx_mul(g, x, x)), 1, 1e-5));
    return mx_mul(g, mx_mul(g, x, r), w);
}

static mx_node *layer_norm(mx_graph *g, mx_node *x, mx_node *w, mx_node *v)
{
    mx_node *c = mx_sub(g, x, mx_row_mean(g, x));
    mx_node *r = mx_rsqrt(g, mx_affine(g, mx_row_mean(g, mx_mul(g, c, c)), 1, 1e-5));
    return mx_add(g, mx_mul(g, mx_mul(g, c, r), w), v);
}

static mx_node *soft(mx_graph *g, mx_node *x, mx_node *w, mx_node *v)
{
    return mx_mul(g, mx_softmax(g, mx_mul(g, x, w)), v);
}

static mx_node *swiglu(mx_graph *g, mx_node *x, mx_node *w, mx_node *v)
{
    return mx_mul(g, mx_silu(g, mx_mul(g, x, w)), mx_add(g, x, v));
}

/* Two layers with residuals, a split and a transpose in between: groups, views, projections. */
static mx_node *layers(mx_graph *g, mx_node *x, mx_node *w, mx_node *v)
{
    for (int l = 0; l < 2; l++) {
        mx_node *h = rms_norm(g, x, w, v);
        mx_node *two = mx_split(g, mx_concat(g, 2, (mx_node *[]){h, x}, -1), 2, (int64_t[]){8, 8});
        mx_node *gate = mx_transpose(g, mx_transpose(g, mx_output(g, two, 1), "ab->ba"), "ab->ba");
        x = mx_add(g, x, mx_mul(g, mx_silu(g, two), mx_softmax(g, gate)));
        x = mx_reshape(g, mx_reshape(g, x, MX_SHAPE(24)), MX_SHAPE(3, 8));
    }
    return layer_norm(g, x, w, v);
}

static const struct {
    const char *name;
    composition build;
} composed[] = {{"rms_norm", rms_norm}, {"layer_norm", layer_norm}, {"softmax", soft},
                {"swiglu", swiglu},     {"layers", layers}};
enum { N_COMPOSED = sizeof composed / sizeof *composed };

static const char *const input_name[3] = {"x", "w", "v"};
static const int input_count[3] = {24, 8, 8};

typedef struct {
    double in[3][24], loss, grad[3][24], y[24];
} values;

static void fill(values *v)
{
    for (int i = 0; i < 3; i++)
        mx_test_fill(v->in[i], input_count[i], -1, 1, (uint64_t)(i + 1));
}

/* loss = sum(y dy) with a fixed dy; roots y, loss and the gradients dx, dw, dv. */
static void build(mx_graph_run *r, composition make, mx_dtype d, bool merge)
{
    mx_graph_run_init(r);
    mx_graph *g = &r->graph;
    mx_node *in[3] = {mx_input(g, "x", MX_SHAPE(3, 8), d), mx_input(g, "w", MX_SHAPE(8), d),
                      mx_input(g, "v", MX_SHAPE(8), d)}, *grad[3];
    double weights[24];
    mx_test_fill(weights, 24, -1, 1, 99);
    mx_node *y = make(g, in[0], in[1], in[2]);
    mx_node *loss = mx_sum_all(g, mx_mul(g, y, mx_table(g, MX_SHAPE(3, 8), d, weights)));
    mx_pass_autodiff(g, loss, in, 3, grad);
    mx_graph_root(g, "y", y);
    mx_graph_root(g, "loss", loss);
    for (int i = 0; i < 3; i++)
        if (grad[i]) {
            char name[16];
            snprintf(name, sizeof name, "d%s", input_name[i]);
            mx_graph_root(g, name, mx_affine(g, grad[i], 1, 0));
        }
    MX_CHECK_OK(mx_graph_run_compile(r, merge));
}

static void run(mx_graph_run *r, values *v)
{
    for (int i = 0; i < 3; i++)
        mx_graph_run_write(r, input_name[i], v->in[i]);
    mx_graph_run_go(r);
    mx_graph_run_read(r, "loss", &v->loss);
}

static bool read_gradient(mx_graph_run *r, int i, double *out)
{
    char name[16];
    snprintf(name, sizeof name, "d%s", input_name[i]);
    bool there = mx_exec_type(r->exec, name) != NULL;
    if (there)
        mx_graph_run_read(r, name, out);
    return there;
}

MX_TEST(autodiff_of_compositions)
{
    const double h = 1e-5;
    for (int c = 0; c < N_COMPOSED; c++) {
        mx_graph_run r;
        values v;
        fill(&v);
        build(&r, composed[c].build, MX_F64, true);
        run(&r, &v);
        for (int i = 0; i < 3; i++) {
            double want[24], have[24];
            bool there = read_gradient(&r, i, have);
            for (int k = 0; k < input_count[i]; k++) {
                double x = v.in[i][k], up, down;
                v.in[i][k] = x + h;
                run(&r, &v);
                up = v.loss;
                v.in[i][k] = x - h;
                run(&r, &v);
                down = v.loss;
                v.in[i][k] = x;
                want[k] = (up - down) / (2 * h);
                have[k] = there ? have[k] : 0; /* rms_norm does not use v */
            }
            run(&r, &v); /* gradients of the unchanged inputs again, for the next one */
            double far = mx_test_distance(have, want, input_count[i], 1e-2);
            MX_CHECK(far < 1e-6, "%s: d%s is off by %.2g", composed[c].name, input_name[i], far);
        }
        mx_graph_run_fini(&r);
    }
}

MX_TEST(fused_compositions_have_the_same_bits)
{
    static const mx_dtype dtype[] = {MX_F64, MX_F32};
    for (int c = 0; c < 2 * N_COMPOSED; c++) {
        values v[2];
        int steps[2];
        memset(v, 0, sizeof v);
        for (int merge = 0; merge < 2; merge++) {
            mx_graph_run r;
            fill(&v[merge]);
            build(&r, composed[c / 2].build, dtype[c % 2], merge);
            run(&r, &v[merge]);
            mx_graph_run_read(&r, "y", v[merge].y);
            for (int i = 0; i < 3; i++)
                read_gradient(&r, i, v[merge].grad[i]);
            steps[merge] = r.exec->n_steps;
            mx_graph_run_fini(&r);
        }
        MX_CHECK(memcmp(&v[0], &v[1], sizeof v[0]) == 0, "%s: fused and unfused differ",
                 composed[c / 2].name);
        MX_CHECK(2 * steps[1] < steps[0], "%s: %d steps fused, %d not", composed[c / 2].name,
                 steps[1], steps[0]);
    }
}

/* A pass before autodiff may replace a weight by something newer than its users. */
MX_TEST(autodiff_passes_through_nodes_made_late)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x", MX_SHAPE(4), MX_F64), *w = mx_input(g, "w", MX_SHAPE(4), MX_F64);
    mx_node *stand_in = mx_input(g, "unused", MX_SHAPE(4), MX_F64), *dw = NULL;
    mx_node *loss = mx_sum_all(g, mx_mul(g, x, stand_in));
    mx_node_forward(stand_in, mx_affine(g, w, 3, 0));
    mx_graph_resolve(g);
    mx_gradients(g, loss, NULL, &w, 1, &dw);
    MX_CHECK(dw, "no gradient reaches the weight");
    if (dw) {
        double have[4];
        mx_graph_root(g, "dw", dw);
        MX_CHECK_OK(mx_graph_run_compile(&r, true));
        mx_graph_run_write(&r, "x", (double[]){1, 2, 3, 4});
        mx_graph_run_go(&r);
        mx_graph_run_read(&r, "dw", have);
        MX_CHECK(have[0] == 3 && have[3] == 12, "dw is %g ... %g", have[0], have[3]);
    }
    mx_graph_run_fini(&r);
}

MX_TEST(a_loss_must_be_one_number)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(4), MX_F32), *dx;
    mx_pass_autodiff(&g, mx_exp(&g, x), &x, 1, &dx);
    MX_CHECK_ERROR(mx_graph_check(&g), "the loss must be one number, it has 1 dims");
    mx_graph_fini(&g);
}

/* --- order and memory on random graphs --- */

typedef struct {
    uint64_t seed, n;
} dice;

static int64_t roll(dice *d, int64_t n)
{
    return (int64_t)(mx_philox(d->seed, 5, d->n++).v[0] % (uint64_t)n);
}

/* A graph of ops of every kind over 12 values, with results y0, y1, ...; gives their number. */
static int random_graph(mx_graph *g, uint64_t seed, int n)
{
    enum { MOST = 128 };
    dice d = {seed, 0};
    mx_node *pool[MOST];
    int size = 0, named = 0;
    char name[16];
    MX_ASSERT(n + 3 < MOST);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "x%d", i);
        pool[size++] = mx_input(g, name, MX_SHAPE(2, 6), MX_F64);
    }
    mx_node *slots = mx_input(g, "slots", MX_SHAPE(2, 6), MX_I32);
    for (int i = 0; i < n; i++) {
        mx_node *a = pool[roll(&d, size)], *b = pool[roll(&d, size)], *y = NULL;
        switch (roll(&d, 9)) {
        case 0:
            y = mx_add(g, a, b);
            break;
        case 1:
            y = mx_mul(g, a, mx_affine(g, mx_row_max(g, b), 0.5, 0.1));
            break;
        case 2:
            y = mx_tanh(g, mx_sub(g, a, mx_row_mean(g, b)));
            break;
        case 3:
            y = mx_transpose(g, mx_transpose(g, a, "ab->ba"), "ab->ba");
            break;
        case 4: {
            mx_node *s = mx_split(g, a, 2, (int64_t[]){2, 4});
            y = mx_concat(g, 2, (mx_node *[]){mx_output(g, s, 1), s}, -1);
            break;
        }
        case 5:
            y = mx_reshape(g, mx_reshape(g, a, MX_SHAPE(3, 4)), MX_SHAPE(2, 6));
            break;
        case 6: { /* overwrites a value; who reads the old one is made before or after */
            mx_node *old = mx_affine(g, a, 1, 0.5), *flat = mx_reshape(g, old, MX_SHAPE(12));
            bool late = roll(&d, 2);
            y = late ? mx_cache_write(g, old, b, slots) : NULL;
            snprintf(name, sizeof name, "y%d", named++);
            mx_graph_root(g, name, mx_tanh(g, flat));
            y = late ? y : mx_cache_write(g, old, b, slots);
            break;
        }
        case 7: { /* sums over rows, which a group can make on the side */
            mx_node *z = mx_mul(g, a, b);
            y = mx_add(g, z, mx_affine(g, mx_sum_to(g, mx_tanh(g, z), MX_SHAPE(6)), 0.1, 0));
            break;
        }
        default:
            y = mx_affine(g, a, 0.5, 0.1);
        }
        pool[size++] = y;
        if (roll(&d, 6) == 0 && y->op->kind != MX_SOURCE && !y->name) {
            snprintf(name, sizeof name, "y%d", named++);
            mx_graph_root(g, name, y);
        }
    }
    snprintf(name, sizeof name, "y%d", named++);
    mx_graph_root(g, name, mx_affine(g, pool[size - 1], 1, 0));
    return named;
}

/* A storage and the steps from which to which it must not be touched by anyone else. */
typedef struct {
    int64_t at, bytes;
    int from, to;
} lifetime;

static int lifetimes(const mx_program *p, lifetime *life)
{
    int n_life = 0;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            const mx_node *n = p->order[i];
            const mx_place *q = mx_program_place(p, n, k);
            if (q->root != n || q->out != k || q->offset < 0)
                continue;
            bool source = n->op->kind == MX_SOURCE;
            lifetime l = {q->offset, (int64_t)mx_type_bytes(mx_node_type(n, k)), source ? -1 : i,
                          source ? p->n : i};
            for (int j = 0; j < p->n; j++)
                for (int s = 0; s < p->order[j]->n_in; s++) {
                    const mx_node *in = p->order[j]->in[s];
                    const mx_place *used = in ? mx_program_place(p, in, 0) : NULL;
                    if (used && p->order[j]->op->kind != MX_PROJECT && used->root == n &&
                        used->out == k && j > l.to)
                        l.to = j;
                }
            for (int j = 0; j < p->graph->n_roots; j++) {
                const mx_place *used = mx_program_place(p, p->graph->root[j], 0);
                if (used->root == n && used->out == k)
                    l.to = p->n;
            }
            life[n_life++] = l;
        }
    return n_life;
}

static void check_plan(const mx_program *p, uint64_t seed)
{
    lifetime life[2048];
    MX_ASSERT(p->n * 2 < 2048);
    int n = lifetimes(p, life);
    for (int a = 0; a < n; a++) {
        MX_CHECK(life[a].at % 64 == 0 && life[a].at + life[a].bytes <= (int64_t)p->value_bytes,
                 "graph %llu: a value at %lld", (unsigned long long)seed, (long long)life[a].at);
        for (int b = 0; b < a; b++) {
            bool same_time = life[a].from <= life[b].to && life[b].from <= life[a].to;
            bool same_place = life[a].at < life[b].at + life[b].bytes &&
                              life[b].at < life[a].at + life[a].bytes;
            MX_CHECK(!same_time || !same_place, "graph %llu: values alive in [%d, %d] and [%d, %d] "
                     "overlap at %lld", (unsigned long long)seed, life[a].from, life[a].to,
                     life[b].from, life[b].to, (long long)life[a].at);
        }
    }
}

/* Inputs before users, and whoever reads a value before whoever overwrites it. */
static void check_order(const mx_program *p, uint64_t seed)
{
    int *at = mx_realloc(NULL, sizeof *at * (size_t)p->graph->n_nodes);
    memset(at, -1, sizeof *at * (size_t)p->graph->n_nodes);
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        at[n->id] = i;
        for (int k = 0; k < n->n_in; k++)
            MX_CHECK(!n->in[k] || at[n->in[k]->id] >= 0, "graph %llu: %s runs before its input",
                     (unsigned long long)seed, n->op->name);
    }
    for (int i = 0; i < p->n; i++) {
        const mx_node *w = p->order[i], *old = mx_node_overwrites(w, 0);
        for (int j = 0; old && j < p->n; j++)
            for (int k = 0; k < p->order[j]->n_in; k++) {
                const mx_node *reader = p->order[j];
                bool looks = reader->op->kind == MX_VIEW || reader->op->kind == MX_PROJECT;
                bool reads = reader->in[k] && reader != w && !looks &&
                             mx_node_memory(reader->in[k]) == mx_node_memory(old);
                MX_CHECK(!reads || j < i, "graph %llu: %s reads what step %d has overwritten",
                         (unsigned long long)seed, reader->op->name, i);
            }
    }
    mx_free(at);
}

MX_TEST(memory_of_random_graphs_does_not_overlap)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        double y[2][64][12] = {0}, x[12] = {0};
        for (int merge = 0; merge < 2; merge++) {
            mx_graph_run r;
            mx_graph_run_init(&r);
            int n_results = random_graph(&r.graph, seed, 10 + (int)seed);
            MX_ASSERT(n_results <= 64);
            MX_CHECK_OK(mx_graph_run_compile(&r, merge));
            check_plan(&r.program, seed);
            check_order(&r.program, seed);
            for (int i = 0; i < 3; i++) {
                char name[16];
                snprintf(name, sizeof name, "x%d", i);
                mx_test_fill(x, 12, -1, 1, (uint64_t)i);
                mx_graph_run_write(&r, name, x);
            }
            for (int i = 0; i < 12; i++)
                x[i] = i % 5 - 1;
            mx_graph_run_write(&r, "slots", x);
            for (int twice = 0; twice < 2; twice++)
                mx_graph_run_go(&r);
            for (int i = 0; i < n_results; i++) {
                char name[16];
                snprintf(name, sizeof name, "y%d", i);
                mx_graph_run_read(&r, name, y[merge][i]);
            }
            mx_graph_run_fini(&r);
        }
        MX_CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0, "graph %llu: two plans differ",
                 (unsigned long long)seed);
    }
}

/* --- size --- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 500 layers of norm, gate and residual: about 10,000 forward nodes. Well under a second where the
 * code is optimised; sanitizers cost several times that. */
MX_TEST(passes_take_large_graphs)
{
    enum { LAYERS = 480 };
    mx_graph g;
    mx_graph_init(&g);
    double start = now();
    mx_node *x = mx_input(&g, "x", MX_SHAPE(4, 64), MX_F32), *w[LAYERS], *dw[LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        mx_scope(&g, "layers.%d", l);
        w[l] = mx_param(&g, "weight", MX_SHAPE(64), "embed", MX_ONES);
        mx_node *h = rms_norm(&g, x, w[l], NULL), *two;
        two = mx_split(&g, mx_concat(&g, 2, (mx_node *[]){h, h}, -1), 2, (int64_t[]){64, 64});
        h = mx_mul(&g, mx_silu(&g, two), mx_output(&g, two, 1));
        h = mx_transpose(&g, mx_transpose(&g, h, "ab->ba"), "ab->ba");
        h = mx_mul(&g, h, mx_sigmoid(&g, mx_affine(&g, h, 0.5, 1)));
        x = mx_scope_end(&g, mx_add(&g, x, h));
    }
    mx_node *loss = mx_graph_root(&g, "loss", mx_sum_all(&g, x));
    mx_pass_autodiff(&g, loss, w, LAYERS, dw);
    for (int l = 0; l < LAYERS; l++) {
        MX_CHECK(dw[l], "layer %d has no gradient", l);
        mx_graph_root(&g, NULL, dw[l]);
    }
    int n_nodes = g.n_nodes;
    MX_CHECK(n_nodes > 20000, "the graph has %d nodes only", n_nodes);
    MX_CHECK_OK(mx_graph_verify(&g));
    mx_pass_fuse(&g, true);
    mx_program p;
    MX_CHECK_OK(mx_program_init(&p, &g, 2, &mx_plain_traits));
    double took = now() - start;
    MX_CHECK(took < 3, "%d nodes took %.2f s", n_nodes, took);
    printf("    %d nodes, %d after fusion: %.3f s\n", n_nodes, p.n, took);
    mx_program_fini(&p);
    mx_graph_fini(&g);
}

/* --- printing, names, errors --- */

MX_TEST(graphs_print_as_text_and_dot)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_scope(&g, "model");
    mx_node *x = mx_input(&g, "x", MX_SHAPE(2, 8), MX_F32);
    mx_node *w = mx_param(&g, "w", MX_SHAPE(8), "embed", MX_ONES);
    mx_node *s = mx_split(&g, mx_affine(&g, mx_mul(&g, x, w), 2, 0.5), 2, (int64_t[]){3, 5});
    mx_graph_root(&g, "y", mx_scope_end(&g, mx_output(&g, s, 1)));
    mx_str text = {0}, dot = {0};
    mx_graph_print(&g, &text);
    mx_graph_print_dot(&g, &dot);
    MX_CHECK(strcmp(mx_str_text(&text),
                    "%0 = input : float32(2, 8) \"x\" @model\n"
                    "%1 = variable : float32(8) \"model.w\" [embed] @model\n"
                    "%2 = mul %0 %1 : float32(2, 8) @model\n"
                    "%3 = affine scale=2 shift=0.5 %2 : float32(2, 8) @model\n"
                    "%4 = split n=2 %3 : float32(2, 3), float32(2, 5) @model\n"
                    "%5 = output k=1 %4 : float32(2, 5) \"y\" @model\n"
                    "root %5 y\n") == 0, "%s", mx_str_text(&text));
    MX_CHECK(mx_starts_with(mx_str_text(&dot), "digraph"), "%s", mx_str_text(&dot));
    MX_CHECK(strstr(mx_str_text(&dot), "n0 -> n2;") && strstr(mx_str_text(&dot), "n4 -> n5;"));
    mx_str_fini(&text);
    mx_str_fini(&dot);
    mx_graph_fini(&g);
}

static void expect_error(void (*make)(mx_graph *g, mx_node *x), const char *part)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(2, 8), MX_F32);
    mx_scope(&g, "layers.%d", 3);
    make(&g, x);
    make(&g, x); /* the first error sticks, and building on goes on */
    MX_CHECK_ERROR(mx_graph_check(&g), part);
    mx_program p;
    MX_CHECK_ERROR(mx_program_init(&p, &g, 1, &mx_plain_traits), part);
    mx_graph_fini(&g);
}

static void bad_sizes(mx_graph *g, mx_node *x)
{
    mx_node *y = mx_exp(g, mx_add(g, x, mx_constant(g, MX_SHAPE(7), MX_F32, 1)));
    /* A model goes on and asks for sizes of what it got. */
    int64_t last = y->type.dim[y->type.ndim - 1];
    mx_row_mean(g, mx_slice(g, mx_softmax(g, mx_rotate_half(g, y, last, false)), -1, 0, 1));
}

static void bad_reshape(mx_graph *g, mx_node *x)
{
    mx_reshape(g, x, MX_SHAPE(5, 3));
}

static void bad_slice(mx_graph *g, mx_node *x)
{
    mx_slice(g, x, 1, 4, 5);
}

static void bad_dim(mx_graph *g, mx_node *x)
{
    mx_slice(g, x, 2, 0, 1);
}

static void bad_split(mx_graph *g, mx_node *x)
{
    mx_split(g, x, 2, (int64_t[]){3, 4});
}

static void bad_concat(mx_graph *g, mx_node *x)
{
    mx_concat(g, 2, (mx_node *[]){x, mx_cast(g, x, MX_I32)}, 0);
}

static void bad_ids(mx_graph *g, mx_node *x)
{
    mx_embed(g, x, mx_slice(g, x, 0, 0, 1));
}

static void bad_transpose(mx_graph *g, mx_node *x)
{
    mx_transpose(g, x, "ab->bb");
}

static void bad_notation(mx_graph *g, mx_node *x)
{
    mx_embed_grad(g, mx_constant(g, MX_SHAPE(3), MX_I32, 0), x, 4);
}

static void bad_broadcast(mx_graph *g, mx_node *x)
{
    mx_broadcast_to(g, x, MX_SHAPE(2, 9));
}

static void bad_name(mx_graph *g, mx_node *x)
{
    mx_graph_root(g, "result", x);
}

MX_TEST(graph_errors_say_names_and_sizes)
{
    expect_error(bad_sizes, "layers.3: add of x float32(2, 8), constant float32(7): sizes 8 and 7 "
                            "do not match");
    expect_error(bad_reshape, "float32(2, 8) to float32(5, 3)");
    expect_error(bad_slice, "slice: entries 4 to 9 of dim 1, which has 8");
    expect_error(bad_dim, "slice: dim 2 of a tensor with 2 dims");
    expect_error(bad_split, "2 parts of 7 entries in all, but the last dim has 8");
    expect_error(bad_concat, "input 1 is int32, input 0 is float32");
    expect_error(bad_ids, "input 1 is float32, expected int32; cast it");
    expect_error(bad_transpose, "\"ab->bb\" is not a reordering of 2 dims");
    expect_error(bad_notation, "embed_grad of constant int32(3), x float32(2, 8): leading dims");
    expect_error(bad_broadcast, "x float32(2, 8): cannot be repeated to float32(2, 9)");
    expect_error(bad_name, "the result result already has the name x");
}

MX_TEST(graph_verify_catches_forged_types)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *y = mx_exp(&g, mx_input(&g, "x", MX_SHAPE(2, 8), MX_F32));
    mx_graph_root(&g, "y", y);
    MX_CHECK_OK(mx_graph_verify(&g));
    y->type.dim[1] = 9;
    MX_CHECK_ERROR(mx_graph_verify(&g), "inference gives float32(2, 8)");
    mx_graph_fini(&g);
}

MX_TEST(names_are_declared_once)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *a = mx_param(&g, "w", MX_SHAPE(4), NULL, MX_ONES);
    MX_CHECK(mx_param(&g, "w", MX_SHAPE(4), NULL, MX_ONES) == a, "a tied weight is one weight");
    MX_CHECK(mx_graph_find(&g, "w") == a && !mx_graph_find(&g, "v"));
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        mx_input(&g, name, MX_SHAPE(1), MX_F32);
    }
    MX_CHECK(mx_graph_find(&g, "t777") && strcmp(mx_graph_find(&g, "t777")->name, "t777") == 0);
    MX_CHECK_OK(mx_graph_check(&g));
    mx_input(&g, "t777", MX_SHAPE(1), MX_F32);
    MX_CHECK_ERROR(mx_graph_check(&g), "the name t777 is declared twice");
    mx_graph_fini(&g);
}
