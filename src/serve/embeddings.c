/* embeddings.c - /v1/embeddings: a vector for each text.
 *
 * It is the last layer's hidden state of the last token, normalized to length 1. As numbers or, as
 * OpenAI's clients ask for it, the bytes of float32 in base64.
 */
#include "text/base64.h"
#include "base/json_doc.h"
#include "serve/api_call.h"

#include <math.h>
#include <string.h>

static void read(mx_api_call *c, mx_fields *f)
{
    const char *format = mx_field_text(f, "encoding_format", "float");
    int64_t width = c->served->width;
    c->base64 = strcmp(format, "base64") == 0;
    if (!c->base64 && strcmp(format, "float") != 0)
        mx_field_wrong(f, "encoding_format", "is `%s`, but must be float or base64", format);
    if (mx_field_int(f, "dimensions", width, 1, INT32_MAX) != width)
        mx_field_wrong(f, "dimensions", "must be %lld, which the model has", (long long)width);
    if (c->stream || c->n != 1)
        mx_field_wrong(f, c->stream ? "stream" : "n", "does not go with embeddings");
    c->o.max_new = 0;
    c->o.embedding = true;
    mx_prompts_read(c, f, "input");
}

static json_t *whole(const mx_part *p)
{
    int64_t n = p->call->served->width;
    float *x = p->r->embedding;
    double squares = 0;
    json_t *value;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i];
    double scale = squares > 0 ? 1 / sqrt(squares) : 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(x[i] * scale);
    if (p->call->base64) {
        mx_str text = {0};
        mx_base64_add(&text, x, sizeof *x * (size_t)n);
        value = json_string(mx_str_text(&text));
        mx_str_fini(&text);
    } else {
        value = json_array();
        for (int64_t i = 0; i < n; i++)
            json_array_append_new(value, isfinite(x[i]) ? json_real(x[i]) : json_null());
    }
    return json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", p->index, "embedding",
                     value);
}

static void document(const mx_api_call *c, mx_str *out)
{
    json_int_t n = (json_int_t)c->prompt_tokens;
    mx_json_add(out, json_pack("{s:s, s:O, s:s, s:{s:I, s:I}}", "object", "list", "data",
                               c->choices, "model", c->model, "usage", "prompt_tokens", n,
                               "total_tokens", n));
}

const mx_api mx_api_embeddings = {.path = "/v1/embeddings",
                                  .id_prefix = "embd-",
                                  .read = read,
                                  .whole = whole,
                                  .document = document};
