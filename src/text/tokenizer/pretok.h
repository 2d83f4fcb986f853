/* pretok.h - pre-tokenizers: cutting text into the words that the model sees, as a flat list of
 * steps.
 *
 * A step cuts a piece into smaller ones and hands each to the next step; the last step hands words
 * to the sink. Most steps are "find matches, then treat them by a behaviour" (Split and its
 * relatives); known patterns with the Isolated behaviour are lexers.
 */
#ifndef MX_TEXT_PRETOK_H
#define MX_TEXT_PRETOK_H

#include "text/tokenizer/lexer.h"
#include "text/tokenizer/regex.h"

typedef enum {
    MX_PRE_LEX,       /* a lexer, Isolated */
    MX_PRE_REGEX,     /* matches of `regex` */
    MX_PRE_STRING,    /* occurrences of `find` */
    MX_PRE_CLASS,     /* single characters of class `mask` (or ASCII punctuation) */
    MX_PRE_METASPACE, /* spaces become `find`, cut before each */
    MX_PRE_PREFIX,    /* a space before a piece that does not start with one */
    MX_PRE_LENGTH,    /* every `length` characters */
} mx_pre_kind;

typedef enum { MX_REMOVED, MX_ISOLATED, MX_WITH_PREVIOUS, MX_WITH_NEXT, MX_CONTIGUOUS } mx_behavior;
typedef enum { MX_PREPEND_ALWAYS, MX_PREPEND_FIRST, MX_PREPEND_NEVER } mx_prepend;

typedef struct {
    mx_pre_kind kind;
    mx_lex lex;
    mx_regex *regex;  /* owns */
    const char *find; /* borrowed */
    size_t n_find;
    unsigned mask;          /* MX_PRE_CLASS */
    bool ascii_punctuation; /* MX_PRE_CLASS: ASCII symbols count too */
    mx_behavior behavior;
    bool invert; /* matches and gaps change roles */
    mx_prepend prepend;
    bool split;
    int64_t length;
} mx_pre_step;

typedef struct {
    mx_pre_step *step; /* the arena's */
    int n;
} mx_pretok;

typedef struct {
    size_t start, end;
    bool match;
} mx_text_span;

typedef struct {
    mx_text_span *span; /* owns */
    size_t n, cap;
    mx_str text; /* owns: the rewritten piece of a step that changes it */
} mx_pre_buffer;

enum { MX_PRE_BATCH = 32 };
typedef struct mx_pre_run mx_pre_run;
struct mx_pre_run {
    const mx_pretok *pre;
    const mx_unicode *unicode;
    mx_regex_scratch *regex;
    mx_pre_buffer *buffer; /* one per step */
    bool gave_up;          /* a regular expression hit its limit */
    void *ctx;
    /* `end` is the end of readable memory. */
    void (*sink)(void *ctx, const uint8_t *word, size_t n, const uint8_t *end);
    /* The same for n <= MX_PRE_BATCH words in a row: word i ends at stop[i], where the next one
     * begins. NULL: there is only `sink`. */
    void (*sink_many)(void *ctx, const uint8_t *p, const uint8_t *const *stop, int n,
                      const uint8_t *end);
};

/* Cuts p[0..n) into words. `first`: the piece is at the start of the original text. */
void mx_pretok_run(mx_pre_run *r, const uint8_t *p, size_t n, const uint8_t *end, bool first);
void mx_pretok_fini(mx_pretok *p);

#endif
