/* story.h - the built-in corpus: stories and sums, document i a pure function of (seed, i). */
#ifndef MX_DATA_STORY_H
#define MX_DATA_STORY_H

#include "base/str.h"

/* Appends document `index` of the corpus `seed` to `out`: some hundred bytes of ASCII, ending in a
 * newline. */
void mx_story_write(mx_str *out, uint64_t seed, uint64_t index);

#endif
