/* teacher_file.c - see teacher_file.h: reading. */
#include "post/teacher_file.h"

#include "base/json_doc.h"
#include <string.h>

static mx_status read_facts(mx_teacher_file *f, const char *path)
{
    json_t *j;
    MX_TRY(mx_status_wrap(mx_json_load(path, NULL, &j), "expected a folder that `maxc distill "
                          "write_teacher=DIR` has written, to its end"));
    const struct {
        const char *name;
        int64_t *to;
    } all[] = {{"length", &f->seq}, {"top_k", &f->top_k}, {"vocab", &f->vocab}, {"rows", &f->rows},
               {"rows_per_file", &f->rows_per_file}};
    mx_status st = MX_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].to = json_integer_value(json_object_get(j, all[i].name));
        if (*all[i].to < 1 || *all[i].to > INT32_MAX)
            st = st ? st
                    : mx_fail(MX_INPUT, "%s: \"%s\" is not a positive number", path, all[i].name);
    }
    json_decref(j);
    return st;
}

mx_status mx_teacher_file_open(mx_teacher_file *f, const char *dir)
{
    f->at = -1;
    f->dir = mx_arena_strdup(&f->arena, dir);
    return read_facts(f, mx_arena_printf(&f->arena, "%s/teacher.json", dir));
}

void mx_teacher_file_close(mx_teacher_file *f)
{
    mx_st_close(&f->file);
    mx_arena_fini(&f->arena);
    *f = (mx_teacher_file){0};
}

static mx_status enter(mx_teacher_file *f, int64_t number)
{
    char path[4096];
    if (f->at == number)
        return MX_OK;
    mx_st_close(&f->file);
    f->file = (mx_st_file){0};
    f->at = -1;
    snprintf(path, sizeof path, "%s/rows-%05lld.safetensors", f->dir, (long long)number);
    MX_TRY(mx_st_open(&f->file, path));
    f->at = number;
    return MX_OK;
}

/* Row `row` of a tensor (R, S) or (R, S, K) of n numbers a row. */
static mx_status take(const mx_teacher_file *f, const char *name, int64_t row, int64_t n, void *to)
{
    const mx_st_tensor *t = mx_st_find(&f->file, name);
    bool ids = strcmp(name, "logits") != 0;
    mx_st_dtype want = mx_st_dtype_of(ids ? MX_I32 : MX_F32);
    if (!t || t->dtype != want || (row + 1) * n > t->n)
        return mx_fail(MX_INPUT, "%s: expected \"%s\", %s, with %lld numbers of row %lld",
                       f->file.path, name, ids ? "int32" : "float32", (long long)n,
                       (long long)row);
    return mx_st_read(t, row * n, n, want, to, NULL);
}

mx_status mx_teacher_file_read(mx_teacher_file *f, int64_t row, mx_batch *b, int64_t to,
                               float *logits, int32_t *ids)
{
    int64_t S = f->seq, at = to * S, k = row % f->rows_per_file;
    MX_TRY(enter(f, row / f->rows_per_file));
    MX_TRY(take(f, "tokens", k, S, b->tokens + at));
    MX_TRY(take(f, "labels", k, S, b->labels + at));
    MX_TRY(take(f, "segments", k, S, b->segments + at));
    MX_TRY(take(f, "positions", k, S, b->positions + at));
    MX_TRY(take(f, "ids", k, S * f->top_k, ids));
    MX_TRY(take(f, "logits", k, S * f->top_k, logits));
    for (int64_t i = at; i < at + S; i++) {
        if (b->tokens[i] < 0 || b->tokens[i] >= f->vocab || b->labels[i] >= f->vocab)
            return mx_fail(MX_INPUT, "%s: row %lld has a token outside the vocabulary of %lld",
                           f->file.path, (long long)k, (long long)f->vocab);
        b->n_tokens += b->segments[i] > 0;
        b->n_trained += b->labels[i] >= 0;
    }
    return MX_OK;
}
