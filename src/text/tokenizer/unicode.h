/* unicode.h - the properties of characters that tokenizer patterns ask for, and normal forms.
 *
 * mx_unicode is a two-stage table of one byte of class bits per character: page[cp >> 8] picks a
 * row of 256. It is built when a tokenizer is opened from utf8proc's categories plus the
 * characters assigned since utf8proc's Unicode version, so that lexers agree with the reference
 * libraries on them. Text given to mx_uc_at must be valid UTF-8.
 */
#ifndef MX_TEXT_UNICODE_H
#define MX_TEXT_UNICODE_H

#include "base/arena.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

enum {
    MX_UC_L = 1,       /* \p{L} */
    MX_UC_N = 2,       /* \p{N} */
    MX_UC_SPACE = 4,   /* \s: the White_Space property */
    MX_UC_M = 8,       /* \p{M} */
    MX_UC_P = 16,      /* \p{P} */
    MX_UC_S = 32,      /* \p{S} */
    MX_UC_UPPER = 64,  /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    MX_UC_LOWER = 128, /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
};

typedef struct {
    uint8_t ascii[128];
    uint8_t page[0x1100];
    uint8_t (*row)[256];
} mx_unicode;

void mx_unicode_init(mx_unicode *u, mx_arena *a);

static inline unsigned mx_uc_class(const mx_unicode *u, uint32_t cp)
{
    return cp < 0x80 ? u->ascii[cp] : u->row[u->page[cp >> 8]][cp & 0xFF];
}

/* Class of the character at p; *n is its length in bytes. */
static inline unsigned mx_uc_at(const mx_unicode *u, const uint8_t *p, int *n)
{
    if (*p < 0x80) {
        *n = 1;
        return u->ascii[*p];
    }
    uint32_t cp;
    *n = mx_utf8_next(p, &cp);
    return u->row[u->page[cp >> 8]][cp & 0xFF];
}

/* \w of UTS 18: alphabetic characters, marks, decimal digits, connectors, joiners. */
bool mx_uc_is_word(const mx_unicode *u, uint32_t cp);

/* The first `find` (k > 0 bytes) in p[0..n), or NULL. */
static inline const uint8_t *mx_find(const uint8_t *p, size_t n, const char *find, size_t k)
{
    const uint8_t *end = p + n;
    while (k && (size_t)(end - p) >= k && (p = memchr(p, find[0], (size_t)(end - p) - k + 1))) {
        if (memcmp(p, find, k) == 0)
            return p;
        p++;
    }
    return NULL;
}

/* What a text of n bytes may become by the rules of a tokenizer file. Unicode's own forms make it
 * 11 times as long at most; replacements that feed each other would double it at every step. */
static inline size_t mx_text_limit(size_t n)
{
    return 64 * n + (64 << 10);
}

typedef enum { MX_NFC, MX_NFD, MX_NFKC, MX_NFKD } mx_normal_form;
/* Appends the normal form of valid UTF-8. Linear time, however many marks follow one another. */
void mx_unicode_normalize(mx_normal_form form, const uint8_t *p, size_t n, mx_str *out);
/* Appends the simple lowercase (full mapping for U+0130, as in the reference libraries). */
void mx_unicode_lower(const uint8_t *p, size_t n, mx_str *out);

#endif
