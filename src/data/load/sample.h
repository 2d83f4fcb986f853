/* sample.h - how large the data is, from a little of it.
 *
 * Some records of each dataset, the first ones of its order, are tokenized and packed as a loader
 * would: what they give, times the number of records, is what an epoch gives. A dataset that was
 * read to its end is known exactly. Compressed streams do not know their number of records; it
 * follows from the share of their bytes that was read.
 */
#ifndef MX_DATA_SAMPLE_H
#define MX_DATA_SAMPLE_H

#include "data/load/dataset.h"
#include "data/load/encode.h"
#include "data/load/pack.h"

typedef struct {
    double records; /* of an epoch; 0: without end (made up), or nothing could be read */
    bool exact;     /* all of them were looked at */
    /* records that were; their documents and tokens, those cut off included; rows they fill */
    int64_t looked_at, documents, tokens, rows;
    int64_t cut_documents, cut_tokens;
} mx_data_sample;

enum { MX_SAMPLE_RECORDS = 2000, MX_SAMPLE_BYTES = 8 << 20 };

/* At most MX_SAMPLE_RECORDS, MX_SAMPLE_BYTES and `seconds`. Records that cannot be read are left
 * out; training on them reports them. */
mx_data_sample mx_data_sample_take(mx_dataset *d, const mx_encoder *e, const mx_pack_options *p,
                                   double seconds);

#endif
