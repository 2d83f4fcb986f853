/* notation.h - index notation parsed: see op.h for the grammar. */
#ifndef MX_IR_NOTATION_H
#define MX_IR_NOTATION_H

#include "ir/op.h"

typedef struct {
    int n_terms;            /* inputs and outputs together */
    int n_in;
    struct {
        bool unknown;       /* `-` */
        bool star;          /* has leading dims */
        int n;              /* letters after the star */
        char letter[MX_MAX_DIMS];
        bool whole[MX_MAX_DIMS];
    } term[MX_MAX_IN + MX_MAX_OUT];
} mx_notation;

/* False when the string is malformed. */
bool mx_notation_parse(const char *text, mx_notation *out);

/* Binds letters to the inputs' sizes and gives the outputs' shapes. False and a message in `why`
 * (of `cap` bytes) when sizes disagree. Absent inputs are NULL. */
bool mx_notation_infer(const mx_notation *n, const mx_type *const *in, int n_in, mx_type *out,
                       int n_out, char *why, size_t cap);

#endif
