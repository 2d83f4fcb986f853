/* spikes.c - two rings and their mean and deviation. A window is read once a step: nothing is kept
 * up to date by increments, so rounding never builds up over a long run. */
#include "train/run/spikes.h"

#include <math.h>

void mx_spikes_init(mx_spikes *s, mx_arena *a, int64_t interval, double factor)
{
    *s = (mx_spikes){.cap = interval, .factor = factor};
    s->loss = MX_NEW_N(a, float, interval);
    s->norm = MX_NEW_N(a, float, interval);
}

/* Oldest first, so that a window read back from a checkpoint gives the same bits. */
static double at(const mx_spikes *s, const float *ring, int64_t n, int64_t i)
{
    return ring[(s->n - n + i) % s->cap];
}

static float limit(const mx_spikes *s, const float *ring)
{
    int64_t n = s->n < s->cap ? s->n : s->cap;
    double sum = 0, squares = 0;
    if (n < 2 || n < s->cap / 2)
        return INFINITY;
    for (int64_t i = 0; i < n; i++)
        sum += at(s, ring, n, i);
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (at(s, ring, n, i) - mean) * (at(s, ring, n, i) - mean);
    return (float)(mean + s->factor * sqrt(squares / (double)(n - 1)));
}

void mx_spikes_limits(const mx_spikes *s, float *loss, float *norm)
{
    *loss = limit(s, s->loss);
    *norm = limit(s, s->norm);
}

void mx_spikes_add(mx_spikes *s, float loss, float norm)
{
    if (!isfinite(loss) || !isfinite(norm))
        return;
    s->loss[s->n % s->cap] = loss;
    s->norm[s->n++ % s->cap] = norm;
}

json_t *mx_spikes_to_json(const mx_spikes *s)
{
    json_t *loss = json_array(), *norm = json_array();
    for (int64_t i = s->n < s->cap ? 0 : s->n - s->cap; i < s->n; i++) {
        json_array_append_new(loss, json_real(s->loss[i % s->cap]));
        json_array_append_new(norm, json_real(s->norm[i % s->cap]));
    }
    return json_pack("{s:o, s:o}", "loss", loss, "grad_norm", norm);
}

void mx_spikes_from_json(mx_spikes *s, const json_t *j)
{
    const json_t *loss = json_object_get(j, "loss"), *norm = json_object_get(j, "grad_norm");
    s->n = 0;
    for (size_t i = 0; i < json_array_size(loss) && i < json_array_size(norm); i++)
        mx_spikes_add(s, (float)json_number_value(json_array_get(loss, i)),
                      (float)json_number_value(json_array_get(norm, i)));
}
