/* key_accept.h - the `accept` column of a key (key.h): alternatives, spellings, what is not built.
 */
#ifndef MX_BASE_KEY_ACCEPT_H
#define MX_BASE_KEY_ACCEPT_H

#include "base/key.h"

typedef enum {
    MX_ACCEPT_NO,
    MX_ACCEPT_PLANNED, /* by an alternative marked `!` */
    MX_ACCEPT_YES,
} mx_accept;

enum { MX_ACCEPT_WORD = 64 }; /* bytes that hold any word of an `accept` */

mx_accept mx_accept_number(const mx_key *key, double v);
/* `word` gets the word that this spelling stands for. */
mx_accept mx_accept_word(const mx_key *key, const char *text, char word[MX_ACCEPT_WORD]);
/* The word that was meant by one that is not accepted; false when none is near. */
bool mx_accept_nearest(const mx_key *key, const char *text, char word[MX_ACCEPT_WORD]);
/* Whether some alternatives are marked `!`. */
bool mx_accept_has_planned(const mx_key *key);
/* "1 to 8 or 12", "cpu, cuda": the alternatives that are built, or those that are not. */
void mx_accept_describe(const mx_key *key, bool planned, mx_str *out);

#endif
