/* notation.c - "*!d,!d->*!d" into shapes. */
#include "ir/notation.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { UNBOUND = -1 };

bool mx_notation_parse(const char *text, mx_notation *out)
{
    memset(out, 0, sizeof *out);
    out->n_terms = 1;
    bool whole = false, right = false;
    for (const char *p = text; *p; p++) {
        int t = out->n_terms - 1;
        bool first = !out->term[t].star && !out->term[t].n && !out->term[t].unknown;
        if (*p == ' ')
            continue;
        if (whole && !isalpha((unsigned char)*p))
            return false; /* `!` belongs to a letter */
        if (*p == ',' || (*p == '-' && p[1] == '>')) {
            if (*p == '-') {
                if (right)
                    return false;
                p++;
                right = true;
                out->n_in = out->n_terms;
            }
            if (++out->n_terms > MX_MAX_IN + MX_MAX_OUT)
                return false;
        } else if (*p == '-' && first) {
            out->term[t].unknown = true;
        } else if (*p == '*' && first) {
            out->term[t].star = true;
        } else if (*p == '!') {
            whole = true;
        } else if ((isalpha((unsigned char)*p) || *p == '1') && !out->term[t].unknown) {
            int k = out->term[t].n++;
            if (k >= MX_MAX_DIMS)
                return false;
            out->term[t].letter[k] = *p;
            out->term[t].whole[k] = whole;
            whole = false;
        } else {
            return false;
        }
    }
    return right && !whole;
}

/* Binds one input's dims; false and a reason when they contradict what is bound already. */
static bool bind(const mx_notation *n, int t, const mx_type *x, int64_t size[128], mx_shape *star,
                 bool *have_star, char *why, size_t cap)
{
    int lead = x->ndim - n->term[t].n;
    if (lead < 0 || (lead > 0 && !n->term[t].star)) {
        snprintf(why, cap, "input %d has %d dims, expected %s%d", t, x->ndim,
                 n->term[t].star ? "at least " : "", n->term[t].n);
        return false;
    }
    if (n->term[t].star) {
        mx_shape s = {.ndim = lead};
        memcpy(s.dim, x->dim, sizeof(int64_t) * (size_t)lead);
        bool same = s.ndim == star->ndim && memcmp(s.dim, star->dim, sizeof s.dim) == 0;
        if (*have_star && !same) {
            snprintf(why, cap, "leading dims of input %d differ from those of another input", t);
            return false;
        }
        *star = s;
        *have_star = true;
    }
    for (int k = 0; k < n->term[t].n; k++) {
        unsigned char c = (unsigned char)n->term[t].letter[k];
        int64_t have = x->dim[lead + k], want = size[c];
        if (want != UNBOUND && want != have) {
            snprintf(why, cap, "input %d has size %lld for '%c', expected %lld", t,
                     (long long)have, c, (long long)want);
            return false;
        }
        size[c] = have;
    }
    return true;
}

bool mx_notation_infer(const mx_notation *n, const mx_type *const *in, int n_in, mx_type *out,
                       int n_out, char *why, size_t cap)
{
    int64_t size[128];
    for (int c = 0; c < 128; c++)
        size[c] = UNBOUND;
    size['1'] = 1;
    mx_shape star = {0};
    bool have_star = false;
    for (int t = 0; t < n->n_in && t < n_in; t++)
        if (in[t] && !n->term[t].unknown &&
            !bind(n, t, in[t], size, &star, &have_star, why, cap))
            return false;
    for (int k = 0; k < n_out && n->n_in + k < n->n_terms; k++) {
        int t = n->n_in + k;
        if (n->term[t].unknown)
            continue;
        int lead = n->term[t].star ? star.ndim : 0;
        if (lead + n->term[t].n > MX_MAX_DIMS) {
            snprintf(why, cap, "output %d would have more than %d dims", k, MX_MAX_DIMS);
            return false;
        }
        out[k].ndim = lead + n->term[t].n;
        memcpy(out[k].dim, star.dim, sizeof(int64_t) * (size_t)lead);
        for (int j = 0; j < n->term[t].n; j++) {
            unsigned char c = (unsigned char)n->term[t].letter[j];
            /* A letter of the outputs alone: the op's infer gives the size. */
            out[k].dim[lead + j] = size[c] == UNBOUND ? 0 : size[c];
        }
    }
    return true;
}
