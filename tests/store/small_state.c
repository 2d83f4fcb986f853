/* small_state.c - see small_state.h. */
#include "small_state.h"

#include "../test.h"
#include "store/checkpoint_read.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void small_state_fill(small_state *s, int n, int64_t step)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->w[i] = (float)((step * 31 + i * 7) % 1000003);
        s->m[i] = -s->w[i] / 3;
    }
    for (int i = 0; i < 8; i++)
        s->bias[i] = (float)(step + i);
    s->count = step;
    s->weights[0] = (mx_st_source){"model.w", MX_ST_F32, 1, {n}, s->w, 0};
    s->weights[1] = (mx_st_source){"model.bias", MX_ST_F32, 2, {2, 4}, s->bias, 0};
    s->optimizer[0] = (mx_st_source){"model.w.m", MX_ST_F32, 1, {n}, s->m, 0};
    s->optimizer[1] = (mx_st_source){"count", MX_ST_I64, 0, {0}, &s->count, 0};
    s->extras[0] = (mx_hf_extra){.name = "config.json", .data = "{\"a\":1}", .n_bytes = 7};
    snprintf(s->state, sizeof s->state, "{\"step\":%lld}", (long long)step);
    s->request = (mx_ckpt_request){.step = step,
                                   .metric = NAN,
                                   .weights = s->weights,
                                   .n_weights = 2,
                                   .optimizer = s->optimizer,
                                   .n_optimizer = 2,
                                   .state_json = s->state,
                                   .extras = s->extras,
                                   .n_extras = 1};
}

static bool tensor_is(const mx_hf_dir *d, const char *name, const void *data, size_t n_bytes)
{
    static char back[SMALL_STATE_MAX * 4];
    const mx_st_tensor *t = mx_hf_dir_find(d, name);
    if (!t || t->n_bytes != n_bytes)
        return false;
    mx_status st = mx_st_read(t, 0, t->n, t->dtype, back, NULL);
    bool same = !st && memcmp(back, data, n_bytes) == 0;
    mx_status_free(st);
    return same;
}

bool small_state_matches(small_state *s, int n, const char *path, int64_t step)
{
    mx_ckpt_view v;
    mx_status st = mx_ckpt_open(&v, path, MX_CHECK_HASHES, 1);
    small_state_fill(s, n, step);
    bool same = !st && v.head.step == step && v.has_optimizer && v.model.config &&
                json_integer_value(json_object_get(v.state, "step")) == step &&
                tensor_is(&v.model, "model.w", s->w, (size_t)n * 4) &&
                tensor_is(&v.model, "model.bias", s->bias, sizeof s->bias) &&
                tensor_is(&v.optimizer, "model.w.m", s->m, (size_t)n * 4) &&
                tensor_is(&v.optimizer, "count", &s->count, 8);
    MX_CHECK_OK(st);
    mx_ckpt_close(&v);
    return same;
}
