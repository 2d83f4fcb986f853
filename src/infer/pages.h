/* pages.h - the pages of a key-value cache: who has them, and which of them hold a known prefix.
 *
 * A page holds the entries of `size` successive tokens. Entries depend on all tokens before them,
 * so a full page is known by the page before it and its own tokens: a chain. Its name is a number
 * that is never given twice; a page is looked up by (name of the page before, tokens), compared in
 * full, so that two prefixes are never taken for each other. Several sequences may hold one page;
 * one that none holds keeps its entries until the page is needed, the least recently used first.
 */
#ifndef MX_INFER_PAGES_H
#define MX_INFER_PAGES_H

#include "base/arena.h"

typedef struct mx_pages mx_pages;

/* The name that a chain begins with: 0, or a salt that keeps its pages from being shared with
 * others. */
typedef uint64_t mx_page_name;

mx_status mx_pages_open(mx_pages **out, int64_t n, int64_t size) MX_MUST_USE;
void mx_pages_close(mx_pages *p);
int64_t mx_pages_count(const mx_pages *p);
int64_t mx_pages_held(const mx_pages *p); /* by some sequence */

/* A page for one sequence, with nothing in it; -1: all are held. */
int32_t mx_pages_take(mx_pages *p);
void mx_pages_release(mx_pages *p, int32_t page);
/* The page that follows `before` with these tokens, held once more; -1: none. *name: its name. */
int32_t mx_pages_find(mx_pages *p, mx_page_name before, const int32_t *tokens, mx_page_name *name);
/* Page `page`, held by the caller, has been filled: it follows `before` with these tokens. Gives
 * the name to go on with, which is another page's where that is known as the same already. */
mx_page_name mx_pages_publish(mx_pages *p, int32_t page, mx_page_name before,
                              const int32_t *tokens);
/* The beginning of chains of one salt. */
mx_page_name mx_pages_salted(const char *salt, size_t n);

#endif
