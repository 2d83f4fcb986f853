/* synthetic.c - data from nothing: `synthetic` random token ids (for timing a step), and `story`,
 * the built-in corpus (for a demonstration that learns). Record i is a pure function of (seed, i).
 */
#include "data/load/random.h"
#include "data/formats/source.h"
#include "data/formats/story.h"

static mx_status synthetic_open(mx_source *s)
{
    s->n_records = s->options.n_synthetic ? s->options.n_synthetic : (int64_t)1 << 40;
    return MX_OK;
}

static mx_status tokens_read(mx_source *s, int64_t i, mx_record *r)
{
    int64_t n = s->options.record_tokens + 1; /* so that record_tokens of them have a label */
    int64_t vocab = s->options.vocab_size ? s->options.vocab_size : 256;
    mx_draws d = {mx_mix_key(s->options.seed, (uint64_t)i), 0};
    int32_t *ids = (int32_t *)mx_record_reserve(r, "ids", 3, MX_CELL_IDS, (size_t)n * 4);
    for (int64_t k = 0; k < n; k++)
        ids[k] = (int32_t)mx_draw_below(&d, (uint64_t)vocab);
    mx_record_commit(r, (size_t)n * 4);
    return MX_OK;
}

static mx_status story_read(mx_source *s, int64_t i, mx_record *r)
{
    mx_record_reserve(r, "text", 4, MX_CELL_TEXT, 0);
    size_t at = r->bytes.len; /* written in place: the record's memory is kept */
    mx_story_write(&r->bytes, s->options.seed, (uint64_t)i);
    mx_record_commit(r, r->bytes.len - at);
    return MX_OK;
}

static void nothing_to_close(mx_source *s)
{
    (void)s;
}

const mx_source_kind mx_source_kind_synthetic = {
    .name = "synthetic", .doc = "random token ids", .suffixes = "", .no_file = true,
    .open = synthetic_open, .read = tokens_read, .close = nothing_to_close,
};

const mx_source_kind mx_source_kind_story = {
    .name = "story",
    .doc = "the built-in corpus: stories and sums",
    .suffixes = "",
    .no_file = true,
    .open = synthetic_open,
    .read = story_read,
    .close = nothing_to_close,
};
