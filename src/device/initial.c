/* initial.c - the first values of variables, and the copies of weights that follow them. */
#include "device/session_impl.h"

#include "base/rng.h"
#include "ir/placement.h"
#include "ops/load.h"
#include <math.h>
#include <string.h>

enum { RUN = 1 << 20 }; /* elements at once */

static double normal(uint64_t seed, uint64_t stream, int64_t i)
{
    mx_random4 r = mx_philox(seed, stream, (uint64_t)i);
    double u = 1.0 - mx_uniform_f64(r.v[0], r.v[1]), w = mx_uniform_f64(r.v[2], r.v[3]);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * w);
}

/* The i-th number of rows of different numbers below init.scale: of a row's draws, those that
 * repeat an earlier one do not count. */
static double chosen(mx_init init, uint64_t seed, uint64_t stream, int64_t i)
{
    int64_t row = i / init.cols, n = i % init.cols + 1;
    double have[64];
    for (int64_t k = 0, draw = 0; k < n; draw++) {
        mx_random4 r = mx_philox(seed, stream + (uint64_t)draw, (uint64_t)row);
        bool again = false;
        have[k] = floor(init.scale * mx_uniform_f64(r.v[0], r.v[1]));
        for (int64_t j = 0; j < k; j++)
            again |= have[j] == have[k];
        k += !again;
    }
    return have[n - 1];
}

static double initial(mx_init init, uint64_t seed, uint64_t stream, int64_t i)
{
    if (init.kind == MX_INIT_CHOICE)
        return chosen(init, seed, stream, i);
    if (init.kind == MX_INIT_NORMAL)
        return init.scale * normal(seed, stream, i);
    if (init.kind == MX_INIT_UNIFORM) {
        mx_random4 r = mx_philox(seed, stream, (uint64_t)i);
        return init.scale * (2 * mx_uniform_f64(r.v[0], r.v[1]) - 1);
    }
    if (init.kind == MX_INIT_LOG_UNIFORM) {
        mx_random4 r = mx_philox(seed, stream, (uint64_t)i);
        return log(0.01 + (init.scale - 0.01) * mx_uniform_f64(r.v[0], r.v[1]));
    }
    return init.kind == MX_INIT_ONES ? 1.0 : init.scale;
}

/* Of element i of what a rank has: by its place in the whole tensor, so values do not depend on how
 * that is cut. Padding is 0. */
static double initial_at(const mx_var *v, uint64_t seed, uint64_t stream, int64_t i)
{
    int64_t at = v->box ? mx_box_element(v->box, &v->type, i) : i;
    return at < 0 ? 0 : initial(v->attr.init, seed, stream, at);
}

/* Runs of elements through one buffer: a model that just fits has no room for a second embedding
 * table. */
static mx_status init_variable(mx_session *s, mx_var *v, uint64_t seed, void *buffer)
{
    int64_t n = mx_type_count(&v->type);
    uint64_t stream = mx_stream_of(v->name);
    mx_init init = v->attr.init;
    v->written = true;
    if (init.kind == MX_INIT_ZEROS || (init.kind == MX_INIT_VALUE && init.scale == 0))
        return MX_OK; /* as it was given; a large state, or a cache, takes seconds to write */
    if (s->device->fill && !v->box) {
        mx_fill f = {init, v->type.dtype, n, seed, stream};
        mx_status st = s->device->fill(s->device, v->buffer, &f);
        if (!st)
            return MX_OK;
        mx_status_free(st); /* not there: by the host, like everything else */
    }
    mx_tensor t = {buffer, v->type};
    for (int64_t from = 0; from < n; from += RUN) {
        int64_t m = n - from < RUN ? n - from : RUN;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < m; i++)
            mx_store_f64(&t, i, initial_at(v, seed, stream, from + i));
        MX_TRY(mx_var_write_part(s, v, from, m, buffer));
    }
    return MX_OK;
}

mx_status mx_session_init(mx_session *s, uint64_t seed)
{
    void *buffer = NULL;
    mx_status st = MX_OK;
    MX_TRY(mx_alloc(&buffer, RUN * sizeof(double), "the first weights"));
    for (int i = 0; i < s->n_vars && !st; i++)
        if (!s->var[i]->written && (s->var[i]->attr.kind != MX_VAR_COPY ||
                                    !*s->var[i]->attr.copy_of)) /* scales of codes */
            st = init_variable(s, s->var[i], seed, buffer);
    mx_free(buffer);
    return st ? st : mx_session_refresh_copies(s);
}

static mx_status refresh_copy(mx_session *s, mx_var *v, const mx_var *from, void *a, void *b)
{
    int64_t n = mx_type_count(&v->type);
    mx_tensor src = {a, from->type}, dst = {b, v->type};
    size_t item = mx_dtype_bytes(from->type.dtype);
    for (int64_t at = 0; at < n; at += RUN) {
        int64_t m = n - at < RUN ? n - at : RUN;
        MX_TRY(mx_var_read_part(s, from, (size_t)at * item, a, (size_t)m * item));
        for (int64_t k = 0; k < m; k += 4096) {
            float tile[4096];
            int64_t w = m - k < 4096 ? m - k : 4096;
            mx_load_run_f32(&src, k, w, tile);
            mx_store_run_f32(&dst, k, w, tile);
        }
        MX_TRY(mx_var_write_part(s, v, at, m, b));
    }
    return MX_OK;
}

mx_status mx_session_refresh_copies(mx_session *s)
{
    void *buffer = NULL;
    mx_status st = MX_OK;
    for (int i = 0; i < s->n_vars && !st; i++) {
        mx_var *v = s->var[i];
        mx_var *from = v->attr.kind == MX_VAR_COPY ? mx_session_find(s, v->attr.copy_of) : NULL;
        bool there = from && s->device->convert;
        if (there)
            st = s->device->convert(s->device, v->buffer, v->type.dtype, from->buffer,
                                    from->type.dtype);
        if (from && !there && !buffer)
            st = mx_alloc(&buffer, 2 * RUN * sizeof(double), "copies of weights");
        if (from && !there && !st)
            st = refresh_copy(s, v, from, buffer, (double *)buffer + RUN);
        v->written |= from != NULL;
    }
    mx_free(buffer);
    return st;
}

