/* math_value.h - the value of an expression in LaTeX or plain, its variables at a few points. */
#ifndef MX_POST_MATH_VALUE_H
#define MX_POST_MATH_VALUE_H

#include <complex.h>
#include <stdbool.h>

enum { MX_MATH_POINTS = 3 };

/* False: the text is no expression that is understood. Texts have no spaces and no marks that only
 * typeset; of \infty the value is infinite. */
bool mx_math_value(const char *text, int point, double complex *out);

/* Are two values the same number, to six decimals? */
bool mx_math_same(double complex a, double complex b);

#endif
