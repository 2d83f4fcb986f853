/* engine_images.c - images of requests: which tokens must be in one batch, their features, and
 * their part in the names of cached pages. */
#include "infer/engine_impl.h"

#include <string.h>

int64_t mx_engine_whole_images(const mx_engine *e, const mx_seq *s, int64_t n)
{
    int64_t end = s->computed + n;
    if (!s->o.images || !e->image_spec.both_ways || n <= 0)
        return n;
    int64_t i = mx_image_run_at(s->o.images, &s->spots, end);
    if (i < 0 || s->spots.first[i] == end)
        return n;
    n = s->spots.first[i] - s->computed;
    return n > 0 ? n : 0;
}

mx_page_name mx_engine_before_page(const mx_seq *s, int64_t page, mx_page_name before)
{
    const mx_image_set *set = s->o.images;
    for (int64_t i = 0; set && i < set->n_runs; i++) {
        if (s->spots.first[i] / MX_ENGINE_PAGE != page)
            continue;
        uint64_t chain[3] = {before, set->run[i].digest[0], set->run[i].digest[1]};
        before = mx_pages_salted((const char *)chain, sizeof chain);
    }
    return before;
}

static void place(const mx_seq *s, int64_t t, int32_t out[3])
{
    const mx_image_spots *p = &s->spots;
    for (int64_t axis = 0; axis < 3; axis++)
        out[axis] = !p->places ? (int32_t)t
                    : t < p->n ? p->places[axis * p->n + t]
                               : (int32_t)(p->next_place + t - p->n);
}

/* Tokens of images, of one request. */
static void fill(const mx_engine *e, const mx_seq *s, mx_engine_batch_input *in)
{
    const mx_image_set *set = s->o.images;
    const int64_t width = mx_tower_width(e->tower);
    for (int64_t k = 0; k < s->take; k++) {
        int64_t t = s->computed + k, at = s->first_in + k;
        int64_t i = t < s->spots.n ? mx_image_run_at(set, &s->spots, t) : -1;
        if (i < 0)
            continue;
        const mx_image_run_of_set *r = &set->run[i];
        int64_t first = s->spots.first[i];
        in->token[at] = -1;
        in->until[at] = (int32_t)(e->image_spec.both_ways ? first + r->tokens - 1 : t);
        memcpy(in->image + at * width, set->features + (r->row + t - first) * width,
               sizeof *in->image * (size_t)width);
    }
}

/* Whether one of the tokens that go into the batch is an image's. */
static bool feeds_images(const mx_seq *s)
{
    const mx_image_set *set = s->o.images;
    for (int64_t i = 0; set && i < set->n_runs; i++)
        if (s->spots.first[i] < s->computed + s->take &&
            s->spots.first[i] + set->run[i].tokens > s->computed)
            return true;
    return false;
}

mx_status mx_engine_fill_images(mx_engine *e)
{
    mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    in->has_images = false;
    for (int64_t i = 0; i < e->n_running && e->tower; i++) {
        mx_seq *s = e->running[i];
        for (int64_t k = 0; k < s->take && in->place; k++)
            place(s, s->computed + k, in->place[s->first_in + k]);
        if (!s->take || !feeds_images(s))
            continue;
        MX_TRY(mx_tower_run(e->tower, s->o.images));
        in->has_images = true;
    }
    if (!in->has_images)
        return MX_OK;
    memset(in->image, 0, sizeof *in->image * (size_t)(in->n * mx_tower_width(e->tower)));
    memcpy(in->until, in->position, sizeof *in->until * (size_t)in->n);
    for (int64_t i = 0; i < e->n_running; i++)
        if (e->running[i]->take && e->running[i]->o.images)
            fill(e, e->running[i], in);
    return MX_OK;
}
