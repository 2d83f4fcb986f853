/* data_size.h - the size of the training data in steps, said before the first one.
 *
 * A mixture takes records of its datasets in the proportion of their weights, so with n rows to a
 * record on average a step takes batch / n records, and an epoch of dataset k has ended after
 * records_k / (its share of them) steps.
 */
#ifndef MX_TRAIN_DATA_SIZE_H
#define MX_TRAIN_DATA_SIZE_H

#include "base/str.h"
#include "data/load/sample.h"

typedef struct {
    const mx_data_sample *samples; /* (n) */
    const double *weights;         /* (n), of records; any sum */
    int n;
    int64_t rows;   /* of a step */
    int64_t length; /* tokens of a row */
    int64_t steps, epochs; /* of the run; epochs 0: without end */
} mx_data_size_request;

/* Lines about epochs, about what is cut off and about much padding; nothing where there is nothing
 * to say. */
void mx_data_size_print(const mx_data_size_request *q, mx_str *out);

#endif
