/* tower.c - the image encoder as programs of its own; see images.h.
 *
 * Images of one size go through one program, one at a time. Pictures in pieces have a program for
 * each of several numbers of pieces, and are padded to it.
 */
#include "infer/images.h"

#include "data/image/image_process.h"
#include <string.h>

enum { MAX_PROGRAMS = 48, LEAST_PIECES = 32 };

typedef struct {
    mx_step step;
    int64_t images; /* to the model, that it takes */
} program;

struct mx_tower {
    mx_session *session;  /* borrows */
    const mx_model_spec *model; /* borrows */
    mx_compile_options compile;
    mx_image_spec spec;
    int64_t width;
    program programs[MAX_PROGRAMS]; /* in the order in which they were needed */
    int n_programs;
    int64_t capacity; /* images that these hold: */
    float *pixels; /* padded to the size of a program */
    float *features;
};

static mx_status plan(mx_tower *t, int64_t images)
{
    MX_ASSERT(t->n_programs < MAX_PROGRAMS, "%d programs", t->n_programs);
    program *p = &t->programs[t->n_programs];
    mx_step_options so = {.kind = MX_STEP_FEATURES,
                          .compile = t->compile,
                          .shape = {.batch = 1, .seq = 2, .images = images, .one_path = true}};
    so = mx_step_options_for(t->session, &so);
    so.compile.n_threads = mx_session_threads(t->session);
    MX_TRY(mx_step_plan(&p->step, t->model, &so));
    p->images = images;
    t->n_programs++;
    return MX_OK;
}

mx_status mx_tower_open(mx_tower **out, mx_session *s, const mx_model_spec *m,
                        const mx_compile_options *o)
{
    mx_tower *t = mx_realloc(NULL, sizeof *t);
    *t = (mx_tower){.session = s, .model = m, .compile = *o};
    *out = t;
    m->family->images(m->config, &t->spec);
    mx_status st = plan(t, t->spec.size ? 1 : LEAST_PIECES);
    if (st) {
        mx_tower_close(t);
        *out = NULL;
        return st;
    }
    const mx_graph *g = mx_tower_graph(t);
    for (int i = 0; i < g->n_roots; i++)
        if (strcmp(g->root[i]->name, "features") == 0)
            t->width = g->root[i]->type.dim[1];
    return MX_OK;
}

mx_status mx_tower_add(mx_tower *t)
{
    mx_step *s = &t->programs[t->n_programs - 1].step;
    return mx_session_add(t->session, &s->program, &s->exec);
}

void mx_tower_close(mx_tower *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_programs; i++)
        mx_step_close(&t->programs[i].step);
    mx_free(t->pixels);
    mx_free(t->features);
    mx_free(t);
}

const mx_graph *mx_tower_graph(const mx_tower *t)
{
    return &t->programs[0].step.graph;
}

int64_t mx_tower_width(const mx_tower *t)
{
    return t->width;
}

int64_t mx_tower_bytes(const mx_tower *t)
{
    const mx_program *p = &t->programs[0].step.program;
    double bytes = (double)p->value_bytes + (double)p->work_bytes;
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        bytes += p->bytes.variables[k];
    return (int64_t)bytes;
}

/* Powers of two and halfway between them. */
static int64_t rounded(int64_t n)
{
    int64_t k = LEAST_PIECES;
    while (k < n)
        k = k + k / 2 >= n ? k + k / 2 : 2 * k;
    return k;
}

/* The program for this many pieces, or images. */
static mx_status find_program(mx_tower *t, int64_t images, program **out)
{
    int64_t want = t->spec.size ? 1 : rounded(images);
    for (int i = 0; i < t->n_programs; i++)
        if (t->programs[i].images == want) {
            *out = &t->programs[i];
            return MX_OK;
        }
    MX_TRY(plan(t, want));
    mx_status st = mx_tower_add(t);
    if (st)
        mx_step_close(&t->programs[--t->n_programs].step);
    *out = &t->programs[t->n_programs - 1];
    return st;
}

static void reserve(mx_tower *t, int64_t images)
{
    if (images <= t->capacity)
        return;
    size_t floats = (size_t)(images * mx_image_floats(&t->spec));
    t->pixels = mx_realloc(t->pixels, sizeof(float) * floats);
    t->features = mx_realloc(t->features,
                             sizeof(float) * (size_t)(images * t->spec.tokens * t->width));
    t->capacity = images;
}

static mx_status run_one(mx_tower *t, const mx_image_set *s, const mx_image_run_of_set *r)
{
    program *p = NULL;
    int64_t floats = mx_image_floats(&t->spec);
    const float *from = s->pixels + r->first * floats;
    MX_TRY(find_program(t, r->images, &p));
    reserve(t, p->images);
    if (r->images < p->images) {
        memset(t->pixels, 0, sizeof *from * (size_t)(p->images * floats));
        mx_pieces_clear(&t->spec, t->pixels, p->images);
        memcpy(t->pixels, from, sizeof *from * (size_t)(r->images * floats));
        from = t->pixels;
    }
    MX_TRY(mx_exec_write(p->step.exec, "pixels", from));
    MX_TRY(mx_exec_run(p->step.exec));
    MX_TRY(mx_exec_read(p->step.exec, "features", t->features));
    memcpy(s->features + r->row * t->width, t->features,
           sizeof(float) * (size_t)(r->tokens * t->width));
    return MX_OK;
}

mx_status mx_tower_run(mx_tower *t, mx_image_set *s)
{
    if (s->features)
        return MX_OK;
    MX_TRY(mx_alloc((void **)&s->features, sizeof(float) * (size_t)(s->n_tokens * t->width),
                    "what the image encoder gives"));
    for (int64_t i = 0; i < s->n_runs; i++) {
        mx_status st = run_one(t, s, &s->run[i]);
        if (st) {
            mx_free(s->features);
            s->features = NULL;
            return st;
        }
    }
    return MX_OK;
}
