/* keys.h - the schema of maxc's configuration: every key, its type, limits, default and help.
 *
 * Where MaxText has a key for the same thing, the name is MaxText's. Keys are grouped in sections;
 * a verb says which sections it takes. To add a key, add one line to the table of its section and
 * one to configs/base.yml (a test compares them).
 */
#ifndef MX_TRAIN_KEYS_H
#define MX_TRAIN_KEYS_H

#include "base/config.h"

typedef enum {
    MX_SECTION_RUN,
    MX_SECTION_MODEL,
    MX_SECTION_VISION,
    MX_SECTION_AUDIO,
    MX_SECTION_PRECISION,
    MX_SECTION_TRAIN,
    MX_SECTION_OPTIMIZER,
    MX_SECTION_SCHEDULE,
    MX_SECTION_DATA,
    MX_SECTION_TOKENIZER,
    MX_SECTION_EVAL,
    MX_SECTION_CHECKPOINT,
    MX_SECTION_MEMORY,
    MX_SECTION_PARALLEL,
    MX_SECTION_DEVICE,
    MX_SECTION_METRICS,
    MX_SECTION_PROFILE,
    MX_SECTION_DECODE,
    MX_SECTION_SERVE,
    MX_SECTION_LORA,
    MX_SECTION_POST,
    MX_SECTION_COUNT
} mx_section;

#define MX_TAKES(name) (1u << MX_SECTION_##name)
/* What everything that builds a model takes. */
#define MX_TAKES_MODEL                                                                             \
    (MX_TAKES(RUN) | MX_TAKES(MODEL) | MX_TAKES(VISION) | MX_TAKES(AUDIO) | MX_TAKES(PRECISION) |  \
     MX_TAKES(DEVICE) | MX_TAKES(PARALLEL))
/* What train and its relatives take: all but decoding and serving. */
#define MX_TAKES_TRAIN                                                                             \
    (MX_TAKES_MODEL | MX_TAKES(TRAIN) | MX_TAKES(OPTIMIZER) | MX_TAKES(SCHEDULE) |                 \
     MX_TAKES(DATA) | MX_TAKES(TOKENIZER) | MX_TAKES(EVAL) | MX_TAKES(CHECKPOINT) |                \
     MX_TAKES(MEMORY) | MX_TAKES(METRICS) | MX_TAKES(PROFILE) | MX_TAKES(LORA))
#define MX_TAKES_ALL ((1u << MX_SECTION_COUNT) - 1)

extern const mx_schema mx_keys;
/* The tables mx_keys is made of. */
extern const mx_key mx_keys_run[], mx_keys_model[], mx_keys_train[], mx_keys_data[],
    mx_keys_infer[], mx_keys_goal[];

#endif
