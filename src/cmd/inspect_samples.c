/* inspect_samples.c - what a run's model answered, over time: RUN/samples.jsonl (post/tasks.h). */
#include "cmd/inspect_run.h"

#include "base/io.h"
#include <jansson.h>
#include <string.h>

enum { PROMPTS = 3, MOMENTS = 4, WIDTH = 60, MOST_BYTES = 1 << 26 };

/* The lines of the file that can be read. */
static json_t *read_samples(const char *file)
{
    json_t *all = json_array();
    char *text = NULL;
    size_t n = 0;
    mx_status_free(mx_io_read_file(NULL, file, MOST_BYTES, &text, &n)); /* most runs have none */
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t length = end ? (size_t)(end - text) - at : n - at;
        json_t *o = json_loadb(text + at, length, JSON_ALLOW_NUL, NULL);
        if (json_is_integer(json_object_get(o, "step")) && json_object_get(o, "prompt"))
            json_array_append(all, o);
        json_decref(o);
        at += length + 1;
    }
    mx_free(text);
    return all;
}

/* On one line and without what a terminal obeys, cut to the width. */
static void add_text(mx_str *out, const json_t *text)
{
    char *s = json_dumps(text, JSON_ENCODE_ANY);
    size_t n = s ? strlen(s) : 0, cut = n;
    if (n > WIDTH)
        for (cut = WIDTH; cut > 0 && ((unsigned char)s[cut] & 0xc0) == 0x80;)
            cut--;
    mx_str_add_n(out, s ? s : "", cut);
    mx_str_add(out, cut < n ? "..." : "");
    mx_free(s);
}

static bool is_new(const int64_t *x, int n, int64_t v)
{
    for (int i = 0; i < n; i++)
        if (x[i] == v)
            return false;
    return true;
}

/* The last sample of a prompt at a step: a run that went back has written some twice. */
static const json_t *find(const json_t *all, const json_t *prompt, int64_t step)
{
    const json_t *last = NULL, *o;
    size_t i;
    json_array_foreach(all, i, o)
        if (json_integer_value(json_object_get(o, "step")) == step &&
            json_equal(json_object_get(o, "prompt"), prompt))
            last = o;
    return last;
}

/* The first step, the last, and as many between. */
static int moments(const json_t *all, int64_t *out)
{
    int64_t *step = mx_realloc(NULL, sizeof *step * (json_array_size(all) + 1));
    int n = 0, k = 0;
    const json_t *o;
    size_t i;
    json_array_foreach(all, i, o) {
        int64_t s = json_integer_value(json_object_get(o, "step"));
        if (!n || s > step[n - 1])
            step[n++] = s;
    }
    for (int m = 0; m < MOMENTS && n; m++) {
        int64_t s = step[(int64_t)m * (n - 1) / (MOMENTS - 1)];
        if (is_new(out, k, s))
            out[k++] = s;
    }
    mx_free(step);
    return k;
}

void mx_inspect_samples(const char *path, mx_str *out)
{
    mx_arena arena = {0};
    json_t *all = read_samples(mx_arena_printf(&arena, "%s/samples.jsonl", path));
    const json_t *shown[PROMPTS], *o;
    int64_t step[MOMENTS];
    int n = 0, k = moments(all, step);
    size_t i;
    json_array_foreach(all, i, o) {
        const json_t *prompt = json_object_get(o, "prompt");
        bool known = n == PROMPTS;
        for (int p = 0; p < n && !known; p++)
            known = json_equal(shown[p], prompt);
        if (known)
            continue;
        shown[n++] = prompt;
        mx_str_add(out, n == 1 ? "\nanswers over time (samples.jsonl):\n  " : "  ");
        add_text(out, prompt);
        const json_t *want = json_object_get(o, "answer");
        if (want)
            mx_str_addf(out, "  (%.40s)", json_string_value(want));
        mx_str_add(out, "\n");
        for (int m = 0; m < k; m++) {
            const json_t *s = find(all, prompt, step[m]);
            if (!s)
                continue;
            const json_t *reward = json_object_get(s, "reward");
            mx_str_addf(out, "    step %6lld  reward %5.2f  ", (long long)step[m],
                        json_number_value(reward));
            add_text(out, json_object_get(s, "completion"));
            mx_str_add(out, "\n");
        }
    }
    json_decref(all);
    mx_arena_fini(&arena);
}
