/* json_tree.h - a fast, strict JSON reader for large documents that we only look at.
 *
 * A document becomes a tree of fixed-size nodes in the caller's arena; strings are unescaped in
 * place in one copy of the text, so reading costs one pass and almost no allocation. It accepts
 * exactly RFC 8259 with these choices: UTF-8 must be valid, lone surrogate escapes are errors,
 * duplicate member names are errors, integers that fit are exact int64 (larger ones become
 * doubles), nesting is at most 128 deep. Errors name the document and the byte offset. Documents
 * that will be changed or written go through jansson (json_doc.h) instead.
 *
 * Strings may contain NUL (from \u0000): use `n`. They are also NUL-terminated for the common case.
 */
#ifndef MX_BASE_JSON_TREE_H
#define MX_BASE_JSON_TREE_H

#include "base/arena.h"
#include "base/str.h"

typedef enum {
    MX_JSON_NULL,
    MX_JSON_BOOL,
    MX_JSON_INT,
    MX_JSON_REAL,
    MX_JSON_STRING,
    MX_JSON_ARRAY,
    MX_JSON_OBJECT,
} mx_json_type;

typedef struct mx_json_node mx_json_node;
struct mx_json_node {
    const char *key;          /* the member's name inside an object, else NULL */
    const mx_json_node *next; /* following element or member, else NULL */
    union {
        bool b;
        int64_t i;
        double d;
        const char *s;             /* n bytes */
        const mx_json_node *first; /* n elements or members */
    };
    const mx_json_node **index; /* hash of the members of a large object, else NULL */
    uint32_t n, key_len, at;    /* at: byte offset of the value in the text */
    mx_json_type type;
};

/* `where` names the document in errors. The text is copied and need not outlive the call. */
mx_status mx_json_tree_parse(const mx_json_node **out, mx_arena *a, const char *text, size_t n,
                             const char *where) MX_MUST_USE;
/* The same without the copy: the text is followed by 16 zero bytes (as mx_file_read gives it), is
 * changed, and must live as long as the tree. */
mx_status mx_json_tree_parse_in_place(const mx_json_node **out, mx_arena *a, char *text, size_t n,
                                      const char *where) MX_MUST_USE;
mx_status mx_json_tree_load(const mx_json_node **out, mx_arena *a, const char *path) MX_MUST_USE;

/* The member called `key`, or NULL (also when `object` is NULL or no object). O(1). */
const mx_json_node *mx_json_get(const mx_json_node *object, const char *key);
/* The member's value when it is there and of that type, else `other`. */
const char *mx_json_get_text(const mx_json_node *object, const char *key, const char *other);
int64_t mx_json_get_int(const mx_json_node *object, const char *key, int64_t other);
bool mx_json_get_bool(const mx_json_node *object, const char *key, bool other);
/* An INT or REAL as a double. */
double mx_json_number(const mx_json_node *v);
const char *mx_json_type_name(mx_json_type t); /* "an object", "a string", ... for messages */

/* Appends `text` as a JSON string with quotes. Bytes that are not UTF-8 become U+FFFD. */
void mx_json_add_string(mx_str *out, const char *text, size_t n);

#endif
