/* pack.h - documents into rows of a fixed length, with segments, positions and labels.
 *
 * Legend: S is seq_len, a row has S places. A document is its token ids and, for each token,
 * whether it is to be predicted (trained). In a row,
 *     tokens[i]     the token at place i; pad_id where there is none
 *     segments[i]   1, 2, ... for the documents of the row; 0 at padding
 *     positions[i]  0, 1, ... from the start of the document's part
 *     labels[i]     the token that place i must predict: the next one of the same document when
 *                   that is trained, otherwise MX_NO_LABEL. Already shifted; never shift again.
 * So the last token of a document never predicts the first of the next, and attention limited to
 * equal segments gives each document the loss it would have alone.
 *
 * Packing goes by windows: documents are added until they fill about window_rows rows, then the
 * window is closed, its rows are taken, and the next begins. What a window holds depends on its
 * documents only, so a position in the data is the window's first document and a row number.
 *   none       one document a row
 *   first_fit  in the order of arrival, each into the first row with room
 *   best_fit   the longest first, each into the fullest row with room; rows then come shuffled
 *   bfd        the same, and rows come in the order in which they were begun (TRL's); a window ends
 *              with the epoch
 *   concat     end to end, cut every S tokens; what is left over begins the next window
 * A document longer than S is cut off (truncate) or cut into pieces; a piece that is followed by
 * another keeps the label of its last place, as the next token is known.
 */
#ifndef MX_DATA_PACK_H
#define MX_DATA_PACK_H

#include "base/arena.h"
#include <stdint.h>

enum { MX_NO_LABEL = -100 };

typedef enum {
    MX_PACK_NONE,
    MX_PACK_FIRST_FIT,
    MX_PACK_BEST_FIT,
    MX_PACK_BFD,
    MX_PACK_CONCAT
} mx_pack_kind;

typedef struct {
    mx_pack_kind kind;
    int64_t seq_len;
    int64_t max_segments; /* documents per row; 0: no limit */
    int64_t window_rows;  /* 0: about a million tokens, 16 to 1024 rows */
    bool truncate;        /* not with concat */
    bool exact;           /* cut to S tokens, of which S - 1 are predicted (TRL's), not to S + 1 */
    bool keep_end;        /* cut from the start; not where documents are packed */
    bool drop_long;       /* a pair with a side that is longer is left out, not cut */
    bool drop_untrained;  /* a document none of whose tokens would be trained is left out, unless
                             documents are packed (TRL's) */
    int32_t pad_id;
    uint64_t seed;        /* order of the rows of a best_fit window */
} mx_pack_options;

typedef struct {
    int64_t documents, empty, untrained, training, truncated, tokens, truncated_tokens,
        trained_tokens, rows, places;
} mx_pack_counts; /* places = rows * S; efficiency is tokens / places */

typedef struct mx_packer mx_packer;
mx_packer *mx_packer_new(const mx_pack_options *o);
void mx_packer_free(mx_packer *p);
/* Adds a document; its number in the window is the count of those added before. */
void mx_packer_add(mx_packer *p, const int32_t *ids, const uint8_t *trained, int64_t n);
/* A number that goes with the document that was added last. */
void mx_packer_note(mx_packer *p, float x);
/* That of row `row`; of rows of several documents 0. */
float mx_packer_noted(const mx_packer *p, int64_t row);
/* Is the row's first token one to train on? No label says so: labels are of what follows. */
bool mx_packer_trains_first(const mx_packer *p, int64_t row);
/* Would anything of such a document be predicted? */
bool mx_packer_trains(const mx_packer *p, const uint8_t *trained, int64_t n);
bool mx_packer_full(const mx_packer *p);
bool mx_packer_empty(const mx_packer *p); /* no tokens in the window yet */
/* Concat, on a window without documents: the first document's first `skip` tokens were in the last.
 */
void mx_packer_skip(mx_packer *p, int64_t skip);
/* No more documents: makes rows. `last`: a concat remainder becomes a padded row. */
void mx_packer_close(mx_packer *p, bool last);
bool mx_packer_closed(const mx_packer *p); /* a window may be closed and have no rows */
int64_t mx_packer_rows(const mx_packer *p);
/* Row `row` into four arrays of S; counted as given out once per call. */
void mx_packer_write(mx_packer *p, int64_t row, int32_t *tokens, int32_t *labels, int32_t *segments,
                     int32_t *positions);
/* Where the next window begins: document number in this window, and tokens of it already used. */
void mx_packer_end(const mx_packer *p, int64_t *document, int64_t *skip);
/* Begins the next window; the documents from mx_packer_end on stay, renumbered from 0. */
void mx_packer_next(mx_packer *p, uint64_t window);
mx_pack_counts mx_packer_counts(const mx_packer *p);

#endif
