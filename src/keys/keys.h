/* keys.h - the schema of maxc's configuration: every key, its type, limits, default and help.
 *
 * Where MaxText has a key for the same thing, the name is MaxText's. The tables are keys_AREA.c,
 * found by tools/scan. To add a key, add one row to the table of its area and run `make base-yml`;
 * a row that is neither planned nor foreign names the verbs that read it and an example, and tests
 * hold it to both (tests/train/keys_effect_test.c). A new area is a new file. Help and base.yml
 * follow from the rows.
 */
#ifndef MX_KEYS_KEYS_H
#define MX_KEYS_KEYS_H

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

/* Verbs that read a key, for the `verbs` column. */
#define MX_BY_TRAIN "train"
#define MX_BY_STEP "train plan bench" /* what builds a model and its step */
#define MX_BY_DATA "train data"
#define MX_BY_TEXT "train data plan tokenize detokenize generate serve chat eval quantize"
#define MX_BY_GENERATE "generate"
#define MX_BY_WRITERS "generate chat"

/* What keys that place a tensor of remat_policy=custom accept. */
#define MX_PLACES "remat|device|offload"

extern const mx_schema mx_keys;
/* Scanned out of the sources; ends with NULL. mx_keys is made of them. */
extern const mx_key *const mx_key_tables[];

#endif
