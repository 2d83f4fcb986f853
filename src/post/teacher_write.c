/* teacher_write.c - maxc distill write_teacher=DIR: the teacher over the data, its largest logits
 * into a folder (teacher_file.h). */
#include "base/io.h"
#include "exec/mesh_config.h"
#include "exec/model_ref.h"
#include "exec/step_config.h"
#include "post/distill.h"
#include "post/teacher.h"
#include "post/teacher_file.h"
#include "store/st_write.h"
#include "train/run/schedule.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROWS_PER_FILE = 256 };

extern const mx_objective mx_objective_distill;

typedef struct {
    const mx_config *c;
    const char *dir, *student; /* student: a folder, or NULL */
    mx_arena arena;
    mx_model_spec model; /* the student's: what data and programs are made for */
    mx_train_data data;
    mx_teacher *teacher;
    int64_t top_k, vocab, rows, files;
    mx_batch kept; /* rows of the file that is being made */
    float *logits;
    int32_t *ids;
} writer;

static mx_status open_student(writer *w)
{
    const char *from = mx_config_text(w->c, "load_parameters_path");
    from = *from ? from : mx_config_text(w->c, "teacher_path");
    MX_TRY(mx_model_place(from, MX_FETCH_CONFIG, w->c, &w->arena, &w->student));
    return mx_model_open(&w->model, w->c, w->student);
}

static mx_status open_all(writer *w, int64_t rows)
{
    const void *settings;
    mx_step_options *o = MX_NEW(&w->arena, mx_step_options);
    MX_TRY(mx_mesh_refuse(w->c, "write_teacher asks the teacher on"));
    MX_TRY(mx_distill_read(w->c, &w->arena, &settings));
    MX_TRY(open_student(w));
    MX_TRY(mx_step_configure(o, w->c, &w->model, MX_STEP_LOSS, rows, &w->arena));
    mx_train_data_request q = {.config = w->c, .model_dir = w->student, .rows = rows,
                               .vocab = w->model.summary.vocab, .model = &w->model};
    mx_objective_request(&mx_objective_distill, w->c, &q);
    MX_TRY(mx_train_data_open(&w->data, &q));
    w->top_k = ((const mx_distill *)settings)->top_k;
    mx_teacher_request t = {.config = w->c, .path = mx_config_text(w->c, "teacher_path"),
                            .options = o, .rows = rows, .parts = 1,
                            .tokenizer = w->data.tokenizer, .vocab = q.vocab,
                            .threads = (int)mx_config_int(w->c, "num_threads"),
                            .top_k = w->top_k};
    MX_TRY(mx_teacher_open(&w->teacher, &t));
    w->vocab = mx_teacher_width(w->teacher);
    size_t n = (size_t)(ROWS_PER_FILE * o->shape.seq * w->top_k);
    MX_TRY(mx_alloc((void **)&w->logits, sizeof(float) * n, "logits to write"));
    MX_TRY(mx_alloc((void **)&w->ids, sizeof(int32_t) * n, "logits to write"));
    MX_TRY(mx_batch_room(&w->kept, ROWS_PER_FILE, o->shape.seq));
    w->kept.rows = 0;
    return MX_OK;
}

static mx_status write_file(writer *w)
{
    int64_t R = w->kept.rows, S = w->kept.seq_len, K = w->top_k;
    mx_st_dtype i32 = mx_st_dtype_of(MX_I32);
    const mx_st_source all[] = {
        {.name = "tokens", .dtype = i32, .ndim = 2, .dim = {R, S}, .data = w->kept.tokens},
        {.name = "labels", .dtype = i32, .ndim = 2, .dim = {R, S}, .data = w->kept.labels},
        {.name = "segments", .dtype = i32, .ndim = 2, .dim = {R, S}, .data = w->kept.segments},
        {.name = "positions", .dtype = i32, .ndim = 2, .dim = {R, S}, .data = w->kept.positions},
        {.name = "ids", .dtype = i32, .ndim = 3, .dim = {R, S, K}, .data = w->ids},
        {.name = "logits", .dtype = mx_st_dtype_of(MX_F32), .ndim = 3, .dim = {R, S, K},
         .data = w->logits}};
    enum { N = sizeof all / sizeof *all };
    const mx_st_source *list[N];
    for (int i = 0; i < N; i++)
        list[i] = &all[i];
    char path[4096];
    mx_st_written done;
    snprintf(path, sizeof path, "%s/rows-%05lld.safetensors", w->dir, (long long)w->files);
    if (!R)
        return MX_OK;
    MX_TRY(mx_st_write(path, list, N, &(mx_st_writer){0}, NULL, &done));
    w->rows += R;
    w->files++;
    w->kept.rows = 0;
    return MX_OK;
}

/* Rows with something to train on. */
static mx_status keep_rows(writer *w, const mx_batch *b, const mx_taught *t)
{
    int64_t S = b->seq_len, K = w->top_k;
    for (int64_t r = 0; r < b->rows; r++) {
        bool any = false;
        for (int64_t i = 0; i < S; i++)
            any |= b->labels[r * S + i] >= 0;
        if (!any)
            continue;
        int64_t to = w->kept.rows++ * S, from = r * S;
        size_t row = sizeof(int32_t) * (size_t)S;
        memcpy(w->kept.tokens + to, b->tokens + from, row);
        memcpy(w->kept.labels + to, b->labels + from, row);
        memcpy(w->kept.segments + to, b->segments + from, row);
        memcpy(w->kept.positions + to, b->positions + from, row);
        memcpy(w->ids + to * K, t->ids + from * K, row * (size_t)K);
        memcpy(w->logits + to * K, t->logits + from * K, row * (size_t)K);
        if (w->kept.rows == ROWS_PER_FILE)
            MX_TRY(write_file(w));
    }
    return MX_OK;
}

static mx_status write_facts(const writer *w)
{
    char text[400], path[4096];
    snprintf(path, sizeof path, "%s/teacher.json", w->dir);
    int n = snprintf(text, sizeof text,
                     "{\"format\": \"maxc teacher 1\", \"length\": %lld, \"top_k\": %lld, "
                     "\"vocab\": %lld, \"rows\": %lld, \"rows_per_file\": %d}\n",
                     (long long)w->kept.seq_len, (long long)w->top_k, (long long)w->vocab,
                     (long long)w->rows, ROWS_PER_FILE);
    MX_TRY(mx_io_write_file(NULL, path, text, (size_t)n));
    return mx_io_sync_dir(NULL, w->dir);
}

static mx_status write_all(writer *w)
{
    int64_t rows = (int64_t)mx_config_float(w->c, "per_device_batch_size");
    int64_t steps = mx_schedule_run_steps(w->c);
    rows = rows < 1 ? 1 : rows;
    if (mx_config_int(w->c, "distill_top_k") < 1)
        return mx_fail(MX_USAGE, "%s: write_teacher keeps the largest logits of each token; set "
                       "distill_top_k=64", mx_config_where(w->c, "distill_top_k"));
    if (access(w->dir, F_OK) == 0)
        return mx_fail(MX_USAGE,
                       "write_teacher=%s is there already; give one that does not exist yet",
                       w->dir);
    MX_TRY(open_all(w, rows));
    MX_TRY(mx_io_make_dir(NULL, w->dir));
    for (int64_t i = 0; i < steps; i++) {
        const mx_batch *b;
        mx_taught t;
        MX_TRY(mx_loader_next(w->data.loader, &b));
        if (!b)
            break;
        MX_TRY(mx_teacher_run(w->teacher, b, 0, b->rows, &t));
        MX_TRY(keep_rows(w, b, &t));
    }
    MX_TRY(write_file(w));
    if (!w->rows)
        return mx_fail(MX_INPUT, "the data has no row with something to train on");
    MX_TRY(write_facts(w));
    printf("%s: %lld rows of %lld tokens, the %lld likeliest tokens of each\n", w->dir,
           (long long)w->rows, (long long)w->kept.seq_len, (long long)w->top_k);
    return MX_OK;
}

mx_status mx_teacher_write(const mx_config *c)
{
    writer w = {.c = c, .dir = mx_config_text(c, "write_teacher")};
    mx_status st = write_all(&w);
    mx_teacher_close(w.teacher);
    mx_train_data_close(&w.data);
    mx_model_spec_fini(&w.model);
    mx_free(w.kept.tokens);
    mx_free(w.logits);
    mx_free(w.ids);
    mx_arena_fini(&w.arena);
    return st;
}
