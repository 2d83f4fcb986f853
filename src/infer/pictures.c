/* pictures.c - see pictures.h. */
#include "infer/pictures.h"

#include <string.h>

/* One more picture; takes it. */
static mx_status take_picture(mx_pictures *p, mx_image *m, const char *where)
{
    int64_t floats = mx_image_floats(&p->processor.spec);
    p->cuts = mx_realloc(p->cuts, sizeof *p->cuts * (size_t)(p->n + 1));
    mx_image_cut *cut = &p->cuts[p->n];
    mx_status st = mx_image_cut_of(&p->processor, m->width, m->height, cut);
    if (!st) {
        int64_t n = p->n_images + cut->images;
        p->pixels = mx_realloc(p->pixels, sizeof(float) * (size_t)(n * floats));
        st = mx_image_process(&p->processor, m, p->pixels + p->n_images * floats);
        p->n_images = n;
        p->n++;
    }
    mx_image_fini(m);
    return mx_status_wrap(st, "%s", where);
}

mx_status mx_pictures_add(mx_pictures *p, const void *data, size_t n, int64_t max_pixels,
                          const char *where)
{
    mx_image m;
    MX_TRY(mx_image_decode_within(&m, data, n, max_pixels, where));
    return take_picture(p, &m, where);
}

mx_status mx_pictures_open(mx_pictures *p, const mx_model_spec *m, const char *dir,
                           const char *const *paths, int n, bool crops)
{
    mx_image_spec s;
    *p = (mx_pictures){0};
    if (!m->family->images && n)
        return mx_fail(MX_USAGE,
                       "%s is given, but the model is of family %s, which takes no images",
                       paths[0], m->family->name);
    if (!m->family->images)
        return MX_OK;
    m->family->images(m->config, &s);
    p->processor.spec = s;
    if (!n)
        return MX_OK;
    MX_TRY(mx_image_processor_open(&p->processor, &s, dir));
    if (crops)
        MX_TRY(mx_image_processor_crops(&p->processor));
    for (int i = 0; i < n; i++) {
        mx_image one;
        MX_TRY(mx_image_read(&one, paths[i]));
        MX_TRY(take_picture(p, &one, paths[i]));
    }
    return MX_OK;
}

void mx_pictures_close(mx_pictures *p)
{
    mx_free(p->pixels);
    mx_free(p->cuts);
    *p = (mx_pictures){0};
}

bool mx_pictures_marked(const mx_pictures *p, const char *text, size_t n)
{
    const mx_image_spec *s = &p->processor.spec;
    return s->mark && mx_image_marks(s, text, n) > 0;
}

mx_status mx_pictures_encode(const mx_pictures *p, const mx_tokenizer *t, const char *text,
                             size_t n, bool add_special, mx_tokens *out)
{
    const mx_image_spec *s = &p->processor.spec;
    mx_str marked = {0}, laid = {0};
    for (int i = 0; i < p->n && !mx_pictures_marked(p, text, n); i++)
        mx_str_add(&marked, s->alone ? s->alone : s->mark);
    mx_str_add_n(&marked, text, n);
    int32_t piece = mx_tokenizer_find(t, s->piece);
    mx_encode_options o = {.add_special = add_special, .special_in_text = MX_SPECIAL_PARSE};
    mx_status st;
    if (piece != s->token) {
        st = mx_fail(MX_INPUT,
                     "the model's image token is %lld, but %s is %d in its tokenizer (%s); they do "
                     "not belong together",
                     (long long)s->token, s->piece, piece, mx_tokenizer_kind(t));
        goto out;
    }
    MX_TRY_OUT(st, mx_image_lay_out(s, mx_str_text(&marked), marked.len, p->cuts, p->n, &laid));
    st = mx_tokenizer_encode(t, mx_str_text(&laid), laid.len, &o, out);
out:
    mx_str_fini(&marked);
    mx_str_fini(&laid);
    return st;
}

mx_status mx_pictures_check(const mx_model_spec *m, const mx_tokens *prompt, int64_t n_images)
{
    mx_image_spec s = {0};
    int64_t found = 0;
    if (m->family->images)
        m->family->images(m->config, &s);
    for (int64_t i = 0; m->family->images && i < prompt->n; i++)
        found += prompt->ids[i] == s.token;
    if (found == n_images * s.tokens)
        return MX_OK;
    if (!n_images)
        return mx_fail(MX_USAGE,
                       "the prompt has %lld image tokens (%s), but no image is given; add "
                       "image=FILE",
                       (long long)found, s.piece);
    return mx_fail(MX_INPUT, "the prompt has %lld image tokens for %lld images of %lld",
                   (long long)found, (long long)n_images, (long long)s.tokens);
}
