/* golden_images.c - pixel_values of a golden file: see golden_images.h.
 *
 * Three forms, as the families' processors give them:
 *     (images, channels, size, size)
 *     (images, patches, floats) with image_position_ids (images, patches, 2): a patch's column and
 *     row, -1 where there is none
 *     (patches, floats) with image_grid_thw (images, 3): patches piece by piece, row by row
 */
#include "train/check/golden_images.h"

#include "nn/vision.h"
#include <string.h>

static mx_status read_floats(const mx_st_tensor *t, mx_arena *a, float **out)
{
    *out = MX_NEW_N(a, float, t->n);
    return mx_st_read(t, 0, t->n, MX_ST_F32, *out, NULL);
}

static mx_status read_ints(const mx_st_tensor *t, mx_arena *a, int32_t **out)
{
    *out = MX_NEW_N(a, int32_t, t->n);
    return mx_st_read(t, 0, t->n, MX_ST_I32, *out, NULL);
}

typedef struct {
    int64_t width, height; /* in patches */
    const float **patch;   /* (height, width) */
} grid;

/* Appends the pieces of an image. */
static void add_pieces(mx_golden_images *g, const grid *from)
{
    const mx_image_spec *s = &g->spec;
    int64_t across = from->width / s->side, down = from->height / s->side;
    size_t floats = (size_t)(s->channels * s->frames * s->patch * s->patch);
    for (int64_t i = 0; i < across * down; i++) {
        float *to = g->pixels + g->n++ * mx_image_floats(s);
        int64_t column = i % across * s->side, row = i / across * s->side;
        to[MX_PIECE_INDEX] = (float)i;
        to[MX_PIECE_COLUMN] = (float)column;
        to[MX_PIECE_ROW] = (float)row;
        to[MX_PIECE_WIDTH] = (float)from->width;
        to[MX_PIECE_HEIGHT] = (float)from->height;
        to += MX_PIECE_PLACE;
        for (int64_t k = 0; k < s->side * s->side; k++, to += floats) {
            int64_t at = (row + k / s->side) * from->width + column + k % s->side;
            memcpy(to, from->patch[at], sizeof(float) * floats);
        }
    }
}

static mx_status odd(const mx_st_file *f)
{
    return mx_fail(MX_INPUT, "%s: pixel_values and their places are not what the family's "
                   "processor gives", f->path);
}

/* (images, patches, floats), by column and row. */
static mx_status read_padded(mx_golden_images *g, const mx_st_file *f, const mx_st_tensor *t,
                             const float *pixels, mx_arena *a)
{
    const mx_st_tensor *places = mx_st_find(f, "image_position_ids");
    int64_t N = t->dim[0], P = t->dim[1], side = g->spec.side;
    int32_t *at;
    if (places->n != 2 * N * P)
        return odd(f);
    MX_TRY(read_ints(places, a, &at));
    for (int64_t i = 0; i < N; i++, at += 2 * P, pixels += P * t->dim[2]) {
        grid one = {0};
        int64_t found = 0;
        for (int64_t k = 0; k < P; k++) {
            one.width = at[2 * k] >= one.width ? at[2 * k] + 1 : one.width;
            one.height = at[2 * k + 1] >= one.height ? at[2 * k + 1] + 1 : one.height;
            found += at[2 * k] >= 0 && at[2 * k + 1] >= 0;
        }
        if (found != one.width * one.height || one.width % side || one.height % side)
            return odd(f);
        one.patch = MX_NEW_N(a, const float *, found);
        for (int64_t k = 0; k < P; k++)
            if (at[2 * k] >= 0)
                one.patch[at[2 * k + 1] * one.width + at[2 * k]] = pixels + k * t->dim[2];
        for (int64_t k = 0; k < found; k++)
            if (!one.patch[k])
                return odd(f);
        add_pieces(g, &one);
    }
    return MX_OK;
}

/* (patches, floats), in order. */
static mx_status read_joined(mx_golden_images *g, const mx_st_file *f, const mx_st_tensor *t,
                             const float *pixels, mx_arena *a)
{
    const mx_st_tensor *grids = mx_st_find(f, "image_grid_thw");
    int64_t side = g->spec.side, left = t->dim[0];
    int32_t *size;
    MX_TRY(read_ints(grids, a, &size));
    for (int64_t i = 0; i < grids->n / 3; i++, size += 3) {
        grid one = {.width = size[2], .height = size[1]};
        int64_t n = one.width * one.height, across = one.width / side;
        if (size[0] != 1 || n < 1 || n > left || one.width % side || one.height % side)
            return odd(f);
        one.patch = MX_NEW_N(a, const float *, n);
        for (int64_t k = 0; k < n; k++, pixels += t->dim[1]) {
            int64_t piece = k / (side * side), in = k % (side * side);
            int64_t row = piece / across * side + in / side;
            one.patch[row * one.width + piece % across * side + in % side] = pixels;
        }
        left -= n;
        add_pieces(g, &one);
    }
    return left ? odd(f) : MX_OK;
}

static mx_status read_pixels(mx_golden_images *g, const mx_st_file *f, const mx_st_tensor *t,
                             mx_arena *a)
{
    const mx_image_spec *s = &g->spec;
    float *pixels;
    MX_TRY(read_floats(t, a, &pixels));
    if (s->size) {
        if (t->ndim != 4 || t->dim[1] != s->channels || t->dim[2] != s->size ||
            t->dim[3] != s->size)
            return mx_fail(MX_INPUT, "%s: pixel_values are not (images, %lld, %lld, %lld)",
                           f->path, (long long)s->channels, (long long)s->size,
                           (long long)s->size);
        g->n = t->dim[0];
        g->pixels = pixels;
        return MX_OK;
    }
    int64_t floats = s->channels * s->frames * s->patch * s->patch;
    if (t->ndim < 2 || t->dim[t->ndim - 1] != floats)
        return mx_fail(MX_INPUT, "%s: pixel_values are not patches of %lld numbers", f->path,
                       (long long)floats);
    g->pixels = MX_NEW_N(a, float, (t->n / floats / s->side / s->side + 1) * mx_image_floats(s));
    if (t->ndim == 3 && mx_st_find(f, "image_position_ids"))
        return read_padded(g, f, t, pixels, a);
    if (t->ndim == 2 && mx_st_find(f, "image_grid_thw"))
        return read_joined(g, f, t, pixels, a);
    return odd(f);
}

mx_status mx_golden_images_read(mx_golden_images *out, const mx_st_file *golden,
                                const mx_model_spec *m, const int32_t *tokens, int64_t rows,
                                int64_t length, mx_arena *a)
{
    const mx_st_tensor *t = mx_st_find(golden, "pixel_values");
    const mx_st_tensor *types = mx_st_find(golden, "token_type_ids");
    types = types ? types : mx_st_find(golden, "mm_token_type_ids");
    int32_t *type = NULL;
    *out = (mx_golden_images){0};
    if (!t)
        return MX_OK;
    if (!m->family->images)
        return mx_fail(MX_INPUT, "%s has pixel_values, but %s is a family without images",
                       golden->path, m->family->name);
    m->family->images(m->config, &out->spec);
    MX_TRY(read_pixels(out, golden, t, a));
    if (types)
        MX_TRY(read_ints(types, a, &type));
    out->first = MX_NEW_N(a, int64_t, rows + 1);
    int64_t found = 0, each = out->spec.tokens;
    for (int64_t i = 0; i < rows * length; i++) {
        bool image = tokens[i] == out->spec.token;
        found += image;
        if (type && (types->n != rows * length || (type[i] == 1) != image))
            return mx_fail(MX_INPUT, "%s: token_type_ids do not mark the image tokens %lld",
                           golden->path, (long long)out->spec.token);
        out->first[i / length + 1] = found / each;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = out->first[r + 1] - out->first[r];
        out->per_row = n > out->per_row ? n : out->per_row;
    }
    if (found != out->n * each)
        return mx_fail(MX_INPUT, "%s: %lld image tokens for %lld images of %lld tokens",
                       golden->path, (long long)found, (long long)out->n, (long long)each);
    return MX_OK;
}

const float *mx_golden_images_laid(const mx_golden_images *g, int64_t rows, mx_arena *a)
{
    if (!g->n || g->spec.size)
        return g->pixels;
    size_t floats = (size_t)mx_image_floats(&g->spec);
    float *out = MX_NEW_N(a, float, (int64_t)floats * rows * g->per_row);
    mx_pieces_clear(&g->spec, out, rows * g->per_row);
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + floats * (size_t)(r * g->per_row), g->pixels + floats * (size_t)g->first[r],
               sizeof(float) * floats * (size_t)(g->first[r + 1] - g->first[r]));
    return out;
}

const int32_t *mx_golden_images_places(const mx_golden_images *g, const int32_t *tokens,
                                       int64_t rows, int64_t length, mx_arena *a)
{
    int32_t *out = MX_NEW_N(a, int32_t, 3 * rows * length);
    for (int64_t r = 0; r < rows; r++) {
        int64_t next = 0;
        mx_image_places(&g->spec, tokens + r * length, NULL, length,
                        g->pixels + g->first[r] * mx_image_floats(&g->spec),
                        g->first[r + 1] - g->first[r], &next, out + r * length, rows * length);
    }
    return out;
}
