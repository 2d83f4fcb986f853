/* encode_image.c - marks become the tokens of pictures, and these become pixels: see
 * encode_image.h. A text with pictures is tokenized with its special tokens recognised, as the
 * families' processors do. Pieces of pictures are never what is to be predicted. */
#include "data/image/encode_image.h"

#include "data/image/image_table.h"
#include <string.h>

/* The pieces among tokens [from, n): the first of each picture gets its number; none is trained. */
static mx_status enter_pictures(mx_document *d, int64_t from, int64_t pictures)
{
    const mx_record_pictures *p = d->pictures;
    const mx_image_spec *s = &p->images->processor.spec;
    int64_t left = 0, done = 0;
    for (int64_t i = from; i < d->ids.n; i++) {
        if (d->ids.ids[i] != s->token)
            continue;
        d->trained[i] = false;
        if (left == 0 && done < pictures) {
            int k = d->next_picture++;
            left = p->cut[k].images * s->tokens;
            d->ids.ids[i] = mx_image_table_add(p->images->table, &p->picture[k]);
            done++;
        }
        left--;
    }
    if (left || done != pictures)
        return mx_fail(MX_INPUT,
                       "the tokenizer does not give %lld (%s) for the pieces of pictures; it does "
                       "not belong to the model",
                       (long long)s->token, s->piece);
    return MX_OK;
}

mx_status mx_encode_marks(const mx_encoder *e, const char *text, size_t n, mx_document *d,
                          bool *done)
{
    const mx_record_pictures *p = d->pictures;
    const mx_image_spec *s = &p->images->processor.spec;
    int64_t marks = mx_image_marks(s, text, n), from = d->ids.n;
    *done = marks > 0;
    if (!marks)
        return MX_OK;
    if (d->next_picture + marks > p->n)
        return mx_fail(MX_INPUT, "the record has %d pictures and more places for them (%s)", p->n,
                       s->mark);
    mx_str laid = {0};
    mx_status st = mx_image_lay_out(s, text, n, p->cut + d->next_picture, marks, &laid);
    mx_encode_options o = {.special_in_text = MX_SPECIAL_PARSE};
    if (!st)
        st = mx_tokenizer_encode(e->tokenizer, mx_str_text(&laid), laid.len, &o, &d->ids);
    mx_str_fini(&laid);
    MX_TRY(st);
    mx_encode_mark(d, from, d->mark_trained);
    return enter_pictures(d, from, marks);
}

mx_status mx_encode_pictures_end(mx_document *d)
{
    const mx_record_pictures *p = d->pictures;
    int64_t images = 0;
    for (int i = 0; i < p->n; i++)
        images += p->cut[i].images;
    if (d->next_picture != p->n)
        return mx_fail(MX_INPUT, "the record has %d pictures, but only %d places for them (%s)",
                       p->n, d->next_picture, p->images->processor.spec.mark);
    if (d->ids.n > p->images->max_tokens)
        return mx_fail(MX_INPUT,
                       "the record has %lld tokens with its pictures, more than "
                       "max_target_length=%lld, and pictures cannot be cut off",
                       (long long)d->ids.n, (long long)p->images->max_tokens);
    if (images > p->images->max_images)
        return mx_fail(MX_INPUT,
                       "the record's %d pictures are %lld images to the model, at most %lld are "
                       "taken; raise max_num_images_per_example or max_target_length",
                       p->n, (long long)images, (long long)p->images->max_images);
    return MX_OK;
}

mx_status mx_picture_read(const mx_picture *p, mx_image *out)
{
    return p->bytes ? mx_image_decode(out, p->bytes, p->n_bytes, p->name)
                    : mx_image_read(out, p->name);
}

static mx_status append_pixels(const mx_image_processor *p, const mx_picture *picture,
                               float **pixels, int64_t *n, int64_t *cap)
{
    mx_image m;
    mx_image_cut cut;
    int64_t floats = mx_image_floats(&p->spec);
    MX_TRY(mx_picture_read(picture, &m));
    mx_status st = mx_image_cut_of(p, m.width, m.height, &cut);
    if (st) {
        mx_image_fini(&m);
        return mx_status_wrap(st, "%s", picture->name);
    }
    if (*n + cut.images > *cap) {
        *cap = *n + cut.images > 2 * *cap ? *n + cut.images : 2 * *cap;
        *pixels = mx_realloc(*pixels, sizeof(float) * (size_t)(*cap * floats));
    }
    st = mx_image_process(p, &m, *pixels + *n * floats);
    *n += cut.images;
    mx_image_fini(&m);
    return st;
}

mx_status mx_row_pictures(const mx_encode_images *images, int32_t *tokens, int64_t n_tokens,
                          float **pixels, int64_t *n, int64_t *cap)
{
    mx_status st = MX_OK;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (tokens[i] >= 0)
            continue;
        mx_picture picture = mx_image_table_take(images->table, tokens[i]);
        tokens[i] = (int32_t)images->processor.spec.token;
        if (pixels && !st)
            st = append_pixels(&images->processor, &picture, pixels, n, cap);
        mx_free(picture.name);
        mx_free(picture.bytes);
    }
    return st;
}
