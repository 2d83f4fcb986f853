/* distill_recorded.c - distillation from what a teacher has said before (teacher_file.h).
 *
 * Rows come in the file's order, or, with enable_data_shuffling, in a permutation of it that is
 * another one in every epoch. The place in the data is the number of rows that were given.
 */
#include "data/load/order.h"
#include "device/device.h"
#include "post/distill.h"
#include "post/teacher_file.h"
#include <jansson.h>

typedef struct {
    const mx_distill *s;
    mx_teacher_file file;
    mx_batch batch;
    float *logits;
    int32_t *ids;
    int64_t given, epochs; /* epochs 0: any number */
    uint64_t seed;
    bool shuffle;
} recorded_run;

static mx_status open(mx_objective_run *o)
{
    recorded_run *r = mx_realloc(NULL, sizeof *r);
    int64_t epochs = mx_config_int(o->config, "num_epoch");
    *r = (recorded_run){.s = o->settings, .epochs = epochs < 0 ? 0 : epochs,
                        .seed = (uint64_t)mx_config_int(o->config, "data_shuffle_seed"),
                        .shuffle = mx_config_bool(o->config, "enable_data_shuffling")};
    o->state = r;
    MX_TRY(mx_teacher_file_open(&r->file, r->s->recorded));
    if (r->file.vocab > o->model->summary.vocab)
        return mx_fail(MX_INPUT, "%s is of a vocabulary of %lld tokens, the student has %lld",
                       r->s->recorded, (long long)r->file.vocab,
                       (long long)o->model->summary.vocab);
    int64_t rows = o->microbatch * o->accumulation;
    size_t n = (size_t)(rows * r->file.seq * r->file.top_k);
    MX_TRY(mx_batch_room(&r->batch, rows, r->file.seq));
    MX_TRY(mx_alloc((void **)&r->logits, sizeof(float) * n, "logits of the teacher"));
    MX_TRY(mx_alloc((void **)&r->ids, sizeof(int32_t) * n, "logits of the teacher"));
    if (!o->position)
        return MX_OK;
    json_t *j = json_loadb(o->position, o->n_position, 0, NULL), *at = json_object_get(j, "row");
    r->given = json_integer_value(at);
    bool fits = json_is_integer(at) && r->given >= 0;
    json_decref(j);
    return fits ? MX_OK : mx_fail(MX_INPUT, "the checkpoint's place in the data is of other data");
}

static void close(mx_objective_run *o)
{
    recorded_run *r = o->state;
    if (!r)
        return;
    mx_teacher_file_close(&r->file);
    mx_free(r->batch.tokens);
    mx_free(r->logits);
    mx_free(r->ids);
    mx_free(r);
    o->state = NULL;
}

static mx_status next(mx_objective_run *o, const mx_batch **b)
{
    recorded_run *r = o->state;
    int64_t n = r->batch.rows, N = r->file.rows, each = r->file.seq * r->file.top_k;
    r->batch.n_tokens = r->batch.n_trained = 0;
    r->batch.step = o->step;
    *b = NULL;
    if (r->epochs && r->given + n * o->n_ranks > r->epochs * N)
        return MX_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = r->given + o->rank * n + i, epoch = at / N, row = at % N;
        if (r->shuffle)
            row = mx_permute(N, r->seed + (uint64_t)epoch, row);
        MX_TRY(mx_teacher_file_read(&r->file, row, &r->batch, i, r->logits + i * each,
                                    r->ids + i * each));
    }
    r->given += n * o->n_ranks;
    *b = &r->batch;
    return MX_OK;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    recorded_run *r = o->state;
    int64_t at = row * r->file.seq * r->file.top_k;
    (void)b;
    MX_TRY(mx_exec_write_rows(e, "teacher_logits", r->logits + at));
    MX_TRY(mx_exec_write_rows(e, "teacher_ids", r->ids + at));
    return mx_distill_feed_weights(r->s, o->step, e);
}

static int64_t rows_each(const void *settings)
{
    (void)settings;
    return 1;
}

static void position(const mx_objective_run *o, mx_str *json)
{
    mx_str_addf(json, "{\"row\": %lld}", (long long)((const recorded_run *)o->state)->given);
}

const mx_objective mx_objective_distill_recorded = {
    .name = "distill_recorded",
    .doc = "the same from logits that `maxc distill write_teacher=DIR` has kept",
    .verb = "distill",
    .key = "offline_data_dir=DIR",
    .data = "those of that folder",
    .place = 9,
    .rows = MX_ROWS_SAMPLED,
    .rows_each = rows_each,
    .read = mx_distill_read,
    .loss = mx_distill_build,
    .open = open,
    .close = close,
    .next = next,
    .feed = feed,
    .position = position,
};
