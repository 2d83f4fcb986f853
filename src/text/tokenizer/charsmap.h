/* charsmap.h - SentencePiece's precompiled normalization map.
 *
 * Layout (little-endian): u32 size of the trie in bytes; the trie, a double array of u32 units;
 * then NUL-terminated replacement strings. A unit packs: bits 0-7 label, bit 8 has-leaf, bit 31
 * is-leaf (then bits 0-30 are the value, an offset into the strings), offset in bits 10-30 shifted
 * by 8 when bit 9 is set. Following byte c from unit x: y = x ^ offset(x) ^ c, valid when label(y)
 * = c. Every index is checked against the size, so a hostile map reads nothing outside it.
 */
#ifndef MX_TEXT_CHARSMAP_H
#define MX_TEXT_CHARSMAP_H

#include "base/str.h"
#include "base/status.h"

typedef struct {
    const uint8_t *trie; /* borrowed; n_units * 4 bytes, perhaps unaligned */
    size_t n_units;
    const char *strings; /* borrowed */
    size_t n_strings;
} mx_charsmap;

/* The bytes must outlive the map. `where` names the file in errors. */
mx_status mx_charsmap_init(mx_charsmap *m, const uint8_t *blob, size_t n,
                           const char *where) MX_MUST_USE;
/* Length of the longest prefix of p[0..n) that has a replacement (0 when none), and the
 * replacement. */
size_t mx_charsmap_longest(const mx_charsmap *m, const uint8_t *p, size_t n, const char **to);
/* Whole text, as the tokenizers library applies it: short grapheme clusters whole, then characters.
 */
void mx_charsmap_run_graphemes(const mx_charsmap *m, const uint8_t *p, size_t n, mx_str *out);

#endif
