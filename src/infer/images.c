/* images.c - see images.h. */
#include "infer/images.h"

#include "data/image/image_process.h"
#include <string.h>
#include <xxhash.h>

/* --- sets --- */

static void find_runs(mx_image_set *s)
{
    int64_t floats = mx_image_floats(&s->spec);
    for (int64_t i = 0; i < s->n;) {
        const float *from = s->pixels + i * floats;
        int64_t images = mx_image_run(&s->spec, from), tokens = s->spec.tokens * images;
        XXH128_hash_t h = XXH3_128bits(from, sizeof *from * (size_t)(images * floats));
        s->run[s->n_runs++] = (mx_image_run_of_set){.first = i,
                                                    .images = images,
                                                    .row = s->n_tokens,
                                                    .tokens = tokens,
                                                    .digest = {h.low64, h.high64}};
        s->n_tokens += tokens;
        i += images;
    }
}

mx_status mx_image_set_new(mx_image_set **out, const mx_model_spec *m, const float *pixels,
                           int64_t n)
{
    mx_image_set *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_image_set){.n = n, .held = 1};
    *out = NULL;
    m->family->images(m->config, &s->spec);
    size_t bytes = sizeof(float) * (size_t)(n * mx_image_floats(&s->spec));
    mx_status st = mx_alloc((void **)&s->pixels, bytes, "the images of a prompt");
    if (st) {
        mx_image_set_release(s);
        return st;
    }
    memcpy(s->pixels, pixels, bytes);
    s->run = mx_realloc(NULL, sizeof *s->run * (size_t)n);
    find_runs(s);
    *out = s;
    return MX_OK;
}

mx_image_set *mx_image_set_hold(mx_image_set *s)
{
    if (s)
        __atomic_add_fetch(&s->held, 1, __ATOMIC_RELAXED);
    return s;
}

void mx_image_set_release(mx_image_set *s)
{
    if (!s || __atomic_sub_fetch(&s->held, 1, __ATOMIC_ACQ_REL))
        return;
    mx_free(s->pixels);
    mx_free(s->features);
    mx_free(s->run);
    mx_free(s);
}

/* --- spots --- */

mx_status mx_image_spots_find(mx_image_spots *out, const mx_image_set *s, const mx_tokens *prompt,
                              mx_arena *a)
{
    int64_t k = 0, left = 0;
    *out = (mx_image_spots){.n = prompt->n, .n_runs = s->n_runs};
    out->first = MX_NEW_N(a, int64_t, s->n_runs);
    for (int64_t i = 0; i < prompt->n; i++) {
        bool image = prompt->ids[i] == s->spec.token;
        if (image && !left && k < s->n_runs) {
            out->first[k] = i;
            left = s->run[k++].tokens;
        } else if (image != (left > 0)) {
            return mx_fail(MX_INPUT,
                           "token %lld of the prompt is %s: images of %lld tokens in all must "
                           "stand in it whole, in order, and no others",
                           (long long)i, image ? "one image token too many" : "within an image",
                           (long long)s->n_tokens);
        }
        left -= image;
    }
    if (k < s->n_runs || left)
        return mx_fail(MX_INPUT, "the prompt has image tokens for %lld of %lld images",
                       (long long)(k - (left > 0)), (long long)s->n_runs);
    if (!s->spec.places)
        return MX_OK;
    out->places = MX_NEW_N(a, int32_t, 3 * prompt->n);
    mx_image_places(&s->spec, prompt->ids, NULL, prompt->n, s->pixels, s->n, &out->next_place,
                    out->places, prompt->n);
    return MX_OK;
}

int64_t mx_image_run_at(const mx_image_set *s, const mx_image_spots *p, int64_t t)
{
    int64_t lo = 0, hi = p->n_runs;
    while (lo < hi) { /* the first run that begins after t */
        int64_t mid = (lo + hi) / 2;
        *(p->first[mid] <= t ? &lo : &hi) = mid + (p->first[mid] <= t);
    }
    return lo > 0 && t < p->first[lo - 1] + s->run[lo - 1].tokens ? lo - 1 : -1;
}
