/* image_layout.c - where pictures stand in a text, as tokens: see model.h's mx_image_spec.
 *
 * The layout is text and is tokenized with what surrounds it, as the reference does: line breaks of
 * Gemma 3's layout join those of the prompt. Marks inside the layout (Llama 4's is among its own
 * tokens) are not looked at again.
 */
#include "data/image/image_process.h"

#include <string.h>

int64_t mx_image_marks(const mx_image_spec *s, const char *text, size_t n)
{
    int64_t count = 0;
    size_t len = strlen(s->mark);
    for (const char *p = text; (p = memmem(p, n - (size_t)(p - text), s->mark, len)); p += len)
        count++;
    return count;
}

static void add_pieces(const mx_image_spec *s, mx_str *out)
{
    for (int64_t i = 0; i < s->tokens; i++)
        mx_str_add(out, s->piece);
}

/* The whole, and its crops. */
static void add_crops(const mx_image_spec *s, const mx_image_cut *cut, mx_str *out)
{
    for (int64_t i = 0; i < cut->images; i++) {
        mx_str_add(out, s->crop_texts[i < 2 ? i : 2]);
        mx_str_add(out, s->begin);
        add_pieces(s, out);
        mx_str_add(out, s->end);
    }
}

static void add_picture(const mx_image_spec *s, const mx_image_cut *cut, mx_str *out)
{
    if (s->crop_texts[0] && cut->images > 1) {
        add_crops(s, cut, out);
        return;
    }
    mx_str_add(out, s->begin);
    if (!s->size) {
        for (int64_t i = 0; i < cut->images; i++)
            mx_str_add(out, s->piece);
        mx_str_add(out, s->end);
        return;
    }
    for (int64_t y = 0; cut->images > 1 && y < cut->down; y++)
        for (int64_t x = 0; x < cut->across; x++) {
            add_pieces(s, out);
            mx_str_add(out, x + 1 < cut->across ? s->between : s->row_end);
        }
    if (s->whole)
        mx_str_add(out, s->whole);
    add_pieces(s, out);
    mx_str_add(out, s->end);
}

mx_status mx_image_lay_out(const mx_image_spec *s, const char *text, size_t n,
                           const mx_image_cut *cuts, int64_t n_cuts, mx_str *out)
{
    int64_t marks = mx_image_marks(s, text, n);
    if (marks != n_cuts)
        return mx_fail(MX_INPUT,
                       "the text has %lld places for images (%s), but there are %lld images",
                       (long long)marks, s->mark, (long long)n_cuts);
    size_t len = strlen(s->mark);
    const char *end = text + n;
    for (int64_t i = 0; i < n_cuts; i++) {
        const char *at = memmem(text, (size_t)(end - text), s->mark, len);
        mx_str_add_n(out, text, (size_t)(at - text));
        add_picture(s, &cuts[i], out);
        text = at + len;
    }
    mx_str_add_n(out, text, (size_t)(end - text));
    return MX_OK;
}
