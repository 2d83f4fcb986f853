/* batch_plan.h - the arithmetic of batches, in one place.
 *
 *     sequences of one microbatch   = devices that hold different data x per_device_batch_size
 *     sequences of one update       = that x gradient_accumulation_steps
 *     tokens of one update          = that x max_target_length
 *
 * per_device_batch_size counts all devices, also those that share a sequence (tensor, context,
 * stage axes); it may be a fraction then. What must be whole is the number of sequences of a
 * microbatch, and its share of every data rank.
 */
#ifndef MX_EXEC_BATCH_PLAN_H
#define MX_EXEC_BATCH_PLAN_H

#include "base/config.h"

typedef struct {
    int64_t devices, data_ranks;  /* of the run; those that see different sequences */
    int64_t accumulation, length; /* microbatches per update; tokens per sequence */
    int64_t microbatch;           /* sequences of a microbatch on one data rank */
    int64_t global_microbatch;    /* over all data ranks */
    int64_t global_sequences;     /* of an update */
    int64_t global_tokens;        /* of an update, padding included */
} mx_batch_plan;

/* From per_device_batch_size, gradient_accumulation_steps and max_target_length. */
mx_status mx_batch_plan_make(mx_batch_plan *b, const mx_config *cfg, int64_t devices,
                        int64_t data_ranks) MX_MUST_USE;
/* One line: "32,768 tokens per step = 1 data rank x 8 sequences x 2 microbatches x 2,048 tokens".
 */
void mx_batch_plan_print(const mx_batch_plan *b, mx_str *out);

#endif
