/* images.c - images in the messages of a chat: parts of type image_url whose URL is the data
 * itself, "data:image/png;base64,...". Nothing is fetched from anywhere. */
#include "data/formats/data_url.h"
#include "serve/api_call.h"

#include <string.h>

/* What is being read. */
typedef struct {
    const mx_served *served;
    mx_fields *f;
    mx_pictures *out;
} reader;

static bool is_image(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && (strcmp(type, "image_url") == 0 || strcmp(type, "input_image") == 0);
}

/* {"image_url": {"url": ...}}, or the URL itself, as in the newer form. */
static const char *url_of(const json_t *part)
{
    const json_t *v = json_object_get(part, "image_url");
    return json_string_value(json_is_object(v) ? json_object_get(v, "url") : v);
}

static bool take_image(reader *r, const json_t *part)
{
    const mx_served *s = r->served;
    const char *url = url_of(part);
    if (!s->images) {
        mx_field_wrong(r->f, "messages", "has an image, but %s takes text alone", s->name);
        return false;
    }
    if (!url || !mx_data_url_is(url)) {
        mx_field_wrong(r->f, "messages",
                       "has an image that is not in the request; this server fetches nothing: give "
                       "its data, {\"type\": \"image_url\", \"image_url\": {\"url\": "
                       "\"data:image/png;base64,...\"}}");
        return false;
    }
    if (r->out->n >= s->most_images) {
        mx_field_wrong(r->f, "messages", "has more than %lld images (max_images)",
                       (long long)s->most_images);
        return false;
    }
    char where[32];
    snprintf(where, sizeof where, "image %d", r->out->n + 1);
    mx_str bytes = {0};
    mx_status st = mx_data_url_read(url, strlen(url), &bytes);
    if (!st)
        st = mx_pictures_add(r->out, mx_str_text(&bytes), bytes.len, s->most_pixels, where);
    if (st)
        mx_field_wrong(r->f, "messages", "has an image that cannot be read: %s",
                       mx_status_text(st));
    mx_str_fini(&bytes);
    bool ok = !st;
    mx_status_free(st);
    return ok;
}

/* A text among the parts; NULL: it is none. */
static const char *text_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    bool is = type && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0);
    return is ? json_string_value(json_object_get(part, "text")) : NULL;
}

/* Parts of text become one text, since templates of models without images know no parts; with
 * images they stay parts. */
static bool read_message(reader *r, json_t *message)
{
    const json_t *parts = json_object_get(message, "content"), *x;
    size_t i;
    mx_str text = {0};
    bool images = false, fine = true;
    if (!json_is_array(parts))
        return true;
    json_t *list = json_array();
    json_array_foreach((json_t *)parts, i, x)
    {
        const char *part = text_of(x);
        if (is_image(x)) {
            images = true;
            fine = fine && take_image(r, x);
            json_array_append_new(list, json_pack("{s:s}", "type", "image"));
        } else if (part) {
            mx_str_add(&text, part);
            json_array_append_new(list, json_pack("{s:s, s:s}", "type", "text", "text", part));
        } else {
            const char *type = json_string_value(json_object_get(x, "type"));
            mx_field_wrong(r->f, "messages",
                           "has a part of type `%s`; text and image_url are taken",
                           type ? type : "?");
            fine = false;
        }
    }
    if (images)
        json_object_set(message, "content", list);
    else if (fine)
        json_object_set_new(message, "content", json_string(mx_str_text(&text)));
    json_decref(list);
    mx_str_fini(&text);
    return fine;
}

void mx_chat_images(const mx_served *s, mx_fields *f, json_t *messages, mx_pictures *out)
{
    size_t i;
    json_t *m;
    reader r = {s, f, out};
    *out = (mx_pictures){0};
    if (s->images)
        out->processor = *s->images;
    json_array_foreach(messages, i, m) if (!read_message(&r, m)) return;
}
