/* record_pictures.c - which pictures a record has, and where they stand in it.
 *
 * In the column: a file name, bytes, or JSON: a file name, {"path": ...}, {"bytes": ...}, or a list
 * of these; bytes inside JSON are data URLs (data_url.h). Where there is no such column, parts of
 * messages: {"type": "image"} with the picture as "image", "path" or "url". A text that has no
 * place for its pictures gets them in front: the text, the prompt, the first message of the user.
 */
#include "data/image/encode_image.h"

#include "base/file.h"
#include "data/formats/data_url.h"
#include <string.h>

static const char *const file_keys[] = {"image", "path", "url"};

/* Takes the picture into the list, once it is known to be whole. */
static mx_status add_picture(mx_record_pictures *p, mx_picture picture)
{
    mx_image m;
    mx_image_cut cut;
    MX_TRY(mx_picture_read(&picture, &m));
    mx_status st = mx_image_cut_of(&p->images->processor, m.width, m.height, &cut);
    mx_image_fini(&m);
    MX_TRY(mx_status_wrap(st, "%s", picture.name));
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 4;
        mx_picture *pictures = MX_NEW_N(&p->arena, mx_picture, cap);
        mx_image_cut *cuts = MX_NEW_N(&p->arena, mx_image_cut, cap);
        for (int i = 0; i < p->n; i++) {
            pictures[i] = p->picture[i];
            cuts[i] = p->cut[i];
        }
        p->picture = pictures;
        p->cut = cuts;
        p->cap = cap;
    }
    p->picture[p->n] = picture;
    p->cut[p->n++] = cut;
    return MX_OK;
}

static mx_status add_bytes(mx_record_pictures *p, const void *data, size_t n)
{
    if (n > MX_IMAGE_MAX_FILE)
        return mx_fail(MX_INPUT, "a picture of %zu bytes is too large", n);
    char *name = mx_arena_printf(&p->arena, "picture %d of the record", p->n + 1);
    return add_picture(p, (mx_picture){.name = name, .bytes = mx_arena_copy(&p->arena, data, n),
                                       .n_bytes = n});
}

static mx_status add_name(mx_record_pictures *p, const char *path)
{
    const char *folder = p->images->folder;
    if (mx_data_url_is(path)) {
        mx_str bytes = {0};
        mx_status st = mx_data_url_read(path, strlen(path), &bytes);
        if (!st)
            st = add_bytes(p, mx_str_text(&bytes), bytes.len);
        mx_str_fini(&bytes);
        return st;
    }
    bool beside = *path != '/' && folder && !mx_file_exists(path);
    char *name = beside ? mx_arena_printf(&p->arena, "%s/%s", folder, path)
                        : mx_arena_strdup(&p->arena, path);
    return add_picture(p, (mx_picture){.name = name});
}

/* "FILE", {"path": "FILE"}, or {"bytes": "data:..."}, as datasets of the hub have them. */
static mx_status add_value(mx_record_pictures *p, const json_t *v)
{
    const char *name = json_string_value(v);
    const char *bytes = json_string_value(json_object_get(v, "bytes"));
    if (bytes && mx_data_url_is(bytes))
        name = bytes;
    for (int i = 0; i < 3 && !name; i++)
        name = json_string_value(json_object_get(v, file_keys[i]));
    if (!name)
        return mx_fail(MX_INPUT, "column \"%s\": expected the names of image files, or bytes",
                       p->images->column);
    return add_name(p, name);
}

static mx_status from_column(mx_record_pictures *p, const mx_record *r, int i)
{
    const char *data = mx_record_data(r, i);
    if (r->cells[i].kind == MX_CELL_BYTES)
        return add_bytes(p, data, r->cells[i].len_bytes);
    if (r->cells[i].kind == MX_CELL_TEXT)
        return r->cells[i].len_bytes ? add_name(p, data) : MX_OK;
    json_t *v = r->cells[i].kind == MX_CELL_JSON
                    ? json_loadb(data, r->cells[i].len_bytes, JSON_DECODE_ANY, NULL)
                    : NULL;
    mx_status st = json_is_array(v) ? MX_OK : add_value(p, v);
    for (size_t k = 0; !st && k < json_array_size(v); k++)
        st = add_value(p, json_array_get(v, k));
    json_decref(v);
    return st;
}

/* What the messages have places for: parts of lists, and marks in texts. */
static int64_t places_in(const mx_record_pictures *p, json_t *messages)
{
    const mx_image_spec *s = &p->images->processor.spec;
    int64_t n = 0;
    size_t i, k;
    json_t *m, *part;
    json_array_foreach (messages, i, m) {
        json_t *content = json_object_get(m, "content");
        if (json_is_string(content))
            n += mx_image_marks(s, json_string_value(content), json_string_length(content));
        json_array_foreach (content, k, part) {
            const char *type = json_string_value(json_object_get(part, "type"));
            json_t *text = json_object_get(part, "text");
            n += type && strcmp(type, "image") == 0;
            if (json_is_string(text))
                n += mx_image_marks(s, json_string_value(text), json_string_length(text));
        }
    }
    return n;
}

static mx_status from_messages(mx_record_pictures *p, json_t *messages)
{
    size_t i, k;
    json_t *m, *part;
    json_array_foreach (messages, i, m)
        json_array_foreach (json_object_get(m, "content"), k, part) {
            const char *type = json_string_value(json_object_get(part, "type"));
            for (int f = 0; f < 3 && type && strcmp(type, "image") == 0; f++)
                if (json_is_string(json_object_get(part, file_keys[f]))) {
                    MX_TRY(add_value(p, part));
                    break;
                }
        }
    return MX_OK;
}

/* --- places for pictures that have none --- */

static mx_text_range with_marks(mx_record_pictures *p, mx_text_range text)
{
    mx_str s = {0};
    const mx_image_spec *spec = &p->images->processor.spec;
    for (int i = 0; i < p->n; i++)
        mx_str_add(&s, spec->alone ? spec->alone : spec->mark);
    mx_str_add_n(&s, text.text, text.len);
    mx_text_range out = {mx_arena_copy(&p->arena, mx_str_text(&s), s.len + 1), s.len};
    mx_str_fini(&s);
    return out;
}

static void mark_messages(mx_record_pictures *p, json_t *messages)
{
    size_t i;
    json_t *m;
    json_array_foreach (messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        json_t *content = json_object_get(m, "content");
        if (!role || strcmp(role, "user") != 0)
            continue;
        for (int k = 0; k < p->n && json_is_array(content); k++)
            json_array_insert_new(content, 0, json_pack("{s:s}", "type", "image"));
        if (json_is_string(content)) {
            mx_text_range old = {json_string_value(content), json_string_length(content)};
            mx_text_range new = with_marks(p, old);
            json_object_set_new(m, "content", json_stringn(new.text, new.len));
        }
        return;
    }
}

static mx_status make_places(mx_record_pictures *p, mx_example *x)
{
    const mx_image_spec *s = &p->images->processor.spec;
    mx_text_range text[3] = {x->kind == MX_EXAMPLE_TEXT ? x->text : x->prompt, x->completion,
                             x->chosen};
    json_t *messages = x->messages ? x->messages : x->chosen_messages;
    int64_t places = places_in(p, messages);
    for (int i = 0; i < 3; i++)
        places += text[i].len ? mx_image_marks(s, text[i].text, text[i].len) : 0;
    if (x->kind == MX_EXAMPLE_IDS)
        return mx_fail(MX_INPUT, "a record of token ids has pictures, and which of its tokens "
                                 "stand for them is not known");
    if (places)
        return MX_OK; /* their number is checked when they are filled */
    mark_messages(p, x->messages);
    mark_messages(p, x->chosen_messages);
    mark_messages(p, x->rejected_messages);
    if (x->kind == MX_EXAMPLE_TEXT)
        x->text = with_marks(p, x->text);
    else if (!messages)
        x->prompt = with_marks(p, x->prompt);
    return MX_OK;
}

mx_status mx_record_pictures_open(mx_record_pictures *p, const mx_encode_images *images,
                                  const mx_record *r, mx_example *x)
{
    *p = (mx_record_pictures){.images = images};
    int i = mx_record_find(r, images->column);
    if (i < 0)
        i = mx_record_find(r, MX_IMAGES_COLUMN);
    if (i >= 0 && r->cells[i].kind != MX_CELL_NULL)
        MX_TRY(from_column(p, r, i));
    else
        MX_TRY(from_messages(p, x->messages ? x->messages : x->chosen_messages));
    return p->n ? make_places(p, x) : MX_OK;
}

void mx_record_pictures_close(mx_record_pictures *p)
{
    mx_arena_fini(&p->arena);
    *p = (mx_record_pictures){0};
}
