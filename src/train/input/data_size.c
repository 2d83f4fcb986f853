/* data_size.c - see data_size.h. */
#include "train/input/data_size.h"

#include <math.h>
#include <string.h>

/* Steps after which dataset k has been seen once; 0: not known. */
static double epoch_steps(const mx_data_size_request *q, int k)
{
    double all = 0, rows = 0; /* rows: of an average record of the mixture */
    for (int i = 0; i < q->n; i++)
        all += q->weights[i];
    for (int i = 0; i < q->n; i++)
        if (q->samples[i].looked_at)
            rows += q->weights[i] / all * (double)q->samples[i].rows /
                    (double)q->samples[i].looked_at;
    double records = rows > 0 ? (double)q->rows / rows * q->weights[k] / all : 0; /* a step's */
    return records > 0 ? q->samples[k].records / records : 0;
}

/* "30.0 k", "300". */
static const char *number(char *buf, size_t cap, double v)
{
    mx_format_count(buf, cap, v);
    size_t n = strlen(buf);
    while (n && buf[n - 1] == ' ')
        buf[--n] = 0;
    return buf;
}

static void print_epoch(const mx_data_size_request *q, int k, mx_str *out)
{
    const mx_data_sample *s = &q->samples[k];
    const char *about = s->exact && q->n == 1 ? "" : "about ";
    char records[32], tokens[32];
    double steps = epoch_steps(q, k), each = (double)s->tokens / (double)s->looked_at;
    double last = steps * (double)q->epochs;
    mx_str_add(out, "data: ");
    if (q->n > 1)
        mx_str_addf(out, "dataset %d: ", k + 1);
    mx_str_addf(out, "%s%s records, %s%s tokens; one epoch is %s%.0f step%s; steps=%lld",
                about, number(records, sizeof records, s->records), about,
                number(tokens, sizeof tokens, s->records * each), about, ceil(steps),
                ceil(steps) == 1 ? "" : "s", (long long)q->steps);
    if (q->epochs && last < (double)q->steps)
        mx_str_addf(out, ", but the data ends after %s%.0f (num_epoch=%lld)", about, ceil(last),
                    (long long)q->epochs);
    else if (steps < (double)q->steps)
        mx_str_addf(out, " are %s%.3g epochs", about, (double)q->steps / steps);
    mx_str_add(out, "\n");
}

static void print_cut(const mx_data_size_request *q, mx_str *out)
{
    double documents = 0, cut = 0, tokens = 0, lost = 0;
    bool exact = true;
    for (int k = 0; k < q->n; k++) {
        const mx_data_sample *s = &q->samples[k];
        double weight = s->looked_at ? s->records / (double)s->looked_at : 0;
        documents += weight * (double)s->documents;
        cut += weight * (double)s->cut_documents;
        tokens += weight * (double)s->tokens;
        lost += weight * (double)s->cut_tokens;
        exact = exact && s->exact;
    }
    if (cut > 0)
        mx_str_addf(out,
                    "data: %s%.3g%% of the tokens are cut off: %.3g%% of the documents are longer "
                    "than max_target_length=%lld (use_truncation=false trains on all of them)\n",
                    exact ? "" : "about ", 100 * lost / tokens, 100 * cut / documents,
                    (long long)q->length);
}

/* Records that have a row each, of which they fill less than a tenth. */
static void print_padding(const mx_data_size_request *q, mx_str *out)
{
    double rows = 0, tokens = 0;
    for (int k = 0; k < q->n; k++) {
        const mx_data_sample *s = &q->samples[k];
        double weight = s->looked_at ? s->records / (double)s->looked_at : 0;
        if (s->rows < s->documents)
            return;
        rows += weight * (double)s->rows;
        tokens += weight * (double)(s->tokens - s->cut_tokens);
    }
    double full = rows > 0 ? tokens / (rows * (double)q->length) : 1;
    if (full < 0.1)
        mx_str_addf(out,
                    "data: rows are %.2g%% full, the rest is padding: a max_target_length of less "
                    "than %lld, or packing=true where documents may share a row, saves its time\n",
                    100 * full, (long long)q->length);
}

void mx_data_size_print(const mx_data_size_request *q, mx_str *out)
{
    for (int k = 0; k < q->n; k++)
        if (q->samples[k].records > 0 && q->samples[k].rows > 0)
            print_epoch(q, k, out);
    print_cut(q, out);
    print_padding(q, out);
}
