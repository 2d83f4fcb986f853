/* adamw8.h - moments of 8 bits (adamw.c): what the update and the pass that builds it share. */
#ifndef MX_OPS_ADAMW8_H
#define MX_OPS_ADAMW8_H

#include <stdbool.h>

enum { MX_ADAMW8_BLOCK = 256, MX_ADAMW8_CODES = 256 }; /* elements with one largest magnitude */

/* The numbers that codes stand for, ascending. */
void mx_adamw8_map(bool is_signed, double map[MX_ADAMW8_CODES]);

#endif
