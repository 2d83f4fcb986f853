/* loader_position.c - a place in the data as JSON, and back.
 *
 *     {"version": 1, "step": 120, "window": 7, "row": 31, "skip": 0, "t": 5321,
 *      "cursors": [[0, 5321, 0, 0]], "data": "9f86d081884c7d65"}
 * cursors: epoch, index, file, record of each dataset before the window's first document. data:
 * hash of file names and sizes, order, packing and tokenizing settings, so that a position is never
 * applied to data it does not belong to. Batch size, ranks and threads are free to change.
 */
#include "data/load/loader_impl.h"

#include "base/rng.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

void mx_loader_position(const mx_loader *l, mx_str *json)
{
    const mx_loader_at *a = &l->given;
    mx_str_addf(json,
                "{\"version\": 1, \"step\": %lld, \"window\": %lld, \"row\": %lld, \"skip\": %lld, "
                "\"t\": %lld, \"cursors\": [",
                (long long)a->step, (long long)a->window, (long long)a->row, (long long)a->skip,
                (long long)a->docs.t);
    for (int k = 0; k < a->docs.n; k++) {
        const mx_cursor *c = &a->docs.cursors[k];
        mx_str_addf(json, "%s[%lld, %lld, %lld, %lld]", k ? ", " : "", (long long)c->epoch,
                    (long long)c->index, (long long)c->file, (long long)c->record);
    }
    mx_str_addf(json, "], \"data\": \"%016llx\"}", (unsigned long long)l->hash);
}

mx_status mx_loader_sample(const mx_loader *l, uint64_t *hash)
{
    *hash = 0;
    for (int k = 0; k < l->mixture.n; k++) {
        uint64_t one;
        MX_TRY(mx_dataset_sample(l->mixture.sets[k], &one));
        *hash = mx_hash64(*hash, one);
    }
    return MX_OK;
}

static bool get(const json_t *o, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= 0;
}

static bool read_cursors(const json_t *list, mx_mixture_position *docs)
{
    if (!json_is_array(list) || (int)json_array_size(list) != docs->n)
        return false;
    for (int k = 0; k < docs->n; k++) {
        const json_t *c = json_array_get(list, (size_t)k);
        int64_t v[4];
        for (size_t i = 0; i < 4; i++) {
            v[i] = json_integer_value(json_array_get(c, i));
            if (!json_is_integer(json_array_get(c, i)) || v[i] < 0)
                return false;
        }
        docs->cursors[k] = (mx_cursor){v[0], v[1], v[2], v[3]};
    }
    return true;
}

mx_status mx_loader_seek(mx_loader *l, const char *text, size_t n)
{
    json_error_t err;
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    mx_loader_at at = {.docs = {.n = l->mixture.n}};
    at.docs.cursors = MX_NEW_N(&l->arena, mx_cursor, l->mixture.n);
    int64_t version = 0;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->hash);
    const char *data = json_string_value(json_object_get(o, "data"));
    mx_status st = MX_OK;
    if (!o || !get(o, "version", &version) || version != 1)
        st = mx_fail(MX_INPUT, "the saved data position is not valid: %s",
                     o ? "unknown version" : err.text);
    else if (!data || strcmp(data, hash) != 0)
        st = mx_fail(
            MX_INPUT,
            "the saved data position (%s) belongs to other data or settings than these (%s): "
            "files, order, seed, tokenizer, max_target_length and packing must be as they were; "
            "go back to them, or start the data from its beginning",
            data ? data : "none", hash);
    else if (!get(o, "step", &at.step) || !get(o, "window", &at.window) ||
             !get(o, "row", &at.row) || !get(o, "skip", &at.skip) || !get(o, "t", &at.docs.t) ||
             !read_cursors(json_object_get(o, "cursors"), &at.docs))
        st = mx_fail(MX_INPUT, "the saved data position is damaged: %.*s", (int)(n < 400 ? n : 400),
                     text);
    json_decref(o);
    return st ? st : mx_loader_restart(l, &at);
}
