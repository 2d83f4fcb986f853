/* sample.c - see sample.h. */
#include "data/load/sample.h"

#include "base/clock.h"

typedef struct {
    mx_dataset *data;
    mx_cursor at;
    const mx_encoder *encoder;
    mx_packer *packer;
    uint64_t window;
    int64_t bytes;
    mx_record record;
    mx_document docs[2];
    mx_data_sample found;
} sampler;

static void close_window(sampler *s, bool last)
{
    mx_packer_close(s->packer, last);
    s->found.rows += mx_packer_rows(s->packer);
    mx_packer_next(s->packer, ++s->window);
}

static void add_documents(sampler *s, int n)
{
    for (int k = 0; k < n; k++) {
        s->found.tokens += s->docs[k].ids.n;
        mx_packer_add(s->packer, s->docs[k].ids.ids, s->docs[k].trained, s->docs[k].ids.n);
    }
    if (mx_packer_full(s->packer))
        close_window(s, false);
}

/* One record more; false when there is none. */
static bool look(sampler *s)
{
    bool end;
    int n = 0;
    mx_status st = mx_dataset_next(s->data, &s->at, &s->record, &end);
    bool read = !end && (!st || mx_status_code(st) == MX_INPUT);
    s->bytes += (int64_t)s->record.bytes.len;
    if (read && !st)
        st = mx_encode_record(s->encoder, &s->record, s->docs, &n);
    if (read && !st)
        add_documents(s, n);
    mx_status_free(st);
    s->found.looked_at += read;
    return read;
}

static void finish(sampler *s)
{
    mx_data_sample *f = &s->found;
    close_window(s, true);
    mx_pack_counts c = mx_packer_counts(s->packer);
    f->documents = c.documents;
    f->cut_documents = c.truncated;
    f->cut_tokens = c.truncated_tokens;
    f->exact = s->at.epoch > 0;
    f->records = f->exact ? (double)f->looked_at : mx_dataset_guess(s->data);
    mx_packer_free(s->packer);
    mx_record_fini(&s->record);
    for (int k = 0; k < 2; k++)
        mx_document_fini(&s->docs[k]);
}

mx_data_sample mx_data_sample_take(mx_dataset *d, const mx_encoder *e, const mx_pack_options *p,
                                   double seconds)
{
    sampler s = {.data = d, .encoder = e};
    if (mx_dataset_files(d) == 0) /* made up as it goes */
        return s.found;
    double began = mx_clock_now();
    s.packer = mx_packer_new(p);
    while (s.at.epoch == 0 && s.found.looked_at < MX_SAMPLE_RECORDS && s.bytes < MX_SAMPLE_BYTES &&
           mx_clock_now() - began < seconds && look(&s))
        continue;
    finish(&s);
    return s.found;
}
